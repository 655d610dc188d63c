"""The batch, told by analysis: the axis of a group's positions, and what of each output belongs to which sample.

The elements along the axis of a batch never meet in the dynamics, and they share all parameters: units do not. Both are
followed through the equations of a step by intervals: for every element of a value, the least and the greatest sample
(or parameter element) that reaches it. Where both are the same, it belongs to one alone. Reductions widen intervals,
relabellings move them, and an equation that is not known in detail joins everything that it reads.
"""

import functools
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from foretrace._jax import Atom, Jaxpr, JaxprEqn, Literal, Var, is_float
from foretrace.compiler.axismaps import along
from foretrace.compiler.graph import ETraceGraph
from foretrace.compiler.groups import HiddenGroup
from foretrace.compiler.patterns import structure_of
from foretrace.compiler.structure import SAME, Known, Local, plain_jaxpr
from foretrace.errors import NotSupportedError
from foretrace.ops import is_etp_primitive
from foretrace.program.inline import inline_calls
from foretrace.program.records import Leaf, path_name


@dataclass(frozen=True, eq=False)
class Batch:
    """What belongs to which sample, seen from one group.

    Attributes:
        axis: The axis of the group's positions that is the batch; None where there is none.
        size: How many samples there are.
        outputs: For each floating output the flat numbers of its elements, `(samples, features)`; one row for an output
            that all samples share.
    """

    axis: int | None
    size: int
    outputs: tuple[np.ndarray, ...]

    @property
    def features(self) -> int:
        """Elements of all outputs that one sample has, shared ones counted."""
        return sum(own.shape[1] for own in self.outputs)


def find_batch(graph: ETraceGraph, group: HiddenGroup) -> Batch:
    """The batch of one group and the outputs.

    Raises:
        NotSupportedError: If samples meet in the dynamics and the shapes of the outputs do not tell either.
    """
    found = _found.setdefault(graph, {})
    if group.index not in found:
        found[group.index] = _find(graph, group)
    return found[group.index]


_found: weakref.WeakKeyDictionary[ETraceGraph, dict[int, Batch]] = weakref.WeakKeyDictionary()


def _find(graph: ETraceGraph, group: HiddenGroup) -> Batch:
    shapes = [leaf.aval.shape for leaf in _outputs(graph)]
    found = _by_analysis(graph, group)
    if found is not None:
        return found
    first = group.varshape[0] if len(group.varshape) > 1 else 1
    alike = [len(shape) > 1 and shape[0] == first for shape in shapes]
    if first > 1 and all(alike):  # samples meet (batch statistics, say), and the outputs have this axis, too
        return Batch(0, first, tuple(np.arange(np.prod(shape)).reshape(first, -1) for shape in shapes))
    if first > 1 and any(alike):
        raise NotSupportedError(
            f"Whether the first axis of {path_name(group.hidden_paths[0])} {group.varshape} is a batch cannot be told: "
            f"its elements meet within the step, and of the outputs {shapes} some have such an axis and some do not. "
            "Return the others outside of the step, or use `feedback='symmetric'`."
        )
    return Batch(None, 1, tuple(np.arange(np.prod(shape, dtype=int)).reshape(1, -1) for shape in shapes))


def _outputs(graph: ETraceGraph) -> list[Any]:
    return [leaf for leaf in graph.program.outputs if is_float(leaf.aval)]


# --- intervals --------------------------------------------------------------------------------------------------------


class Interval(NamedTuple):
    """The least and the greatest number that reaches each element; the least is the greater one where none does."""

    least: np.ndarray
    greatest: np.ndarray

    def join(self, other: "Interval") -> "Interval":
        return Interval(np.minimum(self.least, other.least), np.maximum(self.greatest, other.greatest))

    def map(self, function: Callable[[np.ndarray], Any]) -> "Interval":
        return Interval(function(self.least), function(self.greatest))

    def over(self, axes: Sequence[int]) -> "Interval":
        """Joined along some axes, which stay with size one."""
        axes = tuple(axes)
        return Interval(np.min(self.least, axes, keepdims=True), np.max(self.greatest, axes, keepdims=True))

    def everywhere(self, shape: Sequence[int]) -> "Interval":
        """All of it at every element of a shape."""
        least, greatest = np.min(self.least, initial=_NONE), np.max(self.greatest, initial=-1)
        return Interval(np.full(shape, least), np.full(shape, greatest))

    def same(self, other: "Interval") -> bool:
        return np.array_equal(self.least, other.least) and np.array_equal(self.greatest, other.greatest)


