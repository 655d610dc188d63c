"""The marked convolution, with the options of `jax.lax.conv_general_dilated`."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from foretrace._checks import is_whole, require_count
from foretrace.ops.elementwise import add_bias
from foretrace.ops.primitive import register_primitive
from foretrace.ops.units import ArrayLike, Transform, product_unit, split_unit, split_weight

Padding = str | Sequence[tuple[int, int]]


def _conv(x: jax.Array, kernel: jax.Array, **options: Any) -> jax.Array:
    dtype = jnp.promote_types(x.dtype, kernel.dtype)
    return jax.lax.conv_general_dilated(x.astype(dtype), kernel.astype(dtype), **options)


conv_p = register_primitive("etp_conv", _conv)


def conv(
    x: ArrayLike,
    kernel: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    strides: int | Sequence[int] = (1,),
    padding: Padding = "SAME",
    lhs_dilation: int | Sequence[int] | None = None,
    rhs_dilation: int | Sequence[int] | None = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    dimension_numbers: Any = None,
    kernel_fn: Transform | None = None,
    bias_fn: Transform | None = None,
) -> Any:
    """The marked convolution of `x` with `kernel_fn(kernel)`, plus `bias_fn(bias)`.

    Args:
        x: Data with a batch axis, laid out as `dimension_numbers` says; by default `(batch, channels, *space)`.
        kernel: By default `(out channels, in channels, *space)`.
        bias: A vector over the output channels, or an array that broadcasts to the result; a marked elementwise
            parameter of its own.
        strides: The steps of the window; one number stands for all axes, as in the dilations.
        padding: `'SAME'`, `'VALID'`, `'SAME_LOWER'`, or a pair (before, after) for each axis of space.
        lhs_dilation: The dilation of `x`.
        rhs_dilation: The dilation of the kernel.
        feature_group_count: Into how many groups the input channels are split.
        batch_group_count: Into how many groups the batch is split.
        dimension_numbers: The layouts, such as `('NHWC', 'HWIO', 'NHWC')`.
        kernel_fn: Applied to the kernel's mantissa first.
        bias_fn: Applied to the bias's mantissa first.

    Returns:
        The convolution, in the product of the units.

    Examples:
        >>> import jax.numpy as jnp
        >>> conv(jnp.ones((2, 3, 16)), jnp.ones((4, 3, 5)), jnp.zeros(4), strides=2).shape
        (2, 4, 8)
    """
    array, x_unit = split_unit("conv", "x", x)
    weight, unit = split_weight("conv", "kernel", kernel, kernel_fn)
    space = weight.ndim - 2
    if space < 1 or array.ndim != weight.ndim:
        raise ValueError(
            f"conv: `x` of shape {array.shape} and `kernel` of shape {weight.shape} do not fit: both need the same "
            "rank, two axes and those of space. Give a single sample a batch axis with x[None]."
        )
    numbers = _dimension_numbers(array.shape, weight.shape, dimension_numbers)
    options = {
        "window_strides": _per_axis("strides", strides, space),
        "padding": _padding(padding, space),
        "lhs_dilation": None if lhs_dilation is None else _per_axis("lhs_dilation", lhs_dilation, space),
        "rhs_dilation": None if rhs_dilation is None else _per_axis("rhs_dilation", rhs_dilation, space),
        "feature_group_count": require_count("feature_group_count", feature_group_count, "groups"),
        "batch_group_count": require_count("batch_group_count", batch_group_count, "groups"),
        "dimension_numbers": numbers,
    }
    _check_channels(array.shape, weight.shape, numbers, options)
    y = conv_p.bind(array, weight, **options)
    channels = [-1 if axis == numbers.out_spec[1] else 1 for axis in range(y.ndim)]
    over_channels = lambda bias: bias.reshape(channels) if bias.ndim == 1 else bias
    return add_bias("conv", y, product_unit(x_unit, unit), bias, bias_fn, over_channels)


def _dimension_numbers(x: tuple[int, ...], kernel: tuple[int, ...], numbers: Any) -> jax.lax.ConvDimensionNumbers:
    try:
        return jax.lax.conv_dimension_numbers(x, kernel, numbers)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"conv: dimension_numbers {numbers!r} do not describe `x` of shape {x} and `kernel` of shape {kernel}: "
            f"{error}"
        ) from error


def _per_axis(name: str, value: int | Sequence[int], space: int) -> tuple[int, ...]:
    listed = isinstance(value, Sequence | np.ndarray)
    given: tuple[Any, ...] = (value,) if is_whole(value) else tuple(value) if listed else ()  # type: ignore[arg-type]
    if len(given) not in (1, space) or not all(is_whole(v) and v >= 1 for v in given):
        raise ValueError(f"conv: `{name}` needs one positive number for each of {space} axes of space, got {value!r}.")
    return tuple(int(v) for v in (given * space if len(given) == 1 else given))


def _padding(value: Padding, space: int) -> str | tuple[tuple[int, int], ...]:
    if isinstance(value, str):
        if value.upper() not in ("SAME", "VALID", "SAME_LOWER"):
            raise ValueError(f"conv: `padding` must be 'SAME', 'VALID', 'SAME_LOWER' or pairs, got {value!r}.")
        return value.upper()
    try:
        pairs = tuple((int(before), int(after)) for before, after in value)
    except (TypeError, ValueError):
        pairs = ()
    if len(pairs) != space:
        raise ValueError(f"conv: `padding` needs a pair (before, after) for each of {space} axes, got {value!r}.")
    return pairs


def _check_channels(
    x: tuple[int, ...], kernel: tuple[int, ...], numbers: jax.lax.ConvDimensionNumbers, options: dict[str, Any]
) -> None:
    channels, wanted = x[numbers.lhs_spec[1]], kernel[numbers.rhs_spec[1]]
    groups = options["feature_group_count"]
    if channels != wanted * groups:
        raise ValueError(
            f"conv: `x` of shape {x} has {channels} channels, but `kernel` of shape {kernel} reads {wanted} in each of "
            f"{groups} groups. Check dimension_numbers, or set feature_group_count."
        )
    if kernel[numbers.rhs_spec[0]] % (groups * options["batch_group_count"]):
        raise ValueError(
            f"conv: `kernel` of shape {kernel} has {kernel[numbers.rhs_spec[0]]} output channels, which {groups} "
            f"feature groups and {options['batch_group_count']} batch groups do not divide."
        )
