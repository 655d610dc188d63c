"""Operators as objects: what they take and compute, each by the function of the package that it stands for.

Masks and weight functions belong to the map from the parameters to the weight and are plain JAX. An operator of the
user's own, a subclass of `ETraceOp`, is marked by one primitive that carries the object along.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from foretrace.errors import NotSupportedError
from foretrace.ops import conv, element_wise, lora_matmul, matmul, register_primitive, sparse_matmul, unmarked

_is_stopped: contextvars.ContextVar[bool] = contextvars.ContextVar("is_stopped", default=False)


@contextlib.contextmanager
def stop_param_gradients(stop_or_not: bool = True) -> Iterator[None]:
    """Operator objects called inside give values without a derivative, by the weights as by the data.

    `ElemWiseOp` and parameters without a trace keep theirs.

    Args:
        stop_or_not: False to let derivatives through, inside of a block that keeps them away.

    Examples:
        >>> def loss(weights):
        ...     with stop_param_gradients():
        ...         return MatMulOp()(jnp.ones(2), weights).sum()
        >>> jax.grad(loss)({"weight": jnp.ones((2, 1))})["weight"].tolist()
        [[0.0], [0.0]]
    """
    token = _is_stopped.set(stop_or_not)
    try:
        yield
    finally:
        _is_stopped.reset(token)


def _let_through(y: Any) -> Any:
    """The result of an operator, inside of `stop_param_gradients` without its derivative."""
    return jax.lax.stop_gradient(y) if _is_stopped.get() else y


class ETraceOp:
    """An operator as an object. A subclass says what it computes in `xw_to_y`, in plain JAX.

    That is all that it needs: traces follow from the derivative of `xw_to_y`, which must be linear in the weights, up
    to a constant. Methods with trace rules (`yw_to_w`, `dt_to_t`) are neither needed nor called.

    Args:
        is_diagonal: Whether it works position by position.
        name: A name.

    Examples:
        >>> class Scaled(ETraceOp):
        ...     def xw_to_y(self, inputs, weights):
        ...         return inputs * weights["gain"]
        >>> Scaled()(jnp.ones(2), {"gain": jnp.full(2, 3.0)}).tolist()
        [3.0, 3.0]
    """

    def __init__(self, is_diagonal: bool | None = False, name: str | None = None) -> None:
        self.is_diagonal = bool(is_diagonal)
        self.name = name

    def __call__(self, inputs: Any, weights: Any) -> Any:
        """Applies the operator, marked."""
        return _let_through(_marked(self, inputs, weights))

    def xw_to_y(self, inputs: Any, weights: Any) -> Any:
        """What the operator computes from data and weights."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it computes: define `xw_to_y`.")

    def raw_xw_to_y(self, inputs: Any, weights: Any) -> Any:
        """The same without a mark."""
        with unmarked():
            return self.xw_to_y(inputs, weights)

    def xy_to_dw(self, input_dim_arr: Any, hidden_dim_arr: Any, weights: Any) -> Any:
        """The derivative by the weights, for a cotangent `hidden_dim_arr` of the result."""
        _, pullback = jax.vjp(lambda own: self.raw_xw_to_y(input_dim_arr, own), weights)
        return pullback(hidden_dim_arr)[0]


def _own_op(x: jax.Array, *leaves: jax.Array, op: ETraceOp, tree: Any) -> jax.Array:
    (y,) = jax.tree.leaves(op.raw_xw_to_y(*tree.unflatten([x, *leaves])))
    return y


def _own_weights(params: Mapping[str, Any]) -> dict[str, int]:
    return {f"weight_{k}": k for k in range(1, params["tree"].num_leaves)}


_own_op_p = register_primitive("etp_own_op", _own_op, trainable_invars_fn=_own_weights)
_own_diagonal_op_p = register_primitive(
    "etp_own_diagonal_op", _own_op, gradient_enabled=True, trainable_invars_fn=_own_weights
)


