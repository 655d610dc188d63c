"""Lookups in a table of parameters: the traces they need, and one sample against many."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from foretrace.engine.plan import make_plan

ROWS, UNITS = 7, 5


def step(params: Any, v: Any, token: Any) -> tuple[Any, Any]:
    v = jax.nn.sigmoid(params["a"]) * v + params["table"][token]
    return v, v


def squares(out: Any) -> Any:
    return jnp.sum((out - 1.0) ** 2)


def test_a_single_sample_and_a_batch_of_one_agree() -> None:
    generator = np.random.default_rng(0)
    params = {"a": jnp.ones(UNITS), "table": jnp.asarray(generator.normal(size=(ROWS, UNITS)))}
    tokens, v = jnp.asarray(generator.integers(ROWS, size=9)), jnp.zeros(UNITS)
    one = ft.compile(step, "D_RTRL", tokens[0], params=params, state=v)
    many = ft.compile(jax.vmap(step, (None, 0, 0)), "D_RTRL", tokens[:1], params=params, state=v[None])
    single = one.grad(params, one.init(v), tokens, loss=squares)[0]["table"]
    batch = many.grad(params, many.init(v[None]), tokens[:, None], loss=squares)[0]["table"]
    np.testing.assert_allclose(single, batch, rtol=1e-12)


@pytest.mark.parametrize("order", [np.arange(128), np.arange(128)[::-1]], ids=["in order", "backwards"])
def test_a_lookup_by_row_and_token_keeps_one_value_for_each_element_and_sample(order: np.ndarray) -> None:
    batch, units, size = 16, 128, 50

    def looked_up(params: Any, v: Any, token: Any) -> tuple[Any, Any]:
        v = 0.9 * v + params["table"][order, token[:, None]]
        return v, v

    params, tokens = {"table": jnp.ones((units, size))}, jnp.zeros(batch, int)
    graph = ft.compile_etrace_graph(looked_up, tokens, params=params, state=jnp.zeros((batch, units)))
    (link,) = make_plan(graph).links
    assert int(np.prod(link.trace_shape)) == batch * units * size
