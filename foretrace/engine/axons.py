"""The axon of a group: the value by which its states leave it.

A spiking neuron tells others of its spike and not of its potential; an LSTM, of `h` and not of `c`. Rules that bring a
learning signal of their own (random feedback, a target, a modulator) put it on that value, and the derivative of the
value by the group's states takes it from there to the trace.

The axon `a` is found in the step itself. It is a direct function of the group's new states, position by position, that
feeds a mixing equation, changes its shape or place, or is returned. Where several do, those that feed a linear operator
on the way to other neurons come first, what is merely on the way to another is left out, and the last one is taken.
Some models let only the *previous* states out (spikes of the old potential, at the start of the next step): then the
same function is taken at the new states.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from foretrace._jax import Atom, Jaxpr, JaxprEqn, Literal, Var, eval_jaxpr, is_complex, is_float
from foretrace.compiler.blocks import Block
from foretrace.compiler.groups import HiddenGroup
from foretrace.compiler.patterns import Patterns, analyse
from foretrace.engine.slots import Vector, scale

if TYPE_CHECKING:
    from foretrace.engine.linearise import Linearised
    from foretrace.engine.plan import Plan

# Equations that put the values of a packed state together without changing them.
PACKING = frozenset(
    "broadcast_in_dim concatenate convert_element_type copy dynamic_update_slice reshape scatter squeeze stack".split()
)


@dataclass(frozen=True, eq=False)
class Axon:
    """The value by which a group's states leave it.

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

    def derivative(self, states: Sequence[Any], constants: Sequence[Any]) -> Vector:
        """The derivative of the axon by each state of its position, an array `(*varshape,)` for each slot."""
        group = self.group
        value, pullback = jax.vjp(lambda *given: eval_jaxpr(self.jaxpr, constants, *given)[0], *states)
        one = jnp.ones(group.varshape, group.dtype)
        if self.is_whole_state:
            last = group.states_of([jnp.zeros_like(one)] * (group.num_state - 1) + [one])[-1]
            found = pullback(last.astype(value.dtype))
        else:
            found = pullback(one.reshape(value.shape).astype(value.dtype))
        if self.states == group.hidden_outvars:
            return group.slots_of(found)
        dtype = jnp.result_type(*found)
        return [part.astype(dtype) for part in found]

    @property
    def is_whole_state(self) -> bool:
        """Whether a packed or complex state stands for the axon, of whose values the last one counts."""
        return self.var.aval.size != self.group.positions.size or is_complex(self.var.aval)

    def at_positions(self, values: jax.Array) -> jax.Array:
        """Cotangents of the axon's shape, behind further axes, by position: `(..., *varshape)`."""
        rank, last = self.var.aval.ndim, self.group.slots[-1].part
        taken = last.take(values, rank) if last is not None and self.is_whole_state else values
        taken = -jnp.imag(taken) if jnp.iscomplexobj(taken) else taken  # a cotangent, as in `HiddenGroup.slots_of`
        return taken.reshape(*values.shape[: values.ndim - rank], *self.group.varshape)


def find_axon(plan: "Plan", group: HiddenGroup) -> Axon:
    """The value by which a group's states leave it.

    Args:
        plan: The plan.
        group: One of its groups.

    Returns:
        The axon; the last state itself where no value leaves the group, which `reason` then says.
    """
    entries = _entries(plan, group)
    if entries == group.hidden_outvars:
        patterns = plan.graph.patterns
    else:
        patterns = analyse(plan.jaxpr, entries, consts=plan.program.consts)
    found = _Finder(plan, group, entries, patterns).find()
    if found is not None:
        reason = "the last value by which the new states of the group reach others"
        return Axon(group, found, group.slicing.cut(entries, [found]), "new", entries, reason)
    found = _Finder(plan, group, group.hidden_invars, plan.graph.patterns).find()
    if found is not None:
        reason = "the last value by which the previous states of the group reach others, taken at the new states"
        jaxpr = group.slicing.cut(group.hidden_invars, [found])
        return Axon(group, found, jaxpr, "previous", group.hidden_outvars, reason)
    reason = "no value leaves the group position by position, so its last state stands for it"
    return Axon(group, entries[-1], group.slicing.cut(entries, entries[-1:]), "new", entries, reason)


def axon_factor(lin: "Linearised", axon: Axon) -> Vector:
    """The derivative of the axon by each state of its position, at each step's new states.

    Args:
        lin: The derivatives of a block of steps.
        axon: The axon of one of its groups.

    Returns:
        An array `(K, *varshape)` for each slot.
    """
    count = len(axon.states)
    return lin.over_steps(lambda values: axon.derivative(values[:count], values[count:]), axon.needed_vars)


def axon_factor_before(lin: "Linearised", axon: Axon) -> Vector:
    """As `axon_factor`, at the states from which each step starts; for an axon that is computed of previous states."""
    places = [lin.plan.program.hidden_invars.index(var) for var in axon.group.hidden_invars]
    hidden = [lin.steps.hidden[place] for place in places]
    return lin.over_steps(lambda constants, *states: axon.derivative(states, constants), axon.jaxpr.constvars, *hidden)