def _marked(op: ETraceOp, inputs: Any, weights: Any) -> Any:
    """An operator of the user's own as a marked one: arrays go through the primitive, and units stay outside."""
    leaves, tree = jax.tree.flatten((inputs, weights))
    results, out_tree = jax.tree.flatten(jax.eval_shape(op.raw_xw_to_y, inputs, weights))
    if len(jax.tree.leaves(inputs)) != 1 or len(results) != 1:
        raise NotSupportedError(
            f"{type(op).__name__} takes {len(jax.tree.leaves(inputs))} arrays of data and returns {len(results)}. An "
            "operator object has one of each: mark others by `foretrace.register_primitive`."
        )
    primitive = _own_diagonal_op_p if op.is_diagonal else _own_op_p
    return jax.tree.unflatten(out_tree, [primitive.bind(*map(jnp.asarray, leaves), op=op, tree=tree)])


def _same(weights: Any) -> Any:
    return weights


class _MarkedOp(ETraceOp):
    """An operator that one of the package's functions stands for."""

    is_diagonal = False
    name = None

    def __post_init__(self) -> None:
        given = vars(self)
        for name in given.keys() & {"weight_fn", "fn"}:
            checked_function(name, given[name])
        if given.get("weight_mask") is not None:
            given["weight_mask"] = jnp.asarray(given["weight_mask"])

    def __call__(self, inputs: Any, weights: Any) -> Any:
        return _let_through(self.xw_to_y(inputs, weights))


@dataclass(eq=False, repr=False)
class MatMulOp(_MarkedOp):
    """`foretrace.matmul` as an object: weights `{"weight": (in, out), "bias": (out,)}`, the bias optional.

    Args:
        weight_mask: Multiplies the weight.
        weight_fn: Applied to the weight.
        apply_weight_fn_before_mask: Whether the function comes before the mask.

    Examples:
        >>> MatMulOp(weight_mask=jnp.eye(2))(jnp.ones(2), {"weight": jnp.full((2, 2), 3.0)}).tolist()
        [3.0, 3.0]
    """

    weight_mask: Any = None
    weight_fn: Callable[[Any], Any] = _same
    apply_weight_fn_before_mask: bool = False

    def xw_to_y(self, inputs: Any, weights: Any) -> Any:
        """The marked product."""
        own = _checked_weights(self, weights, "weight")
        weight = own["weight"]
        if self.apply_weight_fn_before_mask:
            weight = _masked(self.weight_fn(weight), self.weight_mask)
        else:
            weight = self.weight_fn(_masked(weight, self.weight_mask))
        return matmul(inputs, weight, own.get("bias"))


@dataclass(eq=False, repr=False)
class ConvOp(_MarkedOp):
    """`foretrace.conv` as an object: weights `{"weight": kernel, "bias": ...}`, the bias optional.

    Args:
        xinfo: Shape and dtype of the data, with or without the batch axis.
        window_strides: The steps of the window.
        padding: As for `foretrace.conv`.
        lhs_dilation: The dilation of the data.
        rhs_dilation: The dilation of the kernel.
        feature_group_count: Groups of input channels.
        batch_group_count: Groups of the batch.
        dimension_numbers: The layouts.
        weight_mask: Multiplies the kernel.
        weight_fn: Applied to the kernel after the mask.

    Examples:
        >>> layout = ("NHC", "HIO", "NHC")
        >>> op = ConvOp(jax.ShapeDtypeStruct((5, 2), jnp.float32), (1,), "SAME", dimension_numbers=layout)
        >>> op(jnp.ones((5, 2)), {"weight": jnp.ones((3, 2, 4))}).shape
        (5, 4)
    """

    xinfo: jax.ShapeDtypeStruct
    window_strides: Sequence[int]
    padding: Any
    lhs_dilation: Sequence[int] | None = None
    rhs_dilation: Sequence[int] | None = None
    feature_group_count: int = 1
    batch_group_count: int = 1
    dimension_numbers: Any = None
    weight_mask: Any = None
    weight_fn: Callable[[Any], Any] = _same

    def xw_to_y(self, inputs: Any, weights: Any) -> Any:
        """The marked convolution, of a batch or of a single sample."""
        own = _checked_weights(self, weights, "weight")
        kernel = self.weight_fn(_masked(own["weight"], self.weight_mask))
        is_single = inputs.ndim == kernel.ndim - 1
        y = conv(
            inputs[None] if is_single else inputs,
            kernel,
            own.get("bias"),
            strides=self.window_strides,
            padding=self.padding,
            lhs_dilation=self.lhs_dilation,
            rhs_dilation=self.rhs_dilation,
            feature_group_count=self.feature_group_count,
            batch_group_count=self.batch_group_count,
            dimension_numbers=self.dimension_numbers,
        )
        return y[0] if is_single else y


