"""Where SnAp and RTRL keep their entries of the whole Jacobian, and where one step's derivatives find them.

Parameter elements of one family share a kept set. Within it, states that never act on one another need no common
matrix: the elements of a batch, or, for `n = 1`, neurons that are coupled through others alone. The kept set falls into
*islands*. A family with `M` elements so holds arrays `(islands, states of an island, M)`, and a step multiplies each
island with one matrix: for a dense layer that is one product of matrices for each sample. Families of about one size
stand side by side on a `Shelf`; padding is less than a factor of two along each axis, and none where all are alike.
"""

import itertools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.sparse as sp

from foretrace.compiler import sparse
from foretrace.compiler.influence import Colours, InfluencePattern, colour_rows

SMALL_ISLAND = 8


class DirectOfAll(NamedTuple):
    """Derivatives within the step where all members of a family reach the same states at once, by the same colours.

    Attributes:
        colour: `(U, I, R)`: the colour by which a state's derivative by the parameters is found; -1 for zero.
        start: `(U, M)`: where a member's derivative for the first colour lies among all; -1 for no member.
        stride: `(U, M)`: the way from one colour to the next.
    """

    colour: Any
    start: Any
    stride: Any


class DirectOfEach(NamedTuple):
    """The same, told one by one where members differ: those that are other than zero, which are few.

    Attributes:
        place: Where it stands in the shelf, whose entries are counted in their flat order.
        found: Where it lies among all derivatives.
    """

    place: Any
    found: Any


@dataclass(frozen=True, eq=False)
class Shelf:
    """`U` families of `I` islands of `R` states, each with `M` parameter elements; `W` states act on one.

    Attributes:
        states: `(U, I, R)`: the elements of an island; the number of all states stands for none.
        members: `(U, M)`: parameter elements, counted over all parameters; their number stands for none.
        direct: Where the derivatives by the parameters within the step are found.
        entries: `(U, I, R, W)`: where the derivative of a state by a previous one lies; -1 for zero.
        sources: `(U, I, R, W)`: which state of the island that previous one is; None if it is simply the `W`th.
    """

    states: Any
    members: Any
    direct: Any
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


jax.tree_util.register_dataclass(Shelf, ["states", "members", "direct", "entries", "sources"], [])
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
    """Gives every kept entry an island, every island a row of a family's piece, every piece a shelf."""
    from scipy.sparse.csgraph import connected_components  # slow to import, and few rules need it

    kept, couplings = influence.kept, _couplings(influence)
    count, island = connected_components(couplings, directed=False)
    families = np.repeat(np.arange(kept.shape[0]), np.diff(kept.indptr))
    entry = {"family": families, "state": kept.indices, "island": island, "r": _rank(island)}
    size, width = np.bincount(island), np.zeros(count, dtype=np.int64)
    np.maximum.at(width, island, np.diff(couplings.indptr))
    family_of_island = np.zeros(count, dtype=np.int64)
    family_of_island[island] = families
    dense = (size <= SMALL_ISLAND) | (2 * width >= size)
    pieces, piece = np.unique(np.stack([family_of_island, _class(size), dense], axis=1), axis=0, return_inverse=True)
    members = _members(influence, places)
    elements = np.array([own.shape[1] for own in members])
    alone = np.bincount(influence.family_of) == 1
    own, classes = pieces[:, 0], [_class(np.bincount(piece)), _class(elements[pieces[:, 0]])]
    kinds, shelf = np.unique(np.stack([*pieces[:, 1:].T, alone[own], *classes], axis=1), axis=0, return_inverse=True)
    entry |= {"i": _rank(piece)[island], "u": _rank(shelf)[piece][island], "shelf": shelf[piece][island]}
    return [
        _shelf(
            influence,
            {name: values[entry["shelf"] == k] for name, values in entry.items()},
            [members[family] for family in own[shelf == k]],
            _coupled(couplings, entry, k, colours, by_rows),
            bool(dense_kind),
            bool(alike),
        )
        for k, (_, dense_kind, alike, *_) in enumerate(kinds)
    ]


def _members(influence: InfluencePattern, places: np.ndarray) -> list[np.ndarray]:
    """For each family: its elements, where their derivatives start, the stride, and the type of each."""
    families = influence.families
    order = np.lexsort((influence.type_of, families))
    bounds = np.searchsorted(families[order], np.arange(influence.kept.shape[0] + 1))
    table = np.concatenate([np.arange(len(order))[None], places, influence.type_of[None]])[:, order]
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
    influence: InfluencePattern,
    entry: dict[str, np.ndarray],
    members: list[np.ndarray],
    coupled: dict[str, np.ndarray],
    dense: bool,
    alike: bool,
) -> Shelf:
    shape = (len(members), int(entry["i"].max()) + 1, int(entry["r"].max()) + 1)
    at = (entry["u"], entry["i"], entry["r"])
    width = shape[-1] if dense else int(coupled["nth"].max(initial=0)) + 1
    to = (coupled["u"], coupled["i"], coupled["r"], coupled["source"] if dense else coupled["nth"])
    most = max(own.shape[1] for own in members)
    owned = [np.pad(own, ((0, 0), (0, most - own.shape[1])), constant_values=-1) for own in members]
    number, start, stride, types = np.stack(owned, axis=1)
    direct: DirectOfAll | DirectOfEach
    if alike:
        colour = np.asarray(influence.direct[types[entry["u"], 0], entry["state"]]).reshape(-1) - 1
        direct = DirectOfAll(_filled(shape, -1, at, colour), start.astype(np.int32), stride.astype(np.int32))
    else:
        place = np.full((len(members), influence.kept.shape[1]), -1)
        place[entry["u"], entry["state"]] = np.ravel_multi_index(at, shape)
        direct = _of_each(influence, place, start, stride, types)
    return Shelf(
        states=_filled(shape, influence.kept.shape[1], at, entry["state"]),
        members=np.where(number < 0, len(influence.type_of), number).astype(np.int32),
        direct=direct,
        entries=_filled((*shape, width), -1, to, coupled["place"]),
        sources=None if dense else _filled((*shape, width), 0, to, coupled["source"]),
    )


def _of_each(
    influence: InfluencePattern, place: np.ndarray, start: np.ndarray, stride: np.ndarray, types: np.ndarray
) -> DirectOfEach:
    """The derivatives of single members.

    Args:
        influence: The kept sets.
        place: `(U, states)`: the row of a state in the shelf; -1 where it has none.
        start: `(U, M)`, as in `DirectOfAll`, like `stride`.
        stride: `(U, M)`.
        types: `(U, M)`: the type of every member; -1 for no member.
    """
    family, member = np.nonzero(types >= 0)
    indptr = influence.direct.indptr
    first, length = indptr[types[family, member]], np.diff(indptr)[types[family, member]]
    owner = np.repeat(np.arange(len(family)), length)
    nth = np.repeat(first, length) + np.arange(len(owner)) - np.repeat(np.cumsum(length) - length, length)
    family, member = family[owner], member[owner]
    row = place[family, influence.direct.indices[nth]]
    found = start[family, member] + stride[family, member] * (influence.direct.data[nth] - 1)
    inside = row >= 0
    flat = row * types.shape[1] + member
    return DirectOfEach(flat[inside].astype(np.int32), found[inside].astype(np.int32))


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
