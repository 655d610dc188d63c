"""Convolutions on the marked operator, along one, two or three axes of space.

brainstate's layers read the options and find the size of the output. The kernel and the bias are made here, because
they may carry units, and the data may have any number of batch axes in front.
"""

import math
from collections.abc import Sequence
from typing import Any

import brainstate
import brainunit
import jax.numpy as jnp

from foretrace.nn.parameters import XAVIER_NORMAL, Initializer, checked_count, checked_size, fixed, whole
from foretrace.ops import conv
from foretrace.ops.units import ArrayLike

Padding = str | int | Sequence[int] | Sequence[tuple[int, int]]
PerAxis = int | Sequence[int]


class _Conv(brainstate.nn.Module):
    """What the three layers have in common; it stands in front of brainstate's layer among the bases."""

    def __init__(
        self,
        in_size: Sequence[int],
        out_channels: int,
        kernel_size: PerAxis,
        stride: PerAxis = 1,
        padding: Padding = "SAME",
        lhs_dilation: PerAxis = 1,
        rhs_dilation: PerAxis = 1,
        groups: int = 1,
        w_init: Initializer = XAVIER_NORMAL,
        b_init: Initializer | None = None,
        w_mask: Initializer | None = None,
        channel_first: bool = False,
        name: str | None = None,
        param_type: type = brainstate.ParamState,
    ) -> None:
        layer = type(self).__name__
        counts = {"out_channels": out_channels, "groups": groups}
        sizes = {
            "in_size": in_size,
            "kernel_size": kernel_size,
            "stride": stride,
            "lhs_dilation": lhs_dilation,
            "rhs_dilation": rhs_dilation,
        }
        options: dict[str, Any] = {key: checked_count(layer, key, value) for key, value in counts.items()}
        options |= {key: checked_size(layer, key, value) for key, value in sizes.items()}
        try:
            super().__init__(padding=padding, w_init=jnp.zeros, channel_first=channel_first, name=name, **options)
        except (AssertionError, IndexError, TypeError, ValueError) as error:
            raise ValueError(
                f"{layer}: `in_size` {in_size}, `kernel_size` {kernel_size}, `stride` {stride} and `padding` "
                f"{padding!r} do not make a convolution: {error}"
            ) from error
        self.w_initializer, self.b_initializer = w_init, b_init
        self.w_mask = fixed(layer, "w_mask", w_mask, self.kernel_shape, self.kernel_shape)
        params = {"weight": whole(layer, "w_init", w_init)(self.kernel_shape)}
        if b_init is not None:
            # One value for each channel, in a shape that broadcasts to an output with a batch axis.
            ones = (1,) * len(self.kernel_size)
            shape = (1, self.out_channels, *ones) if channel_first else (*ones, self.out_channels)
            params["bias"] = whole(layer, "b_init", b_init)(shape)
        self.weight = param_type(params)

    def update(self, x: ArrayLike) -> Any:
        """The output for data of shape `(..., *in_size)`."""
        data = brainunit.math.asarray(x)
        batch = data.shape[: max(data.ndim - len(self.in_size), 0)]
        if data.shape != (*batch, *self.in_size):
            raise ValueError(
                f"{type(self).__name__}: the input of shape {data.shape} does not end with `in_size` {self.in_size}. "
                "Batch axes come first."
            )
        params = self.weight.value
        y = conv(
            data if len(batch) == 1 else data.reshape((math.prod(batch), *self.in_size)),
            params["weight"] if self.w_mask is None else params["weight"] * self.w_mask,
            params.get("bias"),
            strides=self.stride,
            padding=self.padding,
            lhs_dilation=self.lhs_dilation,
            rhs_dilation=self.rhs_dilation,
            feature_group_count=self.groups,
            dimension_numbers=self.dimension_numbers,
        )
        return y if len(batch) == 1 else y.reshape((*batch, *self.out_size))


class Conv1d(_Conv, brainstate.nn.Conv1d):
    """The convolution along one axis of space, its kernel traced.

    Args:
        in_size: The size of the input without batch axes: that of space, then the channels, or the channels first.
        out_channels: The number of filters.
        kernel_size: The size of the kernel: one number for all axes of space, or one for each, as in the strides and
            dilations.
        stride: The steps of the window.
        padding: `'SAME'`, `'VALID'`, a number for all ends, one for each axis, or a pair (before, after) for each.
        lhs_dilation: The dilation of the input.
        rhs_dilation: The dilation of the kernel.
        groups: Into how many groups the channels are split; it divides those of the input and of the output.
        w_init: The kernel `(*space, in channels / groups, out channels)`: an initialiser, an array, or a number; a
            unit is kept.
        b_init: The bias, one value for each output channel, likewise; None for none.
        w_mask: An array that broadcasts to the kernel, or a function of its shape, which multiplies it.
        channel_first: Whether the channels come before the axes of space, in the input and in the output.
        name: The name of the module.
        param_type: The class of the parameters' state.

    Raises:
        ValueError: Sizes that do not go together, or an array that does not fit the kernel.
        TypeError: A size that is not one, or an initial value that is not an array.

    Attributes:
        weight: The parameters, `{'weight': ..., 'bias': ...}`.

    Examples:
        >>> import jax.numpy as jnp
        >>> layer = Conv1d((16, 3), 4, 5, stride=2)
        >>> layer(jnp.ones((2, 16, 3))).shape, layer.out_size
        ((2, 8, 4), (8, 4))
    """


class Conv2d(_Conv, brainstate.nn.Conv2d):
    """The convolution along two axes of space, its kernel traced; the arguments are those of `Conv1d`.

    Examples:
        >>> import jax.numpy as jnp
        >>> layer = Conv2d((2, 8, 6), 4, (3, 1), padding="VALID", channel_first=True)
        >>> layer(jnp.ones((2, 8, 6))).shape
        (4, 6, 6)
    """


class Conv3d(_Conv, brainstate.nn.Conv3d):
    """The convolution along three axes of space, its kernel traced; the arguments are those of `Conv1d`.

    Examples:
        >>> import jax.numpy as jnp
        >>> layer = Conv3d((4, 4, 4, 2), 3, 2, stride=2)
        >>> layer(jnp.ones((5, 4, 4, 4, 2))).shape
        (5, 2, 2, 2, 3)
    """
