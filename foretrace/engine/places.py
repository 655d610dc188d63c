"""Where the traces of a relation live: the positions that each element of `y` reaches, now and in later steps.

In an aligned group an element of `y` acts on one position for good (or on one for each colour, where it reaches
several). In a relabelled group its influence moves on from step to step, so a trace has a place for every position on
the way. `Places` gives values at positions to the places of traces, and carries traces through one transition.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from foretrace._jax import Var
from foretrace.compiler.groups import HiddenGroup
from foretrace.compiler.positions import TransitionKind
from foretrace.compiler.relations import Reach
from foretrace.engine.slots import Matrix, total


@dataclass(frozen=True, eq=False)
class Places:
    """The places of the traces of one relation in one group.

    Attributes:
        group: The group.
        y_shape: The shape of `y`.
        reach: Where the elements of `y` go in one step.
        positions: `positions[r, u]` is the position of place `r` of element `u` of `y`, -1 where there is none.
    """

    group: HiddenGroup
    y_shape: tuple[int, ...]
    reach: Reach = field(repr=False)
    positions: np.ndarray = field(repr=False)

    @property
    def width(self) -> int:
        """Number of places for each element of `y`."""
        return self.positions.shape[0]

    @property
    def moves(self) -> bool:
        """Whether positions change from step to step."""
        return self.group.positions.kind is TransitionKind.RELABELLED

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

    def color_masks(self, dtype: Any) -> list[jax.Array]:
        """For each colour, ones at the positions that have it; a single one where `y` has single targets."""
        if self.reach.fan == 1:
            return [jnp.ones(self.group.varshape, dtype)]
        colors = self.reach.colors.reshape(self.group.varshape)
        return [jnp.asarray(colors == color, dtype) for color in range(self.reach.fan)]

    def enter(self, parts: Sequence[jax.Array]) -> jax.Array:
        """Values of `y`, one array `(*lead, *y_shape)` for each colour, at the places where they enter."""
        stacked = jnp.stack(parts, axis=-1 - len(self.y_shape))
        missing = self.width - len(parts)
        if not missing:
            return stacked
        axis = stacked.ndim - 1 - len(self.y_shape)
        return jnp.pad(stacked, [(0, missing if k == axis else 0) for k in range(stacked.ndim)])

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
        following = self.group.positions.targets[i, j]
        width, size = self.positions.shape
        tables: list[np.ndarray] = []
        for element in range(size):
            filled = [0] * width
            where = {int(p): r for r, p in enumerate(self.positions[:, element]) if p >= 0}
            for position, place in where.items():
                target = where.get(int(following[position]), -1)
                if target < 0:
                    continue
                if filled[target] == len(tables):
                    tables.append(np.full((width, size), -1, dtype=np.int64))
                tables[filled[target]][target, element] = place
                filled[target] += 1
        return tables or [np.full((width, size), -1, dtype=np.int64)]


def places_for(y_var: Var, group: HiddenGroup, reach: Reach) -> Places:
    """The places that a relation needs in a group."""
    positions = reach.targets if group.positions.kind is not TransitionKind.RELABELLED else _orbits(group, reach)
    return Places(group, tuple(y_var.aval.shape), reach, positions)


def _orbits(group: HiddenGroup, reach: Reach) -> np.ndarray:
    """All positions that the content of each element of `y` visits; those where it enters come first."""
    following = group.positions.targets.reshape(-1, group.positions.size)
    orbits = []
    for element in range(reach.size):
        entered = [int(p) for p in reach.targets[:, element]]
        found = list(entered)
        for position in found:
            if position >= 0:
                found += dict.fromkeys(int(t) for t in following[:, position] if t >= 0 and int(t) not in found)
        orbits.append(found)
    width = max(map(len, orbits), default=1)
    table = np.full((width, len(orbits)), -1, dtype=np.int64)
    for element, found in enumerate(orbits):
        table[: len(found), element] = found
    return table
