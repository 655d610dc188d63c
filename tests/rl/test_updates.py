"""Updates and scales against a few lines of NumPy."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from foretrace import rl
from foretrace.rl.scaling import Moments, Returns
from foretrace.rl.updates import Ascent


@pytest.mark.parametrize("size", [0.01, 1.0, 100.0])
def test_bounded_steps_are_those_of_the_recursion(size: float) -> None:
    rng = np.random.default_rng(0)
    w, traces = rng.normal(size=5), [np.zeros(5), np.zeros(5)]
    ours, z = jnp.asarray(w), rl.Eligibility(jnp.zeros(5), jnp.zeros(5))
    for _ in range(20):
        delta, gradients = rng.normal() * 3, size * rng.normal(size=(2, 5))
        for k, kappa in enumerate((3.0, 2.0)):
            traces[k] = 0.99 * 0.8 * traces[k] + gradients[k]
            bound = 0.5 * kappa * max(abs(delta), 1.0) * np.abs(traces[k]).sum()
            w = w + min(0.5, 0.5 / bound) * delta * traces[k]
        z = rl.Eligibility(*(0.99 * 0.8 * old + g for old, g in zip(z, gradients, strict=True)))
        ours, _ = rl.ObGD(learning_rate=0.5).update(ours, (), delta, z)
    np.testing.assert_allclose(ours, w, rtol=1e-12)


def test_optax_steps_go_along_both_parts() -> None:
    z = rl.Eligibility(jnp.array([1.0, 0.0]), jnp.array([0.0, 2.0]))
    update = Ascent(optax.sgd(0.1), critic_weight=0.25)
    params, _ = update.update(jnp.zeros(2), update.init(jnp.zeros(2)), 3.0, z)
    np.testing.assert_allclose(params, [0.3, 0.15])


def test_moments_are_those_of_all_values() -> None:
    values = np.random.default_rng(1).normal(3.0, 2.0, size=(50, 4))
    moments = Moments.of((4,), jnp.float64)
    for value in values:
        moments = moments.seen(value)
    np.testing.assert_allclose(moments.mean, values.mean(0))
    np.testing.assert_allclose(moments.deviation, values.std(0, ddof=1), rtol=1e-7)


def test_rewards_are_scaled_by_the_return() -> None:
    rewards, ended = np.random.default_rng(2).normal(size=30), np.arange(30) % 7 == 6
    returns, total, sums = Returns.none(jnp.float64), 0.0, []
    for reward, end in zip(rewards, ended, strict=True):
        scaled, returns = returns.scaled(reward, end, 0.9)
        total = 0.9 * total + reward
        sums.append(total)
        total = 0.0 if end else total
        deviation = np.std(sums, ddof=1) if len(sums) > 1 else 1.0
        np.testing.assert_allclose(scaled, reward / deviation, rtol=1e-6)
