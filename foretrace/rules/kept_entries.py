"""Where SnAp keeps its entries of the whole Jacobian, and where one step's derivatives find them.

Parameter elements of one type share a kept set. Within it, states that never act on one another need no common matrix:
the elements of a batch, or, for `n = 1`, neurons that are coupled through others alone. The kept set falls into
*islands*. A type with `M` elements so holds arrays `(islands, states of an island, M)`, and a step multiplies each
island with one small matrix. Types of about one size stand side by side on a `Shelf`; padding is less than a factor of
two along each axis, and none where all are alike.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import scipy.sparse as sp

from foretrace.compiler import sparse
from foretrace.compiler.influence import Colours, InfluencePattern, colour_rows

SMALL_ISLAND = 8


@dataclass(frozen=True, eq=False)
class Shelf:
    """`U` types of `I` islands of `R` states, each with `M` parameter elements; `W` states act on one.

    Attributes:
        states: `(U, I, R)`: the elements of an island; the number of all states stands for none.
        direct: `(U, I, R)`: the colour by which a state's derivative by the parameters is found; -1 for zero.
        members: `(U, M)`: parameter elements, counted over all parameters; their number stands for none.
        start: `(U, M)`: where a member's derivative for the first colour lies among all; -1 for no member.
        stride: `(U, M)`: the way from one colour to the next.
        entries: `(U, I, R, W)`: where the derivative of a state by a previous one lies; -1 for zero.
        sources: `(U, I, R, W)`: which state of the island that previous one is; None if it is simply the `W`th.
    """

    states: Any
    direct: Any
    members: Any
    start: Any
    stride: Any
    entries: Any
    sources: Any

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of the values that are kept."""
        return (*self.states.shape, self.members.shape[1])


@dataclass(frozen=True, eq=False)
class Tables:
    """All index tables, as arrays.

    Attributes:
        states: The colour of every state for its derivatives by (or of) other states.
        params: The colour of every state for its derivatives by the parameters that share these colours.
        shelves: The layout.
    """

    states: Any
    params: list[Any]
    shelves: list[Shelf]


jax.tree_util.register_dataclass(Shelf, ["states", "direct", "members", "start", "stride", "entries", "sources"], [])
jax.tree_util.register_dataclass(Tables, ["states", "params", "shelves"], [])


@dataclass(frozen=True, eq=False)
class Layout:
    """The tables of one plan, with the numbers that shapes follow from.

    Attributes:
        tables: The index tables, in NumPy.
        by_rows: Whether derivatives of states by states come from cotangents of the new ones, else from tangents.
        states_count: The number of colours for them.
        places: The parameters that influence a state, those with the same colours together.
        params_counts: The number of colours for each of these sets.
    """

    tables: Tables
    by_rows: bool
    states_count: int
    places: list[list[int]]
    params_counts: list[int]

    @property
    def size(self) -> int:
        """How many values are kept, with padding."""
        return sum(int(np.prod(shelf.shape)) for shelf in self.tables.shelves)


def lay_out(influence: InfluencePattern) -> Layout:
    """Makes the tables for some kept sets."""
    by_rows, colours = _state_colours(influence)
    places: dict[bytes, list[int]] = {}
    for k, own in enumerate(influence.colours):
        if own is not None:
            places.setdefault(own.of.tobytes(), []).append(k)
    sets = list(places.values())
    shelves = _shelves(influence, _start_and_stride(influence, sets), colours.of, by_rows) if influence.kept.nnz else []
    params = [own for own in (influence.colours[first] for first, *_ in sets) if own is not None]
    tables = Tables(colours.of, [own.of for own in params], shelves)
    return Layout(tables, by_rows, colours.count, sets, [own.count for own in params])


def _state_colours(influence: InfluencePattern) -> tuple[bool, Colours]:
    """Colours of new states, or of previous ones if they are fewer."""
    states = influence.step.states
    new, previous = colour_rows(states), colour_rows(sparse.transpose(states))
    return (True, new) if new.count <= previous.count else (False, previous)


def _start_and_stride(influence: InfluencePattern, sets: list[list[int]]) -> np.ndarray:
    """For every parameter element, where its derivatives lie among those of all parameters, colour by colour."""
    sizes = [matrix.shape[1] for matrix in influence.step.params]
    found = [np.full((2, size), -1) for size in sizes]
    offset = 0
    for place in itertools.chain(*sets):
        own = influence.colours[place]
        found[place] = np.stack([offset + np.arange(sizes[place]), np.full(sizes[place], sizes[place])])
        offset += 0 if own is None else own.count * sizes[place]
    return np.concatenate(found, axis=1)


