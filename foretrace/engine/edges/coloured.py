"""Any other operator that is linear in its weight: its edges are found by analysis.

The weight's elements are coloured so that those of one colour share no element of `y`. The operator applied to a weight
of ones at one colour then gives, at every element of `y`, the coefficient of that colour's one edge. Convolutions with
groups or dilations, gathers and users' own operators all come this way.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from foretrace._jax import JaxprEqn
from foretrace.compiler.pattern import identity
from foretrace.compiler.patterns import structure_of
from foretrace.compiler.structure import Known
from foretrace.engine.edges.base import Edges, operator_of


class Coloured(Edges):
    """Edges by a table.

    Args:
        eqn: The equation.
        y_index: Which output is `y`.
        w_index: Which operand is the weight.
        known: Values that are known before the step runs.
    """

    def __init__(self, eqn: JaxprEqn, y_index: int, w_index: int, known: Known) -> None:
        self.w_index, self.w_shape = w_index, tuple(eqn.invars[w_index].aval.shape)
        self.y_shape, self.dtype = tuple(eqn.outvars[y_index].aval.shape), eqn.outvars[y_index].aval.dtype
        self.operator = operator_of(eqn, y_index)
        local = structure_of(eqn, known)[y_index][w_index]
        rows, columns = local.apply(identity(self.w_shape)).pairs()
        self.colors, count = _colour(rows, columns, int(np.prod(self.w_shape, dtype=int)))
        self.table = np.full((count, int(np.prod(self.y_shape, dtype=int))), -1, dtype=np.int64)
        self.table[self.colors[columns], rows] = columns
        self.shape = (count, *self.y_shape)
        self.data_size = int(np.prod(self.shape, dtype=int))

    def spread(self, values: Any) -> Any:
        return values[:, None]

    def data(self, operands: Sequence[Any]) -> jax.Array:
        """The coefficients themselves: nothing is known of how they depend on `x`."""

        def of(color: jax.Array) -> jax.Array:
            ones = jnp.asarray(self.colors == color, operands[self.w_index].dtype).reshape(self.w_shape)
            return self.operator(*(ones if i == self.w_index else o for i, o in enumerate(operands)))

        return jax.lax.map(of, jnp.arange(self.shape[0]))

    def gradient(self, data: jax.Array, cotangents: jax.Array) -> jax.Array:
        return self._collect(jnp.sum(data * cotangents[:, None], axis=0))

    def accumulate(self, data: jax.Array, values: jax.Array) -> jax.Array:
        return jnp.einsum("kcu,kpu->pcu", *(_flat(array, 2) for array in (data, values))).reshape(
            values.shape[1], *self.shape
        )

    def contract(self, trace: jax.Array, values: jax.Array) -> jax.Array:
        return self._collect(jnp.sum(trace * values[:, None], axis=0, dtype=values.dtype))

    def _collect(self, edges: jax.Array) -> jax.Array:
        size = int(np.prod(self.w_shape, dtype=int))
        index = np.where(self.table >= 0, self.table, size).reshape(-1)
        return jnp.zeros(size + 1, edges.dtype).at[index].add(edges.reshape(-1))[:-1].reshape(self.w_shape)


def _flat(array: jax.Array, lead: int) -> jax.Array:
    return array.reshape(*array.shape[:lead], -1)


def _colour(rows: np.ndarray, columns: np.ndarray, size: int) -> tuple[np.ndarray, int]:
    """Colours columns so that those that share a row differ."""
    order = np.argsort(columns, kind="stable")
    starts = np.searchsorted(columns[order], np.arange(size + 1))
    used: list[set[int]] = [set() for _ in range(int(rows.max(initial=-1)) + 1)]
    colors = np.zeros(size, dtype=np.int64)
    for column in range(size):
        touched = rows[order[starts[column] : starts[column + 1]]]
        taken = set().union(*(used[row] for row in touched)) if touched.size else set()
        color = next(c for c in range(size + 1) if c not in taken)
        colors[column] = color
        for row in touched:
            used[row].add(color)
    return colors, int(colors.max(initial=0)) + 1
