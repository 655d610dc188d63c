"""Convolutions: a product of the patches under the window with the kernel.

The kernel's element at one offset and input channel meets `y` at every place of the window. Laid out as patches
`(batch, *space, in x window)`, the convolution is a dense product whose batch has the axes of space too.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from foretrace._jax import JaxprEqn
from foretrace.engine.edges.bilinear import Bilinear

BATCH, WINDOW, OUT, SPACE = "b", "q", "o", "cdefg"


class Convolution(Bilinear):
    """A convolution without groups.

    Args:
        eqn: The equation.
        x_index: Which operand is the data.
        w_index: Which is the kernel.
    """

    def __init__(self, eqn: JaxprEqn, x_index: int, w_index: int) -> None:
        self.kernel_shape = tuple(eqn.invars[w_index].aval.shape)
        data_shape = tuple(eqn.invars[x_index].aval.shape)
        self.numbers = jax.lax.conv_dimension_numbers(
            data_shape, self.kernel_shape, eqn.params.get("dimension_numbers")
        )
        self.options = {
            name: eqn.params.get(name) for name in ("window_strides", "padding", "lhs_dilation", "rhs_dilation")
        }
        space = SPACE[: len(data_shape) - 2]
        y = [""] * len(data_shape)
        for axis, place in zip(BATCH + OUT + space, self.numbers.out_spec, strict=True):
            y[place] = axis
        sizes = dict(zip(y, eqn.outvars[0].aval.shape, strict=True))
        sizes[WINDOW] = int(np.prod(self.kernel_shape)) // sizes[OUT]
        super().__init__(BATCH + space + WINDOW, WINDOW + OUT, "".join(y), sizes, x_index)

    def data(self, operands: Sequence[Any]) -> jax.Array:
        x = jnp.transpose(operands[self.x_index], self.numbers.lhs_spec)
        window = [self.kernel_shape[axis] for axis in self.numbers.rhs_spec[2:]]
        patches = jax.lax.conv_general_dilated_patches(x, window, **self.options)
        return jnp.moveaxis(patches, 1, -1)

    def source(self, operands: Sequence[Any]) -> Hashable:
        return None

    def gradient(self, data: jax.Array, cotangents: jax.Array) -> jax.Array:
        return self._kernel(super().gradient(data, cotangents))

    def contract(self, trace: jax.Array, values: jax.Array) -> jax.Array:
        return self._kernel(super().contract(trace, values))

    def gradient_along(self, axis: int, data: jax.Array, cotangents: jax.Array) -> jax.Array:
        return jax.vmap(self._kernel)(super().gradient_along(axis, data, cotangents))

    def contract_along(self, axis: int, trace: jax.Array, values: jax.Array) -> jax.Array:
        return jax.vmap(self._kernel)(super().contract_along(axis, trace, values))

    def _kernel(self, product: jax.Array) -> jax.Array:
        """From `(in x window, out)` to the layout of the kernel."""
        out, channels, *window = self.numbers.rhs_spec
        shape = [self.kernel_shape[axis] for axis in (channels, *window)]
        placed = product.reshape(*shape, self.kernel_shape[out])
        return jnp.transpose(placed, np.argsort((channels, *window, out)).tolist())


def convolution(eqn: JaxprEqn, x_index: int, w_index: int) -> Convolution | None:
    """The edges of a convolution; None where it has groups or is mapped."""
    grouped = eqn.params.get("feature_group_count", 1) != 1 or eqn.params.get("batch_group_count", 1) != 1
    floating = jnp.issubdtype(eqn.invars[x_index].aval.dtype, np.floating)
    if grouped or eqn.params.get("vmap_axes") or not floating:
        return None
    return Convolution(eqn, x_index, w_index)
