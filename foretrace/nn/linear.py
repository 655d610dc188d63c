"""Dense layers on the marked product: free weights, weights of fixed sign, and standardised weights.

What a layer does to its weight before the product (a mask, the absolute value with a sign, the standardisation with a
learned gain) is a function of parameters alone. The compiler follows it, so the eligibility trace belongs to the
weight in the product, and the parameters get their gradients through that function.
"""

from typing import Any

import brainstate
import brainunit

from foretrace.nn.parameters import KAIMING_NORMAL, ZEROS, Initializer, Size, checked_sizes, fixed, whole
from foretrace.ops import matmul
from foretrace.ops.units import ArrayLike


class Linear(brainstate.nn.Linear):
    """The layer `y = x @ (weight * w_mask) + bias`, its weights traced.

    Args:
        in_size: The size of the input without batch axes. Of several axes the last one is mapped.
        out_size: The size of the output; all axes but the last are those of `in_size`.
        w_init: The weight `(in, out)`: an initialiser, an array, or a number for all entries; a unit is kept.
        b_init: The bias `(out,)`, likewise; None for none. Its unit is that of the product.
        w_mask: An array that broadcasts to the weight, or a function of the weight's shape, which multiplies it.
        name: The name of the module.
        param_type: The class of the parameter's state.

    Raises:
        ValueError: Sizes that do not go together, or an array that does not fit the weight.
        TypeError: A size that is not one, or an initial value that is not an array.

    Attributes:
        weight: The parameters, `{'weight': ..., 'bias': ...}`.

    Examples:
        >>> import jax.numpy as jnp
        >>> layer = Linear(3, 2, w_init=0.5, w_mask=jnp.array([[1], [1], [0]]))
        >>> layer(jnp.ones((5, 3))).shape, layer(jnp.ones(3)).tolist()
        ((5, 2), [1.0, 1.0])
    """

    def __init__(
        self,
        in_size: Size,
        out_size: Size,
        w_init: Initializer = KAIMING_NORMAL,
        b_init: Initializer | None = ZEROS,
        w_mask: Initializer | None = None,
        name: str | None = None,
        param_type: type = brainstate.ParamState,
    ) -> None:
        before, after = checked_sizes("Linear", in_size, out_size)
        shape = (before[-1], after[-1])
        mask = fixed("Linear", "w_mask", w_mask, shape, shape)
        weight = whole("Linear", "w_init", w_init)
        bias = None if b_init is None else whole("Linear", "b_init", b_init)
        super().__init__(*shape, weight, bias, name=name, param_type=param_type)
        self.in_size, self.out_size, self.w_mask = before, after, mask

    def update(self, x: ArrayLike) -> Any:
        """The output for data of shape `(..., in)`."""
        params = self.weight.value
        return matmul(x, _masked(params["weight"], self.w_mask), params.get("bias"))


class SignedWLinear(brainstate.nn.SignedWLinear):
    """The layer `y = x @ (|weight| * w_sign)`: each connection keeps its sign, as Dale's law asks.

    Args:
        in_size: The size of the input without batch axes. Of several axes the last one is mapped.
        out_size: The size of the output; all axes but the last are those of `in_size`.
        w_init: The weight `(in, out)`, of which the absolute value is used: an initialiser, an array, or a number.
        w_sign: The signs, an array that broadcasts to the weight, such as `(in, 1)` for one sign for each
            presynaptic neuron; None for positive weights alone.
        name: The name of the module.
        param_type: The class of the parameter's state.

    Raises:
        ValueError: Sizes that do not go together, or an array that does not fit the weight.
        TypeError: A size that is not one, or an initial value that is not an array.

    Attributes:
        weight: The parameter, an array `(in, out)`.

    Examples:
        >>> import jax.numpy as jnp
        >>> layer = SignedWLinear(2, 3, w_init=-0.5, w_sign=jnp.array([[1.0], [-1.0]]))
        >>> layer(jnp.array([1.0, 0.0])).tolist(), layer(jnp.array([0.0, 1.0])).tolist()
        ([0.5, 0.5, 0.5], [-0.5, -0.5, -0.5])
    """

    def __init__(
        self,
        in_size: Size,
        out_size: Size,
        w_init: Initializer = KAIMING_NORMAL,
        w_sign: ArrayLike | None = None,
        name: str | None = None,
        param_type: type = brainstate.ParamState,
    ) -> None:
        before, after = checked_sizes("SignedWLinear", in_size, out_size)
        shape = (before[-1], after[-1])
        sign = fixed("SignedWLinear", "w_sign", w_sign, shape, shape)
        super().__init__(*shape, whole("SignedWLinear", "w_init", w_init), sign, name=name, param_type=param_type)
        self.in_size, self.out_size = before, after

    def update(self, x: ArrayLike) -> Any:
        """The output for data of shape `(..., in)`."""
        return matmul(x, _masked(brainunit.math.abs(self.weight.value), self.w_sign))


