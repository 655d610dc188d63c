"""Taking states apart that hold several values at each position.

Some models keep `[v, i]` in one array, side by side along an axis or stacked along a new one. Which elements belong to
one position is read off the direct patterns: elements that depend on one another, from step to step or within a step,
are connected, and each connected component is a position. Where the components are the same all along the other axes,
every state of a cluster is cut along one axis into parts, one value of each at a position.

An axis all of which makes up one position is either a pack of few values or a lateral coupling that happens to be
small: it is taken apart up to `LARGEST_PACK` places. Where elements only move, as in a delay line or a ring buffer,
there is no such doubt, and up to `LONGEST_LINE` are.

Positions may have fewer values than others (`[v, i, c]` with a `c` of its own): the missing ones are zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from foretrace.compiler.pattern import Pattern
from foretrace.compiler.positions import Part, Slot

LARGEST_PACK = 4  # places along an axis all of which make up one position, as a lateral coupling might, too
LONGEST_LINE = 64  # the same, where every element moves to one place of each state
MOST_PARTS = 8  # parts side by side along an axis that has several positions
Shape = tuple[int, ...]
Table = Sequence[Sequence[Pattern]]


@dataclass(frozen=True)
class Layout:
    """How the states of a cluster lie over common positions.

    Attributes:
        shape: The shape of the positions.
        slots: The values at each of them.
    """

    shape: Shape
    slots: tuple[Slot, ...]


@dataclass(frozen=True)
class _Cut:
    """The parts of one state, the shape of one, and the component at each position."""

    parts: tuple[Part | None, ...]
    shape: Shape
    components: np.ndarray


def take_apart(shapes: Sequence[Shape], patterns: Sequence[Table], moving: bool = False) -> Layout | None:
    """Lays connected states out over common positions.

    Args:
        shapes: Their shapes.
        patterns: Patterns of each new state (row) by each state (column): by previous ones, by new ones.
        moving: Whether each element moves to one place of each state.

    Returns:
        The layout; None where the components do not fall into parts along one axis of each state, or into more than
        are taken apart.
    """
    components = _components(shapes, patterns)
    largest = LONGEST_LINE if moving else LARGEST_PACK
    cuts = [_cut(own.reshape(shape), largest) for own, shape in zip(components, shapes, strict=True)]
    found = [cut for cut in cuts if cut is not None]
    if len(found) < len(cuts) or any(not np.array_equal(cut.components, found[0].components) for cut in found):
        return None
    whole = next((cut for cut in found if cut.parts == (None,)), found[0])
    return Layout(whole.shape, tuple(Slot(k, part) for k, cut in enumerate(found) for part in cut.parts))


def _components(shapes: Sequence[Shape], patterns: Sequence[Table]) -> list[np.ndarray]:
    """The number of the component of each element, for each state."""
    from scipy.sparse.csgraph import connected_components  # slow to import, and few models need it

    starts = np.concatenate([[0], np.cumsum([int(np.prod(shape, dtype=int)) for shape in shapes])])
    pairs = [
        (starts[i] + rows, starts[j] + columns)
        for matrix in patterns
        for i, row in enumerate(matrix)
        for j, pattern in enumerate(row)
        for rows, columns in [pattern.pairs()]
    ]
    rows, columns = (np.concatenate(side) for side in zip(*pairs, strict=True))
    graph = sp.coo_array((np.ones(len(rows), bool), (rows, columns)), shape=(starts[-1], starts[-1]))
    return np.split(connected_components(graph, directed=False)[1], starts[1:-1])


def _cut(components: np.ndarray, largest: int) -> _Cut | None:
    """Cuts a state along the one axis along which components recur."""
    if len(np.unique(components)) == components.size:
        return _Cut((None,), components.shape, components.reshape(-1))
    axes = reversed(range(components.ndim))
    return next((cut for axis in axes if (cut := _cut_along(axis, components, largest)) is not None), None)


def _cut_along(axis: int, components: np.ndarray, largest: int) -> _Cut | None:
    """Parts along one axis, if its rows are equal or have no component in common."""
    rows = np.moveaxis(components, axis, 0).reshape(components.shape[axis], -1)
    _, first, row_of = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    if len(np.unique(components)) != len(first) * rows.shape[1]:
        return None
    order = np.argsort(np.argsort(first))[row_of.reshape(-1)]  # positions by their first place along the axis
    members = [np.flatnonzero(order == position) for position in range(len(first))]
    count = max(map(len, members))
    if count > (MOST_PARTS if len(members) > 1 else largest):
        return None
    places = [[int(own[k]) if k < len(own) else -1 for own in members] for k in range(count)]
    parts = tuple(Part(axis, tuple(row)) for row in places)
    shape = [len(members) if k == axis else size for k, size in enumerate(components.shape)]
    shape = shape if len(members) > 1 else [*shape[:axis], *shape[axis + 1 :]]
    return _Cut(parts, tuple(shape), np.take(components, places[0], axis=axis).reshape(-1))
