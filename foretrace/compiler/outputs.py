"""The output of a group: the value by which its states act on the rest of the network.

A spiking neuron sends its spike and not its potential; an LSTM, `h` and not `c`. Rules that bring a learning signal of
their own (random feedback, a target, a modulator) put it on that value, and the derivative of the value by the group's
states takes it from there to the trace (`engine/outputs.py`).

The output `a` is found in the step itself. It is a direct function of the group's new states, position by position,
that feeds a mixing equation, changes its shape or place, or is returned. Where several do, those that feed a linear
operator on the way to other neurons come first, what is merely on the way to another is left out, and the last one is
taken. Some models let only the *previous* states out (spikes of the old potential, at the start of the next step): then
the same function is taken at the new states.
"""

from dataclasses import dataclass, field

import numpy as np

from foretrace._jax import Jaxpr, JaxprEqn, Var, is_complex, is_float
from foretrace.compiler.graph import ETraceGraph
from foretrace.compiler.groups import HiddenGroup
from foretrace.compiler.occurrences import OccurrenceKind
from foretrace.compiler.pattern import Pattern
from foretrace.compiler.patterns import Patterns, analyse
from foretrace.program.walks import needed_eqns, reached, users, variables

# Equations that put the values of a packed state together without changing them.
PACKING = frozenset(
    "broadcast_in_dim concatenate convert_element_type copy dynamic_update_slice reshape scatter squeeze stack".split()
)


@dataclass(frozen=True, eq=False)
class GroupOutput:
    """The value by which a group's states act on the rest of the network.

    Attributes:
        group: The group.
        var: The value, of the shape of the group's positions.
        jaxpr: From the group's states, each a variable of its own, to the value; its constvars are held constant.
        from_states: `'new'` or `'previous'`: the states of which the step computes it.
        states: The new states, as variables of the step, at which it is evaluated.
        reason: Why this value, in a sentence.
    """

    group: HiddenGroup
    var: Var
    jaxpr: Jaxpr = field(repr=False)
    from_states: str
    states: tuple[Var, ...] = field(repr=False)
    reason: str

    @property
    def needed_vars(self) -> tuple[Var, ...]:
        """The values that its derivative is taken at."""
        return (*self.states, *self.jaxpr.constvars)

    @property
    def is_whole_state(self) -> bool:
        """Whether a packed or complex state stands for the output, of whose values the last one counts."""
        return self.var.aval.size != self.group.positions.size or is_complex(self.var.aval)


def find_output(graph: ETraceGraph, group: HiddenGroup) -> GroupOutput:
    """The value by which a group's states act on the rest of the network.

    Args:
        graph: The graph.
        group: One of its groups.

    Returns:
        The output; the last state itself where no value leaves the group, which `reason` then says.
    """
    entries = _entries(graph, group)
    if entries == group.hidden_outvars:
        patterns = graph.patterns
    else:
        patterns = analyse(graph.values.data_jaxpr, entries, consts=graph.program.consts)
    found = _Finder(graph, group, entries, patterns).find()
    if found is not None:
        reason = "the last value by which the new states of the group reach others"
        return GroupOutput(group, found, group.slicing.cut(entries, [found]), "new", entries, reason)
    found = _Finder(graph, group, group.hidden_invars, graph.patterns).find()
    if found is not None:
        reason = "the last value by which the previous states of the group reach others, taken at the new states"
        jaxpr = group.slicing.cut(group.hidden_invars, [found])
        return GroupOutput(group, found, jaxpr, "previous", group.hidden_outvars, reason)
    reason = "no value leaves the group position by position, so its last state stands for it"
    return GroupOutput(group, entries[-1], group.slicing.cut(entries, entries[-1:]), "new", entries, reason)


