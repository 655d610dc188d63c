"""The linear system behind OTPE: for each group, the slots of its states and one more for the effects of its output.

`e_t = leak e_{t-1} + F_t A(x_t)` and `R_t = leak R_{t-1} + (da_t/ds_t) e_t` are one system with the transition
`[[leak, 0], [leak da/ds, leak]]`, so that everything which carries, sweeps and contracts traces serves it unchanged.
A group whose output acts on no other group has no slot for `R`.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from foretrace.compiler.groups import HiddenGroup
from foretrace.compiler.paths import feeds_others
from foretrace.compiler.pattern import empty, identity
from foretrace.compiler.positions import Slot, Transition, TransitionKind
from foretrace.engine.linearise import Cotangents, Linearised, Signals
from foretrace.engine.outputs import loss_by_output, output_factor, output_factor_before
from foretrace.engine.places import Places
from foretrace.engine.plan import Link, Plan
from foretrace.engine.slots import Matrix, Vector, add, scale, subtract
from foretrace.engine.traces import Trace


class Estimating(NamedTuple):
    """The groups of a plan, with a slot for `R` behind those of the states where they feed others, and their links."""

    groups: list[HiddenGroup]
    links: list[Link]


@functools.lru_cache(maxsize=8)
def estimating(plan: Plan) -> Estimating:
    """The system of a plan."""
    groups = [_with_slot(output.group, feeds_others(plan.graph, output)) for output in plan.group_outputs]
    return Estimating(groups, [_placed(plan, link, groups[link.group.index]) for link in plan.links])


def _with_slot(group: HiddenGroup, feeds_others: bool) -> HiddenGroup:
    """The group as the leak carries it: every value stays where it is, whatever the model's own transition does."""
    own, none = identity((group.positions.size,)), empty((group.positions.size,), (group.positions.size,))
    count = group.num_state
    rows = [[own if i == j else none for j in range(count + feeds_others)] for i in range(count)]
    rows += [[own] * (count + 1)] if feeds_others else []
    slots = (*group.slots, Slot(len(group.hidden_paths), None)) if feeds_others else group.slots
    positions = Transition(TransitionKind.ALIGNED, tuple(tuple(row) for row in rows))
    return dataclasses.replace(group, slots=slots, positions=positions)


def _placed(plan: Plan, link: Link, group: HiddenGroup) -> Link:
    """A link with traces for the slots that `y` reaches now, and for `R`."""
    reaches = plan.graph.patterns.reaches_directly
    states = {k for k, out in enumerate(group.hidden_outvars) if reaches(link.y_var, out)}
    slots = [i for i, slot in enumerate(link.group.slots) if slot.state in states]
    slots += [link.group.num_state] if group.num_state > link.group.num_state else []
    places = Places(group, link.places.y_shape, link.places.reach)
    return dataclasses.replace(link, places=places, slots=tuple(slots))


def is_far(link: Link) -> bool:
    """Whether a link keeps `R`."""
    return link.places.group.num_state > link.group.num_state


def without_last(link: Link, trace: Trace) -> Trace:
    """The trace without `R`."""
    return {slot: values for slot, values in trace.items() if slot < link.group.num_state}


class System:
    """The linear system of `e` and `R` of one group over a block, and the learning signal on it.

    Attributes:
        count: The number of states at a position, without `R`.
        factor: `da/ds` at each step; None for a group that feeds no other.
        transition: What carries the slots.
        entrance: What takes new states to the slots, a row for each slot and a column for each state.
        partial: The losses by the slots.
        bypass: The losses by the slots before the step; None where it is zero.
    """

    partial: Vector
    bypass: Vector | None

    def __init__(
        self,
        leak: float,
        lin: Linearised,
        group: HiddenGroup,
        signals: Signals | None,
        cotangents: Cotangents | None,
    ) -> None:
        original = lin.plan.graph.hidden_groups[group.index]
        self.group, self.count, output = group, original.num_state, lin.plan.group_outputs[group.index]
        self.entrance = lin.identity(original)
        self.factor: Vector | None = None
        carried: Matrix = self.entrance
        if group.num_state > self.count:
            self.factor = output_factor(lin, output)
            self.entrance = [*self.entrance, list(self.factor)]
            last = lin.identity(group)
            carried = [[*row, unit[-1]] for row, unit in zip(self.entrance, last, strict=True)]
        self.transition: Matrix = jax.tree.map(lambda entry: leak * entry, carried)
        if signals is not None and cotangents is not None:
            self.partial, self.bypass = signals.partial[group.index], signals.bypass[group.index]
            if self.factor is not None:
                self._move_signal(lin, cotangents, self.factor)

    def _move_signal(self, lin: Linearised, cotangents: Cotangents, factor: Vector) -> None:
        """Moves the losses' cotangent of the output through later groups from the states to `R`."""
        output = lin.plan.group_outputs[self.group.index]
        # With all new states held fixed, what is left is what the losses read of the output itself.
        near = loss_by_output(lin, output, cotangents, held=lin.plan.program.hidden_outvars)
        through = loss_by_output(lin, output, cotangents) - near
        nothing = jnp.zeros_like(through)
        if output.from_states == "new":
            self.partial = [*subtract(self.partial, scale(factor, through)), through]
            self.bypass = None if self.bypass is None else [*self.bypass, nothing]
        else:
            self.partial = [*self.partial, nothing]
            if self.bypass is not None:
                own = subtract(self.bypass, scale(output_factor_before(lin, output), through))
                self.bypass = [*own, through]

    def entering(self, slots: Vector) -> Vector:
        """Cotangents of the new states from those of the slots."""
        states = slots[: self.count]
        return states if self.factor is None else add(states, scale(self.factor, slots[-1]))
