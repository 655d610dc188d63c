"""Positions: how the elements of a group's states stand to one another.

A group's states are laid out as *slots* over common positions: a plain state is one slot, a packed one has a slot for
each of the parts that lie side by side along one of its axes. From the direct patterns follows the kind of its
transition:

- aligned: every element depends on its own position alone, the case of nearly every model;
- relabelled: every element moves to one other position (a roll, a delay line) and is followed there;
- collapsed: some element reaches several positions, and only what stays at its own position is kept.
"""

import enum
import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from foretrace.compiler import sparse
from foretrace.compiler.pattern import Pattern, empty


class TransitionKind(enum.StrEnum):
    """How the positions of a group pass from step to step."""

    ALIGNED = "aligned"
    RELABELLED = "relabelled"
    COLLAPSED = "collapsed"


@dataclass(frozen=True)
class Part:
    """Some places along one axis of a state that holds several values at each position.

    Attributes:
        axis: The axis.
        places: A place for each position along it; -1 where a position has no such value. A single one stands for an
            axis that positions do not have.
    """

    axis: int
    places: tuple[int, ...]

    def take(self, values: jax.Array, rank: int) -> jax.Array:
        """The part of a state of this rank, which may have further axes in front."""
        axis = self.axis - rank
        if (run := as_slice(self.places)) is not None:
            return values[(..., run, *(slice(None),) * (rank - self.axis - 1))]
        places = np.asarray(self.places)
        taken = jnp.take(values, np.maximum(places, 0), axis=axis)
        present = (places >= 0).reshape(-1, *(1,) * (rank - self.axis - 1))
        return taken if present.all() else jnp.where(present, taken, 0)

    def elements(self, shape: tuple[int, ...]) -> np.ndarray:
        """The numbers of its elements in a state of this shape; -1 for those that are not there."""
        places = np.asarray(self.places)
        numbers = np.take(np.arange(np.prod(shape)).reshape(shape), np.maximum(places, 0), axis=self.axis)
        present = (places >= 0).reshape(-1, *(1,) * (len(shape) - self.axis - 1))
        return np.where(present, numbers, -1)


def as_slice(places: Sequence[int]) -> slice | None:
    """Evenly spaced places as a slice; None for others."""
    stride = places[1] - places[0] if len(places) > 1 else 1
    regular = places[0] >= 0 and stride > 0 and tuple(range(places[0], places[-1] + 1, stride)) == tuple(places)
    return slice(places[0], places[-1] + 1, stride) if regular else None


def joined(parts: Sequence[Part], values: Sequence[jax.Array], shape: tuple[int, ...]) -> jax.Array:
    """A state of this shape from the values of its parts, which may have further axes in front."""
    axis, rank = parts[0].axis, len(shape)
    whole = jnp.concatenate(values, axis=axis - rank)
    order = np.concatenate([part.places for part in parts])
    place = np.full(shape[axis], -1)
    place[order[order >= 0]] = np.flatnonzero(order >= 0)
    return Part(axis, tuple(place.tolist())).take(whole, rank)


class Component(enum.Enum):
    """Which of the two numbers of a complex one."""

    REAL = "real"
    IMAGINARY = "imaginary"


@dataclass(frozen=True)
class Slot:
    """One value at each position of a group.

    Attributes:
        state: Index of the state within the group.
        part: The part of the state; None for the whole of it.
        component: The component of a complex state; None for a real one.
    """

    state: int
    part: Part | None = None
    component: Component | None = None

    def elements(self, shape: tuple[int, ...]) -> np.ndarray:
        """The number of its element in a state of this shape at each position, -1 for none."""
        size = int(np.prod(shape, dtype=int))
        return np.arange(size) if self.part is None else self.part.elements(shape).reshape(-1)


