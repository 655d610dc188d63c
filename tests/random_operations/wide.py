"""Operations of the wider programs: lookups, values without a derivative made of parameters, backward passes, fans.

They stand in `WIDE_FAMILIES`, apart from `FAMILIES`: a seed of the plain programs keeps its program.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from foretrace import ops
from random_operations.draft import Draft, Operation, fit, squash, to_index, wide_family

# --- lookups ----------------------------------------------------------------------------------------------------------
# In a table of parameters by data, in data by parameters; one row, several, and one of each row.

LOOKUPS: dict[str, Callable[[Any, Any], Any]] = {
    "row": lambda w, i: fit(w, (4, 3))[to_index(fit(i, ()), 4)],
    "rows": lambda w, i: fit(w, (4, 2))[to_index(fit(i, (3,)), 4)],
    "element": lambda w, i: fit(w, (5,))[to_index(fit(i, ()), 5)],
    "column": lambda w, i: fit(w, (3, 4))[:, to_index(fit(i, ()), 4)],
    "mapped_row": lambda w, i: jax.vmap(lambda k: fit(w, (4, 2))[k])(to_index(fit(i, (3,)), 4)),
    "one_of_each_row": lambda w, i: fit(w, (4, 3))[jnp.arange(4), to_index(fit(i, (4,)), 3)],
    "by_two": lambda w, i: fit(w, (3, 3))[to_index(fit(i, ()), 3), to_index(fit(i, (2,)), 3)],
    "along_axis": lambda w, i: jnp.take_along_axis(fit(w, (3, 4)), to_index(fit(i, (3, 1)), 4), axis=1),
    "slice": lambda w, i: jax.lax.dynamic_slice(fit(w, (6,)), (to_index(fit(i, ()), 4),), (3,)),
    "slice_in_dim": lambda w, i: jax.lax.dynamic_index_in_dim(fit(w, (3, 4)), to_index(fit(i, ()), 3), keepdims=False),
    "one_hot": lambda w, i: jax.nn.one_hot(to_index(fit(i, ()), 4), 4, dtype=w.dtype) @ fit(w, (4, 3)),
    "marked": lambda w, i: ops.embedding(to_index(fit(i, (3,)), 4), fit(w, (4, 2))),
    "marked_scalar": lambda w, i: ops.embedding(to_index(fit(i, ()), 4), fit(w, (4, 2))),
    "ring": lambda w, i: fit(w, (5,)).at[to_index(fit(i, ()), 5)].set(fit(i, ())),
}


@wide_family("lookup", weight=3)
def lookup_by_data(draft: Draft) -> Operation:
    """A row of a table of parameters, chosen by data, and now and then met by data."""
    name = draft.choose(LOOKUPS)
    product = bool(draft.rng.random() < 0.4)

    def function(w: Any, i: Any, v: Any) -> Any:
        found = LOOKUPS[name](w, i)
        return found * fit(v, found.shape) if product else found

    operands = (draft.pick_param(), draft.pick(), draft.pick())
    return Operation(f"lookup_{name}", function, operands, exact=False, growth="product")


@wide_family("lookup")
def lookup_by_parameters(draft: Draft) -> Operation:
    name = draft.choose([name for name in LOOKUPS if not name.startswith("marked")])
    operands = (draft.pick(3), draft.pick_param())
    return Operation(f"lookup_by_parameter_{name}", lambda v, w: LOOKUPS[name](v, w), operands, exact=False)


# --- booleans and integers made of parameters, of data, and of both --------------------------------------------------

MARKS: dict[str, Callable[[Any, Any], Any]] = {
    "sign_of_parameter": lambda v, w: jnp.where(w > 0.0, 0.9 * v, jnp.sin(v)),
    "compared": lambda v, w: jnp.where(v > w, v, 0.3 * w),
    "scaled_by_sign": lambda v, w: v * jnp.sign(w) + w,
    "rounded": lambda v, w: v * (jnp.round(2.0 * w) + 0.5) * jnp.cos(w),
    "argmax": lambda v, w: v * (0.2 * jnp.argmax(w) + 0.3) + w,
    "shifted": lambda v, w: jnp.roll(v, jnp.argmin(w)) * w,
    "integer_of_parameter": lambda v, w: (to_index(w, 3) + 1) * v * w,
    "both": lambda v, w: jnp.where(jnp.logical_xor(v > 0.2, w > 0.1), v * w, v - w),
    "any": lambda v, w: jnp.where(jnp.any(w > 0.5), v, jnp.tanh(v)) + w,
    "counted": lambda v, w: v + 0.1 * jnp.sum(w > 0.0) * w,
}


@wide_family("mark", weight=3)
def mark(draft: Draft) -> Operation:
    name = draft.choose(MARKS)
    value, weight = draft.pick(2), draft.pick_param()
    shape = draft.shapes[value] or (1,)
    return Operation(
        f"mark_{name}",
        lambda v, w: MARKS[name](fit(v, shape), fit(w, shape[-1:])),
        (value, weight),
        exact=False,
        growth="product",
    )


WHOLE_MARKS: dict[str, Callable[[Any, Any], Any]] = {
    "sorted_by_parameter": lambda v, w: fit(v, (4,))[jnp.argsort(fit(w, (4,)))],
    "pivots": lambda v, w: jnp.linalg.solve(1.5 * jnp.eye(3)[::-1] + 0.4 * squash(fit(w, (3, 3))), fit(v, (3,))),
    "inverse": lambda v, w: fit(v, (2, 3)) @ jnp.linalg.inv(2.0 * jnp.eye(3) + 0.4 * squash(fit(w, (3, 3)))),
    "top": lambda v, w: jax.lax.top_k(fit(w, (5,)), 3)[0] * fit(v, (5,))[jax.lax.top_k(fit(w, (5,)), 3)[1]],
    "sparse_by_size": lambda v, w: fit(v, (2, 3)) @ jnp.where(jnp.abs(fit(w, (3, 3))) > 0.3, fit(w, (3, 3)), 0.0),
    "segments": lambda v, w: jax.ops.segment_sum(fit(v, (5,)), to_index(fit(w, (5,)), 3), 3),
}


@wide_family("mark")
def whole_mark(draft: Draft) -> Operation:
    name = draft.choose(WHOLE_MARKS)
    operands = (draft.pick(3), draft.pick_param())
    return Operation(f"mark_{name}", WHOLE_MARKS[name], operands, exact=False, growth="product")


# --- backward passes of the user's own --------------------------------------------------------------------------------


@jax.custom_gradient
def reverse_spike(v: Any) -> Any:
    return (v > 0.1).astype(v.dtype), lambda g: g / (1.0 + jnp.abs(v)) ** 2


@jax.custom_vjp
def mixed_pair(a: Any, b: Any) -> Any:
    """Two operands; what one gets back is not what it did, and positions meet on the way."""
    return a * jnp.tanh(b)


mixed_pair.defvjp(
    lambda a, b: (mixed_pair(a, b), (a, b)),
    lambda kept, g: (g * jnp.cos(kept[1]), 0.3 * jnp.sum(g * kept[0]) + 0.5 * jnp.flip(g)),
)


@jax.custom_vjp
def blocked(v: Any) -> Any:
    return jnp.sin(v)


blocked.defvjp(lambda v: (jnp.sin(v), None), lambda _, g: (jnp.zeros_like(g),))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def scaled(factor: float, v: Any) -> Any:
    return jnp.tanh(v)


scaled.defvjp(lambda factor, v: (jnp.tanh(v), v), lambda factor, v, g: (factor * g * jnp.cos(v),))


@jax.custom_vjp
def own_matmul(v: Any, w: Any) -> Any:
    """A product with a backward pass of its own, linear in its cotangent."""
    return v @ w


own_matmul.defvjp(lambda v, w: (v @ w, (v, w)), lambda kept, g: (0.5 * g @ kept[1].T, jnp.cos(kept[0]).T @ g))


@jax.custom_gradient
def two_results(v: Any) -> Any:
    return (jnp.sin(v), jnp.cos(v)), lambda g: g[0] * jnp.cos(v) - 0.5 * g[1] * v


BACKWARD: dict[str, Callable[[Any, Any], Any]] = {
    "spike": lambda a, b: reverse_spike(a - 0.6 * b),
    "mixed_pair": lambda a, b: mixed_pair(a, b),
    "blocked": lambda a, b: blocked(a) * b,
    "scaled": lambda a, b: scaled(0.4, a) + b,
    "matmul": lambda a, b: own_matmul(fit(a, (2, 3)), fit(b, (3, 2))),
    "two_results": lambda a, b: two_results(a)[0] + two_results(b)[1],
    "inside_jit": jax.jit(lambda a, b: reverse_spike(a) * b),
    "mapped": lambda a, b: jax.vmap(lambda c, d: reverse_spike(c - d) * c)(a.reshape(-1), b.reshape(-1)),
    "in_a_loop": lambda a, b: jax.lax.fori_loop(0, 20, lambda _, c: 0.9 * c + 0.1 * reverse_spike(c - b), a),
}


@jax.custom_vjp
def clipped(v: Any) -> Any:
    return v + 0.0


clipped.defvjp(lambda v: (v, None), lambda _, g: (jnp.clip(g, -0.3, 0.4),))


@jax.custom_gradient
def sign_of_cotangent(v: Any) -> Any:
    return jnp.sin(v), lambda g: 0.3 * jnp.sign(g)


@jax.custom_gradient
def normalised_cotangent(v: Any) -> Any:
    return jnp.sin(v), lambda g: g / (1.0 + jnp.sqrt(jnp.sum(g * g) + 0.1))


NONLINEAR: dict[str, Callable[[Any, Any], Any]] = {
    "clipped": lambda a, b: clipped(a) * b,
    "sign": lambda a, b: sign_of_cotangent(a) + b,
    "normalised": lambda a, b: normalised_cotangent(a) + b,
    "clipped_product": lambda a, b: clipped(fit(a, (2, 3)) @ fit(b, (3, 2))),
}
# Those of the plain programs take the sign of a cotangent, too.
NONLINEAR_BACKWARD = frozenset(f"nonlinear_{name}" for name in NONLINEAR) | {"own_product"}


def _with_backward(draft: Draft, name: str, function: Callable[[Any, Any], Any]) -> Operation:
    first = draft.pick(2)
    second = draft.pick_param() if draft.rng.random() < 0.5 else draft.pick()
    shape = draft.shapes[first] or (1,)
    operands = (second, first) if draft.rng.random() < 0.3 else (first, second)
    return Operation(name, lambda a, b: function(fit(a, shape), fit(b, shape)), operands, exact=False, growth="product")


@wide_family("backward", weight=5)
def backward(draft: Draft) -> Operation:
    name = draft.choose(BACKWARD)
    return _with_backward(draft, f"backward_{name}", BACKWARD[name])


@wide_family("backward")
def nonlinear_backward(draft: Draft) -> Operation:
    name = draft.choose(NONLINEAR)
    return _with_backward(draft, f"nonlinear_{name}", NONLINEAR[name])


# --- fans: an element that reaches many positions ---------------------------------------------------------------------

FANS: dict[str, Callable[[Any, Any], Any]] = {
    "channels": lambda v, w: fit(v, (5,))[:, None] * (fit(v, (3,)) @ fit(w, (3, 4)))[None, :],
    "scalar": lambda v, w: jnp.sin(v) * (fit(v, (3,)) @ fit(w, (3,))),
    "row": lambda v, w: fit(v, (4, 3)) + (fit(v, (2,)) @ fit(w, (2, 3)))[None, :],
    "sum": lambda v, w: jnp.sum(fit(w, (3,)) * fit(v, (3,))) + v,
    "gain": lambda v, w: v * fit(w, ()),
    "repeated": lambda v, w: jnp.repeat(fit(v, (3,)) @ fit(w, (3, 2)), 6),
    "tiled_and_moved": lambda v, w: jnp.tile(fit(w, (3,)) * fit(v, (3,)), 4)[::-1],
    "broadcast_state": lambda v, w: jnp.broadcast_to(fit(v, (2,)), (6, 2)) * fit(w, (6, 1)),
    "outer": lambda v, w: jnp.outer(fit(w, (4,)), fit(v, (3,))),
}


@wide_family("fan", weight=3)
def fan(draft: Draft) -> Operation:
    name = draft.choose(FANS)
    return Operation(
        f"fan_{name}", lambda v, w: 0.6 * FANS[name](v, w), (draft.pick(), draft.pick_param()), False, "product"
    )


# --- states from products, projections, skips; outputs of the past ----------------------------------------------------


def _last(shape: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    return (shape[:-1], shape[-1]) if shape else ((), 1)


def product_of(values: tuple[Any, ...], weight: Any, shape: tuple[int, ...], marked: bool) -> Any:
    """The outputs of one product, with nothing behind it: `[a, b, ...] @ W`."""
    lead, width = _last(shape)
    joined = jnp.concatenate([fit(v, (*lead, min(np.size(v), 4))) for v in values], axis=-1)
    matrix = fit(weight, (joined.shape[-1], width))
    return ops.matmul(joined, matrix) if marked else joined @ matrix


WEIGHT_SCALE = 0.4

NEXT_STATES = ("leaky", "gated", "replaced", "product", "product", "feed", "projection", "skip", "coupled", "copied")


def next_state(draft: Draft, old: int, sources: tuple[int, ...], others: list[int]) -> Operation:
    """The next value of a state.

    Args:
        draft: The values so far.
        old: The state.
        sources: What drives it.
        others: Other states: new ones where they are known, else as they were.
    """
    shape, weight = draft.shapes[old], draft.pick_param()
    kind = draft.choose(NEXT_STATES if others else NEXT_STATES[:6])
    other = int(draft.rng.choice(others)) if others else old
    leak, amount, marked = float(draft.rng.uniform(0.3, 0.9)), draft.coefficient(), bool(draft.rng.random() < 0.3)

    def drive(values: tuple[Any, ...]) -> Any:
        return sum(amount * fit(squash(v), shape) for v in values)

    def product(values: tuple[Any, ...], w: Any) -> Any:
        return product_of(values, WEIGHT_SCALE * w, shape, marked).reshape(shape)

    kinds: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
        "leaky": (lambda h, *values: leak * h + drive(values), (old, *sources)),
        "gated": (lambda h, *values: h * jax.nn.sigmoid(drive(values)) + leak, (old, *sources)),
        "replaced": (lambda *values: jnp.tanh(drive(values)), sources),
        "product": (lambda w, *values: product(values, w), (weight, old, *sources[:1])),
        "feed": (lambda w, *values: product(values, w), (weight, *sources[:1])),
        "projection": (lambda w, *values: product(values, w), (weight, other)),
        "skip": (
            lambda w, h, o, *values: leak * h + 0.1 * fit(o, shape) + product((jnp.tanh(o), *values), w),
            (weight, old, other, *sources[:1]),
        ),
        "coupled": (lambda o, h, *values: leak * h + drive(values) * jnp.tanh(fit(o, shape)), (other, old, *sources)),
        "copied": (lambda o: fit(o, shape), (other,)),
    }
    function, operands = kinds[kind]
    return Operation(f"state_{kind}{'_marked' if marked and 'product' in kind else ''}", function, operands, False)


OUTPUTS = ("value", "value", "old", "read_old", "new", "read_new", "old_and_new")


def output(draft: Draft, value: int, old: int, new: int) -> Operation | None:
    """An output of something else than a value of the step; None for the value itself."""
    weight, kind = draft.pick_param(), draft.choose(OUTPUTS)
    kinds: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
        "old": (lambda h: h + 0.0, (old,)),
        "read_old": (lambda h, w: fit(h, (2, 3)) @ fit(w, (3, 2)), (old, weight)),
        "new": (lambda h: h + 0.0, (new,)),
        "read_new": (lambda h, w: fit(jnp.tanh(h), (2, 3)) @ fit(w, (3, 2)), (new, weight)),
        "old_and_new": (lambda h, g: h * fit(g, h.shape), (old, new)),
    }
    return None if kind == "value" else Operation(f"output_{kind}", *kinds[kind], False)
