"""Operations that mix positions: reductions, products of arrays, and products with mapped weights."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from random_operations.draft import Draft, Operation, Shape, family, fit, squash

# --- reductions -------------------------------------------------------------------------------------------------------


def _reduce_axes(draft: Draft, value: int) -> tuple[int, ...]:
    rank = len(draft.shapes[value])
    return tuple(i for i in range(rank) if draft.rng.random() < 0.5) or tuple(range(rank))[-1:]


REDUCTIONS: dict[str, Callable[[Any, tuple[int, ...]], Any]] = {
    "sum": lambda v, axes: 0.4 * jnp.sum(v, axes),
    "mean": lambda v, axes: jnp.mean(v, axes, keepdims=True),
    "prod": lambda v, axes: jnp.prod(1.1 + 0.3 * squash(v), axes),
    "logsumexp": lambda v, axes: jax.scipy.special.logsumexp(v, axes),
    "norm": lambda v, axes: jnp.sqrt(0.2 + jnp.sum((v + 0.3) ** 2, axes)),
    "var": lambda v, axes: jnp.var(v, axes, keepdims=True),
    "softmax": lambda v, axes: jax.nn.softmax(v, axes),
    "layer_norm": lambda v, axes: (v - v.mean(axes, keepdims=True)) / jnp.sqrt(v.var(axes, keepdims=True) + 0.3),
}


@family("reduction", weight=5)
def reduction(draft: Draft) -> Operation:
    value = draft.pick(3)
    axes, name = _reduce_axes(draft, value), draft.choose(REDUCTIONS)
    shape = draft.shapes[value]
    before, after = draft.constant(shape), draft.constant(shape)
    reduced = int(np.prod([shape[i] for i in axes]))
    degenerate = name in ("var", "softmax", "layer_norm") and reduced == 1  # a constant: no derivative at all

    def function(v: Any) -> Any:
        y = REDUCTIONS[name](jnp.sin(v * before) if name == "var" else v * before, axes)
        return y * after if jnp.shape(y) == shape else y

    return Operation(name, function, (value,), exact=not degenerate, growth="linear")


CUMULATIVE: dict[str, Callable[..., Any]] = {
    "cumsum": lambda v, axis, reverse: 0.5 * jax.lax.cumsum(v, axis, reverse),
    "cumprod": lambda v, axis, reverse: jax.lax.cumprod(1.1 + 0.3 * squash(v), axis, reverse),
    "cumlogsumexp": lambda v, axis, reverse: jax.lax.cumlogsumexp(v, axis, reverse),
}


@family("reduction", weight=2)
def cumulative(draft: Draft) -> Operation:
    value = draft.pick(3)
    name, reverse = draft.choose(CUMULATIVE), bool(draft.rng.random() < 0.4)
    axis = draft.axis(value) if draft.shapes[value] else 0
    return Operation(name, lambda v: CUMULATIVE[name](v if v.ndim else v[None], axis, reverse), (value,))


# --- mixing -----------------------------------------------------------------------------------------------------------


@family("mixing", weight=3)
def dense(draft: Draft) -> Operation:
    value = draft.pick(2)
    n = draft.shapes[value][-1] if draft.shapes[value] else 1
    weight = draft.pick_param()
    shape = draft.shapes[weight]
    if len(shape) != 2 or shape[0] != n:
        shape = (n, draft.integer(2, 4))
    return Operation("dense", lambda v, w: 0.6 * (jnp.atleast_1d(v) @ fit(w, shape)), (value, weight), growth="product")


@family("mixing")
def constant_matrix(draft: Draft) -> Operation:
    value = draft.pick(2)
    n = draft.shapes[value][-1] if draft.shapes[value] else 1
    matrix = draft.constant((draft.integer(2, 4), n))
    return Operation("constant_matrix", lambda v: jnp.einsum("...i,oi->...o", jnp.atleast_1d(v), matrix), (value,))


DIMENSION_NUMBERS: list[tuple[Shape, Shape, Any]] = [
    ((2, 3), (3, 4), (((1,), (0,)), ((), ()))),
    ((3, 2), (4, 3), (((0,), (1,)), ((), ()))),
    ((2, 3), (2, 3, 2), (((1,), (1,)), ((0,), (0,)))),
    ((2, 3, 2), (2, 2, 3), (((1, 2), (2, 1)), ((), ()))),
    ((3, 2, 2), (2, 3), (((0,), (1,)), ((1,), (0,)))),
    ((4,), (4,), (((0,), (0,)), ((), ()))),
    ((3,), (4,), (((), ()), ((), ()))),
    ((2, 3), (2, 3), (((), ()), ((0, 1), (0, 1)))),
]


@family("mixing")
def dot_general(draft: Draft) -> Operation:
    left, right, numbers = DIMENSION_NUMBERS[draft.integer(0, len(DIMENSION_NUMBERS) - 1)]
    second = draft.pick_param() if draft.rng.random() < 0.6 else draft.pick()

    def function(a: Any, b: Any) -> Any:
        return 0.6 * jax.lax.dot_general(fit(a, left), fit(b, right), numbers)

    return Operation("dot_general", function, (draft.pick(2), second), growth="product")


EINSUMS: list[tuple[str, Shape, Shape]] = [
    ("bi,ij->bj", (2, 3), (3, 3)),
    ("bi,bj->ij", (2, 3), (2, 4)),
    ("bi,ij,bj->b", (2, 3), (3, 3)),
    ("bi,i->b", (2, 3), (3,)),
    ("i,j->ij", (3,), (4,)),
    ("bij,bj->bi", (2, 2, 3), (2, 3)),
    ("hi,hij->hj", (2, 3), (2, 3, 2)),
    ("ab,bc->ca", (2, 3), (3, 4)),
]


@family("mixing")
def einsum(draft: Draft) -> Operation:
    equation, left, right = EINSUMS[draft.integer(0, len(EINSUMS) - 1)]
    second = draft.pick_param() if draft.rng.random() < 0.6 else draft.pick()
    constant = draft.constant(left)

    def function(a: Any, b: Any) -> Any:
        extra = (constant,) if equation.count(",") == 2 else ()
        return 0.5 * jnp.einsum(equation, fit(a, left), fit(b, right), *extra)

    return Operation("einsum", function, (draft.pick(2), second), growth="product")


@family("mixing")
def tensordot(draft: Draft) -> Operation:
    def function(a: Any, b: Any) -> Any:
        return 0.4 * jnp.tensordot(fit(a, (2, 2, 3)), fit(b, (2, 3, 2)), axes=2)

    return Operation("tensordot", function, (draft.pick(4), draft.pick_param()), growth="product")


CONVOLUTIONS: list[tuple[Shape, Shape, dict[str, Any]]] = [
    ((1, 2, 5), (2, 2, 3), {"window_strides": (1,), "padding": "SAME"}),
    ((2, 1, 5), (2, 1, 2), {"window_strides": (2,), "padding": "VALID"}),
    ((1, 2, 5), (4, 1, 2), {"window_strides": (1,), "padding": [(1, 0)], "feature_group_count": 2}),
    ((2, 2, 4), (2, 2, 3), {"window_strides": (1,), "padding": [(1, 1)], "batch_group_count": 2}),
    ((1, 1, 4), (2, 1, 3), {"window_strides": (2,), "padding": [(2, 2)], "lhs_dilation": (2,)}),
    ((1, 1, 6), (1, 1, 2), {"window_strides": (1,), "padding": "VALID", "rhs_dilation": (3,)}),
    ((1, 1, 3, 4), (2, 1, 2, 2), {"window_strides": (1, 1), "padding": "SAME"}),
    ((1, 1, 4, 4), (1, 1, 3, 3), {"window_strides": (2, 2), "padding": "SAME"}),
    (
        (1, 3, 3, 2),
        (2, 2, 2, 2),
        {"window_strides": (1, 1), "padding": "VALID", "dimension_numbers": ("NHWC", "HWIO", "NHWC")},
    ),
]


@family("mixing", weight=2)
def convolution(draft: Draft) -> Operation:
    image, kernel, options = CONVOLUTIONS[draft.integer(0, len(CONVOLUTIONS) - 1)]

    def function(a: Any, w: Any) -> Any:
        return 0.5 * jax.lax.conv_general_dilated(fit(a, image), fit(w, kernel), **options)

    return Operation("conv", function, (draft.pick(3), draft.pick_param()), growth="product")


# --- parameters alone, before they meet data --------------------------------------------------------------------------

WEIGHT_MAPS: dict[str, Callable[[Any], Any]] = {
    "abs": jnp.abs,
    "softplus": jax.nn.softplus,
    "square": lambda w: (w + 1.2) ** 2,
    "transposed": lambda w: w.T,
    "normalised": lambda w: w / jnp.sqrt(0.2 + jnp.sum(w**2, axis=0, keepdims=True)),
    "reversed": lambda w: w[:, ::-1],
    "tied_sum": lambda w: w + 0.7 * w.T,
    "product": lambda w: w[:, :2] @ w[:2, :],
}


@family("weight", weight=3)
def mapped_weight(draft: Draft) -> Operation:
    value, weight = draft.pick(2), draft.pick_param()
    name = draft.choose(WEIGHT_MAPS)
    n = draft.integer(2, 3)

    def function(v: Any, w: Any) -> Any:
        return 0.5 * (fit(v, (2, n)) @ WEIGHT_MAPS[name](fit(w, (n, n))))

    return Operation(f"weight_{name}", function, (value, weight), growth="product")


@family("weight")
def masked_weight(draft: Draft) -> Operation:
    mask = (draft.rng.random((3, 3)) < 0.6).astype(float)

    def function(v: Any, w: Any) -> Any:
        return 0.5 * (fit(v, (2, 3)) @ (fit(w, (3, 3)) * mask))

    # a zero of the mask cuts a path that the equations have
    return Operation("weight_masked", function, (draft.pick(2), draft.pick_param()), exact=False, growth="product")


@family("weight")
def low_rank_weight(draft: Draft) -> Operation:
    def function(v: Any, a: Any, b: Any) -> Any:
        return 0.5 * (fit(v, (2, 3)) @ (fit(a, (3, 2)) @ fit(b, (2, 3))))

    return Operation(
        "weight_low_rank", function, (draft.pick(2), draft.pick_param(), draft.pick_param()), growth="product"
    )


@family("weight")
def gain_and_bias(draft: Draft) -> Operation:
    value, gain, bias = draft.pick(), draft.pick_param(), draft.pick_param()
    shape = draft.shapes[value][-1:]

    def function(v: Any, g: Any, b: Any) -> Any:
        return v * jax.nn.sigmoid(fit(g, shape)) + 0.6 * fit(b, shape)

    return Operation("gain_and_bias", function, (value, gain, bias))


@family("weight")
def used_twice(draft: Draft) -> Operation:
    def function(v: Any, w: Any) -> Any:
        w = fit(w, (3, 3))
        return jnp.tanh(fit(v, (2, 3)) @ w) @ w.T

    return Operation("weight_twice", function, (draft.pick(2), draft.pick_param()), growth="product")