_NONE = np.iinfo(np.int64).max


def _nothing(shape: Sequence[int]) -> Interval:
    return Interval(np.full(shape, _NONE), np.full(shape, -1))


def _along(shape: Sequence[int], axis: int) -> Interval:
    """Every element numbered by its coordinate."""
    numbers = np.broadcast_to(along(np.arange(shape[axis]), axis, len(shape)), shape)
    return Interval(numbers, numbers)


def spread(jaxpr: Jaxpr, known: Known, seeds: Mapping[Var, Interval]) -> dict[Var, Interval]:
    """The intervals of all values that depend on some others."""
    found = dict(seeds)
    for eqn in jaxpr.eqns:
        reached = {i: found[a] for i, a in enumerate(eqn.invars) if not isinstance(a, Literal) and a in found}
        if not reached:
            continue
        if is_etp_primitive(eqn.primitive):
            found |= dict(zip(eqn.outvars, _inside(eqn, reached), strict=True))
            continue
        for out, locals_ in zip(eqn.outvars, structure_of(eqn, known), strict=True):
            parts = [_through(eqn, out, i, locals_[i], own) for i, own in reached.items() if i in locals_]
            if parts:
                found[out] = functools.reduce(Interval.join, parts)
    return found


def _inside(eqn: JaxprEqn, reached: Mapping[int, Interval]) -> list[Interval]:
    """A marked operator is what its implementation is."""
    closed = inline_calls(plain_jaxpr(eqn))
    jaxpr = closed.jaxpr
    seeds = {jaxpr.invars[i]: own for i, own in reached.items()}
    found = spread(jaxpr, Known(jaxpr, tuple(closed.consts)), seeds)
    return [_of(found, inner) for inner in jaxpr.outvars]


def _of(found: Mapping[Var, Interval], atom: Atom) -> Interval:
    return found[atom] if not isinstance(atom, Literal) and atom in found else _nothing(atom.aval.shape)


def _through(eqn: JaxprEqn, out: Var, operand: int, local: Local, own: Interval) -> Interval:
    if local is SAME:
        return own.map(lambda values: np.broadcast_to(values, out.aval.shape))
    if local.mixing:
        rule = mixing_rules.get(eqn.primitive.name)
        return own.everywhere(out.aval.shape) if rule is None else rule(eqn, out, operand, own)
    rows, columns = local.pattern.pairs()
    least, greatest = (array.reshape(-1) for array in _nothing(out.aval.shape))
    np.minimum.at(least, rows, own.least.reshape(-1)[columns])
    np.maximum.at(greatest, rows, own.greatest.reshape(-1)[columns])
    return Interval(least.reshape(out.aval.shape), greatest.reshape(out.aval.shape))


def _placed(own: Interval, out: Var, places: Mapping[int, int]) -> Interval:
    """Axes that stay apart, each at its place among those of the output; joined along all others."""
    axes = sorted(places, key=lambda axis: places[axis])
    rest = [axis for axis in range(own.least.ndim) if axis not in places]
    shape = [1] * out.aval.ndim
    for axis in axes:
        shape[places[axis]] = own.least.shape[axis]
    lines = own.over(rest).map(lambda a: np.transpose(a, [*axes, *rest]).reshape(shape))
    return lines.map(lambda a: np.broadcast_to(a, out.aval.shape))


def _product(eqn: JaxprEqn, out: Var, operand: int, own: Interval) -> Interval:
    """Output axes are (batch, free axes of the left, free axes of the right)."""
    contract, batch = (sides[operand] for sides in eqn.params["dimension_numbers"])
    free = [axis for axis in range(own.least.ndim) if axis not in (*contract, *batch)]
    start = len(batch) if operand == 0 else out.aval.ndim - len(free)
    places = {axis: place for place, axis in enumerate(batch)}
    return _placed(own, out, places | {axis: start + k for k, axis in enumerate(free)})


def _gather(eqn: JaxprEqn, out: Var, operand: int, own: Interval) -> Interval:
    """Axes that a window covers whole stay apart, and so do those along which each index has its own operand."""
    how, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    lookups = [axis for axis in range(out.aval.ndim) if axis not in how.offset_dims]
    if operand == 1:
        return _placed(own, out, dict(enumerate(lookups)))
    shape = own.least.shape
    window = [axis for axis in range(len(shape)) if axis not in (*how.collapsed_slice_dims, *how.operand_batching_dims)]
    batching = zip(how.operand_batching_dims, how.start_indices_batching_dims, strict=True)
    places = {axis: place for axis, place in zip(window, how.offset_dims, strict=True) if sizes[axis] == shape[axis]}
    return _placed(own, out, places | {axis: lookups[place] for axis, place in batching})


