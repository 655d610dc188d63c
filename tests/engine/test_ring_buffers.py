"""Delays by a ring buffer with a pointer: history is kept exactly, whatever the length of the ring."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from foretrace.program.diagnostics import DiagnosticKind

BATCH, INPUT, UNITS = 2, 3, 4


def delayed(places: int) -> Any:
    """A neuron that hears its own potential again after as many steps as the ring has places."""

    def step(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
        p = state["p"]
        v = 0.7 * state["v"] + 0.4 * state["ring"][p] + x @ params["w"]
        return {"v": v, "ring": state["ring"].at[p].set(jnp.tanh(v)), "p": (p + 1) % places}, v

    return step


def rolled(places: int) -> Any:
    """The same without a pointer: a line that is shifted."""

    def step(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
        v = 0.7 * state["v"] + 0.4 * state["line"][-1] + x @ params["w"]
        return {"v": v, "line": jnp.roll(state["line"], 1, axis=0).at[0].set(jnp.tanh(v))}, v

    return step


def drawn(places: int, *batch: int, steps: int = 0) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    params = {"w": jnp.asarray(rng.normal(size=(INPUT, UNITS)))}
    ring, v = (jnp.asarray(rng.normal(size=shape)) for shape in ((places, *batch, UNITS), (*batch, UNITS)))
    xs = jnp.asarray(rng.normal(size=(steps or 3 * places, *batch, INPUT)))
    return params, {"ring": ring, "v": v, "p": jnp.asarray(0)}, xs


def loss(out: Any) -> Any:
    return jnp.sum((out - 0.3) ** 2)


def gradient(step: Any, params: Any, state: Any, xs: Any, rule: str = "D_RTRL", **options: Any) -> Any:
    learner = ft.compile(step, rule, xs[0], params=params, state=state, **options)
    return jax.jit(lambda p: learner.grad(p, learner.init(state), xs, loss=loss)[0]["w"])(params)


def backpropagated(step: Any, params: Any, state: Any, xs: Any) -> Any:
    def total(params: Any) -> Any:
        return jnp.sum(jax.vmap(loss)(jax.lax.scan(lambda s, x: step(params, s, x), state, xs)[1]))

    return jax.grad(total)(params)["w"]


@pytest.mark.parametrize(("places", "block"), [(2, 1), (5, 4), (9, 7), pytest.param(24, None, marks=pytest.mark.slow)])
def test_d_rtrl_is_exact(places: int, block: int | None) -> None:
    params, state, xs = drawn(places, BATCH)
    found = gradient(delayed(places), params, state, xs, block=block)
    np.testing.assert_allclose(found, backpropagated(delayed(places), params, state, xs), rtol=1e-10)


@pytest.mark.parametrize(
    ("rule", "options"), [("pp_prop", {"decay_or_rank": 0.8}), ("EProp", {"kappa_filter_decay": 0.5})]
)
def test_a_ring_and_a_line_that_is_shifted_are_worth_the_same(rule: str, options: Any) -> None:
    params, state, xs = drawn(8, BATCH)
    line = {"v": state["v"], "line": state["ring"][::-1]}
    one = gradient(delayed(8), params, state, xs, rule, **options)
    np.testing.assert_allclose(one, gradient(rolled(8), params, line, xs, rule, **options), rtol=1e-10)


def test_one_sample_at_a_time_adds_up_to_the_batch() -> None:
    params, state, xs = drawn(4, BATCH)
    axes = {"ring": 1, "v": 0, "p": None}
    learner = ft.compile(
        delayed(4), "D_RTRL", xs[0, 0], params=params, state={**state, "ring": state["ring"][:, 0], "v": state["v"][0]}
    )
    one = lambda s, x: learner.grad(params, learner.init(s), x, loss=loss)[0]["w"]
    each = jax.jit(jax.vmap(one, (axes, 1)))(state, xs)
    np.testing.assert_allclose(each.sum(0), gradient(delayed(4), params, state, xs), rtol=1e-10)


def test_a_ring_that_is_too_long_is_said_to_be() -> None:
    params, state, xs = drawn(65, steps=2)
    graph = ft.compile_etrace_graph(delayed(65), xs[0], params=params, state=state)
    assert {p.history.value for p in graph.parameters} == {"direct"}

    def written(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
        ring = state["ring"].at[state["p"]].set(x @ params["w"])
        return {"ring": ring, "p": (state["p"] + 1) % 65}, ring[state["p"]]

    rest = {"ring": state["ring"], "p": state["p"]}
    graph = ft.compile_etrace_graph(written, xs[0], params=params, state=rest)
    (record,) = graph.explain(kind=DiagnosticKind.RELATION_EXCLUDED_INDEX_BY_DATA)
    assert "more than 64 positions" in record.message


def test_a_lookup_of_a_projection_by_a_token_keeps_its_history() -> None:
    def step(params: Any, v: Any, given: Any) -> tuple[Any, Any]:
        x, token = given
        rows = (x @ params["w"]).reshape(BATCH, 2, 2)
        v = 0.8 * v + rows[:, token]
        return v, jnp.tanh(v)

    params, _, xs = drawn(2, BATCH)
    inputs = xs, jnp.arange(len(xs)) % 2
    learner = ft.compile(step, "D_RTRL", (xs[0], inputs[1][0]), params=params, state=jnp.zeros((BATCH, 2)))
    start = learner.init(jnp.zeros((BATCH, 2)))
    found = jax.jit(lambda p: learner.grad(p, start, inputs, loss=loss)[0]["w"])(params)
    np.testing.assert_allclose(found, backpropagated(step, params, jnp.zeros((BATCH, 2)), inputs), rtol=1e-10)
