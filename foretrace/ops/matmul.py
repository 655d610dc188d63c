"""The marked matrix products: with a dense matrix, with a small one for each of several groups, or of low rank.

The low-rank matrix `alpha * B @ A` is a function of parameters alone, so it belongs to the map `g` from the parameters
to the weight: what is marked is the dense product with it, and both factors get their gradients through `g`.
"""

from typing import Any

import jax
import jax.numpy as jnp

from foretrace._checks import require_numeric
from foretrace.ops.elementwise import add_bias
from foretrace.ops.primitive import register_primitive
from foretrace.ops.units import ArrayLike, Transform, product_unit, split_unit, split_weight


def _grouped_matmul(x: jax.Array, weight: jax.Array) -> jax.Array:
    return jnp.einsum("...gi,gio->...go", x, weight)


matmul_p = register_primitive("etp_matmul", jnp.matmul)
grouped_matmul_p = register_primitive("etp_grouped_matmul", _grouped_matmul)


def matmul(
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    weight_fn: Transform | None = None,
    bias_fn: Transform | None = None,
) -> Any:
    """The marked product `x @ weight_fn(weight) + bias_fn(bias)`.

    Args:
        x: Data of shape `(..., in)`.
        weight: A matrix of shape `(in, out)`.
        bias: Added to the product, usually of shape `(out,)`; a marked elementwise parameter of its own.
        weight_fn: Applied to the weight's mantissa first.
        bias_fn: Applied to the bias's mantissa first.

    Returns:
        The product, of shape `(..., out)`, in the product of the units.

    Examples:
        >>> import jax.numpy as jnp
        >>> matmul(jnp.ones((5, 3)), jnp.ones((3, 2)), jnp.zeros(2)).shape
        (5, 2)
    """
    array, x_unit = split_unit("matmul", "x", x)
    matrix, unit = split_weight("matmul", "weight", weight, weight_fn)
    _check_matmul("matmul", array, matrix)
    return add_bias("matmul", matmul_p.bind(array, matrix), product_unit(x_unit, unit), bias, bias_fn)


def grouped_matmul(
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    weight_fn: Transform | None = None,
    bias_fn: Transform | None = None,
) -> Any:
    """The marked product of each group with its own matrix: `y[..., g, :] = x[..., g, :] @ weight[g] + bias[g]`.

    Args:
        x: Data of shape `(..., groups, in)`.
        weight: One matrix for each group, of shape `(groups, in, out)`.
        bias: Added to the product, usually of shape `(groups, out)`; a marked elementwise parameter of its own.
        weight_fn: Applied to the weight's mantissa first.
        bias_fn: Applied to the bias's mantissa first.

    Returns:
        The product, of shape `(..., groups, out)`, in the product of the units.

    Examples:
        >>> import jax.numpy as jnp
        >>> grouped_matmul(jnp.ones((5, 4, 3)), jnp.ones((4, 3, 2))).shape
        (5, 4, 2)
    """
    array, x_unit = split_unit("grouped_matmul", "x", x)
    matrices, unit = split_weight("grouped_matmul", "weight", weight, weight_fn)
    if matrices.ndim != 3 or array.ndim < 2 or array.shape[-2:] != matrices.shape[:2]:
        raise ValueError(
            f"grouped_matmul: `x` of shape {array.shape} and `weight` of shape {matrices.shape} do not fit. "
            "Expected x of shape (..., groups, in) and weight of shape (groups, in, out)."
        )
    return add_bias("grouped_matmul", grouped_matmul_p.bind(array, matrices), product_unit(x_unit, unit), bias, bias_fn)


def lora_matmul(
    x: ArrayLike,
    B: ArrayLike,
    A: ArrayLike,
    *,
    alpha: float = 1.0,
    bias: ArrayLike | None = None,
    b_fn: Transform | None = None,
    a_fn: Transform | None = None,
    bias_fn: Transform | None = None,
) -> Any:
    """The marked low-rank product `alpha * x @ b_fn(B) @ a_fn(A) + bias_fn(bias)`.

    Args:
        x: Data of shape `(..., in)`.
        B: The first factor, of shape `(in, rank)`.
        A: The second factor, of shape `(rank, out)`.
        alpha: The scale of the product.
        bias: Added to the product, usually of shape `(out,)`; a marked elementwise parameter of its own.
        b_fn: Applied to the mantissa of `B` first.
        a_fn: Applied to the mantissa of `A` first.
        bias_fn: Applied to the bias's mantissa first.

    Returns:
        The product, of shape `(..., out)`, in the product of the units.

    Examples:
        >>> import jax.numpy as jnp
        >>> lora_matmul(jnp.ones(3), jnp.ones((3, 2)), jnp.ones((2, 4)), alpha=0.5).tolist()
        [3.0, 3.0, 3.0, 3.0]
    """
    array, x_unit = split_unit("lora_matmul", "x", x)
    first, first_unit = split_weight("lora_matmul", "B", B, b_fn)
    second, second_unit = split_weight("lora_matmul", "A", A, a_fn)
    if first.ndim != 2 or second.ndim != 2 or first.shape[1] != second.shape[0]:
        raise ValueError(
            f"lora_matmul: `B` of shape {first.shape} and `A` of shape {second.shape} do not fit. "
            "Expected B of shape (in, rank) and A of shape (rank, out)."
        )
    require_numeric("alpha", alpha, "a number that scales the product")
    if jnp.shape(alpha):
        raise ValueError(
            f"lora_matmul: `alpha` is one number that scales the product, not an array of {jnp.shape(alpha)}."
        )
    weight = alpha * (first @ second)
    _check_matmul("lora_matmul", array, weight)
    unit = product_unit(product_unit(x_unit, first_unit), second_unit)
    return add_bias("lora_matmul", matmul_p.bind(array, weight), unit, bias, bias_fn)


def _check_matmul(operator: str, x: jax.Array, weight: jax.Array) -> None:
    """Refuses data and a matrix whose shapes do not fit."""
    if weight.ndim != 2 or x.ndim < 1 or x.shape[-1] != weight.shape[0]:
        raise ValueError(
            f"{operator}: `x` of shape {x.shape} and `weight` of shape {weight.shape} do not fit. "
            "Expected x of shape (..., in) and weight of shape (in, out); for other contractions use einsum."
        )