def axon_pull(lin: "Linearised", axon: Axon, signal: jax.Array) -> Vector:
    """What a signal on the axon is worth to the group's new states.

    Args:
        lin: The derivatives of a block of steps.
        axon: The axon of one of its groups.
        signal: `(K, *varshape)`.

    Returns:
        `(da/ds)^T signal`, an array `(K, *varshape)` for each slot.
    """
    return scale(axon_factor(lin, axon), signal)


class _Finder:
    """Looks for values of some states of a group that leave it."""

    def __init__(self, plan: "Plan", group: HiddenGroup, states: tuple[Var, ...], patterns: Patterns) -> None:
        self.plan, self.group, self.states, self.patterns = plan, group, states, patterns
        self.old = states is group.hidden_invars
        self.outputs = {out for out in plan.program.output_outvars if not isinstance(out, Literal)}
        self.results = self.outputs | (set(plan.program.hidden_outvars) - set(group.hidden_outvars))

    def find(self) -> Var | None:
        """The last of the values that leave the group, those on the way to others left out."""
        far: list[Var] = []
        near: list[Var] = []
        users = self._users()
        for var in [*self.group.hidden_invars, *(out for eqn in self.plan.jaxpr.eqns for out in eqn.outvars)]:
            if not self._follows(var) or (self.old and self._is_fresh(var)):
                continue
            if any(id(eqn) in self.plan.linear and self._goes_on(eqn) for eqn in users.get(var, [])):
                far.append(var)
            elif var in self.outputs or any(self._leaves(eqn) for eqn in users.get(var, [])):
                near.append(var)
        found = far or near
        ends = [var for var in found if not any(self._leads(var, other) for other in found if other is not var)]
        return ends[-1] if ends else None

    def _users(self) -> dict[Atom, list[JaxprEqn]]:
        users: dict[Atom, list[JaxprEqn]] = {}
        for eqn in self.plan.jaxpr.eqns:
            for atom in eqn.invars:
                if not isinstance(atom, Literal):
                    users.setdefault(atom, []).append(eqn)
        return users

    def _follows(self, var: Var) -> bool:
        """Whether a value is a function of the states, position by position."""
        if tuple(var.aval.shape) != self.group.varshape or not is_float(var.aval) or is_complex(var.aval):
            return False
        found = [self.patterns.of(var, state) for state in self.states]
        return not all(block.is_empty for block in found) and all(
            _aligned(block, self._positions(k)) for k, block in enumerate(found)
        )

    def _positions(self, k: int) -> np.ndarray | None:
        """The position of each element of a state; None where they are the same."""
        whole = self.states in (self.group.hidden_invars, self.group.hidden_outvars)
        return self.group.placed[k][1] if whole and self.group.is_packed(k) else None

    def _is_fresh(self, var: Var) -> bool:
        """Whether a value of previous states already contains what arrives in this step."""
        own = [r.y_var for r in self.plan.graph.hidden_param_op_relations if self.group in r.hidden_groups]
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
        if self.old:
            return True
        reached: set[Atom] = set(eqn.outvars)
        own = set(self.group.hidden_outvars)
        for other in self.plan.jaxpr.eqns:
            if any(not isinstance(a, Literal) and a in reached for a in other.invars):
                reached |= set(other.outvars) - own
        return bool(reached & self.results)

    def _leads(self, var: Var, other: Var) -> bool:
        """Whether a value is on a direct way to another."""
        return bool(self.group.slicing.cut([var], [other]).eqns)


def _aligned(block: Block, position_of: np.ndarray | None) -> bool:
    if block.is_empty or block.is_identity:
        return True
    rows, columns = block.pairs()
    return bool(np.array_equal(rows, columns if position_of is None else position_of[columns]))


def _entries(plan: "Plan", group: HiddenGroup) -> tuple[Var, ...]:
    """The new states of a group, packed ones by the values that they are put together of, where all can be told."""
    entries: list[Var] = []
    if any(slot.component is not None for slot in group.slots):
        return group.hidden_outvars
    for k, out in enumerate(group.hidden_outvars):
        found = _packed_entries(plan, group, k) if group.is_packed(k) else [out]
        if found is None:
            return group.hidden_outvars
        entries += found
    return tuple(entries) if len(entries) != len(group.hidden_outvars) else group.hidden_outvars


def _packed_entries(plan: "Plan", group: HiddenGroup, state: int) -> list[Var] | None:
    """For each slot of a packed state the first value that is put there unchanged."""
    out, (slot_of, position_of) = group.hidden_outvars[state], group.placed[state]
    values: set[Atom] = {out}
    for eqn in reversed(plan.jaxpr.eqns):
        if eqn.primitive.name in PACKING and values & set(eqn.outvars):
            values |= {atom for atom in eqn.invars if not isinstance(atom, Literal)}
    made = [v for eqn in plan.jaxpr.eqns for v in eqn.outvars if v in values]
    made = [v for v in made if tuple(v.aval.shape) == group.varshape and is_float(v.aval)]
    patterns = analyse(plan.jaxpr, made, consts=plan.program.consts)
    slots = [number for number, slot in enumerate(group.slots) if slot.state == state]
    entries: dict[int, Var] = {}
    for var in made:
        rows, columns = patterns.of(out, var).pairs()
        whole = rows.size == group.positions.size and np.array_equal(position_of[rows], columns)
        if whole and len(np.unique(slot_of[rows])) == 1:
            entries.setdefault(int(slot_of[rows[0]]), var)
    return [entries[slot] for slot in slots] if len(entries) == len(slots) else None
