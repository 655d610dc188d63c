"""Axis maps: dependencies that act on every axis by itself, told in a few short index arrays.

Nearly everything direct is of this kind: elementwise equations, slices, transposes, broadcasts, concatenations. An
element of the output at coordinates `i` depends on the element of the source whose coordinate on axis `k` is
`index[k][i[axes[k]]]`. The cost of working with a map grows with the lengths of the axes and not with the number of
elements, so a layer of a thousand units at batch 128 is analysed like one of four.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from foretrace.compiler import sparse

Index: TypeAlias = np.ndarray | int | None  # an array, a fixed coordinate, or None for the coordinate itself
Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class AxisMap:
    """One element of the source for each element of the output, axis by axis.

    Attributes:
        axes: For each axis of the source, the axis of the output that decides the coordinate; None if it is fixed.
        index: The coordinate by that axis' index, None for the same index; the coordinate itself where it is fixed.
        masks: For each axis of the output, where there is a dependence at all; None for everywhere.
    """

    axes: tuple[int | None, ...]
    index: tuple[Index, ...]
    masks: tuple[np.ndarray | None, ...]

    def key(self) -> tuple:
        """Equal for equal maps."""
        return (self.axes, tuple(_key(i) for i in self.index), tuple(_key(m) for m in self.masks))

    def rows(self, out_shape: Shape, source_shape: Shape) -> np.ndarray:
        """The number of the source element for each output element, -1 for none."""
        flat = np.zeros(out_shape, np.int64)
        stride = 1
        for k in reversed(range(len(source_shape))):
            flat += self._coordinate(k, out_shape) * stride
            stride *= source_shape[k]
        for axis, mask in enumerate(self.masks):
            if mask is not None:
                flat = np.where(along(mask, axis, len(out_shape)), flat, -1)
        return flat.reshape(-1)

    def _coordinate(self, k: int, out_shape: Shape) -> np.ndarray:
        axis, index = self.axes[k], self.index[k]
        if axis is None:
            return np.asarray(index)
        values = np.arange(out_shape[axis]) if index is None else np.asarray(index)
        return along(values, axis, len(out_shape))

    def is_injective(self, out_shape: Shape) -> bool:
        """Whether no two output elements depend on one source element."""
        decided = {axis for axis in self.axes if axis is not None}
        if any(size > 1 and axis not in decided for axis, size in enumerate(out_shape)):
            return False
        chosen = (self.used(k) for k, axis in enumerate(self.axes) if axis is not None)
        return all(used is None or sparse.largest_count(used) <= 1 for used in chosen)

    def used(self, k: int) -> np.ndarray | None:
        """The coordinates on axis `k` of the source that are used; None for all in order."""
        axis, index = self.axes[k], self.index[k]
        if axis is None:
            return np.array([index])
        mask = self.masks[axis]
        if index is None:
            return None if mask is None else np.flatnonzero(mask)
        values = np.asarray(index)
        return values if mask is None else values[mask]


def identity_map(shape: Shape) -> AxisMap:
    """Every element depends on itself."""
    return AxisMap(
        tuple(None if size == 1 else axis for axis, size in enumerate(shape)),
        tuple(0 if size == 1 else None for size in shape),
        (None,) * len(shape),
    )


def compose(inner: AxisMap, outer: AxisMap, source_shape: Shape) -> AxisMap | None:
    """The map from the source of `outer` to the output of `inner`; None where nothing is left."""
    axes: list[int | None] = []
    index: list[Index] = []
    masks = list(inner.masks)
    for k, middle in enumerate(outer.axes):
        axis, coordinate = _through(inner, middle, outer.index[k])
        index.append(0 if source_shape[k] == 1 else _simple(coordinate, axis, source_shape[k]))
        axes.append(None if source_shape[k] == 1 else axis)
    for middle, mask in enumerate(outer.masks):
        if mask is None:
            continue
        axis, chosen = inner.axes[middle], inner.index[middle]
        if axis is None:
            if not mask[chosen]:
                return None
            continue
        here = mask if chosen is None else mask[chosen]
        before = masks[axis]
        masks[axis] = here if before is None else before & here
    if any(mask is not None and not mask.any() for mask in masks):
        return None
    return AxisMap(tuple(axes), tuple(index), tuple(None if m is None or m.all() else m for m in masks))


def disjoint(first: AxisMap, second: AxisMap) -> bool:
    """Whether two maps surely use different elements of the source."""
    for k in range(len(first.axes)):
        one, two = first.used(k), second.used(k)
        if one is None or two is None:
            continue
        if not one.size or not two.size or one.max() < two.min() or two.max() < one.min():
            return True
        if not np.intersect1d(one, two).size:
            return True
    return False


def _through(inner: AxisMap, middle: int | None, index: Index) -> tuple[int | None, Index]:
    """The axis and coordinate that come of a coordinate on an axis of what stands between."""
    if middle is None:
        return None, index
    axis, chosen = inner.axes[middle], inner.index[middle]
    if chosen is None:
        return axis, index
    if index is None:
        return axis, chosen
    values = np.asarray(index)[chosen]
    return axis, int(values) if axis is None else values


def _simple(index: Index, axis: int | None, size: int) -> Index:
    """None for an index array that says nothing new."""
    if axis is None or index is None or len(np.asarray(index)) != size:
        return index
    return None if np.array_equal(index, np.arange(size)) else index


def along(values: np.ndarray, axis: int, rank: int) -> np.ndarray:
    """Values for one axis in the shape that they are stretched from over all."""
    return values.reshape([-1 if a == axis else 1 for a in range(rank)])


def _key(value: Index) -> object:
    return value.tobytes() if isinstance(value, np.ndarray) else value