def _couplings(influence: InfluencePattern) -> sp.csr_array:
    """Which kept entries act on which in a step; both are numbered in the order of the kept sets."""
    kept, states = influence.kept, influence.step.states
    sources, lengths = [], []
    at_once = max(1, 2**24 // max(1, states.shape[0], int(np.diff(kept.indptr).max() * np.diff(states.indptr).max())))
    for first in range(0, kept.shape[0], at_once):
        last = min(first + at_once, kept.shape[0])
        begin, end = kept.indptr[first], kept.indptr[last]
        owner = np.repeat(np.arange(last - first), np.diff(kept.indptr[first : last + 1]))
        number = np.full((last - first, states.shape[0]), -1, dtype=np.int64)
        number[owner, kept.indices[begin:end]] = np.arange(begin, end)
        acting = sparse.take_rows(states, kept.indices[begin:end])
        entry = np.repeat(np.arange(end - begin), np.diff(acting.indptr))
        found = number[owner[entry], acting.indices]
        sources.append(found[found >= 0])
        lengths.append(np.bincount(entry[found >= 0], minlength=end - begin))
    return sparse.from_parts(np.concatenate(sources), np.concatenate([[0], *lengths]).cumsum(), (kept.nnz, kept.nnz))


def _shelves(influence: InfluencePattern, places: np.ndarray, colours: np.ndarray, by_rows: bool) -> list[Shelf]:
    """Gives every kept entry an island, every island a row of a type's piece, every piece a shelf."""
    from scipy.sparse.csgraph import connected_components  # slow to import, and few rules need it

    kept, couplings = influence.kept, _couplings(influence)
    count, island = connected_components(couplings, directed=False)
    entry = {"type": np.repeat(np.arange(kept.shape[0]), np.diff(kept.indptr)), "state": kept.indices, "island": island}
    entry["r"] = _rank(island)
    size, width = np.bincount(island), np.zeros(count, dtype=np.int64)
    np.maximum.at(width, island, np.diff(couplings.indptr))
    type_of_island = np.zeros(count, dtype=np.int64)
    type_of_island[island] = entry["type"]
    dense = (size <= SMALL_ISLAND) | (2 * width >= size)
    pieces, piece = np.unique(np.stack([type_of_island, _class(size), dense], axis=1), axis=0, return_inverse=True)
    elements = np.bincount(influence.type_of[influence.type_of >= 0], minlength=kept.shape[0])
    alike = np.stack([pieces[:, 1], pieces[:, 2], _class(np.bincount(piece)), _class(elements[pieces[:, 0]])], axis=1)
    kinds, shelf = np.unique(alike, axis=0, return_inverse=True)
    entry |= {"i": _rank(piece)[island], "u": _rank(shelf)[piece][island], "shelf": shelf[piece][island]}
    entry["direct"] = np.asarray(influence.direct[entry["type"], entry["state"]]).reshape(-1) - 1
    members = _members(influence, places)
    return [
        _shelf(
            {name: values[entry["shelf"] == k] for name, values in entry.items()},
            [members[t] for t in pieces[shelf == k, 0]],
            _coupled(couplings, entry, k, colours, by_rows),
            bool(dense_kind),
            (kept.shape[1], len(influence.type_of)),
        )
        for k, (_, dense_kind, _, _) in enumerate(kinds)
    ]


def _members(influence: InfluencePattern, places: np.ndarray) -> list[np.ndarray]:
    """For each type: its elements, where their derivatives start, and the stride."""
    order = np.argsort(influence.type_of, kind="stable")
    bounds = np.searchsorted(influence.type_of[order], np.arange(influence.kept.shape[0] + 1))
    table = np.concatenate([np.arange(len(order))[None], places])[:, order]
    return [table[:, first:last] for first, last in itertools.pairwise(bounds)]


def _coupled(
    couplings: sp.csr_array, entry: dict[str, np.ndarray], shelf: int, colours: np.ndarray, by_rows: bool
) -> dict[str, np.ndarray]:
    """The couplings within one shelf: from which entry to which, and where the derivative lies."""
    rows, columns = sparse.pairs(couplings)
    chosen = entry["shelf"][rows] == shelf
    rows, columns = rows[chosen], columns[chosen]
    new, previous = entry["state"][rows], entry["state"][columns]
    along, across = (new, previous) if by_rows else (previous, new)
    return {
        **{name: entry[name][rows] for name in ("u", "i", "r")},
        "source": entry["r"][columns],
        "nth": _rank(rows),
        "place": colours[along].astype(np.int64) * len(colours) + across,
    }


def _shelf(
    entry: dict[str, np.ndarray],
    members: list[np.ndarray],
    coupled: dict[str, np.ndarray],
    dense: bool,
    nothing: tuple[int, int],
) -> Shelf:
    shape = (len(members), int(entry["i"].max()) + 1, int(entry["r"].max()) + 1)
    at = (entry["u"], entry["i"], entry["r"])
    width = shape[-1] if dense else int(coupled["nth"].max(initial=0)) + 1
    to = (coupled["u"], coupled["i"], coupled["r"], coupled["source"] if dense else coupled["nth"])
    most = max(own.shape[1] for own in members)
    owned = [np.pad(own, ((0, 0), (0, most - own.shape[1])), constant_values=-1) for own in members]
    number, start, stride = np.stack(owned, axis=1).astype(np.int32)
    return Shelf(
        states=_filled(shape, nothing[0], at, entry["state"]),
        direct=_filled(shape, -1, at, entry["direct"]),
        members=np.where(number < 0, nothing[1], number).astype(np.int32),
        start=start,
        stride=stride,
        entries=_filled((*shape, width), -1, to, coupled["place"]),
        sources=None if dense else _filled((*shape, width), 0, to, coupled["source"]),
    )


def _filled(shape: tuple[int, ...], default: int, places: tuple[np.ndarray, ...], values: np.ndarray) -> np.ndarray:
    found = np.full(shape, default, dtype=np.int32)
    found[places] = values
    return found


def _class(sizes: np.ndarray) -> np.ndarray:
    """Sizes within a factor of two of one another are of one class."""
    return np.ceil(np.log2(np.maximum(sizes, 1))).astype(np.int64)


def _rank(owners: np.ndarray) -> np.ndarray:
    """For each item, how many before it have the same owner."""
    order = np.argsort(owners, kind="stable")
    starts = np.searchsorted(owners[order], owners[order])
    found = np.empty(len(owners), dtype=np.int64)
    found[order] = np.arange(len(owners)) - starts
    return found
