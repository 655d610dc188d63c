"""The marked low-rank product.

`alpha * B @ A` is a function of parameters alone, so it belongs to the map `g` from the parameters to the weight:
the operator marked here is the dense product with that matrix, and both factors get their gradients through `g`.
"""

from typing import Any

import jax.numpy as jnp

from foretrace._checks import require_numeric
from foretrace.ops.elementwise import add_bias
from foretrace.ops.matmul import check_matmul, matmul_p
from foretrace.ops.units import ArrayLike, Transform, product_unit, split_unit, split_weight


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
    check_matmul("lora_matmul", array, weight)
    unit = product_unit(product_unit(x_unit, first_unit), second_unit)
    return add_bias("lora_matmul", matmul_p.bind(array, weight), unit, bias, bias_fn)
