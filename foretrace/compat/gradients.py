"""Two functions that operators of one's own were written with: derivatives kept away, a value spread over weights."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

_is_stopped: contextvars.ContextVar[bool] = contextvars.ContextVar("is_stopped", default=False)


@contextlib.contextmanager
def stop_param_gradients(stop_or_not: bool = True) -> Iterator[None]:
    """Operator objects called inside give values without a derivative, by the weights as by the data.

    `ElemWiseOp` and parameters without a trace keep theirs.

    Args:
        stop_or_not: False to let derivatives through, inside of a block that keeps them away.

    Examples:
        >>> from foretrace.compat import MatMulOp
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


def let_through(y: Any) -> Any:
    """The result of an operator, inside of `stop_param_gradients` without its derivative."""
    return jax.lax.stop_gradient(y) if _is_stopped.get() else y


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
