"""The layer of independent groups: one small matrix for each, instead of a large block-diagonal one."""

from typing import Any

import brainstate
import jax

from foretrace.nn.parameters import KAIMING_NORMAL, ZEROS, Initializer, checked_count, whole
from foretrace.ops import grouped_matmul
from foretrace.ops.units import ArrayLike


def kaiming_per_group(shape: tuple[int, int, int]) -> jax.Array:
    """Kaiming's normal distribution for the inputs of one group, which are all that a neuron of it sees."""
    groups, inputs, outputs = shape
    return KAIMING_NORMAL((inputs, groups * outputs)).reshape(inputs, groups, outputs).swapaxes(0, 1)


class GroupedLinear(brainstate.nn.Module):
    """The layer `y[..., g, :] = x[..., g, :] @ weight[g] + bias[g]`.

    Args:
        num_groups: The number of groups.
        in_features: The inputs of each group.
        out_features: The outputs of each group.
        w_init: The weight `(num_groups, in_features, out_features)`: an initialiser, an array that broadcasts to it,
            or a number for all entries. By default each group starts as `Linear` does.
        b_init: The bias `(num_groups, out_features)`, likewise; None for none.
        name: The name of the module.
        param_type: The class of the parameters' state.

    Raises:
        ValueError: A number that is not positive, or an array that does not fit.
        TypeError: A number that is not whole, or an initial value that is not an array.

    Attributes:
        weight: The parameters, `{'weight': ..., 'bias': ...}`.

    Examples:
        >>> import jax.numpy as jnp
        >>> layer = GroupedLinear(4, 3, 2)
        >>> layer(jnp.ones((5, 4, 3))).shape
        (5, 4, 2)
    """

    def __init__(
        self,
        num_groups: int,
        in_features: int,
        out_features: int,
        w_init: Initializer = kaiming_per_group,
        b_init: Initializer | None = ZEROS,
        name: str | None = None,
        param_type: type = brainstate.ParamState,
    ) -> None:
        super().__init__(name=name)
        self.num_groups = checked_count("GroupedLinear", "num_groups", num_groups)
        self.in_features = checked_count("GroupedLinear", "in_features", in_features)
        self.out_features = checked_count("GroupedLinear", "out_features", out_features)
        self.in_size = (self.num_groups, self.in_features)
        self.out_size = (self.num_groups, self.out_features)
        params = {"weight": whole("GroupedLinear", "w_init", w_init)((*self.in_size, self.out_features))}
        if b_init is not None:
            params["bias"] = whole("GroupedLinear", "b_init", b_init)(self.out_size)
        self.weight = param_type(params)

    def update(self, x: ArrayLike) -> Any:
        """The output for data of shape `(..., num_groups, in_features)`."""
        params = self.weight.value
        return grouped_matmul(x, params["weight"], params.get("bias"))
