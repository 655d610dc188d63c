"""A new state that is an operator's output, or a parameter: what the table of models cannot say."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from foretrace.rules.d_rtrl import D_RTRL
from online import online_gradient
from oracle import Oracle, bptt
from zoo.solved import BY_NAME, loss


def values_of(graph: ft.ETraceGraph, params: Any, state: Any, xs: Any) -> tuple[Any, ...]:
    info = graph.module_info
    return info.flatten_params(params), *info.flatten_state(state), [info.flatten_inputs(x) for x in xs]


def test_a_parameter_that_is_the_next_state_has_its_whole_gradient() -> None:
    def step(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
        h = jnp.tanh(0.5 * state["h"] + x * params["gain"]) + state["bias"]
        return {"h": h, "bias": params["bias"]}, h * params["bias"]

    generator = np.random.default_rng(0)
    params = {name: jnp.asarray(generator.normal(size=4)) for name in ("gain", "bias")}
    state = {name: jnp.asarray(generator.normal(size=4)) for name in ("h", "bias")}
    graph = ft.compile_etrace_graph(step, state["h"], params=params, state=state)
    values = values_of(graph, params, state, jnp.asarray(generator.normal(size=(6, 4))))
    found = online_gradient(graph, D_RTRL(), loss, *values, block=4)
    for one, other, whole in zip(found, Oracle(graph, loss).gradient(*values), bptt(graph, loss, *values), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10)
        np.testing.assert_allclose(one, whole, rtol=1e-10)


@pytest.mark.parametrize("name", ["LIF that keeps its current", "projected LSTM"])
def test_a_batch_has_the_gradient_of_its_elements(name: str) -> None:
    parts = BY_NAME[name].build()
    step, params, state = parts["step"], parts["params"], parts["state"]
    xs = jnp.asarray(np.random.default_rng(1).normal(size=(5, *parts["x"].shape)))

    def gradient(state: Any, xs: Any) -> Any:
        learner = ft.compile(step, "D_RTRL", xs[0], params=params, state=state, block=2)
        return jax.jit(lambda: learner.grad(params, learner.init(state), xs, loss=lambda out: jnp.sum(out**2))[0])()

    alone = [gradient(jax.tree.map(lambda a, k=k: a[k : k + 1], state), xs[:, k : k + 1]) for k in range(xs.shape[1])]
    for weight, whole in gradient(state, xs).items():
        np.testing.assert_allclose(whole, sum(part[weight] for part in alone), rtol=1e-10, atol=1e-12)
