"""The derivative `D` of a group's transition: next by previous states at each position, mixing outputs held constant.

Every element of a previous state reaches one position at most, so one reverse pass with a cotangent of ones gives the
derivatives of one slot by all others at all positions. Where a group is collapsed, an element reaches several: then
there is a pass for each colour of positions, and what stays at its own position is read.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from foretrace.compiler.groups import HiddenGroup
from foretrace.compiler.positions import TransitionKind
from foretrace.engine.slots import Matrix

UNROLLED = 8  # values at a position up to which each has a reverse pass of its own


def jacobian_entries(
    group: HiddenGroup, transition: Callable[[Sequence[Any]], Sequence[Any]], hidden_vals: Sequence[Any]
) -> Matrix:
    """The derivative of a group's next by its previous states at each position.

    Args:
        group: The group.
        transition: Its next states from its previous ones, by which positions do not act on one another: for D-RTRL
            with the outputs of mixing held constant.
        hidden_vals: One array for each state, in the order of `hidden_paths`.

    Returns:
        For new slot `i` and old slot `j` an array `(*varshape,)`; None where the one does not depend on the other. In a
        relabelled group the new value stands at `positions.targets`.
    """
    _, pull_states = jax.vjp(lambda *values: list(transition(values)), *hidden_vals)

    def pullback(slots: Sequence[jax.Array]) -> list[jax.Array]:
        cotangents = group.cotangent_states(slots)
        return group.cotangent_slots(
            pull_states([c.astype(v.dtype) for c, v in zip(cotangents, hidden_vals, strict=True)])
        )

    if group.num_state > UNROLLED and group.positions.kind is not TransitionKind.COLLAPSED:
        # One pass mapped over the slots, so that the program does not grow with them.
        columns: Sequence[Any] = jax.vmap(pullback)(unit_slots(group, range(group.num_state)))
    else:
        columns = list(zip(*(_row(group, pullback, slot) for slot in range(group.num_state)), strict=True))
    return [
        [None if pattern.is_empty else column[slot] for column, pattern in zip(columns, row, strict=True)]
        for slot, row in enumerate(group.positions.patterns)
    ]


def unit_slots(group: HiddenGroup, slots: Sequence[int]) -> list[jax.Array]:
    """For each slot of a group an array `(slots, *varshape)`: ones in the row of that slot, zeros elsewhere."""
    rows = np.eye(group.num_state)[list(slots)].reshape(len(slots), -1, *(1,) * len(group.varshape))
    shape = (len(slots), *group.varshape)
    return [jnp.broadcast_to(jnp.asarray(rows[:, j], group.dtype), shape) for j in range(group.num_state)]


def _row(group: HiddenGroup, pullback: Callable[..., list[jax.Array]], slot: int) -> list[jax.Array]:
    """Derivatives of one slot by all: one cotangent of ones for each colour, read at sources of that colour."""

    def pulled(ones: jax.Array) -> list[jax.Array]:
        return pullback([ones if k == slot else jnp.zeros_like(ones) for k in range(group.num_state)])

    if group.positions.kind is not TransitionKind.COLLAPSED:
        return pulled(jnp.ones(group.varshape, group.dtype))
    row = [jnp.zeros(group.varshape, group.dtype)] * group.num_state
    for color in range(group.positions.num_colors):
        mask = jnp.asarray(group.positions.colors == color, group.dtype).reshape(group.varshape)
        row = [entry + part * mask for entry, part in zip(row, pulled(mask), strict=True)]
    staying = [(targets >= 0).reshape(group.varshape) for targets in group.positions.targets[slot]]
    return [jnp.where(stays, entry, 0) for stays, entry in zip(staying, row, strict=True)]
