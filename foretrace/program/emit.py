"""Writing equations: a small list that grows by one equation per call.

Passes that rewrite a jaxpr build what they insert here. Every new equation takes the source line of the equation it
stands for, so that messages still point into the user's code.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from foretrace._jax import Atom, JaxprEqn, Literal, Primitive, ShapedArray, Var, new_eqn, new_var, primitives


class Emitter:
    """Collects new equations on behalf of one equation of the user's."""

    def __init__(self, like: JaxprEqn | None = None) -> None:
        self.like = like
        self.eqns: list[JaxprEqn] = []

    def apply(
        self, primitive: Primitive, operands: Sequence[Atom], aval: Any, out: Var | None = None, **params: Any
    ) -> Var:
        """Appends an equation of one output, to `out` or to a fresh variable of this aval."""
        result = new_var(aval) if out is None else out
        self.eqns.append(new_eqn(primitive, operands, [result], params, like=self.like))
        return result

    def broadcast(self, operand: Atom, shape: Sequence[int]) -> Atom:
        """The operand stretched to a shape as JAX's elementwise primitives would."""
        if tuple(operand.aval.shape) == tuple(shape):
            return operand
        first = len(shape) - operand.aval.ndim
        aval = ShapedArray(tuple(shape), operand.aval.dtype)
        dimensions = tuple(range(first, len(shape)))
        params = {"shape": tuple(shape), "broadcast_dimensions": dimensions, "sharding": None}
        return self.apply(primitives.broadcast_in_dim_p, [operand], aval, **params)

    def stop_gradient(self, operand: Atom) -> Atom:
        """The operand as a constant for every derivative."""
        return self.apply(primitives.stop_gradient_p, [operand], operand.aval)

    def where(self, condition: Atom, on_true: Atom, on_false: Atom, out: Var | None = None) -> Var:
        """`on_true` where the condition holds, else `on_false`."""
        return self.apply(primitives.select_n_p, [condition, on_false, on_true], on_true.aval, out)

    def zeros(self, aval: Any) -> Atom:
        """Zeros of a shape and dtype."""
        return self.broadcast(literal(0, aval.dtype), aval.shape)

    def copy(self, operand: Atom) -> Var:
        """The operand under a name of its own."""
        return self.apply(primitives.copy_p, [operand], operand.aval)


def literal(value: Any, dtype: Any) -> Literal:
    """A scalar constant inside an equation."""
    return Literal(np.asarray(value, dtype)[()], ShapedArray((), np.dtype(dtype)))
