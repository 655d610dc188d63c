"""Complex states and parameters: the gradients of the same model written in real numbers, in JAX's convention."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft

STEPS, BATCH, INPUT, UNITS, OUT = 10, 2, 3, 4, 2
RULES = [
    ("D_RTRL", {}),
    ("pp_prop", {"decay_or_rank": 0.8}),
    ("RTRL", {}),
    pytest.param("OSTL_Recurrent", {}, marks=pytest.mark.slow),
    pytest.param("hybrid", {"decay_or_rank": 0.9}, marks=pytest.mark.slow),
    pytest.param("EProp", {}, marks=pytest.mark.slow),
    pytest.param("UORO", {}, marks=pytest.mark.slow),
]


def joined(values: Any) -> Any:
    """Pairs of real arrays as complex ones, the rest as it is."""
    return {k: jax.lax.complex(*v) if isinstance(v, tuple) else v for k, v in values.items()}


def lru(params: Any, h: Any, x: Any) -> tuple[Any, Any]:
    """The linear recurrent unit as people write it."""
    decay = jnp.exp(-jnp.exp(params["nu"]) + 1j * jnp.exp(params["theta"]))
    gamma = jnp.sqrt(1.0 - jnp.abs(decay) ** 2)
    h = decay * h + gamma * (x @ params["B"])
    return h, jnp.real(h @ params["C"]) + x @ params["D"]


def modulus(params: Any, h: Any, x: Any) -> tuple[Any, Any]:
    """A recurrent network with a function of the modulus, which is not holomorphic, and a leak of the conjugate."""
    z = h @ params["U"] + x @ params["B"]
    h = (0.5 + 0.2j) * h + 0.3 * jnp.conj(h) + z / (1.0 + jnp.abs(z) ** 2)
    return h, jnp.abs(h) ** 2 @ params["D"]


def modulus_in_reals(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
    a, b = state
    (u, v), (c, d) = params["U"], params["B"]
    p, q = a @ u - b @ v + x @ c, a @ v + b @ u + x @ d
    size = 1.0 + p**2 + q**2
    a, b = 0.8 * a - 0.2 * b + p / size, 0.2 * b + 0.2 * a + q / size
    return (a, b), (a**2 + b**2) @ params["D"]


def drawn() -> tuple[Callable[..., jax.Array], Any]:
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape)) * 0.5
    return draw, draw(STEPS, BATCH, INPUT)


def loss(out: Any) -> Any:
    return jnp.sum((out - 0.4) ** 2)


def gradient(step: Any, params: Any, state: Any, xs: Any, rule: str = "D_RTRL", **options: Any) -> Any:
    learner = ft.compile(step, rule, xs[0], params=params, state=state, **options)
    return jax.jit(lambda p: learner.grad(p, learner.init(state), xs, loss=loss)[0])(params)


def backpropagated(step: Any, params: Any, state: Any, xs: Any) -> Any:
    def total(params: Any) -> Any:
        return jnp.sum(jax.vmap(loss)(jax.lax.scan(lambda s, x: step(params, s, x), state, xs)[1]))

    return jax.grad(total)(params)


def same(one: Any, two: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), one, two)


def lru_parts() -> tuple[Any, Any, Any]:
    draw, xs = drawn()
    params = {"nu": draw(UNITS), "theta": draw(UNITS), "D": draw(INPUT, OUT)}
    params |= joined({"B": (draw(INPUT, UNITS), draw(INPUT, UNITS)), "C": (draw(UNITS, OUT), draw(UNITS, OUT))})
    return params, jax.lax.complex(draw(BATCH, UNITS), draw(BATCH, UNITS)), xs


@pytest.mark.parametrize("block", [4, *(pytest.param(block, marks=pytest.mark.slow) for block in (1, None))])
def test_an_lru_is_exact(block: int | None) -> None:
    params, state, xs = lru_parts()
    same(gradient(lru, params, state, xs, block=block), backpropagated(lru, params, state, xs))


def test_an_lru_has_two_values_at_each_position_and_keeps_all_history() -> None:
    params, state, xs = lru_parts()
    graph = ft.compile_etrace_graph(lru, xs[0], params=params, state=state)
    (group,) = graph.hidden_groups
    assert (group.num_state, group.varshape) == (2, (BATCH, UNITS))
    found = {p.name: p.history.value for p in graph.parameters}
    assert found == {"B": "all", "nu": "all", "theta": "all", "C": "none-needed", "D": "none-needed"}
    np.testing.assert_array_equal(group.split_hidden(group.concat_hidden([state]))[0], state)


def test_one_sample_at_a_time_adds_up_to_the_batch() -> None:
    params, state, xs = lru_parts()
    learner = ft.compile(lru, "D_RTRL", xs[0, 0], params=params, state=state[0])
    one = lambda s, x: learner.grad(params, learner.init(s), x, loss=loss)[0]
    each = jax.jit(jax.vmap(one, (0, 1)))(state, xs)
    same(jax.tree.map(lambda g: g.sum(0), each), gradient(lru, params, state, xs))


@pytest.mark.parametrize(("rule", "options"), RULES)
def test_every_rule_gives_what_it_gives_for_real_and_imaginary_parts(rule: str, options: Any) -> None:
    draw, xs = drawn()
    params = {"U": (draw(UNITS, UNITS), draw(UNITS, UNITS)), "B": (draw(INPUT, UNITS), draw(INPUT, UNITS))}
    params |= {"D": draw(UNITS, OUT)}
    state = draw(BATCH, UNITS), draw(BATCH, UNITS)
    found = gradient(modulus, joined(params), jax.lax.complex(*state), xs, rule, **options)
    twin = gradient(modulus_in_reals, params, state, xs, rule, **options)
    same(found, {k: v[0] - 1j * v[1] if isinstance(v, tuple) else v for k, v in twin.items()})


def test_complex_values_side_by_side_and_a_real_state_beside_them() -> None:
    def step(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
        z, u = jnp.split(state["s"], 2, -1)
        a = 0.7 * state["a"] + 0.2 * jnp.imag(z)
        u = 0.6j * u + x @ params["B"]
        z = (0.8 + 0.3j) * z + u * jnp.cos(state["a"])
        return {"s": jnp.concatenate([z, u], -1), "a": a}, jnp.real(z * jnp.conj(u)) + a

    draw, xs = drawn()
    params = joined({"B": (draw(INPUT, UNITS), draw(INPUT, UNITS))})
    state = {"s": jax.lax.complex(draw(BATCH, 2 * UNITS), draw(BATCH, 2 * UNITS)), "a": draw(BATCH, UNITS)}
    same(gradient(step, params, state, xs), backpropagated(step, params, state, xs))


def test_complex_parameters_of_a_real_state_are_exact() -> None:
    def step(params: Any, h: Any, x: Any) -> tuple[Any, Any]:
        h = 0.8 * h + jnp.abs(x @ params["B"])
        return h, h

    draw, xs = drawn()
    params, state = joined({"B": (draw(INPUT, UNITS), draw(INPUT, UNITS))}), draw(BATCH, UNITS)
    same(gradient(step, params, state, xs), backpropagated(step, params, state, xs))


def test_snap_keeps_both_parts_of_a_state() -> None:
    params, state, xs = lru_parts()
    same(gradient(lru, params, state, xs, "SnAp"), backpropagated(lru, params, state, xs))


def test_a_window_is_exact_and_so_is_what_reaches_it() -> None:
    params, state, xs = lru_parts()
    same(gradient(lru, params, state, xs, window=3), backpropagated(lru, params, state, xs))
