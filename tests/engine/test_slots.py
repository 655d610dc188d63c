"""Vectors and matrices by slot, held against dense ones."""

import jax.numpy as jnp
import numpy as np

from foretrace.engine.slots import Matrix, identity, multiply, unit_product
from foretrace.engine.sweep import products

STEPS, UNITS, SLOTS = 5, 4, 3
FILLED = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 1]], bool)  # a chain: the first acts on the third in two steps


def random_matrix(seed: int) -> tuple[Matrix, np.ndarray]:
    dense = np.random.default_rng(seed).normal(size=(STEPS, UNITS, SLOTS, SLOTS)) * FILLED
    entries: Matrix = [
        [jnp.asarray(dense[..., i, j]) if FILLED[i, j] else None for j in range(SLOTS)] for i in range(SLOTS)
    ]
    return entries, dense


def as_dense(matrix: Matrix) -> np.ndarray:
    zero = np.zeros((STEPS, UNITS))
    rows = [np.stack([zero if entry is None else np.asarray(entry) for entry in row], axis=-1) for row in matrix]
    return np.stack(rows, axis=-2)


def test_a_product_is_the_dense_one_and_leaves_out_what_is_zero_by_structure() -> None:
    (one, dense_one), (two, dense_two) = random_matrix(0), random_matrix(1)
    found = multiply(one, two)
    np.testing.assert_allclose(as_dense(found), dense_one @ dense_two, rtol=1e-12)
    assert [[entry is None for entry in row] for row in found] == [
        [False, True, True],
        [False, False, True],
        [False] * 3,
    ]


def test_products_to_the_end_of_a_block_are_the_dense_ones() -> None:
    entries, dense = random_matrix(2)
    later, whole = products(entries, unit_product(FILLED, (UNITS,), jnp.float64), STEPS)
    expected = np.broadcast_to(np.eye(SLOTS), (UNITS, SLOTS, SLOTS))
    for step in reversed(range(STEPS)):
        np.testing.assert_allclose(as_dense(later)[step], expected, rtol=1e-12)
        expected = expected @ dense[step]
    np.testing.assert_allclose([[0.0 if e is None else e[0] for e in row] for row in whole], expected[0], rtol=1e-12)
    assert later[0][1] is None
    assert later[2][0] is not None


def test_a_group_without_a_past_carries_nothing_through_a_block() -> None:
    nothing: Matrix = [[None]]
    later, whole = products(nothing, identity(1, (UNITS,), jnp.float64), STEPS)
    np.testing.assert_array_equal(later[0][0], np.repeat([[0.0], [1.0]], [STEPS - 1, 1], axis=0) * np.ones(UNITS))
    np.testing.assert_array_equal(whole[0][0], np.zeros(UNITS))
