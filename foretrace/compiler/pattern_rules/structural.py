"""Primitives that move elements about, axis by axis.

Each says where the coordinates of an output element lie in its operands. A reshape that joins or parts axes is the
one exception: it keeps the order of the elements.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from foretrace._jax import Atom, JaxprEqn
from foretrace.compiler import sparse
from foretrace.compiler.structure import (
    Known,
    Local,
    Reshaped,
    Structure,
    from_matrix,
    one_map,
    shape_of,
    shape_rule_for,
)


@shape_rule_for("reshape", "squeeze", "expand_dims")
def keep_order(eqn: JaxprEqn, known: Known) -> Structure:
    """The elements keep their order; axes of size one come and go without touching the others."""
    operand, out = eqn.invars[0], eqn.outvars[0]
    long_in = [axis for axis, size in enumerate(shape_of(operand)) if size != 1]
    long_out = [axis for axis, size in enumerate(shape_of(out)) if size != 1]
    if [shape_of(operand)[a] for a in long_in] != [shape_of(out)[a] for a in long_out]:
        return [{0: Reshaped(out, operand)}]
    place = dict(zip(long_in, long_out, strict=True))
    axes = [place.get(axis) for axis in range(len(shape_of(operand)))]
    return [{0: one_map(out, operand, axes, [None] * len(axes))}]


@shape_rule_for("transpose")
def transpose(eqn: JaxprEqn, known: Known) -> Structure:
    """Axes in another order."""
    axes = [int(a) for a in np.argsort(eqn.params["permutation"])]
    return [{0: one_map(eqn.outvars[0], eqn.invars[0], axes, [None] * len(axes))}]


@shape_rule_for("broadcast_in_dim")
def broadcast_in_dim(eqn: JaxprEqn, known: Known) -> Structure:
    """The operand's axes are placed among the output's and repeated along the rest."""
    axes = eqn.params["broadcast_dimensions"]
    return [{0: one_map(eqn.outvars[0], eqn.invars[0], axes, [None] * len(axes))}]


@shape_rule_for("rev")
def rev(eqn: JaxprEqn, known: Known) -> Structure:
    """Some axes backwards."""
    shape, reversed_axes = shape_of(eqn.invars[0]), eqn.params["dimensions"]
    index = [np.arange(size)[::-1] if axis in reversed_axes else None for axis, size in enumerate(shape)]
    return [{0: along_axes(eqn.outvars[0], eqn.invars[0], index)}]


@shape_rule_for("slice")
def take_slice(eqn: JaxprEqn, known: Known) -> Structure:
    """A range of each axis."""
    shape, params = shape_of(eqn.invars[0]), eqn.params
    bounds = zip(
        shape, params["start_indices"], params["limit_indices"], params["strides"] or [1] * len(shape), strict=True
    )
    return [{0: along_axes(eqn.outvars[0], eqn.invars[0], [_range(*bound) for bound in bounds])}]


def _range(size: int, start: int, limit: int, stride: int) -> np.ndarray | None:
    return None if (start, limit, stride) == (0, size, 1) else np.arange(start, limit, stride)


@shape_rule_for("split")
def split(eqn: JaxprEqn, known: Known) -> Structure:
    """Pieces of the operand along one axis."""
    operand, axis = eqn.invars[0], eqn.params["axis"]
    starts = np.concatenate([[0], np.cumsum(eqn.params["sizes"])])
    rank = len(shape_of(operand))
    pieces = [[np.arange(a, b) if k == axis else None for k in range(rank)] for a, b in itertools.pairwise(starts)]
    return [{0: along_axes(out, operand, index)} for out, index in zip(eqn.outvars, pieces, strict=True)]


@shape_rule_for("concatenate")
def concatenate(eqn: JaxprEqn, known: Known) -> Structure:
    """Each operand fills a range of one axis."""
    out, axis = eqn.outvars[0], eqn.params["dimension"]
    starts = np.concatenate([[0], np.cumsum([shape_of(operand)[axis] for operand in eqn.invars])])
    return [{i: _placed(out, operand, axis, int(starts[i])) for i, operand in enumerate(eqn.invars)}]


def _placed(out: Atom, operand: Atom, axis: int, start: int) -> Local:
    position = np.arange(shape_of(out)[axis]) - start
    inside = (position >= 0) & (position < shape_of(operand)[axis])
    rank = len(shape_of(out))
    index = [np.where(inside, position, 0) if k == axis else None for k in range(rank)]
    return along_axes(out, operand, index, [inside if k == axis else None for k in range(rank)])


@shape_rule_for("stack")
def stack(eqn: JaxprEqn, known: Known) -> Structure:
    """Each operand is one place of a new axis."""
    out, axis = eqn.outvars[0], eqn.params["axis"]
    rank = len(shape_of(out))
    others = [k for k in range(rank) if k != axis]
    place = np.arange(shape_of(out)[axis])
    return [
        {
            i: one_map(
                out, operand, others, [None] * len(others), [place == i if k == axis else None for k in range(rank)]
            )
            for i, operand in enumerate(eqn.invars)
        }
    ]


@shape_rule_for("unstack")
def unstack(eqn: JaxprEqn, known: Known) -> Structure:
    """Each output is one place of an axis of the operand."""
    operand, axis = eqn.invars[0], eqn.params["axis"]
    rank = len(shape_of(operand))
    axes = [None if k == axis else k - (k > axis) for k in range(rank)]
    return [
        {0: one_map(out, operand, axes, [i if k == axis else None for k in range(rank)])}
        for i, out in enumerate(eqn.outvars)
    ]


@shape_rule_for("tile")
def tile(eqn: JaxprEqn, known: Known) -> Structure:
    """The operand repeated along its axes."""
    out, operand = eqn.outvars[0], eqn.invars[0]
    index = [np.arange(n) % m if n != m else None for n, m in zip(shape_of(out), shape_of(operand), strict=True)]
    return [{0: along_axes(out, operand, index)}]


@shape_rule_for("pad")
def pad(eqn: JaxprEqn, known: Known) -> Structure:
    """The operand with the padding value around and between; negative padding cuts it."""
    operand, value, out = eqn.invars[0], eqn.invars[1], eqn.outvars[0]
    index, masks = [], []
    for size, length, (low, _, interior) in zip(
        shape_of(operand), shape_of(out), eqn.params["padding_config"], strict=True
    ):
        position, rest = np.divmod(np.arange(length) - low, interior + 1)
        inside = (rest == 0) & (position >= 0) & (position < size)
        index.append(np.where(inside, position, 0))
        masks.append(inside)
    kept = along_axes(out, operand, index, masks)

    def padded() -> sparse.Matrix:
        return sparse.from_rows(np.where(np.diff(kept.pattern.matrix.indptr) > 0, -1, 0), 1)

    return [{0: kept, 1: from_matrix(out, value, padded)}]


def along_axes(
    out: Atom, operand: Atom, index: Sequence[np.ndarray | None], masks: Sequence[np.ndarray | None] | None = None
) -> Local:
    """Axis `k` of the output runs over axis `k` of the operand by an index."""
    return one_map(out, operand, range(len(index)), index, masks)
