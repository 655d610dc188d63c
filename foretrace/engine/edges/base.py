"""The contract of edges: how a linear operator's weight acts on its output.

In `y_u = sum_j A_uj(x) w_j`, an *edge* is a pair `(j, u)` that can be nonzero. A trace has one value per edge (and
slot, and place), in whatever layout suits the family.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from foretrace._jax import JaxprEqn, bind_eqn
from foretrace.ops import is_etp_primitive


class Edges:
    """What every family of operators offers.

    `data` is what `A` depends on linearly: the operator's `x`, in the form in which a rule may also add it up over
    time. The other methods take it with a leading axis of steps.

    Attributes:
        shape: The shape of a trace, places aside.
        data_size: Number of values that `data` has for one step.
        sample_size: How many values a trace has for one sample of several; zero where samples cannot be taken apart.
    """

    shape: tuple[int, ...]
    data_size: int = 1
    sample_size: int = 0

    def spread(self, values: Any) -> Any:
        """Values `(places, *y_shape)` on the edges: `(places, *shape)` up to broadcasting."""
        raise NotImplementedError

    def data(self, operands: Sequence[Any]) -> Any:
        """What `A` depends on linearly, of the values of the equation's inputs in one step."""
        raise NotImplementedError

    def source(self, operands: Sequence[Any]) -> Hashable:
        """Equal for edges whose data are the same, given the equation's inputs; None where that is not told."""
        return None

    def gradient(self, data: Any, cotangents: jax.Array) -> jax.Array:
        """The weight's gradient `sum_k A(x_k)^T c_k` for cotangents `(steps, *y_shape)`."""
        raise NotImplementedError

    def add_gradient(self, total: jax.Array, data: Any, cotangents: jax.Array) -> jax.Array:
        """A gradient, with that by some cotangents added."""
        return total + self.gradient(data, cotangents).astype(total.dtype).reshape(total.shape)

    def accumulate(self, data: Any, values: jax.Array) -> jax.Array:
        """`sum_k A(x_k) s_k` on the edges, for values `(steps, places, *y_shape)`: `(places, *shape)`."""
        raise NotImplementedError

    def contract(self, trace: jax.Array, values: jax.Array) -> jax.Array:
        """A trace `(places, *shape)` times values `(places, *y_shape)`, summed to the weight's shape."""
        raise NotImplementedError


class Elementwise(Edges):
    """A weight that is `y` itself."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def spread(self, values: Any) -> Any:
        return values

    def data(self, operands: Sequence[Any]) -> jax.Array:
        return jnp.ones(())

    def source(self, operands: Sequence[Any]) -> Hashable:
        return "one"

    def gradient(self, data: jax.Array, cotangents: jax.Array) -> jax.Array:
        return jnp.einsum("k,k...->...", data.astype(cotangents.dtype), cotangents)

    def accumulate(self, data: jax.Array, values: jax.Array) -> jax.Array:
        return self.gradient(data, values)

    def contract(self, trace: jax.Array, values: jax.Array) -> jax.Array:
        return jnp.sum(trace * values, axis=0)


def operator_of(eqn: JaxprEqn, y_index: int) -> Callable[..., jax.Array]:
    """What an equation computes for one of its outputs, from its operands and unmarked."""

    def operator(*operands: Any) -> jax.Array:
        if not is_etp_primitive(eqn.primitive):
            return bind_eqn(eqn, *operands)[y_index]
        found = eqn.primitive.plain(*operands, **eqn.params)
        return found[y_index] if eqn.primitive.multiple_results else found

    return operator
