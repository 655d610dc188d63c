"""The marked contraction of two operands, written as an einsum equation; linear in each of them."""

from typing import Any

import jax
import jax.numpy as jnp

from foretrace.ops.primitive import register_primitive
from foretrace.ops.units import ArrayLike, Transform, join_unit, product_unit, split_unit, split_weight


def _einsum(x: jax.Array, weight: jax.Array, *, equation: str) -> jax.Array:
    return jnp.einsum(equation, x, weight)


einsum_p = register_primitive("etp_einsum", _einsum)


def einsum(equation: str, x: ArrayLike, weight: ArrayLike, *, weight_fn: Transform | None = None) -> Any:
    """The marked contraction `einsum(equation, x, weight_fn(weight))`.

    Args:
        equation: Two operands and an explicit result, such as `'bi,io->bo'`; `...` stands for leading axes.
        x: Data.
        weight: The trained operand.
        weight_fn: Applied to the weight's mantissa first.

    Returns:
        The contraction, in the product of the units.

    Examples:
        >>> import jax.numpy as jnp
        >>> einsum("bhi,hio->bho", jnp.ones((5, 2, 3)), jnp.ones((2, 3, 4))).shape
        (5, 2, 4)
    """
    if not isinstance(equation, str):
        raise TypeError(f"einsum: the equation comes first and must be a string, got {type(equation).__name__}.")
    array, x_unit = split_unit("einsum", "x", x)
    mantissa, unit = split_weight("einsum", "weight", weight, weight_fn)
    compact = _check_equation(equation, array, mantissa)
    return join_unit(einsum_p.bind(array, mantissa, equation=compact), product_unit(x_unit, unit))


def _check_equation(equation: str, x: jax.Array, weight: jax.Array) -> str:
    """The equation without spaces, if it is one of these operands."""
    compact = equation.replace(" ", "")
    inputs, arrow, result = compact.partition("->")
    operands = inputs.split(",")
    if not arrow or len(operands) != 2:
        raise ValueError(
            f"einsum: the equation `{equation}` must name two operands and the result, such as `bi,io->bo`."
        )
    sizes: dict[str, int] = {}
    for name, letters, shape in zip(("x", "weight"), operands, (x.shape, weight.shape), strict=True):
        _collect_sizes(equation, name, letters, shape, sizes)
    unknown = sorted(set(result.replace("...", "")) - set(sizes))
    if unknown:
        raise ValueError(f"einsum: the result of `{equation}` has {unknown}, which neither operand has.")
    return compact


def _collect_sizes(equation: str, name: str, letters: str, shape: tuple[int, ...], sizes: dict[str, int]) -> None:
    head, dots, tail = letters.partition("...")
    if not (head + tail).isalpha() and head + tail:
        raise ValueError(f"einsum: `{letters}` in `{equation}` must consist of letters, and of `...` at most once.")
    rank = len(head) + len(tail)
    if len(shape) < rank or (len(shape) != rank and not dots):
        raise ValueError(f"einsum: `{name}` of shape {shape} does not have the axes `{letters}` of `{equation}`.")
    named = [*zip(head, shape, strict=False), *zip(tail, shape[len(shape) - len(tail) :], strict=True)]
    for letter, size in named:
        if sizes.setdefault(letter, size) != size:
            raise ValueError(
                f"einsum: the axis `{letter}` of `{equation}` has the size {size} in `{name}` of shape {shape}, "
                f"and {sizes[letter]} before. Axes with one letter have one size."
            )
