"""Parameters that know their operator: traced ones, ones without a trace, and constants that look like them."""

from collections.abc import Callable
from typing import Any

import brainstate

from foretrace.compat.operators import ElemWiseOp, ETraceOp, checked_function
from foretrace.ops import unmarked

GRADIENTS = ("full", "approx", "adaptive")


class ETraceParam(brainstate.ParamState):
    """A parameter with its operator, traced.

    Args:
        weight: The weights that the operator takes.
        op: The operator.
        grad: `'full'`, `'approx'` or `'adaptive'`: a wish of the parameter for the form of its trace. It is checked and
            kept, and changes nothing: the form of the trace belongs to the rule.
        name: A name.

    Examples:
        >>> import jax.numpy as jnp
        >>> from foretrace.compat import MatMulOp
        >>> param = ETraceParam({"weight": jnp.ones((3, 2))}, MatMulOp())
        >>> param.execute(jnp.ones(3)).tolist()
        [3.0, 3.0]
    """

    is_etrace = True

    def __init__(self, weight: Any, op: ETraceOp, grad: Any = None, name: str | None = None) -> None:
        super().__init__(weight, name=name)
        if not isinstance(op, ETraceOp):
            raise TypeError(f"{type(self).__name__} takes an `ETraceOp` such as `MatMulOp()`; got {op!r}.")
        self.gradient = _gradient(grad)
        self.op = op

    def execute(self, x: Any) -> Any:
        """The operator, marked, on the data and the parameter's value."""
        return self.op.xw_to_y(x, self.value) if isinstance(self.op, ElemWiseOp) else self.op(x, self.value)


class ElemWiseParam(ETraceParam):
    """A parameter that acts elementwise, traced.

    Args:
        weight: The weights, any pytree.
        op: From the weights to one array.
        name: A name.

    Examples:
        >>> import jax.numpy as jnp
        >>> ElemWiseParam(jnp.array([-1.0, 2.0]), jnp.abs).execute().tolist()
        [1.0, 2.0]
    """

    def __init__(
        self, weight: Any, op: ElemWiseOp | Callable[[Any], Any] = lambda w: w, name: str | None = None
    ) -> None:
        super().__init__(weight, _elementwise_op(op), grad="full", name=name)

    def execute(self) -> Any:  # type: ignore[override]
        """The marked value."""
        return self.op.xw_to_y(None, self.value)


class NonTempParam(brainstate.ParamState):
    """A parameter with its operator, not traced: it gets the gradient within each step alone.

    Args:
        value: The weights.
        op: An `ETraceOp`, or a function `op(x, value)`.
        name: A name.
        **_kwargs: Nothing; taken for scripts that pass more.

    Examples:
        >>> import jax.numpy as jnp
        >>> NonTempParam(jnp.ones((3, 2)), jnp.matmul).execute(jnp.ones(3)).tolist()
        [3.0, 3.0]
    """

    is_etrace = False

    def __init__(
        self, value: Any, op: ETraceOp | Callable[[Any, Any], Any], name: str | None = None, **_kwargs: Any
    ) -> None:
        super().__init__(value, name=name)
        self.op = checked_function("op", op)

    def execute(self, x: Any) -> Any:
        """The operator, without a mark, on the data and the parameter's value."""
        return _plainly(self.op, x, self.value)


class FakeETraceParam:
    """Constant weights with their operator: no parameter at all.

    Args:
        value: The weights.
        op: An `ETraceOp`, or a function `op(x, value)`.
    """

    def __init__(self, value: Any, op: ETraceOp | Callable[[Any, Any], Any]) -> None:
        self.value = value
        self.op = checked_function("op", op)

    def execute(self, x: Any) -> Any:
        """The operator, without a mark, on the data and the constants."""
        return _plainly(self.op, x, self.value)


class FakeElemWiseParam:
    """Constants that act elementwise: no parameter at all.

    Args:
        weight: The constants, any pytree.
        op: From the constants to one array.
        name: A name.
    """

    def __init__(self, weight: Any, op: ETraceOp | Callable[[Any], Any] = lambda w: w, name: str | None = None) -> None:
        self.value, self.name = weight, name
        self.op = _elementwise_op(op)

    def execute(self) -> Any:
        """The value, without a mark."""
        return self.op.raw_xw_to_y(None, self.value)


def _plainly(op: Any, x: Any, value: Any) -> Any:
    if isinstance(op, ETraceOp):
        return op.raw_xw_to_y(x, value)
    with unmarked():
        return op(x, value)


def _elementwise_op(op: Any) -> ETraceOp:
    return op if isinstance(op, ETraceOp) else ElemWiseOp(op)


def _gradient(grad: Any) -> str:
    kind = "adaptive" if grad is None else getattr(grad, "value", grad)
    if kind not in GRADIENTS:
        raise ValueError(f"`grad` is one of {', '.join(map(repr, GRADIENTS))}, or None; got {grad!r}.")
    return kind
