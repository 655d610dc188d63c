"""Which backward passes are known to be linear in their cotangents, and what is said of the others."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import foretrace as ft
from foretrace.compiler.backward import nonlinear_calls

SHAPE = (2, 3)


def with_backward(backward: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    """A function of one array with this backward pass, of the array and the cotangent."""

    @jax.custom_vjp
    def function(v: Any) -> Any:
        return jnp.sin(v)

    function.defvjp(lambda v: (jnp.sin(v), v), lambda v, g: (backward(v, g),))
    return function


def scanned(step: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda v, g: jax.lax.scan(lambda carry, row: (step(carry, row), carry), jnp.zeros(3), g)[1] * v


LINEAR: dict[str, Callable[[Any, Any], Any]] = {
    "surrogate": lambda v, g: g / (1.0 + jnp.abs(v)) ** 2,
    "straight through": lambda v, g: g,
    "nothing": lambda v, g: jnp.zeros_like(g),
    "where the value says": lambda v, g: jnp.where(jnp.abs(v) < 1.0, g, 0.0),
    "window, by a product": lambda v, g: g * (v > 0.0),
    "sums and products of matrices": lambda v, g: (g @ v.T) @ jnp.ones(SHAPE) - jnp.sum(g, 0),
    "relabelled": lambda v, g: jnp.roll(jnp.concatenate([g[1:], -g[:1]]), 1, axis=-1),
    "padded": lambda v, g: jnp.pad(g[:, 1:], ((0, 0), (1, 0))),
    "put into zeros": lambda v, g: jnp.zeros_like(g).at[0].set(g[1]),
    "other precision": lambda v, g: g.astype(jnp.float32).astype(g.dtype),
    "jit": lambda v, g: jax.jit(lambda a: 2.0 * a + a)(g),
    "derivative by JAX": lambda v, g: jax.vjp(jnp.tanh, v)[1](g)[0],
    "branches": lambda v, g: jax.lax.cond(v[0, 0] > 0.0, lambda a: 2.0 * a, lambda a: a - jnp.flip(a), g),
    "scan": scanned(lambda carry, row: 0.5 * carry + row),
}
OTHER: dict[str, Callable[[Any, Any], Any]] = {
    "clipped": lambda v, g: jnp.clip(g, -1.0, 1.0),
    "sign": lambda v, g: jnp.sign(g),
    "normalised": lambda v, g: g / (1e-6 + jnp.linalg.norm(g)),
    "squared": lambda v, g: g * g,
    "denominator": lambda v, g: v / (1.0 + g),
    "where the cotangent says": lambda v, g: jnp.where(g > 0.0, g, 0.0),
    "something added": lambda v, g: g + 0.1 * v,
    "something constant": lambda v, g: jnp.ones_like(g),
    "rounded to a whole number": lambda v, g: g.astype(int).astype(g.dtype),
    "clipped inside of a jit": lambda v, g: jax.jit(lambda a: jnp.minimum(a, 1.0))(g),
    "branches by the cotangent": lambda v, g: jax.lax.cond(jnp.sum(g) > 0.0, lambda a: 2.0 * a, lambda a: a, g),
    "clipped in a scan": scanned(lambda carry, row: jnp.tanh(carry) + row),
}


def nonlinear(backward: Callable[[Any, Any], Any]) -> bool:
    (eqn,) = jax.make_jaxpr(with_backward(backward))(jnp.ones(SHAPE)).eqns
    return bool(list(nonlinear_calls(eqn)))


@pytest.mark.parametrize("name", LINEAR)
def test_linear(name: str) -> None:
    assert not nonlinear(LINEAR[name])


@pytest.mark.parametrize("name", OTHER)
def test_not_linear(name: str) -> None:
    assert nonlinear(OTHER[name])


def test_each_operand_is_told_by_itself() -> None:
    @jax.custom_vjp
    def product(v: Any, w: Any) -> Any:
        return v * w

    product.defvjp(lambda v, w: (v * w, (v, w)), lambda both, g: (jnp.sign(g) * both[1], g * both[0]))
    (eqn,) = jax.make_jaxpr(product)(jnp.ones(SHAPE), jnp.ones(SHAPE)).eqns
    assert [operands for _, operands in nonlinear_calls(eqn)] == [{0}]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def clip_gradient(low: float, high: float, x: Any) -> Any:
    return x


clip_gradient.defvjp(lambda low, high, x: (x, None), lambda low, high, _, g: (jnp.clip(g, low, high),))
clip = functools.partial(clip_gradient, -0.1, 0.1)


def compiled(update: Callable[..., Any], read: Callable[[Any], Any] = lambda h: h) -> ft.ETraceGraph:
    def step(params: Any, h: Any, x: Any) -> tuple[Any, Any]:
        h = update(params["w"], h, x)
        return h, read(h)

    return ft.compile_etrace_graph(step, jnp.ones(SHAPE), params={"w": jnp.ones((3, 4))}, state=jnp.ones((2, 4)))


def warnings(graph: ft.ETraceGraph) -> list[str]:
    return [
        d.message for d in graph.diagnostics if d.kind.value == "backward_not_linear" and d.level.value == "warning"
    ]


@pytest.mark.parametrize(
    ("update", "history"),
    [
        (lambda w, h, x: 0.9 * clip(h) + x @ w, "direct"),
        (lambda w, h, x: 0.9 * h + clip(x @ w), "in-step"),
        (lambda w, h, x: 0.9 * h + x @ clip(w), "direct"),
        (lambda w, h, x: jax.lax.fori_loop(0, 40, lambda _, a: 0.9 * clip(a) + 0.1 * a, h) + x @ w, "direct"),
    ],
    ids=["between states", "before the state", "in making the weight", "in a loop"],
)
def test_the_history_says_that_it_is_not_all_and_a_warning_says_why(update: Callable[..., Any], history: str) -> None:
    graph = compiled(update)
    assert graph.parameters[0].history.value == history
    (said,) = warnings(graph)
    assert "`clip_gradient`" in said
    assert "test_backward.py" in said


@pytest.mark.parametrize(
    "graph",
    [
        lambda: compiled(lambda w, h, x: 0.9 * h + x @ w, clip),
        lambda: compiled(lambda w, h, x: 0.9 * h + clip(x) @ w),
        lambda: compiled(lambda w, h, x: 0.9 * h + with_backward(LINEAR["surrogate"])(x @ w)),
    ],
    ids=["in the readout", "of the input", "linear"],
)
def test_where_no_history_runs_through_it_nothing_is_lost(graph: Callable[[], ft.ETraceGraph]) -> None:
    made = graph()
    assert made.parameters[0].history.value == "all"
    assert not warnings(made)
