"""Vectors and matrices over the slots of a group, one array over all positions for each entry.

At every position of a group there is a tiny vector or matrix, and there are many positions: so each entry is an array
of its own. No array is put together or taken apart in the innermost loops, and an entry that is zero by the structure
of the step is None and costs nothing.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

Vector = list[jax.Array]
Matrix = list[list[jax.Array | None]]


def add(one: Sequence[jax.Array], two: Sequence[jax.Array]) -> Vector:
    """The sum of two vectors."""
    return [a + b for a, b in zip(one, two, strict=True)]


def subtract(one: Sequence[jax.Array], two: Sequence[jax.Array]) -> Vector:
    """The difference of two vectors."""
    return [a - b for a, b in zip(one, two, strict=True)]


def scale(vector: Sequence[jax.Array], factor: jax.Array | float) -> Vector:
    """A vector times one number for each position."""
    return [a * factor for a in vector]


def identity(count: int, shape: Sequence[int], dtype: jax.typing.DTypeLike) -> Matrix:
    """The identity at each position."""
    one = jnp.ones(shape, dtype)
    return [[one if i == j else None for j in range(count)] for i in range(count)]


def multiply(one: Matrix, two: Matrix) -> Matrix:
    """The product of two matrices."""
    columns = list(zip(*two, strict=True))
    return [[_dot(row, column) for column in columns] for row in one]


def structure(matrix: Matrix) -> np.ndarray:
    """Which entries there are."""
    return np.array([[entry is not None for entry in row] for row in matrix])


def present(matrix: Matrix, where: np.ndarray, zero: jax.Array) -> Matrix:
    """A matrix with the entries that are to be there alone, zeros for those that are missing."""
    return [
        [(zero if entry is None else entry) if wanted else None for entry, wanted in zip(row, wishes, strict=True)]
        for row, wishes in zip(matrix, where, strict=True)
    ]


def unit_product(own: np.ndarray, shape: Sequence[int], dtype: jax.typing.DTypeLike) -> Matrix:
    """The identity, with an entry wherever a product of matrices of some structure may have one."""
    size = len(own)
    filled = np.linalg.matrix_power((own | np.eye(size, dtype=bool)).astype(int), size) > 0
    return present(identity(size, shape, dtype), filled, jnp.zeros(shape, dtype))


def total(parts: Sequence[jax.Array]) -> jax.Array:
    """The sum of some arrays, at least one."""
    return functools.reduce(jnp.add, parts)


def _dot(row: Sequence[jax.Array | None], column: Sequence[jax.Array | None]) -> jax.Array | None:
    products = [a * b for a, b in zip(row, column, strict=True) if a is not None and b is not None]
    return total(products) if products else None
