"""Where values of a step lead: the slots that an operator's `y` reaches, and paths beside those of the traces."""

from collections.abc import Iterable, Sequence

import numpy as np

from foretrace._jax import Var, is_float
from foretrace.compiler.graph import ETraceGraph
from foretrace.compiler.groups import HiddenGroup
from foretrace.compiler.outputs import GroupOutput
from foretrace.compiler.relations import HiddenParamOpRelation
from foretrace.program.walks import reached, variables


def reached_slots(graph: ETraceGraph, y_var: Var, group: HiddenGroup) -> tuple[int, ...]:
    """The slots of a group that `y` reaches in this step or a later one."""
    found: set[int] = set()
    for k, out in enumerate(group.hidden_outvars):
        if group.is_packed(k):
            own = np.unique(group.placed[k][0][graph.patterns.of(out, y_var).pairs()[0]])
            parts = {group.slots[i].part for i in own}
            found |= {i for i, slot in enumerate(group.slots) if slot.state == k and slot.part in parts}
        elif graph.patterns.reaches_directly(y_var, out):
            found |= {i for i, slot in enumerate(group.slots) if slot.state == k}
    return later_slots(group, found)


def later_slots(group: HiddenGroup, slots: Iterable[int]) -> tuple[int, ...]:
    """Some slots of a group, and those that depend on them in later steps."""
    found = set(slots)
    while more := {i for i, row in enumerate(group.positions.patterns) for j in found if not row[j].is_empty} - found:
        found |= more
    return tuple(sorted(found))


def is_bypassed(graph: ETraceGraph, group: HiddenGroup) -> bool:
    """Whether the loss can read a group's previous states beside its new ones."""
    return _reads_beside(graph, group.hidden_invars, group)


def acts_aside(graph: ETraceGraph, relation: HiddenParamOpRelation) -> bool:
    """Whether `y` acts on the loss otherwise than directly through the new states of its one group."""
    if len(relation.hidden_groups) != 1:
        return True
    (group,) = relation.hidden_groups
    if any(graph.patterns.reaches_through_mixing(relation.y_var, out) for out in group.hidden_outvars):
        return True
    return _reads_beside(graph, [relation.y_var], group)


def _reads_beside(graph: ETraceGraph, sources: Sequence[Var], group: HiddenGroup) -> bool:
    """Whether a derivative of outputs or new states reaches some values without passing a group's new states."""
    own = set(group.hidden_outvars)
    beside = reached(graph.values.data_jaxpr.eqns, set(sources) - own, own, by_derivative=True)
    return not beside.isdisjoint(variables([*graph.program.output_outvars, *graph.program.hidden_outvars]))


def feeds_others(graph: ETraceGraph, output: GroupOutput) -> bool:
    """Whether the output of a group acts on new states of another within the step."""
    own = set(output.group.hidden_outvars)
    return not reached(graph.values.data_jaxpr.eqns, [output.var], own).isdisjoint(
        {*graph.program.hidden_outvars} - own
    )


def is_apart_from_outputs(graph: ETraceGraph, group: HiddenGroup) -> bool:
    """Whether weights or time lie between a group and the outputs of the step."""
    outputs = [out for out in graph.program.output_outvars if is_float(out.aval)]
    for states in (group.hidden_outvars, group.hidden_invars):
        mixed = any(graph.patterns.reaches_through_mixing(state, out) for state in states for out in outputs)
        if mixed or any(graph.patterns.reaches_directly(state, out) for state in states for out in outputs):
            return mixed
    return True
