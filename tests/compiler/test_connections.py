"""The structure of the marked sparse product, read off its connections."""

from typing import Any

import brainevent
import brainunit
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from foretrace.compiler.patterns import analyse

PRESENT = np.array([[0, 1, 0, 1], [1, 0, 0, 0], [0, 1, 1, 0]])
ROWS, COLUMNS = np.nonzero(PRESENT)


def csr() -> tuple[Any, np.ndarray, np.ndarray]:
    return brainevent.CSR.fromdense(jnp.asarray(PRESENT, float)), ROWS, COLUMNS


def csc() -> tuple[Any, np.ndarray, np.ndarray]:
    columns, rows = np.nonzero(PRESENT.T)
    return brainevent.CSC.fromdense(jnp.asarray(PRESENT, float)), rows, columns


def coo() -> tuple[Any, np.ndarray, np.ndarray]:
    data = jnp.ones(len(ROWS))
    return brainunit.sparse.COO((data, jnp.asarray(ROWS), jnp.asarray(COLUMNS)), shape=(3, 4)), ROWS, COLUMNS


def patterns(matrix: Any, x: Any, weight: Any, function: Any = ft.sparse_matmul) -> list[np.ndarray]:
    """The product by its data and by its weight."""
    closed = jax.make_jaxpr(lambda x, w: function(x, w, sparse_mat=matrix))(x, weight)
    found = analyse(closed.jaxpr, closed.jaxpr.invars, cut=False, consts=closed.consts)
    blocks = [found.of(closed.jaxpr.outvars[0], source) for source in closed.jaxpr.invars]
    return [block.matrix.toarray().astype(int) for block in blocks]


@pytest.mark.parametrize("form", [csr, csc, coo])
def test_every_connection_and_nothing_else(form: Any) -> None:
    matrix, rows, columns = form()
    by_x, by_weight = patterns(matrix, jnp.ones((2, 3)), jnp.ones(len(rows)))
    np.testing.assert_array_equal(by_x, np.kron(np.eye(2), PRESENT.T))
    expected = np.zeros((4, len(rows)))
    expected[columns, np.arange(len(rows))] = 1
    np.testing.assert_array_equal(by_weight, np.tile(expected, (2, 1)))


def test_one_weight_for_all_connections() -> None:
    by_weight = patterns(csr()[0], jnp.ones(3), jnp.ones(1))[1]
    np.testing.assert_array_equal(by_weight, np.ones((4, 1)))


def test_mapped_over_the_data() -> None:
    def mapped(x: Any, weight: Any, sparse_mat: Any) -> Any:
        return jax.vmap(lambda row: ft.sparse_matmul(row, weight, sparse_mat=sparse_mat))(x)

    by_x = patterns(csr()[0], jnp.ones((2, 3)), jnp.ones(len(ROWS)), mapped)[0]
    np.testing.assert_array_equal(by_x, np.kron(np.eye(2), PRESENT.T))


def test_mapped_over_the_weight_anything_may_depend_on_anything() -> None:
    def mapped(x: Any, weight: Any, sparse_mat: Any) -> Any:
        return jax.vmap(lambda row, w: ft.sparse_matmul(row, w, sparse_mat=sparse_mat))(x, weight)

    by_x = patterns(csr()[0], jnp.ones((2, 3)), jnp.ones((2, len(ROWS))), mapped)[0]
    np.testing.assert_array_equal(by_x, np.ones((8, 6)))
