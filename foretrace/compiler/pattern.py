"""A pattern: the elements of one array that depend on the elements of another, in the cheapest form that tells it.

It is a union of axis maps where it can be, and a sparse boolean matrix otherwise. Both say the same, and the
matrix of a union of maps is made when it is first read.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from foretrace.compiler import sparse
from foretrace.compiler.axismaps import AxisMap, Shape, compose, identity_map
from foretrace.compiler.sparse import Matrix

MOST_MAPS = 12


class Pattern:
    """Rows: elements of an output; columns: elements of a source.

    Args:
        out_shape: Shape of the output.
        source_shape: Shape of the source.
        maps: A union of axis maps, or
        matrix: a sparse boolean matrix.
    """

    __slots__ = ("_matrix", "maps", "out_shape", "source_shape")

    def __init__(
        self,
        out_shape: Shape,
        source_shape: Shape,
        *,
        maps: Sequence[AxisMap] | None = None,
        matrix: Matrix | None = None,
    ) -> None:
        self.out_shape, self.source_shape = tuple(out_shape), tuple(source_shape)
        self.maps = None if maps is None else tuple(maps)
        self._matrix = matrix

    @property
    def shape(self) -> tuple[int, int]:
        """Number of output elements and of source elements."""
        return math.prod(self.out_shape), math.prod(self.source_shape)

    @property
    def matrix(self) -> Matrix:
        """As a sparse boolean matrix."""
        if self._matrix is None:
            assert self.maps is not None
            parts = [sparse.from_rows(m.rows(self.out_shape, self.source_shape), self.shape[1]) for m in self.maps]
            self._matrix = functools.reduce(sparse.union, parts, sparse.empty(*self.shape))
        return self._matrix

    @property
    def is_empty(self) -> bool:
        """Whether nothing depends on anything."""
        if 0 in self.shape:
            return True
        return not self.maps if self.maps is not None else self.matrix.nnz == 0

    @property
    def is_identity(self) -> bool:
        """Whether it is known that every element depends on itself alone."""
        if self.maps is None or len(self.maps) != 1 or self.out_shape != self.source_shape:
            return False
        return self is identity(self.out_shape) or self.maps[0].key() == identity_map(self.out_shape).key()

    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """The (row, column) positions."""
        return sparse.pairs(self.matrix)

    def after(self, source: "Pattern") -> "Pattern":
        """This pattern's output by the source of the pattern that its own source depends on."""
        if source is identity(source.source_shape):
            return self
        if self.maps is not None and source.maps is not None:
            found = (compose(inner, outer, source.source_shape) for inner in self.maps for outer in source.maps)
            maps = _distinct(m for m in found if m is not None)
            if len(maps) <= MOST_MAPS:
                return Pattern(self.out_shape, source.source_shape, maps=maps)
        return Pattern(self.out_shape, source.source_shape, matrix=sparse.multiply(self.matrix, source.matrix))

    def union(self, other: "Pattern") -> "Pattern":
        """Depends by either of two patterns."""
        if self is other or other.is_empty:
            return self
        if self.is_empty:
            return other
        if self.maps is not None and other.maps is not None:
            maps = _distinct([*self.maps, *other.maps])
            if len(maps) == len(self.maps):
                return self
            if len(maps) <= MOST_MAPS:
                return Pattern(self.out_shape, self.source_shape, maps=maps)
        return Pattern(self.out_shape, self.source_shape, matrix=sparse.union(self.matrix, other.matrix))

    def transposed(self) -> "Pattern":
        """Output and source exchanged."""
        if self.is_identity:
            return self
        return Pattern(self.source_shape, self.out_shape, matrix=sparse.transpose(self.matrix))


@functools.lru_cache(maxsize=256)
def identity(shape: Shape) -> Pattern:
    """Every element depends on itself."""
    return Pattern(shape, shape, maps=[identity_map(tuple(shape))])


def empty(out_shape: Shape, source_shape: Shape) -> Pattern:
    """Nothing depends on anything."""
    return Pattern(out_shape, source_shape, maps=[])


def _distinct(maps: Any) -> list[AxisMap]:
    return list({m.key(): m for m in maps}.values())
