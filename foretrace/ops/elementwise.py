"""The marked elementwise operator: a parameter that acts position by position, such as a bias, a gain or a decay.

Its primitive is the identity. What is marked is the value itself, the `y` of an elementwise occurrence, wherever it
goes from there. A bias of the other operators is such an occurrence of its own.
"""

from collections.abc import Callable
from typing import Any

import jax

from foretrace.ops.primitive import register_primitive
from foretrace.ops.units import ArrayLike, Transform, broadcasts, convert_unit, join_unit, split_weight


def _identity(weight: jax.Array) -> jax.Array:
    return weight


element_wise_p = register_primitive("etp_element_wise", _identity, gradient_enabled=True, x_invar_index=None)


def element_wise(weight: ArrayLike, fn: Transform | None = None, *, weight_fn: Transform | None = None) -> Any:
    """Marks a parameter that acts elementwise.

    Args:
        weight: A floating array of any shape, with or without a unit.
        fn: `weight_fn` by position.
        weight_fn: Applied to the weight's mantissa first.

    Returns:
        `weight_fn(weight)`, marked, with the weight's unit.

    Examples:
        >>> import jax.numpy as jnp
        >>> element_wise(jnp.array([-1.0, 2.0]), weight_fn=jnp.abs).tolist()
        [1.0, 2.0]
    """
    if fn is not None and weight_fn is not None:
        raise TypeError("element_wise: `fn` and `weight_fn` are the same; give one of them.")
    mantissa, unit = split_weight("element_wise", "weight", weight, fn if weight_fn is None else weight_fn)
    return join_unit(element_wise_p.bind(mantissa), unit)


def add_bias(
    operator: str,
    y: jax.Array,
    unit: Any,
    bias: ArrayLike | None,
    bias_fn: Transform | None,
    layout: Callable[[jax.Array], jax.Array] | None = None,
) -> Any:
    """The result `y * unit` of an operator plus its marked bias, which `layout` may reshape to fit `y`."""
    if bias is None:
        return join_unit(y, unit)
    mantissa, bias_unit = split_weight(operator, "bias", bias, bias_fn)
    mantissa = convert_unit(operator, "bias", mantissa, bias_unit, unit)
    if layout is not None:
        mantissa = layout(mantissa)
    if not broadcasts(mantissa.shape, y.shape):
        raise ValueError(
            f"{operator}: `bias` of shape {mantissa.shape} does not broadcast to the result of shape {y.shape}. "
            f"Give it the shape {y.shape[-1:]}, or one that broadcasts."
        )
    return join_unit(_added(y, element_wise_p.bind(mantissa)), unit)


def _added(y: jax.Array, bias: jax.Array) -> jax.Array:
    """`y + bias`; the common case spares a step's trace the detour through `jax.numpy`."""
    if y.dtype != bias.dtype:
        return y + bias
    axes = range(y.ndim - bias.ndim, y.ndim)
    return jax.lax.add(y, jax.lax.broadcast_in_dim(bias, y.shape, axes))
