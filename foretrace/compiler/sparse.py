"""Boolean sparse matrices for dependency patterns: few operations, all vectorised.

A pattern is a `scipy.sparse` CSR matrix of ones: rows are the elements of one variable, columns the elements of a
source. Values carry no information, only positions do.
"""

from typing import TypeAlias

import numpy as np
import scipy.sparse as sp

Matrix: TypeAlias = sp.csr_array


def from_parts(indices: np.ndarray, indptr: np.ndarray, shape: tuple[int, int]) -> Matrix:
    """A pattern from CSR index arrays."""
    return sp.csr_array((np.ones(len(indices), bool), indices, indptr), shape=shape)


def full(rows: int, columns: int) -> Matrix:
    """Every element depends on every element."""
    indices = np.tile(np.arange(columns), rows)
    return from_parts(indices, np.arange(rows + 1) * columns, (rows, columns))


def from_rows(sources: np.ndarray, columns: int) -> Matrix:
    """Row `k` depends on element `sources[k]`, or on nothing where that is negative."""
    flat = np.asarray(sources).reshape(-1)
    valid = flat >= 0
    if valid.all():
        return from_parts(flat, np.arange(len(flat) + 1), (len(flat), columns))
    return from_parts(flat[valid], np.concatenate([[0], np.cumsum(valid)]), (len(flat), columns))


def from_lists(sources: np.ndarray, columns: int) -> Matrix:
    """Row `k` depends on all elements named in `sources[k, :]`; negative ones are nothing."""
    rows, width = sources.shape
    valid = sources.reshape(-1) >= 0
    row_of = np.repeat(np.arange(rows), width)[valid]
    return from_pairs(row_of, sources.reshape(-1)[valid], (rows, columns))


def from_pairs(rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]) -> Matrix:
    """A pattern from (row, column) pairs; repeated pairs count once."""
    matrix = sp.csr_array((np.ones(len(rows), np.int32), (rows, columns)), shape=shape)
    matrix.sum_duplicates()
    return from_parts(matrix.indices, matrix.indptr, shape)


def from_dense(dense: np.ndarray) -> Matrix:
    """A pattern from a dense array: nonzero (or NaN) entries."""
    return sp.csr_array(np.asarray(dense) != 0)


def take_rows(matrix: Matrix, rows: np.ndarray) -> Matrix:
    """Rows of a pattern by index; a negative index gives an empty row."""
    rows = np.asarray(rows).reshape(-1)
    if matrix.nnz == 0:
        return empty(len(rows), matrix.shape[1])
    if _one_each(matrix):
        sources = np.where(rows >= 0, matrix.indices[rows], -1) if rows.min(initial=0) < 0 else matrix.indices[rows]
        return from_rows(sources, matrix.shape[1])
    lengths = np.where(rows >= 0, np.diff(matrix.indptr)[rows], 0)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    offsets = np.arange(indptr[-1]) - np.repeat(indptr[:-1], lengths)
    indices = matrix.indices[np.repeat(matrix.indptr[:-1][rows], lengths) + offsets]
    return from_parts(indices, indptr, (len(rows), matrix.shape[1]))


def multiply(left: Matrix, right: Matrix) -> Matrix:
    """The boolean product: what depends on what through something between."""
    lengths = np.diff(left.indptr)
    if lengths.max(initial=0) <= 1:
        sources = np.full(left.shape[0], -1, dtype=np.int64)
        sources[lengths > 0] = left.indices
        return take_rows(right, sources)
    product = sp.csr_array(left.astype(np.int32) @ right.astype(np.int32))
    return from_parts(product.indices, product.indptr, product.shape)


def union(first: Matrix, second: Matrix) -> Matrix:
    """Depends by either of two patterns."""
    if first is second or second.nnz == 0:
        return first
    if first.nnz == 0:
        return second
    same = first.nnz == second.nnz and np.array_equal(first.indptr, second.indptr)
    return first if same and np.array_equal(first.indices, second.indices) else sp.csr_array(first + second)


def transpose(matrix: Matrix) -> Matrix:
    """Rows and columns exchanged."""
    return sp.csr_array(matrix.T)


def empty(rows: int, columns: int) -> Matrix:
    """Nothing depends on anything."""
    return from_parts(np.zeros(0, int), np.zeros(rows + 1, int), (rows, columns))


def pairs(matrix: Matrix) -> tuple[np.ndarray, np.ndarray]:
    """The (row, column) positions of a pattern."""
    rows = np.arange(matrix.shape[0])
    return rows if _one_each(matrix) else np.repeat(rows, np.diff(matrix.indptr)), matrix.indices


def largest_count(numbers: np.ndarray) -> int:
    """How often the most frequent of some non-negative integers stands there."""
    return int(np.bincount(numbers).max(initial=0)) if len(numbers) else 0


def _one_each(matrix: Matrix) -> bool:
    """Whether every row has just one entry."""
    return matrix.nnz == matrix.shape[0] and bool(np.all(matrix.indptr[1:] - matrix.indptr[:-1] == 1))
