"""Where the traces of a relation live: the positions that each element of `y` reaches, now and in later steps.

In an aligned group an element of `y` acts on one position for good (or on one for each colour, where it reaches
several). In a relabelled group its influence moves on from step to step, so a trace has a place for every position on
the way. `Places` gives values at positions to the places of traces, and carries traces through one transition.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from foretrace.compiler import sparse
from foretrace.compiler.groups import HiddenGroup
from foretrace.compiler.positions import TransitionKind
from foretrace.compiler.relations import Reach
from foretrace.engine.slots import Matrix, total
from foretrace.errors import NotSupportedError
from foretrace.program.records import path_name

LARGEST_PLACES = 2**24
MOST_MULTIPLIED = 6  # values at a position up to which transitions are multiplied
UNROLLED = 8  # more passes than this go through a loop, so that a program does not grow with the number of colours


@dataclass(frozen=True, eq=False)
class Places:
    """The places of the traces of one relation in one group.

    Attributes:
        group: The group.
        y_shape: The shape of `y`.
        reach: Where the elements of `y` go in one step.
    """

    group: HiddenGroup
    y_shape: tuple[int, ...]
    reach: Reach = field(repr=False)

    @functools.cached_property
    def positions(self) -> np.ndarray:
        """`positions[r, u]` is the position of place `r` of element `u` of `y`, -1 where there is none."""
        return orbits(self.group, self.reach)

    @property
    def width(self) -> int:
        """Number of places for each element of `y`."""
        return self.positions.shape[0]

    @property
    def moves(self) -> bool:
        """Whether positions change from step to step."""
        return self.group.positions.kind is TransitionKind.RELABELLED

    @property
    def step_by_step(self) -> bool:
        """Whether a trace is taken through a block in single steps: where positions move, and where a position has so
        many values that the products of its transitions, which fill up, would cost more than the steps."""
        return self.moves or self.group.num_state > MOST_MULTIPLIED

    @functools.cached_property
    def _identical(self) -> bool:
        """Whether every element of `y` has the position of the same number."""
        whole = self.positions.size == self.group.positions.size and self.width == 1
        return whole and np.array_equal(self.positions[0], np.arange(self.positions.shape[1]))

    def at(self, values: jax.Array) -> jax.Array:
        """Values by position, of shape `(..., *varshape)`, at every place: `(..., width, *y_shape)`."""
        lead = values.ndim - len(self.group.varshape)
        shape = (*values.shape[:lead], self.width, *self.y_shape)
        if self._identical:
            return values.reshape(shape)
        flat = values.reshape(*values.shape[:lead], -1)
        taken = jnp.take(flat, np.maximum(self.positions, 0).reshape(-1), axis=-1)
        return jnp.where(self._present, taken.reshape(shape), 0)

    @functools.cached_property
    def _present(self) -> np.ndarray:
        return (self.positions >= 0).reshape(self.width, *self.y_shape)

    def taken(self, values: jax.Array) -> jax.Array:
        """What each element of `y` does to the positions that it reaches: `(colours, *y_shape)`.

        Args:
            values: For each colour of elements of `y`, values by position, of shape `(source colours, *varshape)`.
        """
        targets = self.reach.targets
        index = self.reach.source_colors * self.reach.positions + np.maximum(targets, 0)
        found = jnp.where(targets >= 0, jnp.take(values.reshape(-1), index), 0)
        return found.reshape(self.reach.fan, *self.y_shape)

    def enter(self, values: jax.Array) -> jax.Array:
        """Values `(colours, *y_shape)` at the places where they enter: `(width, *y_shape)`."""
        missing = self.width - values.shape[0]
        return jnp.pad(values, [(0, missing), *((0, 0) for _ in self.y_shape)]) if missing else values

    def carry(
        self, traces: dict[int, jax.Array], transition: Matrix, spread: Callable[[Any], Any]
    ) -> dict[int, jax.Array]:
        """Takes traces through one transition.

        Args:
            traces: For each slot, an array whose first axis counts places.
            transition: `D` of one step, or the product of several.
            spread: Lays values `(width, *y_shape)` out as the traces are.

        Returns:
            The traces after the transition.
        """
        carried = {}
        for i in traces:
            entries = {j: entry for j in traces if (entry := transition[i][j]) is not None}
            parts = [self._moved(traces[j], entry, i, j, spread) for j, entry in entries.items()]
            carried[i] = total(parts) if parts else jnp.zeros_like(traces[i])
        return carried

    def _moved(self, trace: jax.Array, entry: jax.Array, i: int, j: int, spread: Callable[[Any], Any]) -> jax.Array:
        product = spread(self.at(entry)) * trace
        if not self.moves:
            return product
        moved = []
        for source in self._sources(i, j):
            table = spread(source.reshape(self.width, *self.y_shape))
            index = jnp.broadcast_to(jnp.maximum(table, 0), product.shape)
            moved.append(jnp.where(table >= 0, jnp.take_along_axis(product, index, axis=0), 0))
        return total(moved)

    def _sources(self, i: int, j: int) -> list[np.ndarray]:
        """The places whose content moves to each place, one table `(width, u)` for each that shares a target."""
        width, size = self.positions.shape
        following = self.group.positions.targets[i, j]
        reached = np.where(self.positions >= 0, following[self.positions], -1)
        place, element = np.nonzero(reached >= 0)
        # Which place of the element the reached position is: found among the element's own positions, in order.
        own_place, own_element = np.nonzero(self.positions >= 0)
        own = own_element * self.reach.positions + self.positions[own_place, own_element]
        order = np.argsort(own)
        found = np.searchsorted(own[order], element * self.reach.positions + reached[place, element])
        target = own_place[order][found]
        # Contents that meet at one place are told apart by their number there.
        meeting = target * size + element
        order = np.argsort(meeting, kind="stable")
        first = np.searchsorted(meeting[order], meeting[order])
        number = np.empty(len(meeting), np.int64)
        number[order] = np.arange(len(meeting)) - first
        tables = np.full((int(number.max(initial=0)) + 1, width, size), -1, dtype=np.int64)
        tables[number, target, element] = place
        return list(tables)


def each_color(
    function: Callable[[jax.Array], jax.Array], colors: np.ndarray, shape: tuple[int, ...], dtype: Any
) -> jax.Array:
    """A function of the elements of each colour (ones there, zeros elsewhere), stacked along a first axis."""
    count = int(colors.max(initial=0)) + 1
    if count == 1:
        return function(jnp.ones(shape, dtype))[None]
    colors = colors.reshape(shape)
    if count <= UNROLLED:
        return jnp.stack([function(jnp.asarray(colors == color, dtype)) for color in range(count)])
    return jax.lax.map(lambda color: function(jnp.asarray(colors == color, dtype)), jnp.arange(count))


def orbits(group: HiddenGroup, reach: Reach) -> np.ndarray:
    """The positions that the content of each element of `y` visits, those where it enters first; -1 for none.

    Raises:
        NotSupportedError: If they are more than `LARGEST_PLACES`.
    """
    if group.positions.kind is not TransitionKind.RELABELLED:
        _checked(range(reach.fan), group, reach.size)
        return reach.targets
    following = group.positions.targets.reshape(-1, group.positions.size)
    maps = np.unique(following[(following >= 0).any(axis=1)], axis=0)
    if len(maps) == 1 and reach.fan == 1 and sparse.largest_count(maps[0][maps[0] >= 0]) <= 1:
        return _along_one_map(reach.targets[0], maps[0], group)
    return _along_several_maps(maps, group, reach)


def _along_one_map(start: np.ndarray, following: np.ndarray, group: HiddenGroup) -> np.ndarray:
    """Where every position has one successor and one predecessor, a walk ends or comes back to its start."""
    rows, place = [], start
    while (place >= 0).any():
        rows.append(place)
        _checked(rows, group)
        place = np.where(place >= 0, following[place], -1)
        place = np.where(place == start, -1, place)
    return np.stack(rows or [start])


def _along_several_maps(maps: np.ndarray, group: HiddenGroup, reach: Reach) -> np.ndarray:
    found: list[list[int]] = []
    width = 1
    for element in range(reach.size):
        entered = [int(p) for p in reach.targets[:, element]]
        walk, seen = list(entered), set(entered)
        for position in walk:
            steps = dict.fromkeys(int(t) for t in maps[:, position]) if position >= 0 else {}
            walk += [t for t in steps if t not in seen]
            seen |= steps.keys()
        found.append(walk)
        width = max(width, len(walk))
        _checked(range(width), group, reach.size)
    table = np.full((width, reach.size), -1, dtype=np.int64)
    for element, walk in enumerate(found):
        table[: len(walk), element] = walk
    return table


def _checked(rows: Any, group: HiddenGroup, size: int | None = None) -> Any:
    size = len(rows[0]) if size is None else size
    if len(rows) * size > LARGEST_PLACES:
        states = ", ".join(f"`{path_name(path)}`" for path in group.hidden_paths)
        raise NotSupportedError(
            f"{size:,} values reach {len(rows):,} positions of {states} each, or more, from step to step: past the "
            f"{LARGEST_PLACES:,} that a table of positions may have. Use a rule that keeps no trace for a position "
            "(`RTRL`, `SnAp`, `UORO`, `BPTT`), or let fewer positions take part in the relabelling."
        )
    return rows
