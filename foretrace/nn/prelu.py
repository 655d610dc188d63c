"""The one activation that learns: its slope for negative inputs is a parameter, and traced."""

from typing import Any

import brainstate

from foretrace.ops import element_wise
from foretrace.ops.units import ArrayLike


class PReLU(brainstate.nn.PReLU):
    """`x` where it is positive, `weight * x` where it is not, with a learned weight.

    Args:
        num_parameters: The number of slopes: 1 for one that all share, or the size of the last axis of the data.
        init: The slopes at first.
        dtype: Their dtype.

    Examples:
        >>> import jax.numpy as jnp
        >>> PReLU(1, 0.5)(jnp.array([2.0, -2.0])).tolist()
        [2.0, -1.0]
    """

    def __call__(self, x: ArrayLike) -> Any:
        """The activation of each element."""
        return brainstate.nn.prelu(x, element_wise(self.weight.value))
