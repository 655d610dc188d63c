"""A block is walked in pieces, from its end: their size changes neither a gradient nor a trace."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
import online
from foretrace.engine import pieces
from foretrace.engine.pieces import piece_steps, scan_back
from foretrace.rules import EProp, OSTLRecurrent, ThreeFactor
from foretrace.rules.d_rtrl import D_RTRL
from zoo.solved import STEPS, loss, solved

RAGGED = 3  # the first piece of seven steps is shorter than the other two
FILTERED = dict(kappa_filter_decay=0.8)
CASES = [
    ("recurrent LIF", D_RTRL()),
    ("marked LSTM, fused gates", D_RTRL()),
    ("delay line that feeds a neuron", D_RTRL()),
    ("marked embedding", D_RTRL()),
    ("projected LSTM", OSTLRecurrent()),
    ("recurrent LIF", EProp(**FILTERED)),
    ("recurrent LIF with delayed spikes", EProp(feedback="random", **FILTERED)),
    ("rolled state", EProp(**FILTERED)),
]


def gradient(name: str, rule: Any) -> Any:
    """The gradient of two blocks, so that the second one meets the trace of the first."""
    model = solved(name)
    *start, inputs = model.values
    online._walker.cache_clear()
    return online.walked_gradient(model.graph, rule, loss, *start, [*inputs, *inputs], block=STEPS)


@pytest.mark.parametrize(("name", "rule"), CASES, ids=lambda case: getattr(case, "name", case))
@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.slow), RAGGED])
def test_a_gradient_is_the_same_in_pieces(name: str, rule: Any, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = gradient(name, rule)
    monkeypatch.setattr("foretrace.rules.d_rtrl.piece_steps", lambda plan, length: size)
    for one, other in zip(gradient(name, rule), whole, strict=True):
        scale = max(1.0, float(np.max(np.abs(other), initial=0.0)))
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-12, atol=1e-12 * scale)


def lif(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
    fired = jnp.tanh(state["v"])
    current = 0.8 * state["i"] + jnp.concatenate([x, fired], axis=-1) @ params["w"]
    v = 0.9 * state["v"] + current - fired
    return {"v": v, "i": current}, (jnp.tanh(v) @ params["out"], jnp.argmax(v, axis=-1))


def learned(rule: Any, size: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The gradient and the carry of a step with an integer among its outputs, in one block of seven steps."""
    draw = np.random.default_rng(0).normal
    params = {"w": jnp.asarray(draw(size=(7, 4))), "out": jnp.asarray(draw(size=(4, 2)))}
    state = {"v": jnp.zeros((2, 4)), "i": jnp.zeros((2, 4))}
    xs, ys = jnp.asarray(draw(size=(7, 2, 3))), jnp.asarray(draw(size=(7, 2, 2)))
    external = None if rule.external is None else jnp.asarray(draw(size=(7, 2)))
    monkeypatch.setattr("foretrace.rules.d_rtrl.piece_steps", lambda plan, length: size)
    learner = ft.compile(lif, rule, xs[0], params=params, state=state, block=7)
    run = jax.jit(
        lambda params, xs, ys: learner.grad(
            params, learner.init(state), xs, ys, loss=lambda out, y: jnp.sum((out[0] - y) ** 2), external=external
        )[:2]
    )
    return run(params, xs, ys)


@pytest.mark.parametrize(
    "rule", [D_RTRL(), EProp(), EProp(**FILTERED), ThreeFactor()], ids=["D_RTRL", "EProp", "filtered", "ThreeFactor"]
)
def test_a_carry_is_the_same_in_pieces(rule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = learned(rule, 7, monkeypatch)
    for size in (1, 2, RAGGED):
        found = learned(rule, size, monkeypatch)
        assert jax.tree.structure(found) == jax.tree.structure(whole)
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(whole), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


def test_pieces_run_from_the_end_and_their_results_stand_in_order() -> None:
    seen = []

    def back(carry: Any, part: Any) -> tuple[Any, Any]:
        seen.append(len(part))
        return 10 * carry + part[-1], 2 * part

    carry, found = scan_back(back, jnp.zeros((), int), jnp.arange(7), 3)
    assert carry == 630  # the last steps of the pieces: 6, 3 and 0
    assert found.tolist() == [0, 2, 4, 6, 8, 10, 12]
    assert seen == [3, 1]  # the loop is traced once


@pytest.mark.parametrize(("length", "wanted"), [(40, 40), (400, 50), (397, 48)])
def test_a_piece_fits_the_cache_and_divides_a_block_where_it_can(
    length: int, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = ft.compile(
        lif, "D_RTRL", jnp.zeros((2, 3)), params={"w": jnp.zeros((7, 4)), "out": jnp.zeros((4, 2))},
        state={"v": jnp.zeros((2, 4)), "i": jnp.zeros((2, 4))},
    ).plan  # fmt: skip
    monkeypatch.setattr(pieces, "CACHED", 48 * math.prod((2, 4)) * jnp.zeros(()).dtype.itemsize)
    assert piece_steps(plan, length) == wanted
