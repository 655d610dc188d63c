"""The sweeps of a block: recursions over elementwise quantities only, along the axis of steps.

`credit` runs backward: what the losses of later steps ask of a state, `c_{k-1} = D_k^T (c_k + l_k) + b_k`.
`products` runs backward too: `P_k = D_K ... D_{k+1}`, which takes what enters at step `k` to the end of the block.
"""

from collections.abc import Sequence

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
    bypass = jnp.zeros_like(partial) if bypass is None else bypass

    def back(later: jax.Array, step: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        matrix, signal, past = step
        return transposed(group, matrix, later + signal) + past, later

    end = jnp.zeros_like(partial[0])
    if partial.shape[0] == 1:
        start, last = back(end, (transition[0], partial[0], bypass[0]))
        return last[None], start
    start, after = jax.lax.scan(back, end, (transition, partial, bypass), reverse=True)
    return after, start


def products(transition: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`P_k = D_K ... D_{k+1}` for each step of an aligned group, and the product of all."""
    end = jnp.broadcast_to(jnp.eye(transition.shape[-1], dtype=transition.dtype), transition.shape[1:])
    if transition.shape[0] == 1:
        return end[None], transition[0]

    def back(later: jax.Array, matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
        return multiplied(later, matrix), later

    start, after = jax.lax.scan(back, end, transition, reverse=True)
    return after, start


def multiplied(one: jax.Array, two: jax.Array) -> jax.Array:
    """The matrix product at each position, written out: the matrices are tiny and the positions many."""
    size = one.shape[-1]
    rows = [
        [sum(one[..., i, m] * two[..., m, j] for m in range(size)) for j in range(size)]  # type: ignore[misc]
        for i in range(size)
    ]
    return jnp.stack([jnp.stack(row, axis=-1) for row in rows], axis=-2)


def transposed(group: HiddenGroup, matrix: jax.Array, signal: jax.Array) -> jax.Array:
    """`D^T` times a signal `(*varshape, num_state)`, along the positions that the group's elements move to."""
    moves = group.positions.kind is TransitionKind.RELABELLED
    columns: Sequence[jax.Array] = [
        sum(  # type: ignore[misc]
            matrix[..., i, j] * (_gathered(group, signal[..., i], i, j) if moves else signal[..., i])
            for i in range(group.num_state)
        )
        for j in range(group.num_state)
    ]
    return jnp.stack(columns, axis=-1)


def _gathered(group: HiddenGroup, values: jax.Array, i: int, j: int) -> jax.Array:
    targets = group.positions.targets[i, j]
    taken = jnp.take(values.reshape(-1), jnp.maximum(targets, 0))
    return jnp.where(targets >= 0, taken, 0).reshape(group.varshape)
