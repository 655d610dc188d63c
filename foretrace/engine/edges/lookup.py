"""Table lookups: a product with the one-hot vectors of the indices.

A lookup takes from each axis of the table either everything, or one element chosen by an index of the data, or the
element that goes with an axis of the output (`table[arange(n), token]` goes along its first axis). The chosen axes are
contracted with one-hot vectors, so a lookup is a product whose axes follow from the equation. Anything else, such as a
window at a place that data decides, is left to coloured edges.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from foretrace._jax import JaxprEqn
from foretrace.compiler.pattern_rules.indexing import index_columns
from foretrace.compiler.structure import Known
from foretrace.engine.edges.bilinear import LETTERS, Bilinear

Indices = Callable[[Sequence[Any]], list[jax.Array]]


class Lookup(Bilinear):
    """A product with one-hot vectors.

    Args:
        operand: Which operand is the table.
        table: The letters of the table's axes.
        y: Those of what is looked up.
        index: Those of the indices.
        chosen: The axes of the table that indices choose from.
        sizes: The size of each letter.
        indices: From the operands to the indices, one array for each chosen axis.
        clip: Whether an index outside the table means its nearest element; otherwise it means none.
    """

    def __init__(
        self,
        operand: int,
        table: str,
        y: str,
        index: str,
        chosen: str,
        sizes: dict[str, int],
        indices: Indices,
        clip: bool,
    ) -> None:
        units = "".join(axis for axis in y if axis not in table + index)
        super().__init__(index + units + chosen, table, y, sizes, 1 - operand)
        self.operand, self.indices, self.clip = operand, indices, clip
        self.index, self.units, self.chosen = index, units, chosen

    def data(self, operands: Sequence[Any]) -> jax.Array:
        dtype = operands[self.operand].dtype
        shape = [self.sizes[axis] for axis in self.index]
        whole = jnp.ones(shape, dtype)
        for axis, values in zip(self.chosen, self.indices(operands), strict=True):
            size = self.sizes[axis]
            values = jnp.clip(values, 0, size - 1) if self.clip else values
            hot = jax.nn.one_hot(values.reshape(shape), size, dtype=dtype)
            whole = whole[..., None] * jnp.expand_dims(hot, tuple(range(len(shape), whole.ndim)))
        units = tuple(range(len(shape), len(shape) + len(self.units)))
        return jnp.expand_dims(whole, units)

    def source(self, operands: Sequence[Any]) -> Hashable:
        return None


def slice_lookup(eqn: JaxprEqn) -> Lookup | None:
    """A `dynamic_slice` that takes one element of some axes and all of the others; None for any other."""
    table, window = eqn.invars[0].aval.shape, eqn.params["slice_sizes"]
    if any(length not in (1, size) for length, size in zip(window, table, strict=True)):
        return None
    places = [k for k, (length, size) in enumerate(zip(window, table, strict=True)) if length != size]
    letters = LETTERS[: len(table)]
    units = dict(zip(places, LETTERS[len(table) :], strict=False))
    y = "".join(units.get(k, letter) for k, letter in enumerate(letters))
    sizes = dict(zip(letters, table, strict=True)) | dict.fromkeys(units.values(), 1)
    chosen = "".join(letters[k] for k in places)
    return Lookup(0, letters, y, "", chosen, sizes, lambda operands: [operands[1 + k] for k in places], clip=True)


def gather_lookup(eqn: JaxprEqn, known: Known) -> Lookup | None:
    """A `gather` of single elements and whole axes; None for any other."""
    table, indices = eqn.invars[0].aval.shape, eqn.invars[1].aval.shape
    numbers = eqn.params["dimension_numbers"]
    roles = [_role(eqn, axis, known) for axis in range(len(table))]
    along = {k: role.along for k, role in enumerate(roles) if role is not None and role.along is not None}
    if None in roles or len(set(along.values())) != len(along):
        return None
    index, own, spare = LETTERS[: len(indices) - 1], LETTERS[len(indices) - 1 :][: len(table)], LETTERS[::-1]
    chosen = {k: role.column for k, role in enumerate(roles) if role is not None and role.column is not None}
    units = dict(zip(chosen, spare, strict=False))
    kept = [k for k in range(len(table)) if k not in (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)]
    offsets = dict(zip(numbers.offset_dims, (units.get(k, own[k]) for k in kept), strict=True))
    batch = iter(index)
    y = "".join(offsets[place] if place in offsets else next(batch) for place in range(eqn.outvars[0].aval.ndim))
    sizes = dict(zip(index + own, (*indices[:-1], *table), strict=True)) | dict.fromkeys(units.values(), 1)
    return Lookup(
        0,
        "".join(index[along[k]] if k in along else letter for k, letter in enumerate(own)),
        y,
        index,
        "".join(own[k] for k in chosen),
        sizes,
        lambda operands: [operands[1][..., column] for column in chosen.values()],
        eqn.params["mode"] == jax.lax.GatherScatterMode.CLIP,
    )


class _Role(NamedTuple):
    """What a gather does with an axis of its table; with neither of these, it takes the whole axis.

    Attributes:
        along: The axis of the indices that it goes along with.
        column: The number of the index that chooses one element.
    """

    along: int | None = None
    column: int | None = None


def _role(eqn: JaxprEqn, axis: int, known: Known) -> _Role | None:
    """What a gather does with an axis of its table; None for anything that is no plain lookup."""
    numbers = eqn.params["dimension_numbers"]
    size, length = eqn.invars[0].aval.shape[axis], eqn.params["slice_sizes"][axis]
    if axis in numbers.operand_batching_dims:
        return _Role(along=int(numbers.start_indices_batching_dims[numbers.operand_batching_dims.index(axis)]))
    if axis not in numbers.start_index_map:
        return _Role() if length == size else None
    column = numbers.start_index_map.index(axis)
    values = index_columns(eqn.invars[1], known)[column]
    if length == size > 1:  # a start other than zero would leave the table
        inside = eqn.params["mode"] == jax.lax.GatherScatterMode.CLIP or (values is not None and not np.any(values))
        return _Role() if inside else None
    if length != 1 or values is None:
        return _Role(column=column) if length == 1 else None
    place = _counted(values, size) if axis in numbers.collapsed_slice_dims else None
    return None if place is None else _Role(along=place)


def _counted(column: np.ndarray, size: int) -> int | None:
    """The axis along which an index counts up from zero to a size, the same along all others; None for none."""
    for place, length in enumerate(column.shape):
        count = np.arange(length).reshape([-1 if axis == place else 1 for axis in range(column.ndim)])
        if length == size and np.array_equal(column, np.broadcast_to(count, column.shape)):
            return place
    return None


def embedding_lookup(eqn: JaxprEqn) -> Lookup | None:
    """The marked lookup of rows; None under a `vmap` that maps the table."""
    indices, (rows, features) = eqn.invars[0].aval.shape, np.shape(eqn.invars[1].aval)
    if any(axes[1] is not None or axes[0] != 0 for axes in eqn.params.get("vmap_axes", ())):
        return None
    index = LETTERS[: len(indices)]
    row, feature = LETTERS[len(indices)], LETTERS[len(indices) + 1]
    sizes = dict(zip(index, indices, strict=True)) | {row: rows, feature: features}
    return Lookup(1, row + feature, index + feature, index, row, sizes, lambda operands: [operands[0]], clip=False)
