"""The sparse product: traces and gradients live on the connections alone.

A trace has a value for each connection and each row of the batch, `(batch..., connections)`. The values of `y` and of
`x` at a connection are gathered by its column and its row. Where `x` are events and the connections of each row stand
together, the connections of the rows that fired are visited instead, and no others.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from foretrace._jax import JaxprEqn, one_processor
from foretrace.engine.edges.base import Edges
from foretrace.ops.events import add_events, has_kernels


class Sparse(Edges):
    """A product with a matrix of fixed connections.

    Args:
        form: How the index arrays tell the connections: `coo`, `csr` or `csc`.
        index: The index arrays, as the operator takes them.
        shape: The rows and columns of the matrix.
        batch: The shape of `x` without its last axis.
        event: Whether elements of `x` above zero count as one.
    """

    def __init__(
        self, form: str, index: Sequence[Any], shape: tuple[int, int], batch: tuple[int, ...], event: bool
    ) -> None:
        self.form, self.index, self.batch, self.event = form, index, batch, event
        self.shape = (*batch, index[0].size)
        self.data_size = int(np.prod(batch, dtype=int)) * shape[0]

    @property
    def rows(self) -> Any:
        """The row of every connection, which is its element of `x`."""
        return self._outer if self.form == "csr" else self.index[0]

    @property
    def columns(self) -> Any:
        """The column of every connection, which is its element of `y`."""
        return self.index[1] if self.form == "coo" else self._outer if self.form == "csc" else self.index[0]

    @functools.cached_property
    def _outer(self) -> np.ndarray:
        starts = np.asarray(self.index[1])
        return np.repeat(np.arange(starts.size - 1, dtype=np.int32), np.diff(starts))

    def has_visits(self, dtype: Any) -> bool:
        """Whether connections can be visited by events, for values of this dtype."""
        real = jnp.dtype(dtype) in (jnp.float32, jnp.float64)
        here = one_processor() and has_kernels()
        return self.event and self.form == "csr" and real and here

    def visits(self, data: jax.Array, dtype: Any) -> bool:
        """Whether they are, for these data: events themselves, and not numbers that a rule made of them."""
        return data.dtype == jnp.bool_ and self.has_visits(dtype)

    def spread(self, values: Any) -> Any:
        return _gathered(values, self.columns)

    def data(self, operands: Sequence[Any]) -> jax.Array:
        """What the product multiplies: true and false where events are counted, which a rule may add up to numbers."""
        return operands[0] > 0 if self.event else operands[0].astype(operands[1].dtype)

    def gradient(self, data: jax.Array, cotangents: jax.Array) -> jax.Array:
        data, cotangents = (array.reshape(-1, array.shape[-1]) for array in (data, cotangents))
        if self.visits(data, cotangents.dtype):
            return self._added(data, [cotangents])[0]

        def add(total: jax.Array, pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            return total + _gathered(pair[0], self.rows) * self.spread(pair[1]), None

        start = jnp.zeros(self.shape[-1], cotangents.dtype)
        return jax.lax.scan(add, start, (data.astype(cotangents.dtype), cotangents))[0]

    def accumulate(self, data: jax.Array, values: jax.Array) -> jax.Array:
        if self.visits(data, values.dtype) and not self.batch:
            return jnp.stack(self._added(data, list(jnp.moveaxis(values, 1, 0))))

        def add(total: jax.Array, pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            return total + _gathered(pair[0], self.rows)[None] * self.spread(pair[1]), None

        start = jnp.zeros((values.shape[1], *self.shape), values.dtype)
        return jax.lax.scan(add, start, (data.astype(values.dtype), values))[0]

    def _added(self, fired: jax.Array, values: Sequence[jax.Array]) -> list[jax.Array]:
        """The sums of values `(steps, columns)` over the events `(steps, rows)`."""
        sums = [jnp.zeros(self.shape[-1], one.dtype) for one in values]
        return add_events(sums, jnp.ones(fired.shape[-1], bool), fired, values, *self.index)[0]

    def contract(self, trace: jax.Array, values: jax.Array) -> jax.Array:
        product = trace * self.spread(values)
        return jnp.sum(product, axis=range(product.ndim - 1), dtype=values.dtype)


def _gathered(values: Any, index: Any) -> jax.Array:
    # XLA would compute checks of the indices at compile time, for minutes where there are many.
    return jnp.asarray(values).at[..., index].get(mode="promise_in_bounds")


def sparse(eqn: JaxprEqn, index: Sequence[Any]) -> Sparse | None:
    """The marked sparse product with known connections; None where it is mapped in an unusual way."""
    x, weight = eqn.invars[0].aval, eqn.invars[1].aval
    if any(axes != (0, None, None, None) for axes in eqn.params.get("vmap_axes", ())) or weight.ndim != 1:
        return None
    if weight.shape != (index[0].size,) and weight.size == 1:
        return None
    _check_index(eqn.params["form"], index, eqn.params["shape"])
    return Sparse(eqn.params["form"], index, eqn.params["shape"], tuple(x.shape[:-1]), eqn.params["event"])


def _check_index(form: str, index: Sequence[Any], shape: tuple[int, int]) -> None:
    """Refuses connections outside of the matrix: kernels and gathers trust the indices."""
    first, second = (np.asarray(array) for array in index)
    if form == "coo":
        limits = [("row", first, shape[0]), ("column", second, shape[1])]
    else:
        limits = [("column", first, shape[1]) if form == "csr" else ("row", first, shape[0])]
        if second[0] != 0 or second[-1] != first.size or np.any(np.diff(second) < 0):
            raise ValueError(
                f"sparse_matmul: `indptr` of a {form.upper()} matrix must rise from 0 to its {first.size} connections; "
                f"it goes from {second[0]} to {second[-1]}. Build the matrix from its rows and columns again."
            )
    for name, numbers, limit in limits:
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < limit:
            raise ValueError(
                f"sparse_matmul: the connections of `sparse_mat` of shape {shape} name {name}s from {numbers.min()} to "
                f"{numbers.max()}; there are {limit}. Give the matrix its whole shape, or correct its indices."
            )
