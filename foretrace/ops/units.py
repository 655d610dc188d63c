"""Units at the border of an operator: taken off the operands, multiplied, put back on the result.

Primitives compute with plain arrays. An operand may be a `brainunit` quantity: its mantissa goes in, and the result
carries the product of the operands' units. A transform given by the user (`weight_fn` and its kin) acts on the
mantissa. Operands are checked here as well, so that an error names the operator and the operand.
"""

from collections.abc import Callable
from typing import Any

import brainunit
import jax
import jax.numpy as jnp
import numpy as np

ArrayLike = Any  # an array, a nested list of numbers, or a brainunit quantity of either
Transform = Callable[[jax.Array], jax.Array]


def split_unit(operator: str, name: str, value: ArrayLike) -> tuple[jax.Array, Any]:
    """The mantissa of an operand as an array, and its unit."""
    if isinstance(value, jax.Array):
        return value, brainunit.UNITLESS
    try:
        mantissa, unit = brainunit.split_mantissa_unit(value)
        return jnp.asarray(mantissa), unit
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{operator}: `{name}` must be an array or a quantity, got {type(value).__name__}. Pass its value instead."
        ) from error


def split_weight(operator: str, name: str, value: ArrayLike, transform: Transform | None) -> tuple[jax.Array, Any]:
    """The mantissa of a trained operand after its transform, and its unit."""
    weight, unit = split_unit(operator, name, value)
    if not jnp.issubdtype(weight.dtype, np.inexact):
        raise TypeError(
            f"{operator}: `{name}` is trained and must be of a floating dtype, got {weight.dtype} with shape "
            f"{weight.shape}. Convert it, for instance with .astype(jnp.float32)."
        )
    if transform is None:
        return weight, unit
    if not callable(transform):
        raise TypeError(f"{operator}: the transform of `{name}` must be a function, got {transform!r}.")
    made = transform(weight)
    if not hasattr(made, "shape") or not hasattr(made, "dtype"):
        raise TypeError(
            f"{operator}: the transform of `{name}` must return an array, and returned {type(made).__name__}."
        )
    return made, unit


def product_unit(first: Any, second: Any) -> Any:
    """The unit of a product; most operands have none, and multiplying units takes longer than binding a primitive."""
    return first if second is brainunit.UNITLESS else first * second


def join_unit(mantissa: jax.Array, unit: Any) -> Any:
    """A result with its unit; a plain array where the unit is none, scaled if the units cancelled up to a factor."""
    if unit is brainunit.UNITLESS or unit.is_unitless:
        return mantissa
    return brainunit.maybe_decimal(brainunit.Quantity(mantissa, unit=unit))


def convert_unit(operator: str, name: str, mantissa: jax.Array, unit: Any, target: Any) -> jax.Array:
    """The mantissa that `mantissa * unit` has in the unit `target`."""
    if unit is target:
        return mantissa
    if not unit.has_same_dim(target):
        raise ValueError(
            f"{operator}: `{name}` is in {_unit_name(unit)}, but the product it is added to is in "
            f"{_unit_name(target)}. Give `{name}` a unit of the same dimension."
        )
    if unit == target:
        return mantissa
    return brainunit.Quantity(mantissa, unit=unit).to_decimal(target)


def _unit_name(unit: Any) -> str:
    return "no unit" if unit.is_unitless else str(unit)
