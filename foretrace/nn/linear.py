"""Linear layers on the marked products: dense, in groups, of low rank, and on fixed connections.

What a layer does to its weight before the product (a mask, the absolute value with a sign, the standardisation with a
learned gain) is a function of parameters alone. The compiler follows it, so the eligibility trace belongs to the
weight in the product, and the parameters get their gradients through that function. So do the two factors of a
low-rank layer. A sparse layer's trace lives on the connections alone, as its weights do.
"""

from collections.abc import Callable
from typing import Any

import brainstate
import brainunit
import jax
import jax.numpy as jnp
import numpy as np

from foretrace.nn.parameters import (
    KAIMING_NORMAL,
    LECUN_NORMAL,
    ZEROS,
    Initializer,
    Size,
    checked_count,
    checked_size,
    checked_sizes,
    fixed,
    whole,
)
from foretrace.ops import grouped_matmul, lora_matmul, matmul, sparse_matmul
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


class LoRA(brainstate.nn.LoRA):
    """The layer `y = x @ lora_a @ lora_b`, plus what `base_module` gives for `x`.

    The parameters of the base module stay parameters of the model, and are traced if it is a layer of this package.
    To train the factors alone, ask for their gradients alone: `learner.etrace_grad(..., weights=[layer.weight])`.

    Args:
        in_features: The size of the input's last axis.
        lora_rank: The rank of the product.
        out_features: The size of the output's last axis.
        base_module: A module or function of `x` whose result is added; None for none.
        kernel_init: The initialiser of both factors.
        param_type: The class of the parameters' state.
        in_size: The size of the input without batch axes, where it has several.

    Raises:
        ValueError: A number that is not positive, or `in_size` that does not end with `in_features`.
        TypeError: `base_module` or `kernel_init` cannot be called.

    Attributes:
        weight: The parameters, `{'lora_a': (in, rank), 'lora_b': (rank, out)}`.

    Examples:
        >>> import brainstate, jax.numpy as jnp
        >>> layer = LoRA(3, 1, 2, base_module=Linear(3, 2, w_init=0.5), kernel_init=jnp.ones)
        >>> layer(jnp.ones(3)).tolist()
        [4.5, 4.5]
    """

    def __init__(
        self,
        in_features: int,
        lora_rank: int,
        out_features: int,
        *,
        base_module: Callable[..., Any] | None = None,
        kernel_init: Callable[..., Any] = LECUN_NORMAL,
        param_type: type = brainstate.ParamState,
        in_size: Size | None = None,
    ) -> None:
        numbers = {"in_features": in_features, "lora_rank": lora_rank, "out_features": out_features}
        inputs, rank, outputs = (checked_count("LoRA", name, value) for name, value in numbers.items())
        if base_module is not None and not callable(base_module):
            raise TypeError(f"LoRA: `base_module` must be a module or a function, got {base_module!r}.")
        if not callable(kernel_init):
            raise TypeError(
                f"LoRA: `kernel_init` must be an initialiser, which is called for both factors, got {kernel_init!r}."
            )
        size = None if in_size is None else checked_size("LoRA", "in_size", in_size)
        if size is not None and size[-1] != inputs:
            raise ValueError(f"LoRA: `in_size` {size} does not end with `in_features`, {inputs}.")
        kernel = whole("LoRA", "kernel_init", kernel_init)
        super().__init__(
            inputs, rank, outputs, base_module=base_module, kernel_init=kernel, param_type=param_type, in_size=size
        )

    def __call__(self, x: ArrayLike) -> Any:
        return self.update(x)

    def update(self, x: ArrayLike) -> Any:
        """The output for data of shape `(..., in_features)`."""
        params = self.weight.value
        y = lora_matmul(x, params["lora_a"], params["lora_b"])
        return y if self.base_module is None else y + self.base_module(x)


class SparseLinear(brainstate.nn.SparseLinear):
    """The layer `y = x @ spar_mat + bias` whose connections stay while their weights are trained.

    Args:
        spar_mat: The connections and their initial weights, of shape `(in, out)`: a `brainevent` CSR, CSC,
            FixedNumPerPre, FixedNumPerPost or Dense matrix, or a `brainunit.sparse` CSR, CSC or COO matrix.
        b_init: The bias `(out,)`: an initialiser, an array, or a number for all entries; None for none.
        in_size: The size of the input without batch axes; by default the rows of the matrix. Of several axes the
            last one is mapped.
        name: The name of the module.
        param_type: The class of the parameters' state.

    Raises:
        ValueError: `in_size` does not end with the rows of the matrix.
        TypeError: Not a sparse matrix, or not one of floating numbers.

    Attributes:
        weight: The parameters, `{'weight': ..., 'bias': ...}`, one weight for each connection.
        spar_mat: The connections; the values in it stay the initial ones.

    Examples:
        >>> import brainevent, jax.numpy as jnp
        >>> connections = brainevent.CSR.fromdense(jnp.array([[0.0, 1.0], [2.0, 3.0]]))
        >>> layer = SparseLinear(connections)
        >>> layer(jnp.array([1.0, 10.0])).tolist()
        [20.0, 31.0]
    """

    def __init__(
        self,
        spar_mat: Any,
        b_init: Initializer | None = None,
        in_size: Size | None = None,
        name: str | None = None,
        param_type: type = brainstate.ParamState,
    ) -> None:
        rows = _checked_matrix(spar_mat)
        size = (rows,) if in_size is None else checked_size("SparseLinear", "in_size", in_size)
        if size[-1] != rows:
            raise ValueError(
                f"SparseLinear: `in_size` {size} does not end with {rows}, the rows of `spar_mat` of shape "
                f"{tuple(spar_mat.shape)}. Leave it out, or transpose the matrix."
            )
        bias = None if b_init is None else whole("SparseLinear", "b_init", b_init)
        super().__init__(spar_mat, bias, name=name, param_type=param_type)
        self.in_size, self.out_size = size, (*size[:-1], spar_mat.shape[1])

    def update(self, x: ArrayLike) -> Any:
        """The output for data of shape `(..., in)`; events, as a `brainevent.BinaryArray`, visit active rows only."""
        params = self.weight.value
        return sparse_matmul(x, params["weight"], sparse_mat=self.spar_mat, bias=params.get("bias"))


def _checked_matrix(spar_mat: Any) -> int:
    """The rows of a matrix that can be trained."""
    if not isinstance(spar_mat, brainunit.sparse.SparseMatrix):
        raise TypeError(
            f"SparseLinear: `spar_mat` must be a sparse matrix of brainevent or brainunit.sparse, got "
            f"{type(spar_mat).__name__}. Make one with brainevent.CSR.fromdense, or use Linear with w_mask."
        )
    dtype = brainunit.get_mantissa(spar_mat.data).dtype
    if not jnp.issubdtype(dtype, np.floating):
        raise TypeError(f"SparseLinear: the values of `spar_mat` are trained and must be floating, got {dtype}.")
    return int(spar_mat.shape[0])
