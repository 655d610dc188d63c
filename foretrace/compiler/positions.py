"""Positions: how the elements of a group's states stand to one another.

A group's states are laid out as *slots* over common positions: a plain state is one slot, a packed one has a slot for
each entry of its last axis. From the direct patterns follows the kind of its transition:

- aligned: every element depends on its own position alone, the case of nearly every model;
- relabelled: every element moves to one other position (a roll, a delay line) and is followed there;
- collapsed: some element reaches several positions, and only what stays at its own position is kept.
"""

import enum
import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foretrace.compiler import sparse
from foretrace.compiler.blocks import Block
from foretrace.compiler.sparse import Matrix


class TransitionKind(enum.StrEnum):
    """How the positions of a group pass from step to step."""

    ALIGNED = "aligned"
    RELABELLED = "relabelled"
    COLLAPSED = "collapsed"


@dataclass(frozen=True)
class Slot:
    """One value at each position of a group.

    Attributes:
        state: Index of the state within the group.
        index: Entry of a packed state's last axis; None for a plain state.
    """

    state: int
    index: int | None

    def elements(self, positions: int, width: int) -> np.ndarray:
        """The elements of the state that belong to this slot, by position."""
        return np.arange(positions) * width + (self.index or 0)


@dataclass(frozen=True, eq=False)
class Transition:
    """Where the elements of a group go in one step.

    Attributes:
        kind: Aligned, relabelled or collapsed.
        blocks: The direct pattern of each new slot (row) by each old one (column).
    """

    kind: TransitionKind
    blocks: tuple[tuple[Block, ...], ...]

    @property
    def size(self) -> int:
        """Number of positions."""
        return self.blocks[0][0].shape[0]

    @functools.cached_property
    def targets(self) -> np.ndarray:
        """`targets[i, j, p]` is the position of slot `i` that position `p` of slot `j` reaches, -1 for none."""
        targets = np.full((len(self.blocks), len(self.blocks), self.size), -1, dtype=np.int64)
        for i, row in enumerate(self.blocks):
            for j, block in enumerate(row):
                new, old = block.pairs()
                kept = new == old if self.kind is TransitionKind.COLLAPSED else slice(None)
                targets[i, j, old[kept]] = new[kept]
        return targets

    @functools.cached_property
    def colors(self) -> np.ndarray:
        """The colour of each position. Positions of one colour may share a cotangent of ones without their
        derivatives adding up at a source; there is one colour, unless the group is collapsed."""
        collapsed = self.kind is TransitionKind.COLLAPSED
        return _colour(self.blocks) if collapsed else np.zeros(self.size, np.int64)

    @property
    def num_colors(self) -> int:
        return int(self.colors.max(initial=0)) + 1 if self.kind is TransitionKind.COLLAPSED else 1


def find_transition(blocks: Sequence[Sequence[Block]]) -> Transition:
    """Decides how positions pass, from the patterns of each slot (row) by each slot (column)."""
    kinds = [_kind(block) for row in blocks for block in row]
    order = (TransitionKind.ALIGNED, TransitionKind.RELABELLED, TransitionKind.COLLAPSED)
    return Transition(max(kinds, key=order.index), tuple(tuple(row) for row in blocks))


def _kind(block: Block) -> TransitionKind:
    if block.is_empty or block.is_identity:
        return TransitionKind.ALIGNED
    new, old = block.pairs()
    if np.array_equal(new, old):
        return TransitionKind.ALIGNED
    return TransitionKind.COLLAPSED if sparse.largest_count(old) > 1 else TransitionKind.RELABELLED


def slot_blocks(states: Sequence[Sequence[Block]], slots: Sequence[Slot], positions: int) -> list[list[Block]]:
    """Cuts state-by-state patterns into slot-by-slot ones."""
    if all(slot.index is None for slot in slots):
        return [list(row) for row in states]
    chosen = [(slot.state, slot.elements(positions, _width(states, slot.state, positions))) for slot in slots]
    return [[_cut(states[i][j], rows, columns) for j, columns in chosen] for i, rows in chosen]


def _width(states: Sequence[Sequence[Block]], state: int, positions: int) -> int:
    return states[state][state].shape[0] // max(positions, 1)


def _cut(block: Block, rows: np.ndarray, columns: np.ndarray) -> Block:
    if block.shape == (len(rows), len(columns)):
        return block
    part = Matrix(block.matrix[rows][:, columns])
    return Block((len(rows),), (len(columns),), matrix=part)


def is_packed(block: Block, width: int) -> bool:
    """Whether a state's elements mix along the last axis alone, so that they are states of one position."""
    rows, columns = block.pairs()
    return bool(np.any(rows != columns)) and bool(np.all(rows // width == columns // width))


def _colour(blocks: Sequence[Sequence[Block]]) -> np.ndarray:
    """Colours positions so that a source's own position never shares a colour with another of its targets."""
    positions = blocks[0][0].shape[0]
    rivals: list[set[int]] = [set() for _ in range(positions)]
    for row in blocks:
        for block in row:
            targets, sources = block.pairs()
            for target, source in zip(targets[targets != sources], sources[targets != sources], strict=True):
                rivals[target].add(int(source))
                rivals[source].add(int(target))
    colors = np.full(positions, -1, dtype=np.int64)
    for position in range(positions):
        taken = {int(colors[rival]) for rival in rivals[position]}
        colors[position] = next(color for color in range(positions + 1) if color not in taken)
    return colors
