"""Operations that work on each element alone: smooth ones, and ones without a derivative."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from random_operations.draft import Draft, Operation, family, fit, squash

# --- smooth, elementwise ----------------------------------------------------------------------------------------------

UNARY: dict[str, Callable[[Any], Any]] = {
    "tanh": jnp.tanh,
    "sin": jnp.sin,
    "cos": lambda v: jnp.cos(v + 0.6),
    "exp": lambda v: jnp.exp(jnp.tanh(v)),
    "expm1": lambda v: jnp.expm1(squash(v)),
    "logistic": jax.nn.sigmoid,
    "log": lambda v: jnp.log(1.7 + squash(v)),
    "log1p": lambda v: jnp.log1p(0.4 + 0.3 * jnp.sin(v)),
    "sqrt": lambda v: jnp.sqrt(1.2 + jnp.sin(v)),
    "rsqrt": lambda v: jax.lax.rsqrt(1.4 + squash(v)),
    "integer_pow": lambda v: (squash(v) + 1.3) ** 3,
    "square": lambda v: jnp.square(squash(v) + 1.2),
    "pow": lambda v: (1.6 + squash(v)) ** 1.7,
    "reciprocal": lambda v: 1.0 / (1.7 + squash(v)),
    "atan": jnp.arctan,
    "asinh": jnp.arcsinh,
    "erf": lambda v: jax.scipy.special.erf(squash(v)),
    "softplus": jax.nn.softplus,
    "silu": lambda v: jax.nn.silu(0.2 * squash(v) + 0.4),
    "abs": lambda v: 0.9 * jnp.abs(v),  # scaled, like the next, so that no sum with the operand cancels
    "neg": lambda v: 0.8 * -v,
    "cast": lambda v: v.astype(jnp.float32).astype(v.dtype),
    "rem": lambda v: v % 5.3,
}

BINARY: dict[str, tuple[Callable[..., Any], str]] = {
    "add": (lambda a, b, c: a + c * b, "linear"),
    "sub": (lambda a, b, c: c * a - b, "linear"),
    "mul": (lambda a, b, c: a * b, "product"),
    "mul_shifted": (lambda a, b, c: (a + c) * b, "product"),
    "div": (lambda a, b, c: a / (1.7 + squash(b)), "linear"),
    "atan2": (lambda a, b, c: jnp.arctan2(a + c, 1.3 + b * b), "bounded"),
    "pow": (lambda a, b, c: (1.6 + squash(a)) ** squash(b), "bounded"),
    "logaddexp": (lambda a, b, c: jnp.logaddexp(c * a, b), "linear"),
    "hypot": (lambda a, b, c: jnp.sqrt(0.3 + (a + 0.4) ** 2 + (c * b) ** 2), "product"),
}


@family("smooth", weight=4)
def unary(draft: Draft) -> Operation:
    name = draft.choose(UNARY)
    return Operation(name, UNARY[name], (draft.pick(),), growth="linear")


@family("smooth")
def affine(draft: Draft) -> Operation:
    scale, shift = draft.coefficient(), draft.coefficient()
    return Operation("affine", lambda v: scale * v + shift, (draft.pick(),))


@family("smooth")
def constant_factor(draft: Draft) -> Operation:
    value = draft.pick()
    constant = draft.constant(draft.shapes[value])
    return Operation("constant_factor", lambda v: v * constant, (value,))


@family("binary", weight=4)
def binary(draft: Draft) -> Operation:
    name = draft.choose(BINARY)
    function, growth = BINARY[name]
    first, second = draft.pick(), draft.pick()
    shape, coefficient = draft.shapes[first], draft.coefficient()
    return Operation(name, lambda a, b: function(a, fit(b, shape), coefficient), (first, second), growth=growth)


@family("binary", weight=3)
def broadcast_binary(draft: Draft) -> Operation:
    name = draft.choose(BINARY)
    function, growth = BINARY[name]
    first, second = draft.pick(2), draft.pick()
    shape, coefficient = draft.shapes[first], draft.coefficient()
    kept = tuple(n if draft.rng.random() < 0.5 else 1 for n in shape)
    small = kept[draft.integer(0, len(kept)) :]  # fewer axes, some of length 1
    return Operation(
        f"broadcast_{name}", lambda a, b: function(a, fit(b, small), coefficient), (first, second), growth=growth
    )


@family("binary")
def outer_sum(draft: Draft) -> Operation:
    rows, columns = draft.integer(2, 4), draft.integer(2, 4)

    def function(a: Any, b: Any) -> Any:
        return jnp.sin(fit(a, (rows,))[:, None] - 0.6 * fit(b, (columns,))[None, :])

    return Operation("outer_sum", function, (draft.pick(), draft.pick()), growth="bounded")


# --- without a derivative ---------------------------------------------------------------------------------------------
# Each is shifted so that it is never zero, for it may become a factor of something else.

STILL: dict[str, Callable[[Any], Any]] = {
    "floor": lambda v: 0.3 * jnp.floor(3.0 * v) + 0.37,
    "ceil": lambda v: 0.3 * jnp.ceil(3.0 * v) + 0.37,
    "round": lambda v: 0.3 * jnp.round(3.0 * v) + 0.37,
    "sign": lambda v: jnp.sign(v) + 0.3,
    "stop_gradient": lambda v: jax.lax.stop_gradient(v),
    "to_integer": lambda v: 0.3 * (4.0 * v).astype(jnp.int32) + 0.37,
    "compare": lambda v: (v > 0.1).astype(v.dtype) + 0.3,
    "logical": lambda v: jnp.logical_xor(v > 0.1, v < 0.4).astype(v.dtype) - 0.4,
    "argmax": lambda v: 0.2 * jnp.argmax(v) + 0.3,
    "one_hot": lambda v: jax.nn.one_hot(jnp.argmin(v), 3, dtype=v.dtype) + 0.3,
    "argsort": lambda v: 0.2 * jnp.argsort(v.reshape(-1)) + 0.3,
    "any": lambda v: jnp.any(v > 0.9, keepdims=True) + 0.35,
}


@family("still")
def still(draft: Draft) -> Operation:
    name = draft.choose(STILL)
    return Operation(name, STILL[name], (draft.pick(),), growth="bounded")
