"""Functions inside functions: custom derivatives, nested `jit`, remat, loops and branches."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from random_operations.draft import Draft, Operation, family, fit, squash, to_index

# --- functions inside functions ---------------------------------------------------------------------------------------


@jax.custom_jvp
def spike(v: Any) -> Any:
    """A step whose derivative is that of a sigmoid."""
    return jnp.where(v > 0.0, 1.2, 0.3)


@spike.defjvp
def _spike_jvp(primals: Any, tangents: Any) -> Any:
    s = jax.nn.sigmoid(2.0 * primals[0])
    return spike(primals[0]), tangents[0] * (2.0 * s * (1.0 - s))


@jax.custom_jvp
def soft_product(a: Any, b: Any) -> Any:
    return a * b


@soft_product.defjvp
def _soft_product_jvp(primals: Any, tangents: Any) -> Any:
    a, b = primals
    return a * b, jnp.cos(0.3 * b) * tangents[0] + jnp.cos(0.4 * a) * tangents[1]


@jax.custom_jvp
def boxcar_spike(v: Any) -> Any:
    return (v > 0.0).astype(v.dtype)


@boxcar_spike.defjvp
def _boxcar_jvp(primals: Any, tangents: Any) -> Any:
    return boxcar_spike(primals[0]), tangents[0] * jnp.maximum(0.0, 1.0 - jnp.abs(primals[0]))


@jax.custom_jvp
def mixing_tangent(v: Any) -> Any:
    """Elementwise forward, but its derivative mixes positions."""
    return jnp.sin(v)


@mixing_tangent.defjvp
def _mixing_jvp(primals: Any, tangents: Any) -> Any:
    t = tangents[0]
    return jnp.sin(primals[0]), 0.5 * t + jnp.roll(t.reshape(-1), 1).reshape(t.shape)


@jax.custom_vjp
def straight_through(v: Any) -> Any:
    return 0.3 * jnp.round(3.0 * v) + 0.2


straight_through.defvjp(lambda v: (straight_through(v), None), lambda _, g: (g,))


@jax.custom_vjp
def scaled_gradient(a: Any, b: Any) -> Any:
    return a * jnp.tanh(b)


scaled_gradient.defvjp(lambda a, b: (scaled_gradient(a, b), (a, b)), lambda res, g: (0.5 * g * res[1], g * res[0]))


@jax.custom_vjp
def mixing_cotangent(v: Any) -> Any:
    return jnp.cos(v)


mixing_cotangent.defvjp(lambda v: (jnp.cos(v), None), lambda _, g: (g.reshape(-1)[::-1].reshape(g.shape),))


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def sharp_spike(v: Any, width: float) -> Any:
    return (v > 0.0).astype(v.dtype) + 0.2


@sharp_spike.defjvp
def _sharp_spike_jvp(width: float, primals: Any, tangents: Any) -> Any:
    return sharp_spike(primals[0], width), tangents[0] / (1.0 + width * jnp.abs(primals[0])) ** 2


@jax.custom_vjp
def own_product(v: Any, w: Any) -> Any:
    """A product of matrices with a backward pass of its own."""
    return v @ w


own_product.defvjp(lambda v, w: (v @ w, (v, w)), lambda res, g: (jnp.sign(g) @ res[1].T, res[0].T @ g))

NESTED: dict[str, tuple[Callable[[Any, Any], Any], bool]] = {
    "spike": (lambda a, b: spike(a - 0.7 * b), True),
    "soft_product": (lambda a, b: soft_product(a, b), True),
    "boxcar_spike": (lambda a, b: boxcar_spike(a - b), False),
    "mixing_tangent": (lambda a, b: mixing_tangent(a + b), False),
    "straight_through": (lambda a, b: straight_through(a) * b, False),
    "scaled_gradient": (lambda a, b: scaled_gradient(a, b), False),
    "mixing_cotangent": (lambda a, b: mixing_cotangent(a - b), False),
    "sharp_spike": (lambda a, b: sharp_spike(a - 0.6 * b, 2.0), True),
    "own_product": (lambda a, b: own_product(fit(a, (2, 3)), fit(b, (3, 2))), False),
    "jit": (jax.jit(lambda a, b: jnp.tanh(a) * jax.jit(lambda c: c + 0.3 * a)(b)), True),
    "jit_reshaped": (jax.jit(lambda a, b: (a.reshape(-1)[::-1] * b.reshape(-1)).reshape(a.shape)), True),
    "remat": (jax.checkpoint(lambda a, b: jnp.sin(a * 0.8) * (b + 0.6)), True),
    "vmap": (lambda a, b: jax.vmap(lambda c, d: c * jnp.tanh(d))(a.reshape(-1), b.reshape(-1)), True),
    "jit_of_spike": (jax.jit(lambda a, b: spike(a) * jax.nn.silu(0.2 * squash(b) + 0.4)), True),
}


@family("nested")
def nested(draft: Draft) -> Operation:
    name = draft.choose(NESTED)
    function, exact = NESTED[name]
    first, second = draft.pick(), draft.pick()
    shape = draft.shapes[first]
    return Operation(name, lambda a, b: function(a, fit(b, shape)), (first, second), exact=exact, growth="product")


# --- control flow -----------------------------------------------------------------------------------------------------


def _scan(length: int, reverse: bool, mix: bool, returned: str) -> Callable[..., Any]:
    """A loop over rows of `x` with the weight `w` closed over; gives the last carry, or all its outputs."""

    def function(h: Any, x: Any, w: Any) -> Any:
        weight = fit(w, (2, 2)) if mix else fit(w, (2,))

        def body(carry: Any, row: Any) -> Any:
            drive = carry @ weight if mix else carry * weight
            new = jnp.tanh(0.6 * drive + row)
            return new, 0.5 * new * carry

        rows = fit(x, (length, 2))
        last, outputs = jax.lax.scan(body, fit(h, (2,)), rows, reverse=reverse)
        return last if returned == "carry" else outputs[:8]

    return function


@family("loop", weight=3)
def scan(draft: Draft) -> Operation:
    length = 3 if draft.rng.random() < 0.6 else 20
    reverse, mix = bool(draft.rng.random() < 0.3), bool(draft.rng.random() < 0.3)
    returned = draft.choose(["carry", "outputs"])
    operands = (draft.pick(2), draft.pick(2), draft.pick_param())
    return Operation(f"scan_{length}", _scan(length, reverse, mix, returned), operands, exact=False, growth="bounded")


def _two_carries(length: int) -> Callable[..., Any]:
    """Positions that wander through a carry: each pass rolls it by one."""

    def function(a: Any, b: Any) -> Any:
        def body(_: Any, carry: Any) -> Any:
            first, second, count = carry
            return jnp.roll(first, 1) * 0.9, 0.5 * second + first, count + 1

        return jax.lax.fori_loop(0, length, body, (fit(a, (4,)), fit(b, (4,)), 0))[1]

    return function


@family("loop")
def counted_loop(draft: Draft) -> Operation:
    length = 3 if draft.rng.random() < 0.6 else 18
    return Operation(f"fori_{length}", _two_carries(length), (draft.pick(2), draft.pick()), exact=False)


def _indexed(length: int) -> Callable[..., Any]:
    """A loop that reads and writes by its counter."""

    def function(a: Any, b: Any) -> Any:
        source, start = fit(a, (length, 2)), fit(b, (4, 2))

        def body(i: Any, carry: Any) -> Any:
            return carry.at[i % 4].add(0.5 * jnp.sin(source[i]) * carry[(i + 1) % 4])

        return jax.lax.fori_loop(0, length, body, start)

    return function


@family("loop")
def indexed_loop(draft: Draft) -> Operation:
    length = 3 if draft.rng.random() < 0.6 else 18
    return Operation(f"indexed_loop_{length}", _indexed(length), (draft.pick(2), draft.pick()), False, "bounded")


def _loop_in_loop(a: Any, b: Any) -> Any:
    """A loop with a branch and a loop inside, a carry that passes through and one that nothing changes."""

    def inner(carry: Any, row: Any) -> Any:
        return jnp.tanh(carry + 0.4 * row), None

    def outer(carry: Any, row: Any) -> Any:
        moving, kept, late = carry
        moving = jax.lax.cond(row[0] > 0.2, lambda m: jax.lax.scan(inner, m, kept)[0], lambda m: 0.5 * m, moving)
        return (moving, kept, moving[::-1]), late

    start = (fit(a, (3,)), fit(b, (2, 3)), jnp.zeros(3))
    carry, late = jax.lax.scan(outer, start, jnp.sin(fit(b, (4, 3))))
    return late + carry[2]


@family("loop")
def loop_in_loop(draft: Draft) -> Operation:
    return Operation("loop_in_loop", _loop_in_loop, (draft.pick(2), draft.pick()), False, "bounded")


@family("loop")
def mapped_loop(draft: Draft) -> Operation:
    def function(v: Any, w: Any) -> Any:
        w = fit(w, (2,))
        return jax.lax.map(lambda row: jnp.sin(row * w), fit(v, (3, 2)))

    return Operation("map", function, (draft.pick(4), draft.pick_param()), exact=False, growth="bounded")


@family("loop")
def associative(draft: Draft) -> Operation:
    def function(v: Any, w: Any) -> Any:
        def combine(left: Any, right: Any) -> Any:
            return left[0] * right[0], left[1] * right[0] + right[1]

        return jax.lax.associative_scan(combine, (squash(fit(w, (5,))), fit(v, (5,))))[1]

    return Operation("associative_scan", function, (draft.pick(4), draft.pick_param()), exact=False)


BRANCHES: dict[str, Callable[[Any, Any], Any]] = {
    "cond": lambda a, b: jax.lax.cond(jnp.sum(a) > 0.1, lambda c, d: jnp.tanh(c) * d, lambda c, d: c - 0.4 * d, a, b),
    "cond_closed": lambda a, b: jax.lax.cond(b.reshape(-1)[0] > 0.0, lambda: jnp.sin(a), lambda: jnp.roll(a, 1)),
    "switch": lambda a, b: jax.lax.switch(
        to_index(a.reshape(-1)[-1], 3),
        [lambda c: c + b, lambda c: c * b, lambda c: jnp.sort(c, axis=None).reshape(c.shape)],
        a,
    ),
    "cond_guarded": lambda a, b: jax.lax.cond(
        jnp.min(b) > 0.3, lambda c: jnp.log(jnp.abs(b) + 1e-3) + c, lambda c: c[::-1], a
    ),
}


@family("branch")
def branch(draft: Draft) -> Operation:
    name = draft.choose(BRANCHES)
    first, second = draft.pick(2), draft.pick()
    shape = draft.shapes[first] or (1,)
    return Operation(
        name, lambda a, b: BRANCHES[name](fit(a, shape), fit(b, shape)), (first, second), exact=False, growth="product"
    )
