"""What a group does to itself in one step altogether: directly, and out through recurrent weights and back.

A way back to the same position that runs through one product with a weight can be read off that weight: of the elements
that the product mixes, one stands at the position, and its connection is one element of the weight. Where every way
back is of that kind, positions need not be told apart to find the diagonal of the whole step's Jacobian.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from foretrace._jax import Var
from foretrace.compiler import sparse
from foretrace.compiler.graph import ETraceGraph
from foretrace.compiler.groups import HiddenGroup
from foretrace.compiler.occurrences import Occurrence, OccurrenceKind
from foretrace.compiler.pattern import Pattern
from foretrace.compiler.patterns import Patterns, analyse
from foretrace.compiler.positions import TransitionKind, colour_positions, placed, slot_patterns


class Return(NamedTuple):
    """A linear operator by which a group acts on itself.

    Attributes:
        occurrence: The operator.
        sources: For each element of `y`, the element of `x` at the position that it reaches; -1 for none.
    """

    occurrence: Occurrence
    sources: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class RecurrentGroup:
    """A group as the block diagonal of the whole step's Jacobian carries it.

    Attributes:
        graph: The compiled step.
        group: The group, with every dependence of a position on itself.
        returns: The ways back through one operator; None where there are others.
    """

    graph: ETraceGraph
    group: HiddenGroup
    returns: tuple[Return, ...] | None

    @functools.cached_property
    def colors(self) -> np.ndarray:
        """The colour of each position; none of a colour acts on another within a step."""
        return colour_positions(_whole_patterns(self.graph, self.group))


def recurrent_group(graph: ETraceGraph, group: HiddenGroup) -> RecurrentGroup | None:
    """A group with its dependence on itself by any path through the step; None where its elements move."""
    if group.positions.kind is TransitionKind.RELABELLED:
        return None
    if (found := _by_returns(graph, group)) is not None:
        return found
    kept = [[_on_diagonal(pattern) for pattern in row] for row in _whole_patterns(graph, group)]
    return RecurrentGroup(graph, _with_patterns(group, kept), None)


def _whole_patterns(graph: ETraceGraph, group: HiddenGroup) -> list[list[Pattern]]:
    """The pattern of each new slot by each old one, by any path through the step."""
    whole = analyse(graph.values.data_jaxpr, group.hidden_invars, cut=False, consts=graph.program.consts)
    states = [[whole.of(new, old) for old in group.hidden_invars] for new in group.hidden_outvars]
    return slot_patterns(states, group.slots, group.positions.size)


def _with_patterns(group: HiddenGroup, patterns: Sequence[Sequence[Pattern]]) -> HiddenGroup:
    kept = tuple(tuple(row) for row in patterns)
    return dataclasses.replace(group, positions=dataclasses.replace(group.positions, patterns=kept))


def with_slots(group: HiddenGroup, slots: Sequence[int]) -> HiddenGroup:
    """A group with what some of its slots do to one another alone."""
    none = _own(np.arange(0), group.positions.size)
    patterns = enumerate(group.positions.patterns)
    return _with_patterns(
        group, [[p if i in slots and j in slots else none for j, p in enumerate(row)] for i, row in patterns]
    )


def _on_diagonal(pattern: Pattern) -> Pattern:
    rows, columns = pattern.pairs()
    return _own(rows[rows == columns], pattern.shape[0])


def _own(positions: np.ndarray, size: int) -> Pattern:
    return Pattern((size,), (size,), matrix=sparse.from_pairs(positions, positions, (size, size)))


class _Ends(NamedTuple):
    """Elements of a value, with the slot and the position of a group at the other end of direct paths."""

    elements: np.ndarray
    slots: np.ndarray
    positions: np.ndarray


def _by_returns(graph: ETraceGraph, group: HiddenGroup) -> RecurrentGroup | None:
    """A group whose ways back to a position all run through one operator each; None for others."""
    real = all(slot.component is None for slot in group.slots)
    if group.positions.kind is not TransitionKind.ALIGNED or not real:
        return None
    linear = {id(o.eqn): o for o in graph.occurrences if o.kind is OccurrenceKind.LINEAR and len(o.weights) == 1}
    sources = dict.fromkeys([*group.hidden_invars, *(o.y_var for o in linear.values())])
    direct = analyse(graph.values.data_jaxpr, list(sources), consts=graph.program.consts)
    size, count = group.positions.size, group.num_state
    reached = [[pattern.pairs()[0] for pattern in row] for row in group.positions.patterns]
    returns = []
    for eqn in {id(e): e for h in group.hidden_invars for e in direct.first_mixing(h, group.hidden_outvars)}.values():
        occurrence = linear.get(id(eqn))
        if occurrence is None or len(eqn.outvars) > 1 or not _acts_directly(direct, group, occurrence):
            return None
        assert occurrence.x_var is not None
        entered, left = _entered(direct, group, occurrence.x_var), _left(direct, group, occurrence.y_var)
        at, by = _single(entered.positions, entered.elements, size), _single(left.elements, left.positions, None)
        if at is None or by is None or _single(entered.elements, entered.positions, None) is None:
            return None
        elements = np.full(int(np.prod(occurrence.y_var.aval.shape, dtype=int)), -1, np.int64)
        elements[left.elements] = at[left.positions]
        returns.append(Return(occurrence, elements))
        for new in range(count):
            for old in range(count):
                reads = np.isin(elements, entered.elements[entered.slots == old])
                positions = left.positions[(left.slots == new) & reads[left.elements]]
                reached[new][old] = np.union1d(reached[new][old], positions)
    patterns = [[_own(positions, size) for positions in row] for row in reached]
    return RecurrentGroup(graph, _with_patterns(group, patterns), tuple(returns))


def _acts_directly(direct: Patterns, group: HiddenGroup, occurrence: Occurrence) -> bool:
    """Whether an operator multiplies what the group gives it directly, and acts on the group directly alone."""
    others = [a for i, a in enumerate(occurrence.eqn.invars) if a is not occurrence.x_var]
    given = occurrence.x_var is not None and not any(
        direct.reaches_through_mixing(h, occurrence.x_var) or any(direct.reaches(h, a) for a in others)
        for h in group.hidden_invars
    )
    return given and not any(direct.reaches_through_mixing(occurrence.y_var, new) for new in group.hidden_outvars)


def _entered(direct: Patterns, group: HiddenGroup, x_var: Var) -> _Ends:
    """The elements of `x` that previous states enter."""
    return _joined(_ends(group, k, *direct.of(x_var, h).pairs()) for k, h in enumerate(group.hidden_invars))


def _left(direct: Patterns, group: HiddenGroup, y_var: Var) -> _Ends:
    """The elements of `y` that reach new states."""
    pairs = [direct.of(new, y_var).pairs() for new in group.hidden_outvars]
    return _joined(_ends(group, k, elements, states) for k, (states, elements) in enumerate(pairs))


def _ends(group: HiddenGroup, state: int, elements: np.ndarray, states: np.ndarray) -> _Ends:
    slots, positions = placed(group.slots, state, group.hidden_outvars[state].aval.shape)
    return _Ends(elements, slots[states], positions[states])


def _joined(ends: Iterator[_Ends]) -> _Ends:
    return _Ends(*(np.concatenate(parts) for parts in zip(*ends, strict=True)))


def _single(keys: np.ndarray, values: np.ndarray, size: int | None) -> np.ndarray | None:
    """The one value of each key, -1 for keys without; None where a key has several."""
    found = np.full(int(keys.max(initial=-1)) + 1 if size is None else size, -1, np.int64)
    found[keys] = values
    return found if np.array_equal(found[keys], values) else None