def _dynamic_slice(eqn: JaxprEqn, out: Var, operand: int, own: Interval) -> Interval:
    if operand > 0:
        return own.everywhere(out.aval.shape)
    whole = [axis for axis, size in enumerate(own.least.shape) if eqn.params["slice_sizes"][axis] == size]
    return _placed(own, out, {axis: axis for axis in whole})


def _reduction(eqn: JaxprEqn, out: Var, operand: int, own: Interval) -> Interval:
    return own.over(eqn.params["axes"]).map(lambda a: a.reshape(out.aval.shape))


def _line(eqn: JaxprEqn, out: Var, operand: int, own: Interval) -> Interval:
    axis = eqn.params["axis"] if "axis" in eqn.params else eqn.params["dimension"]
    return own.over([axis]).map(lambda a: np.broadcast_to(a, out.aval.shape))


def _convolution(eqn: JaxprEqn, out: Var, operand: int, own: Interval) -> Interval:
    """Samples stay apart, and so do the kernels of the output's channels; a window joins what else it may cover."""
    lhs, rhs, to = eqn.params["dimension_numbers"]
    if operand == 0 and eqn.params["batch_group_count"] > 1:
        return own.everywhere(out.aval.shape)
    kept, place = (lhs[0], to[0]) if operand == 0 else (rhs[0], to[1])
    return _placed(own, out, {kept: place})


mixing_rules: dict[str, Callable[[JaxprEqn, Var, int, Interval], Interval]] = {
    "dot_general": _product,
    "conv_general_dilated": _convolution,
    "gather": _gather,
    "dynamic_slice": _dynamic_slice,
    **dict.fromkeys(("reduce_sum", "reduce_max", "reduce_min", "reduce_prod"), _reduction),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "sort"), _line),
}


# --- the axis of a group ----------------------------------------------------------------------------------------------


def _by_analysis(graph: ETraceGraph, group: HiddenGroup) -> Batch | None:
    """The batch along the first axis that is one, and that an input or output has, too."""
    for axis in _axes(graph, group):
        size = group.varshape[axis]
        seeds, with_input = _all_seeds(graph, group, axis)
        found = _carried(graph, seeds) or {}
        reached = [_of(found, atom) for atom in graph.program.output_outvars if is_float(atom.aval)]
        rows = [_rows(own, size) for own in reached]
        if with_input or any(own is not None and len(own) == size for own in rows):
            return Batch(axis, size, tuple(_told(own, leaf) for own, leaf in zip(rows, _outputs(graph), strict=True)))
    return None


def _axes(graph: ETraceGraph, group: HiddenGroup) -> list[int]:
    """The axes whose elements never meet and share all parameters."""
    params = _by_params(graph, group)
    return [
        axis
        for axis in range(len(group.varshape))
        if all(_constant(own, axis) for own in params) and _carried(graph, _seeds(group, axis)) is not None
    ]


def _constant(own: Interval, axis: int) -> bool:
    return own.same(own.map(lambda a: np.broadcast_to(np.take(a, [0], axis), a.shape)))


def _by_params(graph: ETraceGraph, group: HiddenGroup) -> list[Interval]:
    """Which elements of each parameter reach each slot of the group's new states within the step."""
    program = graph.program
    known = Known(program.jaxpr, tuple(program.consts))
    found = []
    for var in program.param_invars:
        numbers = np.arange(var.aval.size).reshape(var.aval.shape)
        values = spread(program.jaxpr, known, {var: Interval(numbers, numbers)})
        for slot in group.slots:
            if (state := group.hidden_outvars[slot.state]) in values:
                elements = slot.elements(state.aval.shape).reshape(group.varshape)
                found.append(Interval(*(side.reshape(-1)[elements] for side in values[state])))
    return found


def _seeds(group: HiddenGroup, axis: int) -> dict[Var, Interval]:
    """The elements of a group's states numbered by an axis of their positions."""
    numbers = _along(group.varshape, axis).map(np.ravel)
    states = zip(group.hidden_invars, group.placed, strict=True)
    return {var: Interval(*(side[place].reshape(var.aval.shape) for side in numbers)) for var, (_, place) in states}


