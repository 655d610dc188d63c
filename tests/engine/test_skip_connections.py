"""A skip connection between two layers makes them one group, and takes no credit away from the first."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft

UNITS, BATCH, STEPS = 6, 2, 8


def stacked(skip: float | None) -> Callable[..., Any]:
    """Two layers; None for no skip connection at all."""

    def step(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
        a = 0.8 * state["a"] + x @ params["w"]
        b = 0.7 * state["b"] + jnp.tanh(a) @ params["w_up"] + (0.0 if skip is None else skip * a)
        return {"a": a, "b": b}, b @ params["w_out"]

    return step


def gradient(skip: float | None, rule: str = "D_RTRL", **options: Any) -> tuple[ft.ETraceGraph, Any]:
    rng = np.random.default_rng(0)
    shapes = {"w": (3, UNITS), "w_up": (UNITS, UNITS), "w_out": (UNITS, 2)}
    params = {name: jnp.asarray(rng.normal(size=shape)) / np.sqrt(shape[0]) for name, shape in shapes.items()}
    state = {name: jnp.zeros((BATCH, UNITS)) for name in "ab"}
    xs = jnp.asarray(rng.normal(size=(STEPS, BATCH, 3)))
    learner = ft.compile(stacked(skip), rule, xs[0], params=params, state=state, **options)
    run = jax.jit(lambda: learner.grad(params, learner.init(state), xs, loss=lambda out: jnp.sum((out - 1.0) ** 2))[0])
    return learner.graph, run()


@pytest.mark.parametrize("options", [{"block": 1}, {"block": 3}])
def test_a_skip_of_almost_nothing_changes_almost_nothing(options: dict[str, Any]) -> None:
    (two, plain), (one, skipping) = gradient(None, **options), gradient(1e-12, **options)
    assert [len(graph.hidden_groups) for graph in (two, one)] == [2, 1]
    for name in plain:
        np.testing.assert_allclose(skipping[name], plain[name], rtol=1e-9, atol=1e-9)


def test_layers_in_one_group_through_mixing_alone_are_not_coupled() -> None:
    def step(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
        a = 0.8 * state["a"] + x @ params["w"]
        b = 0.7 * state["b"] + a @ params["w_up"] + 0.1 * state["a"]
        return {"a": a, "b": b}, b

    params = {"w": jnp.ones((3, UNITS)), "w_up": jnp.ones((UNITS, UNITS))}
    state = {name: jnp.zeros((BATCH, UNITS)) for name in "ab"}
    graph = ft.compile_etrace_graph(step, jnp.ones((BATCH, 3)), params=params, state=state)
    assert [group.coupled for group in graph.hidden_groups] == [False]