class ScaledWSLinear(brainstate.nn.ScaledWSLinear):
    """The layer `y = x @ (standardised weight * w_mask) + bias`.

    The weights of each output are shifted to mean 0 and scaled to a sum of squares of 1, times a learned gain (weight
    standardisation, Qiao et al. 2019). A unit of the weight stays with the standardised one.

    Args:
        in_size: The size of the input without batch axes. Of several axes the last one is mapped.
        out_size: The size of the output; all axes but the last are those of `in_size`.
        w_init: The weight `(in, out)`: an initialiser, an array, or a number for all entries.
        b_init: The bias `(out,)`, likewise; None for none.
        w_mask: An array that broadcasts to the weight, or a function of `(in, 1)`, which multiplies the standardised
            weight.
        ws_gain: Whether there is a gain, `(1, out)`, which starts at 1.
        eps: The least variance times `in` that is divided by.
        name: The name of the module.
        param_type: The class of the parameters' state.

    Raises:
        ValueError: Sizes that do not go together, or an array that does not fit the weight.
        TypeError: A size that is not one, or an initial value that is not an array.

    Attributes:
        weight: The parameters, `{'weight': ..., 'bias': ..., 'gain': ...}`.

    Examples:
        >>> import jax.numpy as jnp
        >>> layer = ScaledWSLinear(2, 1, w_init=jnp.array([[1.0], [5.0]]))
        >>> [round(value, 3) for value in layer(jnp.array([0.0, 1.0])).tolist()]
        [0.707]
    """

    def __init__(
        self,
        in_size: Size,
        out_size: Size,
        w_init: Initializer = KAIMING_NORMAL,
        b_init: Initializer | None = ZEROS,
        w_mask: Initializer | None = None,
        ws_gain: bool = True,
        eps: float = 1e-4,
        name: str | None = None,
        param_type: type = brainstate.ParamState,
    ) -> None:
        before, after = checked_sizes("ScaledWSLinear", in_size, out_size)
        shape = (before[-1], after[-1])
        mask = fixed("ScaledWSLinear", "w_mask", w_mask, (shape[0], 1), shape)
        weight = whole("ScaledWSLinear", "w_init", w_init)
        bias = None if b_init is None else whole("ScaledWSLinear", "b_init", b_init)
        super().__init__(*shape, weight, bias, None, ws_gain, eps, name=name, param_type=param_type)
        self.in_size, self.out_size, self.w_mask = before, after, mask

    def update(self, x: ArrayLike) -> Any:
        """The output for data of shape `(..., in)`."""
        params = self.weight.value
        mantissa, unit = brainunit.split_mantissa_unit(params["weight"])
        standard = brainstate.nn.weight_standardization(mantissa, self.eps, params.get("gain")) * unit
        return matmul(x, _masked(standard, self.w_mask), params.get("bias"))


def _masked(weight: ArrayLike, mask: ArrayLike | None) -> Any:
    return weight if mask is None else weight * mask
