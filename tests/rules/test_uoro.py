"""UORO: unbiased, by many draws, and never another result for another way of running."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from foretrace.engine.sequence import States
from foretrace.rules.uoro import UORO
from whole import (
    advance,
    agree,
    block_gradients,
    gradients_of_two,
    in_step_gradient,
    signalled,
    signals,
    small_rnn,
    whole_gradient,
)

DRAWS = 20_000


@functools.cache
def drawn() -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Gradients of a small RNN over four steps, and credits after them, for many keys; draws on the leading axis."""
    model, rule = small_rnn(batch=(), size=2), UORO()
    states = States(list(model.values[1]), list(model.values[2]))

    @jax.jit
    @jax.vmap
    def one(key: Any) -> Any:
        trace = rule.init(model.plan)._replace(key=key)
        found, _, trace = advance(model, rule, trace, list(model.values[0]), states, model.stacked)
        return found, rule.credit(model.plan, model.values[0], trace, signals(model))

    parts = [one(keys) for keys in jax.random.split(jax.random.key(7), DRAWS).reshape(-1, 1000)]
    gathered = jax.tree.map(lambda *arrays: np.concatenate(arrays), *parts)
    return gathered


def check_mean(samples: list[np.ndarray], expected: list[Any], without_past: list[Any]) -> None:
    """The mean is the expected gradient within four standard errors, and these are small enough to tell."""
    samples, whole, past = (
        np.concatenate([np.reshape(a, (*np.shape(a)[:lead], -1)) for a in arrays], axis=-1)
        for arrays, lead in ((samples, 1), (expected, 0), (without_past, 0))
    )
    error = samples.std(axis=0, ddof=1) / np.sqrt(len(samples))
    assert np.all(np.abs(samples.mean(axis=0) - whole) <= 4 * error + 1e-12)
    assert np.max(error) < 0.03 * np.max(np.abs(whole))
    assert np.max(np.abs(whole - past)) > 10 * np.max(error)


def test_the_mean_gradient_is_that_of_bptt() -> None:
    model = small_rnn(batch=(), size=2)
    check_mean(drawn()[0], model.whole, in_step_gradient(model))


def test_the_mean_credit_is_that_of_reverse_mode() -> None:
    model = small_rnn(batch=(), size=2)
    expected = signalled(model)
    check_mean(drawn()[1], expected, [0 * g for g in expected])


def test_blocks_change_nothing() -> None:
    model = small_rnn()
    for found in block_gradients(model, UORO(), [1, 3]):
        agree(found, whole_gradient(model, UORO()))


def test_maps_over_parameter_sets() -> None:
    agree(*gradients_of_two(small_rnn(), UORO()))


def test_a_readout_keeps_its_exact_gradient() -> None:
    model = small_rnn()
    agree(whole_gradient(model, UORO())[1:2], model.whole[1:2])


def test_seed_key_and_raw_key_draw_the_same() -> None:
    plan = small_rnn().plan
    keys = [UORO(given).init(plan).key for given in (3, jax.random.key(3), jax.random.PRNGKey(3), 4)]
    assert [bool(jnp.all(key == keys[0])) for key in keys] == [True, True, True, False]


def test_zero_lengths_are_no_trouble() -> None:
    model = small_rnn()
    assert all(np.all(np.isfinite(g)) for g in whole_gradient(model, UORO(), [0 * p for p in model.values[0]]))


def test_single_precision_stays_single() -> None:
    found = whole_gradient(small_rnn(jnp.float32), UORO())
    assert {g.dtype for g in found} == {np.dtype(np.float32)}


def test_refuses_an_eps_that_guards_nothing() -> None:
    with pytest.raises(ValueError, match="`projection_eps`"):
        UORO(projection_eps=0.0)
