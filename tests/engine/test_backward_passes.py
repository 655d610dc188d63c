"""Backward passes of the user's own that are not linear in their cotangents, against the dense oracle."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from foretrace.rules import D_RTRL, pp_prop
from online import online_gradient
from oracle import Oracle, bptt
from zoo.solved import loss

STEPS, BATCH, INPUT, HIDDEN = 6, 2, 3, 4


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def clip_gradient(low: float, high: float, x: Any) -> Any:
    return x


clip_gradient.defvjp(lambda low, high, x: (x, None), lambda low, high, _, g: (jnp.clip(g, low, high),))
clip = functools.partial(clip_gradient, -0.1, 0.1)


@jax.custom_vjp
def straight_through(v: Any) -> Any:
    return 0.3 * jnp.round(3.0 * v)


straight_through.defvjp(lambda v: (straight_through(v), v), lambda v, g: (g / (1.0 + v**2),))


def lif(decay: Callable, current: Callable, weight: Callable, new: Callable, out: Callable) -> Callable[..., Any]:
    """Two states and a readout, with a function at each place where a backward pass may stand."""

    def step(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
        i = 0.8 * state["i"] + current(x @ weight(params["w"]))
        v = 0.9 * decay(state["v"]) + jnp.tanh(new(i)) + params["b"]
        return {"i": i, "v": v}, out(v) @ params["w_out"]

    return step


def same(v: Any) -> Any:
    return v


PLACES = ("decay", "current", "weight", "new", "out")
CLIPPED = {place: lif(**{**dict.fromkeys(PLACES, same), place: clip}) for place in PLACES}
LINEAR = {place: lif(**{**dict.fromkeys(PLACES, same), place: straight_through}) for place in PLACES}


@functools.cache
def solved(step: Callable[..., Any]) -> tuple[ft.ETraceGraph, tuple[Any, ...]]:
    rng = np.random.default_rng(0)
    shapes = {"w": (INPUT, HIDDEN), "b": (HIDDEN,), "w_out": (HIDDEN, 2)}
    params = {name: jnp.asarray(rng.normal(size=shape)) for name, shape in shapes.items()}
    state = {name: jnp.asarray(rng.normal(size=(BATCH, HIDDEN))) for name in "iv"}
    xs = jnp.asarray(rng.normal(size=(STEPS, BATCH, INPUT)))
    graph = ft.compile_etrace_graph(step, xs[0], params=params, state=state)
    info = graph.module_info
    return graph, (info.flatten_params(params), *info.flatten_state(state), [info.flatten_inputs(x) for x in xs])


def agree(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("place", PLACES)
def test_a_clipped_gradient_equals_the_oracle_in_blocks_of_any_size(place: str) -> None:
    graph, values = solved(CLIPPED[place])
    expected = Oracle(graph, loss).gradient(*values)
    for block in (1, 4):
        agree(online_gradient(graph, D_RTRL(), loss, *values, block=block), expected)


@pytest.mark.parametrize("place", ["decay", "weight", "new"])
def test_a_linear_backward_pass_is_followed_as_bptt_follows_it(place: str) -> None:
    graph, values = solved(LINEAR[place])
    assert {parameter.history.value for parameter in graph.parameters} == {"all", "none-needed"}
    agree(online_gradient(graph, D_RTRL(), loss, *values, block=4), bptt(graph, loss, *values))


def test_a_readout_behind_a_clipped_gradient_loses_nothing() -> None:
    graph, values = solved(CLIPPED["out"])
    agree(online_gradient(graph, D_RTRL(), loss, *values, block=4), bptt(graph, loss, *values))


@pytest.mark.parametrize(("place", "rule"), [*((place, D_RTRL()) for place in PLACES), ("new", pp_prop(0.9))])
def test_the_first_step_equals_bptt(place: str, rule: Any) -> None:
    graph, (params, hidden, other, inputs) = solved(CLIPPED[place])
    found = online_gradient(graph, rule, loss, params, hidden, other, inputs[:1])
    agree(found, bptt(graph, loss, params, hidden, other, inputs[:1]))
