"""The sparse product: traces and gradients live on the connections alone.

A trace has a value for each connection and each row of the batch, `(batch..., connections)`. The values of `y` and of
`x` at a connection are gathered by its column and its row.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from foretrace._jax import JaxprEqn
from foretrace.engine.edges.base import Edges
from foretrace.ops.sparse import connection_indices


class Sparse(Edges):
    """A product with a matrix of fixed connections.

    Args:
        rows: The row of every connection, which is its element of `x`.
        columns: The column, which is its element of `y`.
        batch: The shape of `x` without its last axis.
        event: Whether elements of `x` above zero count as one.
    """

    def __init__(self, rows: jax.Array, columns: jax.Array, batch: tuple[int, ...], event: bool) -> None:
        self.rows, self.columns, self.event = rows, columns, event
        self.shape = (*batch, rows.size)

    def spread(self, values: Any) -> Any:
        return jnp.take(values, self.columns, axis=-1)

    def data(self, operands: Sequence[Any]) -> jax.Array:
        """What the product multiplies: ones and zeros where events are counted."""
        x = operands[0] > 0 if self.event else operands[0]
        return x.astype(operands[1].dtype)

    def gradient(self, data: jax.Array, cotangents: jax.Array) -> jax.Array:
        data, cotangents = (array.reshape(-1, array.shape[-1]) for array in (data, cotangents))

        def add(total: jax.Array, pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            return total + jnp.take(pair[0], self.rows) * jnp.take(pair[1], self.columns), None

        start = jnp.zeros(self.rows.size, cotangents.dtype)
        return jax.lax.scan(add, start, (data.astype(cotangents.dtype), cotangents))[0]

    def accumulate(self, data: jax.Array, values: jax.Array) -> jax.Array:
        def add(total: jax.Array, pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            return total + jnp.take(pair[0], self.rows, axis=-1)[None] * self.spread(pair[1]), None

        start = jnp.zeros((values.shape[1], *self.shape), values.dtype)
        return jax.lax.scan(add, start, (data.astype(values.dtype), values))[0]

    def contract(self, trace: jax.Array, values: jax.Array) -> jax.Array:
        product = trace * self.spread(values)
        return jnp.sum(product, axis=range(product.ndim - 1), dtype=values.dtype)


def sparse(eqn: JaxprEqn, index: Sequence[Any]) -> Sparse | None:
    """The marked sparse product with known connections; None where it is mapped in an unusual way."""
    x, weight = eqn.invars[0].aval, eqn.invars[1].aval
    if any(axes != (0, None, None, None) for axes in eqn.params.get("vmap_axes", ())) or weight.ndim != 1:
        return None
    if weight.shape != (index[0].size,) and weight.size == 1:
        return None
    rows, columns = connection_indices(tuple(index), form=eqn.params["form"], shape=eqn.params["shape"])
    return Sparse(rows, columns, tuple(x.shape[:-1]), eqn.params["event"])