def _carried(graph: ETraceGraph, seeds: Mapping[Var, Interval]) -> dict[Var, Interval] | None:
    """The intervals of all values after any number of steps; None if a seeded state meets other samples."""
    program, jaxpr = graph.program, graph.values.data_jaxpr
    known = Known(jaxpr, tuple(program.consts))
    before = dict(seeds)
    while True:
        found = spread(jaxpr, known, before)
        after = dict(before)
        for old, new in zip(program.hidden_invars, program.hidden_outvars, strict=True):
            if new in found:
                after[old] = before[old].join(found[new]) if old in before else found[new]
        if any(not after[var].same(own) for var, own in seeds.items()):
            return None
        if after.keys() == before.keys() and all(after[var].same(own) for var, own in before.items()):
            return found
        before = after


def _all_seeds(graph: ETraceGraph, group: HiddenGroup, axis: int) -> tuple[dict[Var, Interval], bool]:
    """The samples of all states and inputs that can have the batch of one group, and whether an input has."""
    size = group.varshape[axis]
    seeds, with_input = _seeds(group, axis), False

    def first(choices: Iterable[dict[Var, Interval]]) -> dict[Var, Interval] | None:
        return next((more for more in choices if _carried(graph, seeds | more) is not None), None)

    for other in graph.hidden_groups:
        same = [k for k in _axes(graph, other) if other.varshape[k] == size] if other is not group else []
        seeds |= first(_seeds(other, k) for k in same) or {}
    for var in graph.program.input_invars:
        same = [k for k, length in enumerate(var.aval.shape) if length == size and is_float(var.aval)]
        more = first({var: _along(var.aval.shape, k)} for k in same)
        seeds, with_input = seeds | (more or {}), with_input or more is not None
    return seeds, with_input


def _rows(own: Interval, size: int) -> np.ndarray | None:
    """The flat numbers of an output's elements by sample, or in one row if all samples share it; None for neither."""
    shape, flat = own.least.shape, np.arange(own.least.size)
    least, greatest = own.least.reshape(-1), own.greatest.reshape(-1)
    if np.all(greatest < 0) and shape[:1] == (size,):  # made of nothing that has a derivative, such as tokens
        return flat.reshape(size, -1)
    single = least == greatest
    counts = np.bincount(least[single], minlength=size)
    if not single.any():
        return flat.reshape(1, -1)
    if single.all() and np.all(counts == counts[0]):
        return np.argsort(least, kind="stable").reshape(size, -1)
    return None


def _told(rows: np.ndarray | None, leaf: Leaf) -> np.ndarray:
    if rows is not None:
        return rows
    raise NotSupportedError(
        f"The output `{path_name(leaf.path)}` {leaf.aval.shape} holds elements of single samples beside elements of "
        "several. Return them apart, or use `feedback='symmetric'`."
    )


# --- the samples of a step --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples that never meet in any number of steps, share all parameters, and have inputs of their own.

    Attributes:
        count: How many there are.
        states: For each hidden state the sample that each of its elements belongs to.
    """

    count: int
    states: list[np.ndarray]
    _graph: ETraceGraph
    _seeds: Mapping[Var, Interval]

    @functools.cached_property
    def _values(self) -> Mapping[Var, Interval]:
        return _carried(self._graph, self._seeds) or {}

    def of(self, var: Var) -> np.ndarray | None:
        """The sample that each element of a value of the step belongs to; None where one belongs to several.

        An element to which no sample leads, as one of a parameter that is repeated for all of them, belongs to the one
        that it acts on.
        """
        found = self._values.get(var)
        if found is not None and np.all(found.greatest >= 0):
            return found.least if np.array_equal(*found) else None
        shape = var.aval.shape
        tries = (_along(shape, axis) for axis, size in enumerate(shape) if size == self.count)
        return next((own.least for own in tries if _carried(self._graph, {**self._seeds, var: own}) is not None), None)


def find_samples(graph: ETraceGraph) -> Samples | None:
    """The samples of a step; None where there is one alone."""
    first, *_ = graph.hidden_groups
    for axis in _axes(graph, first):
        seeds, with_input = _all_seeds(graph, first, axis)
        if with_input and all(var in seeds for var in graph.program.hidden_invars):
            states = [seeds[var].least for var in graph.program.hidden_invars]
            return Samples(first.varshape[axis], states, graph, seeds)
    return None
