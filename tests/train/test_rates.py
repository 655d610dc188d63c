"""Firing rates are pulled to their target by every rule, with the derivative that the cost has."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import foretrace as ft
from foretrace import train
from foretrace.train.losses import Beside, Rates, StepLoss, pull_of, rate_cost, rates_of, take_readout, take_spikes
from train.small_task import BATCH, TASK, fit

NET = train.network("LIF", n_inputs=2, n_outputs=1, n_hidden=6, threshold=2.0, refractory=0.0)


def rate_after(learner: Any, target: float, **options: Any) -> float:
    result = fit(
        learner, optax.adam(3e-2), params=NET.params, iterations=40, rate_target=target, rate_cost=300.0, **options
    )
    return float(np.mean([record["rate"] for record in result.metrics[-5:]]))


def test_rates_move_to_the_target() -> None:
    learner = NET.compile("D_RTRL", BATCH)
    before = fit(learner, optax.sgd(0.0), params=NET.params, iterations=1).metrics[0]["rate"]
    assert 50 < before < 400
    assert rate_after(learner, 0.0) < 0.7 * before
    assert rate_after(learner.with_rule("BPTT"), 600.0, update_every=6, rate_memory=0.5) > 1.3 * before


def test_derivative_is_that_of_the_cost() -> None:
    rng = np.random.default_rng(0)
    dt, steps = 2.0, 5
    spikes = jnp.asarray(rng.random((steps, BATCH, 3)) < 0.3, float)
    rates = Rates(target=0.05, cost=3.0, memory=0.0)
    estimate = rates_of(jnp.mean(spikes, axis=1), dt)
    loss = StepLoss(TASK, take_readout, take_spikes)
    beside = Beside(jnp.zeros((steps, BATCH, 1)), jnp.zeros((steps, BATCH)), pull_of(rates, estimate, steps, dt))

    def online(spikes: Any) -> Any:
        out = {"out": jnp.zeros((steps, BATCH, 1)), "spikes": spikes}
        return jnp.sum(jax.vmap(loss)(out, beside)[0])

    whole = lambda spikes: rate_cost(rates, rates_of(jnp.mean(spikes, axis=1), dt))
    np.testing.assert_allclose(jax.grad(online)(spikes), jax.grad(whole)(spikes), rtol=1e-12)


def test_estimate_and_reported_losses() -> None:
    learner = NET.compile("D_RTRL", BATCH)
    options: dict[str, Any] = dict(params=NET.params, rate_target=50.0, rate_cost=100.0, rate_memory=0.75)
    result = fit(learner, optax.sgd(0.0), iterations=2, **options)
    first, second = (record["rate"] for record in result.metrics)
    estimated = 0.75 * (0.75 * 50.0 + 0.25 * first) + 0.25 * second
    assert 1000 * float(jnp.mean(result.state.rates)) == pytest.approx(estimated)
    for record in result.metrics:
        assert record["loss"] == pytest.approx(record["error"], rel=1e-9)  # the task's loss alone
        assert record["rate_loss"] > 0


def test_spikes_of_ones_own() -> None:
    def step(params: Any, state: Any, x: Any) -> Any:
        state = 0.5 * state + x @ params
        return state, (state[:, :1], state > 0)

    own = dict(readout=lambda out: out[0], spikes=lambda out: out[1].astype(float))
    given = dict(params=jnp.ones((2, 3)), state=jnp.zeros((BATCH, 3)))
    result = fit(ft.compile(step, "BPTT", jnp.ones((BATCH, 2)), **given), iterations=1, **given, **own)
    assert 0 < result.metrics[0]["rate"] < 1000