@dataclass(eq=False, repr=False)
class SpMatMulOp(_MarkedOp):
    """`foretrace.sparse_matmul` as an object: weights `{"weight": (connections,), "bias": ...}`, the bias optional.

    Args:
        sparse_mat: The connections.
        weight_fn: Applied to the weight.
    """

    sparse_mat: Any
    weight_fn: Callable[[Any], Any] = _same

    def xw_to_y(self, inputs: Any, weights: Any) -> Any:
        """The marked sparse product."""
        own = _checked_weights(self, weights, "weight")
        return sparse_matmul(inputs, self.weight_fn(own["weight"]), sparse_mat=self.sparse_mat, bias=own.get("bias"))


@dataclass(eq=False, repr=False)
class LoraOp(_MarkedOp):
    """`foretrace.lora_matmul` as an object: weights `{"B": (in, rank), "A": (rank, out), "bias": ...}`.

    Args:
        alpha: The scale of the product; None for 1.
    """

    alpha: Any = None

    def xw_to_y(self, inputs: Any, weights: Any) -> Any:
        """The marked low-rank product."""
        own = _checked_weights(self, weights, "B", "A")
        alpha = 1.0 if self.alpha is None else self.alpha
        return lora_matmul(inputs, own["B"], own["A"], alpha=alpha, bias=own.get("bias"))


@dataclass(eq=False, repr=False)
class ElemWiseOp(_MarkedOp):
    """`foretrace.element_wise` as an object.

    Args:
        fn: Applied to the weights, any pytree; gives one array.

    Examples:
        >>> ElemWiseOp(jnp.abs)(jnp.array([-1.0, 2.0])).tolist()
        [1.0, 2.0]
    """

    is_diagonal = True
    fn: Callable[[Any], Any] = _same

    def __call__(self, weights: Any) -> Any:  # type: ignore[override]
        """Applies the operator, marked."""
        return self.xw_to_y(None, weights)

    def xw_to_y(self, inputs: Any, weights: Any) -> Any:
        """The marked weights; there are no data."""
        return element_wise(self.fn(weights))


def general_y2w(xw2y: Callable[[Any, Any], Any], x: Any, y: Any, w: Any) -> Any:
    """Spreads a value of the form of an operator's result over its weights: the pullback of `y` for data that are ones.

    Args:
        xw2y: The operator, in plain JAX.
        x: Data, of which only the form matters.
        y: A value of the form of the result.
        w: The weights.

    Returns:
        A value of the form of the weights.

    Raises:
        ValueError: `y` does not have the form of the result.

    Examples:
        >>> general_y2w(jnp.matmul, jnp.zeros(2), jnp.array([1.0, 3.0]), jnp.zeros((2, 2))).tolist()
        [[1.0, 3.0], [1.0, 3.0]]
    """
    ones = jax.tree.map(jnp.ones_like, x)
    result, pullback = jax.vjp(lambda own: xw2y(ones, own), w)
    (primal,), (cotangent,) = jax.tree.leaves(result), jax.tree.leaves(y)
    if jnp.shape(cotangent) != primal.shape:
        raise ValueError(f"general_y2w: the operator gives shape {primal.shape}, but `y` has {jnp.shape(cotangent)}.")
    return pullback(jax.tree.unflatten(jax.tree.structure(result), [jnp.asarray(cotangent, primal.dtype)]))[0]


def checked_function(name: str, value: Any) -> Any:
    """A function, as it was given."""
    if not callable(value):
        raise TypeError(f"`{name}` is a function; got {type(value).__name__}.")
    return value


def _masked(weight: Any, mask: Any) -> Any:
    return weight if mask is None else weight * mask


def _checked_weights(op: ETraceOp, weights: Any, *names: str) -> Mapping[str, Any]:
    if not isinstance(weights, Mapping) or any(name not in weights for name in names):
        found = f"the keys {sorted(weights)}" if isinstance(weights, Mapping) else type(weights).__name__
        needed = ", ".join(map(repr, names))
        raise TypeError(f"{type(op).__name__} takes weights as a dict with {needed}, and maybe 'bias'; got {found}.")
    return weights
