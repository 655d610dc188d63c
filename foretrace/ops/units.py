"""Units at the border of an operator: taken off the operands, multiplied, put back on the result.

Primitives compute with plain arrays. An operand may be a `brainunit` quantity: its mantissa goes in, and the result
carries the product of the operands' units. A transform given by the user (`weight_fn` and its kin) acts on the
mantissa. Operands are checked here as well, so that an error names the operator and the operand.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from foretrace._units import is_quantity, known_unit, unit_of, unit_package, unit_text

ArrayLike = Any  # an array, a nested list of numbers, or a brainunit quantity of either
Transform = Callable[[jax.Array], jax.Array]


def split_unit(operator: str, name: str, value: ArrayLike) -> tuple[jax.Array, Any]:
    """The mantissa of an operand as an array, and its unit."""
    if isinstance(value, jax.Array):
        return value, None
    try:
        if is_quantity(value):
            return jnp.asarray(value.mantissa), unit_of(value)
        if isinstance(value, list | tuple) and unit_package() is not None:  # numbers, or quantities of one unit
            mantissa, unit = unit_package().split_mantissa_unit(value)
            return jnp.asarray(mantissa), known_unit(unit)
        return jnp.asarray(value), None
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
    """The unit of a product."""
    if first is None or second is None:
        return second if first is None else first
    return known_unit(first * second)


def join_unit(mantissa: jax.Array, unit: Any) -> Any:
    """A result with its unit; a plain array where the unit is none, scaled if the units cancelled up to a factor."""
    if unit is None:
        return mantissa
    return unit_package().maybe_decimal(unit_package().Quantity(mantissa, unit=unit))


def convert_unit(operator: str, name: str, mantissa: jax.Array, unit: Any, target: Any) -> jax.Array:
    """The mantissa that `mantissa * unit` has in the unit `target`."""
    if unit is target:
        return mantissa
    unitless = unit_package().UNITLESS
    given, wanted = (unitless if one is None else one for one in (unit, target))
    if not given.has_same_dim(wanted):
        raise ValueError(
            f"{operator}: `{name}` is in {_unit_name(unit)}, but the product it is added to is in "
            f"{_unit_name(target)}. Give `{name}` a unit of the same dimension."
        )
    if given == wanted:
        return mantissa
    return unit_package().Quantity(mantissa, unit=given).to_decimal(wanted)


def _unit_name(unit: Any) -> str:
    return "no unit" if unit is None else unit_text(unit)


def broadcasts(found: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether an array of one shape broadcasts to another."""
    aligned = zip(reversed(found), reversed(wanted), strict=False)
    return len(found) <= len(wanted) and all(size in (1, other) for size, other in aligned)
