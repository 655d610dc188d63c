"""Whether every parameter element acts on positions of its own, as SnAp-1 asks: then one position's matrix carries it.

SnAp-1 keeps the derivatives of the states that an element reaches within one step, and couples those among them that
act on one another. Where an element reaches its positions directly, and these do not act on one another, the coupling
is what a position does to itself in one step altogether (`recurrence.py`). At a position an element reaches some slots
of the group at once and others later, and SnAp-1 keeps the former alone: `Kept` tells the elements of `y` apart by it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from foretrace._jax import Literal, Var
from foretrace.compiler import sparse
from foretrace.compiler.graph import ETraceGraph
from foretrace.compiler.groups import HiddenGroup
from foretrace.compiler.influence import InfluencePattern
from foretrace.compiler.patterns import analyse
from foretrace.compiler.recurrence import RecurrentGroup, recurrent_group, with_slots
from foretrace.compiler.relations import HiddenParamOpRelation, Reach
from foretrace.program.walks import reached

MOST_PAIRS = 2**24  # of states that one element reaches, over all elements that differ in them


class Kept(NamedTuple):
    """Slots of a group that elements of some `y` reach within a step.

    Attributes:
        slots: The slots.
        group: The group, with what these do to one another alone.
    """

    slots: tuple[int, ...]
    group: HiddenGroup


@dataclass(frozen=True, eq=False)
class OwnPositions:
    """The groups of a step in which every parameter element has positions of its own.

    Attributes:
        groups: What each group does to itself in one step altogether.
        kept: What is kept, each set of slots of a group once.
        of_y: By `y` and the number of a group, for each element of `y` the number of what is kept of it.
    """

    groups: list[RecurrentGroup]
    kept: list[Kept]
    of_y: dict[tuple[Var, int], np.ndarray]


def own_positions(graph: ETraceGraph, weights: Sequence[Var], influence: InfluencePattern) -> OwnPositions | None:
    """The positions that parameter elements act on, each by itself; None where some act otherwise.

    Args:
        graph: The compiled step.
        weights: The values made of parameters that learn.
        influence: The states that each element reaches within one step.
    """
    groups = [recurrent_group(graph, group) for group in graph.hidden_groups]
    found = [group for group in groups if group is not None and group.returns is not None]
    if len(found) < len(groups) or not all(_enters_directly(graph, weight) for weight in weights):
        return None
    kept: dict[tuple[int, tuple[int, ...]], Kept] = {}
    of_y: dict[tuple[Var, int], np.ndarray] = {}
    for relation, group, reach in _reached(graph):
        if reach.fan > 1:
            return None
        sets, inverse = np.unique(_slots_of_elements(graph, relation.y_var, group), axis=0, return_inverse=True)
        names = [tuple(int(k) for k in np.flatnonzero(row)) for row in sets]
        for name in names:
            kept.setdefault((group.index, name), Kept(name, with_slots(found[group.index].group, name)))
        numbers = np.array([list(kept).index((group.index, name)) for name in names])
        of_y[relation.y_var, group.index] = numbers[inverse.reshape(-1)]
    apart = _act_apart(graph, influence) and _keep_the_same(graph, of_y)
    return OwnPositions(found, list(kept.values()), of_y) if apart else None


def _reached(graph: ETraceGraph) -> Iterator[tuple[HiddenParamOpRelation, HiddenGroup, Reach]]:
    for relation in graph.hidden_param_op_relations:
        for group, reach in zip(relation.hidden_groups, relation.reaches, strict=True):
            yield relation, group, reach


def _enters_directly(graph: ETraceGraph, weight: Var) -> bool:
    """Whether a value made of parameters acts on new states through the `y` of relations alone, and these directly."""
    own = [r for r in graph.hidden_param_op_relations if any(w.var is weight for w in r.occurrence.weights)]
    states = graph.program.hidden_outvars
    if any(graph.patterns.reaches_through_mixing(r.y_var, state) for r in own for state in states):
        return False
    if any(r.y_var is weight for r in own):
        return True
    known = {id(relation.occurrence.eqn) for relation in own}
    eqns = graph.values.data_jaxpr.eqns
    others = [e for e in eqns if id(e) not in known and any(a is weight for a in e.invars)]
    beside = reached(eqns, {out for eqn in others for out in eqn.outvars}, set())
    return beside.isdisjoint(atom for atom in states if not isinstance(atom, Literal))


def _slots_of_elements(graph: ETraceGraph, y_var: Var, group: HiddenGroup) -> np.ndarray:
    """For each element of `y` which slots it reaches at its position; those of another for one that reaches none."""
    slots = np.zeros((int(np.prod(y_var.aval.shape, dtype=int)), group.num_state), bool)
    for k, new in enumerate(group.hidden_outvars):
        states, elements = graph.patterns.of(new, y_var).pairs()
        slots[elements, group.placed[k][0][states]] = True
    acts = slots.any(axis=1)
    slots[~acts] = slots[np.argmax(acts)]
    return slots


def _places(graph: ETraceGraph) -> np.ndarray:
    """For every state element a number that those at one position of one group share."""
    found, first = {}, 0
    for group in graph.hidden_groups:
        for k, var in enumerate(group.hidden_invars):
            found[var] = first + group.placed[k][1]
        first += group.positions.size
    return np.concatenate([found[var] for var in graph.program.hidden_invars])


def _act_apart(graph: ETraceGraph, influence: InfluencePattern) -> bool:
    """Whether no two states at different positions that one parameter element reaches act on one another."""
    kept = influence.kept
    if int(np.sum(np.diff(kept.indptr).astype(np.int64) ** 2)) > MOST_PAIRS:
        return False
    place, onward = _places(graph), influence.step.states
    new, old = onward.nonzero()
    across = place[new] != place[old]
    crossing = sparse.from_pairs(new[across], old[across], onward.shape)
    together = sparse.multiply(sparse.transpose(kept), kept)
    return (crossing.astype(np.int32) * together.astype(np.int32)).nnz == 0


def _keep_the_same(graph: ETraceGraph, of_y: dict[tuple[Var, int], np.ndarray]) -> bool:
    """Whether all that a parameter element does at one position keeps the same slots."""
    program, kept = graph.program, dict[int, set[int]]()
    for (_, index), numbers in of_y.items():
        kept.setdefault(index, set()).update(np.unique(numbers).tolist())
    several = [(r.y_var, g, reach.targets[0]) for r, g, reach in _reached(graph) if len(kept[g.index]) > 1]
    if not several:
        return True
    patterns = analyse(program.jaxpr, program.param_invars, cut=False, consts=program.consts)
    for param in program.param_invars:
        rows = []
        for y_var, group, position in several:
            elements, own = patterns.of(y_var, param).pairs()
            places = [own, np.full(len(own), group.index), position[elements], of_y[y_var, group.index][elements]]
            rows.append(np.stack(places)[:, position[elements] >= 0])
        each = np.unique(np.concatenate(rows, axis=1), axis=1)
        if np.unique(each[:3], axis=1).shape[1] < each.shape[1]:
            return False
    return True
