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

from foretrace._jax import Atom, Jaxpr, JaxprEqn, Literal, Var, eval_jaxpr, is_float
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
        value, pullback = jax.vjp(lambda *given: eval_jaxpr(self.jaxpr, constants, *given)[0], *states)
        whole = value.shape == self.group.varshape
        # Only a packed state whose entries cannot be told apart stands for an axon as a whole: its last entry counts.
        ones = jnp.ones_like(value) if whole else jnp.zeros_like(value).at[..., -1].set(1)
        found: list[jax.Array] = []
        for part in pullback(ones):
            found += list(jnp.moveaxis(part, -1, 0)) if part.ndim > len(self.group.varshape) else [part]
        dtype = jnp.result_type(*found)
        return [part.astype(dtype) for part in found]


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
        if tuple(var.aval.shape) != self.group.varshape or not is_float(var.aval):
            return False
        found = [self.patterns.of(var, state) for state in self.states]
        return not all(block.is_empty for block in found) and all(_aligned(block) for block in found)

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


def _aligned(block: Block) -> bool:
    if block.is_empty or block.is_identity:
        return True
    rows, columns = block.pairs()
    return bool(np.array_equal(rows, columns // (block.shape[1] // block.shape[0])))


def _entries(plan: "Plan", group: HiddenGroup) -> tuple[Var, ...]:
    """The new states of a group, a packed one by the values that it is put together of, where these can be told."""
    entries: list[Var] = []
    for k, out in enumerate(group.hidden_outvars):
        width = sum(slot.state == k for slot in group.slots)
        packed = tuple(out.aval.shape) != group.varshape
        entries += (_packed_entries(plan, out, group.varshape, width) or [out]) if packed else [out]
    return tuple(entries) if len(entries) != len(group.hidden_outvars) else group.hidden_outvars


def _packed_entries(plan: "Plan", out: Var, shape: tuple[int, ...], width: int) -> list[Var] | None:
    """For each entry of a packed state the first value that is put there unchanged."""
    values: set[Atom] = {out}
    for eqn in reversed(plan.jaxpr.eqns):
        if eqn.primitive.name in PACKING and values & set(eqn.outvars):
            values |= {atom for atom in eqn.invars if not isinstance(atom, Literal)}
    made = [v for eqn in plan.jaxpr.eqns for v in eqn.outvars if v in values]
    made = [v for v in made if tuple(v.aval.shape) == shape and is_float(v.aval)]
    patterns = analyse(plan.jaxpr, made, consts=plan.program.consts)
    entries: dict[int, Var] = {}
    for var in made:
        rows, columns = patterns.of(out, var).pairs()
        whole = rows.size == np.prod(shape, dtype=int) and np.array_equal(rows // width, columns)
        if whole and np.all(rows % width == rows[0] % width):
            entries.setdefault(int(rows[0] % width), var)
    return [entries[k] for k in range(width)] if len(entries) == width else None
