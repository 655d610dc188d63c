"""The sweeps of a block: recursions over elementwise quantities only, along the axis of steps.

`credit` runs backward: what the losses of later steps ask of a state, `c_{k-1} = D_k^T (c_k + l_k) + b_k`.
`products` runs backward too: `P_k = D_K ... D_{k+1}`, which takes what enters at step `k` to the end of the block.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from foretrace.compiler.groups import HiddenGroup
from foretrace.compiler.positions import TransitionKind


def credit(
    group: HiddenGroup, transition: jax.Array, partial: jax.Array, bypass: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """What later losses of a block ask of a group's states.

    Args:
        group: The group.
        transition: `D`, `(K, *varshape, num_state, num_state)`.
        partial: `l`, `(K, *varshape, num_state)`.
        bypass: `b`, likewise; None for zero.

    Returns:
        `c_k` for the states after each step, `(K, *varshape, num_state)`, and `c_0` for those before the block.
    """
    signals = _columns(partial)
    past = [jnp.zeros_like(column) for column in signals] if bypass is None else _columns(bypass)

    def back(later: list[jax.Array], step: Any) -> tuple[list[jax.Array], list[jax.Array]]:
        matrix, signal, past = step
        asked = _transposed(group, matrix, [a + b for a, b in zip(later, signal, strict=True)])
        return [a + b for a, b in zip(asked, past, strict=True)], later

    end = [jnp.zeros_like(column[0]) for column in signals]
    start, after = _scanned_back(back, end, (_entries(transition), signals, past))
    return jnp.stack(after, axis=-1), jnp.stack(start, axis=-1)


def products(transition: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`P_k = D_K ... D_{k+1}` for each step of an aligned group, and the product of all."""
    size = transition.shape[-1]
    one, zero = (jnp.full(transition.shape[1:-2], value, transition.dtype) for value in (1, 0))

    def back(later: Any, matrix: Any) -> tuple[Any, Any]:
        return _multiplied(later, matrix), later

    end = [[one if i == j else zero for j in range(size)] for i in range(size)]
    start, after = _scanned_back(back, end, _entries(transition))
    return _joined(after), _joined(start)


def transposed(group: HiddenGroup, matrix: jax.Array, signal: jax.Array) -> jax.Array:
    """`D^T` times a signal `(*varshape, num_state)`, along the positions that the group's elements move to."""
    return jnp.stack(_transposed(group, _entries(matrix), _columns(signal)), axis=-1)


# Inside the loops matrices are lists of arrays over positions: the matrices are tiny, the positions many.


def _columns(values: jax.Array) -> list[jax.Array]:
    return [values[..., i] for i in range(values.shape[-1])]


def _entries(matrix: jax.Array) -> list[list[jax.Array]]:
    return [_columns(matrix[..., i, :]) for i in range(matrix.shape[-2])]


def _joined(entries: list[list[jax.Array]]) -> jax.Array:
    return jnp.stack([jnp.stack(row, axis=-1) for row in entries], axis=-2)


def _scanned_back(back: Any, end: Any, steps: Any) -> tuple[Any, Any]:
    """A reverse scan; a single step needs no loop."""
    if jax.tree.leaves(steps)[0].shape[0] == 1:
        start, last = back(end, jax.tree.map(lambda a: a[0], steps))
        return start, jax.tree.map(lambda a: a[None], last)
    return jax.lax.scan(back, end, steps, reverse=True)


def _multiplied(one: list[list[jax.Array]], two: list[list[jax.Array]]) -> list[list[jax.Array]]:
    size = range(len(one))
    return [[functools.reduce(jnp.add, [one[i][m] * two[m][j] for m in size]) for j in size] for i in size]


def _transposed(group: HiddenGroup, matrix: list[list[jax.Array]], signal: list[jax.Array]) -> list[jax.Array]:
    moves = group.positions.kind is TransitionKind.RELABELLED
    size = range(len(matrix))

    def part(i: int, j: int) -> jax.Array:
        return matrix[i][j] * (_gathered(group, signal[i], i, j) if moves else signal[i])

    return [functools.reduce(jnp.add, [part(i, j) for i in size]) for j in size]


def _gathered(group: HiddenGroup, values: jax.Array, i: int, j: int) -> jax.Array:
    targets = group.positions.targets[i, j]
    taken = jnp.take(values.reshape(-1), jnp.maximum(targets, 0))
    return jnp.where(targets >= 0, taken, 0).reshape(group.varshape)