class _Finder:
    """Looks for values of some states of a group that leave it."""

    def __init__(self, graph: ETraceGraph, group: HiddenGroup, states: tuple[Var, ...], patterns: Patterns) -> None:
        self.graph, self.group, self.states, self.patterns = graph, group, states, patterns
        self.jaxpr, self.old = graph.values.data_jaxpr, states is group.hidden_invars
        self.linear = {id(o.eqn) for o in graph.occurrences if o.kind is OccurrenceKind.LINEAR}
        self.outputs = variables(graph.program.output_outvars)
        self.results = self.outputs | (set(graph.program.hidden_outvars) - set(group.hidden_outvars))

    def find(self) -> Var | None:
        """The last of the values that leave the group, those on the way to others left out."""
        far: list[Var] = []
        near: list[Var] = []
        used_by = users(self.jaxpr.eqns)
        for var in [*self.group.hidden_invars, *(out for eqn in self.jaxpr.eqns for out in eqn.outvars)]:
            if not self._follows(var) or (self.old and self._is_fresh(var)):
                continue
            if any(id(eqn) in self.linear and self._goes_on(eqn) for eqn in used_by.get(var, [])):
                far.append(var)
            elif var in self.outputs or any(self._leaves(eqn) for eqn in used_by.get(var, [])):
                near.append(var)
        found = far or near
        ends = [var for var in found if not any(self._leads(var, other) for other in found if other is not var)]
        return ends[-1] if ends else None

    def _follows(self, var: Var) -> bool:
        """Whether a value is a function of the states, position by position."""
        if tuple(var.aval.shape) != self.group.varshape or not is_float(var.aval) or is_complex(var.aval):
            return False
        found = [self.patterns.of(var, state) for state in self.states]
        return not all(pattern.is_empty for pattern in found) and all(map(self._aligned, range(len(found)), found))

    def _aligned(self, k: int, pattern: Pattern) -> bool:
        """Whether elements of a value depend on the elements of a state that have the same position."""
        if pattern.is_empty or pattern.is_identity:
            return True
        rows, columns = pattern.pairs()
        whole = self.states in (self.group.hidden_invars, self.group.hidden_outvars)
        position_of = self.group.placed[k][1] if whole and self.group.is_packed(k) else None
        return bool(np.array_equal(rows, columns if position_of is None else position_of[columns]))

    def _is_fresh(self, var: Var) -> bool:
        """Whether a value of previous states already contains what arrives in this step."""
        own = [r.y_var for r in self.graph.hidden_param_op_relations if self.group in r.hidden_groups]
        return any(self.patterns.reaches_directly(y, var) for y in own)

    def _leaves(self, eqn: JaxprEqn) -> bool:
        """Whether an equation mixes positions or takes the value away from them; packing a new state is neither."""
        return any(
            is_float(out.aval) and not self._follows(out) and not (eqn.primitive.name in PACKING and self._packs(out))
            for out in eqn.outvars
        )

    def _packs(self, var: Var) -> bool:
        return any(var is out or self._leads(var, out) for out in self.group.hidden_outvars) and not any(
            self._leads(var, out) for out in self.results
        )

    def _goes_on(self, eqn: JaxprEqn) -> bool:
        """Whether the result of an equation acts on anything but the group itself."""
        return self.old or bool(self.results & reached(self.jaxpr.eqns, eqn.outvars, self.group.hidden_outvars))

    def _leads(self, var: Var, other: Var) -> bool:
        """Whether a value is on a direct way to another."""
        return bool(self.group.slicing.cut([var], [other]).eqns)


def _entries(graph: ETraceGraph, group: HiddenGroup) -> tuple[Var, ...]:
    """The new states of a group, packed ones by the values that they are put together of, where all can be told."""
    entries: list[Var] = []
    if any(slot.component is not None for slot in group.slots):
        return group.hidden_outvars
    for k, out in enumerate(group.hidden_outvars):
        found = _packed_entries(graph, group, k) if group.is_packed(k) else [out]
        if found is None:
            return group.hidden_outvars
        entries += found
    return tuple(entries) if len(entries) != len(group.hidden_outvars) else group.hidden_outvars


def _packed_entries(graph: ETraceGraph, group: HiddenGroup, state: int) -> list[Var] | None:
    """For each slot of a packed state the first value that is put there unchanged."""
    out, (slot_of, position_of) = group.hidden_outvars[state], group.placed[state]
    jaxpr = graph.values.data_jaxpr
    packing = needed_eqns([eqn for eqn in jaxpr.eqns if eqn.primitive.name in PACKING], [out])
    values = {out} | variables(atom for eqn in packing for atom in eqn.invars)
    made = [v for eqn in jaxpr.eqns for v in eqn.outvars if v in values]
    made = [v for v in made if tuple(v.aval.shape) == group.varshape and is_float(v.aval)]
    patterns = analyse(jaxpr, made, consts=graph.program.consts)
    slots = [number for number, slot in enumerate(group.slots) if slot.state == state]
    entries: dict[int, Var] = {}
    for var in made:
        rows, columns = patterns.of(out, var).pairs()
        whole = rows.size == group.positions.size and np.array_equal(position_of[rows], columns)
        if whole and len(np.unique(slot_of[rows])) == 1:
            entries.setdefault(int(slot_of[rows[0]]), var)
    return [entries[slot] for slot in slots] if len(entries) == len(slots) else None