@dataclass(frozen=True, eq=False)
class Transition:
    """Where the elements of a group go in one step.

    Attributes:
        kind: Aligned, relabelled or collapsed.
        patterns: The direct pattern of each new slot (row) by each old one (column).
    """

    kind: TransitionKind
    patterns: tuple[tuple[Pattern, ...], ...]

    @property
    def size(self) -> int:
        """Number of positions."""
        return self.patterns[0][0].shape[0]

    @functools.cached_property
    def targets(self) -> np.ndarray:
        """`targets[i, j, p]` is the position of slot `i` that position `p` of slot `j` reaches, -1 for none."""
        targets = np.full((len(self.patterns), len(self.patterns), self.size), -1, dtype=np.int64)
        for i, row in enumerate(self.patterns):
            for j, pattern in enumerate(row):
                new, old = pattern.pairs()
                kept = new == old if self.kind is TransitionKind.COLLAPSED else slice(None)
                targets[i, j, old[kept]] = new[kept]
        return targets

    @functools.cached_property
    def colors(self) -> np.ndarray:
        """The colour of each position. Positions of one colour may share a cotangent of ones without their
        derivatives adding up at a source; there is one colour, unless the group is collapsed."""
        collapsed = self.kind is TransitionKind.COLLAPSED
        return colour_positions(self.patterns) if collapsed else np.zeros(self.size, np.int64)

    @property
    def num_colors(self) -> int:
        return int(self.colors.max(initial=0)) + 1 if self.kind is TransitionKind.COLLAPSED else 1


def find_transition(patterns: Sequence[Sequence[Pattern]]) -> Transition:
    """Decides how positions pass, from the patterns of each slot (row) by each slot (column)."""
    kinds = [_kind(pattern) for row in patterns for pattern in row]
    order = (TransitionKind.ALIGNED, TransitionKind.RELABELLED, TransitionKind.COLLAPSED)
    return Transition(max(kinds, key=order.index), tuple(tuple(row) for row in patterns))


def _kind(pattern: Pattern) -> TransitionKind:
    if pattern.is_empty or pattern.is_identity:
        return TransitionKind.ALIGNED
    new, old = pattern.pairs()
    if np.array_equal(new, old):
        return TransitionKind.ALIGNED
    return TransitionKind.COLLAPSED if sparse.largest_count(old) > 1 else TransitionKind.RELABELLED


def slot_patterns(states: Sequence[Sequence[Pattern]], slots: Sequence[Slot], positions: int) -> list[list[Pattern]]:
    """Cuts state-by-state patterns into slot-by-slot ones."""
    if any(slot.component is not None for slot in slots):
        # Both components of a new value may depend on both of an old one.
        plain = [replace(slot, component=None) for slot in slots]
        whole = list(dict.fromkeys(plain))
        found, place = slot_patterns(states, whole, positions), [whole.index(slot) for slot in plain]
        return [[found[i][j] for j in place] for i in place]
    if all(slot.part is None for slot in slots):
        return [list(row) for row in states]
    none = empty((positions,), (positions,))
    found = [[none] * len(slots) for _ in slots]
    places = [placed(slots, k, row[k].out_shape) for k, row in enumerate(states)]
    for (new_slot, new), row in zip(places, states, strict=True):
        for (old_slot, old), pattern in zip(places, row, strict=True):
            rows, columns = pattern.pairs()
            numbers = new_slot[rows] * len(slots) + old_slot[columns]
            order = np.argsort(numbers, kind="stable")
            present, starts = np.unique(numbers[order], return_index=True)
            for number, own in zip(present, np.split(order, starts)[1:], strict=True):
                part = sparse.from_pairs(new[rows[own]], old[columns[own]], (positions, positions))
                i, j = divmod(int(number), len(slots))
                found[i][j] = Pattern((positions,), (positions,), matrix=part)
    return found


def placed(slots: Sequence[Slot], state: int, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The slot and the position of each element of a state."""
    slot_of, position_of = np.zeros((2, int(np.prod(shape, dtype=int))), np.int64)
    for number, slot in enumerate(slots):
        if slot.state == state:
            elements = slot.elements(shape)
            present = elements >= 0
            slot_of[elements[present]], position_of[elements[present]] = number, np.flatnonzero(present)
    return slot_of, position_of


def is_packed(pattern: Pattern, width: int) -> bool:
    """Whether a state's elements mix along the last axis alone, so that they are states of one position."""
    rows, columns = pattern.pairs()
    return bool(np.any(rows != columns)) and bool(np.all(rows // width == columns // width))


def colour_positions(patterns: Sequence[Sequence[Pattern]]) -> np.ndarray:
    """Colours positions so that a source's own position never shares a colour with another of its targets."""
    matrix = functools.reduce(sparse.union, [pattern.matrix for row in patterns for pattern in row])
    rivals = sparse.union(matrix, sparse.transpose(matrix))
    colors = np.full(matrix.shape[0], -1, dtype=np.int64)
    for position in range(matrix.shape[0]):
        taken = colors[rivals.indices[rivals.indptr[position] : rivals.indptr[position + 1]]]
        colors[position] = np.setdiff1d(np.arange(len(taken) + 1), taken)[0]
    return colors
