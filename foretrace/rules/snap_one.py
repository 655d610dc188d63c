"""SnAp-1 where every parameter element acts on positions of its own, at D-RTRL's price.

There `J_t = mask * (H_t J_{t-1} + P_t)` falls apart: a position's own matrix, what it does to itself in one step
altogether, carries what is kept there, as in OSTL. So blocks of steps are taken as D-RTRL takes them. Two things
differ. A loss acts on what is kept *before* its step, through the whole step. And elements of `y` that reach different
slots of one position are carried by different parts of its matrix (`compiler/own_positions.py`).
"""

import dataclasses
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from foretrace.compiler.influence import InfluencePattern
from foretrace.compiler.own_positions import Kept, OwnPositions, own_positions
from foretrace.engine.evaluate import Step, run_perturbed, zero_shifts
from foretrace.engine.in_step import add_at, in_step_gradient
from foretrace.engine.linearise import Linearised, Signals, fitting
from foretrace.engine.plan import Link, Plan
from foretrace.engine.slots import Matrix, Vector, scale, total
from foretrace.engine.sweep import credit, no_credit, no_span, products
from foretrace.engine.traces import Entering, Trace, entered
from foretrace.rules.d_rtrl import D_RTRL, Eligibility
from foretrace.rules.ostl import whole_transition
from foretrace.rules.rule import Block


@dataclass(frozen=True, eq=False)
class SnApOne(D_RTRL):
    """SnAp with `n = 1`, for one plan.

    Attributes:
        own: The positions of its parameter elements.
        plan: The plan, with a trace for each slot that is reached within a step.
    """

    name: ClassVar[str] = "SnAp"
    own: OwnPositions
    plan: Plan

    def reads_after(self, plan: Plan) -> bool:
        return False

    def transitions(self, lin: Linearised) -> list[Matrix]:
        groups = zip(self.plan.graph.hidden_groups, self.own.groups, strict=True)
        return [whole_transition(lin, group, own) for group, own in groups]

    def no_credit(self, plan: Plan) -> list[Vector]:
        return [no_credit(kept.group) for kept in self.own.kept]

    def no_spans(self, plan: Plan) -> list[Matrix]:
        return [no_span(kept.group) for kept in self.own.kept]

    def gradients(
        self, lin: Linearised, transitions: Sequence[Matrix], block: Block, credit: Sequence[Vector]
    ) -> tuple[list[jax.Array], list[Vector]]:
        signals, past = _in_step(lin, block)
        credits = [
            _credit(kept, transitions, past[kept.group.index], later)
            for kept, later in zip(self.own.kept, credit, strict=True)
        ]
        after = [after for after, _ in credits]
        history = [self._joined(link, lambda k, link=link: lin.pull(link, after[k])) for link in self.plan.links]
        return in_step_gradient(self.plan, lin, signals, history), [before for _, before in credits]

    def enter(
        self, lin: Linearised, transitions: Sequence[Matrix], spans: Sequence[Matrix]
    ) -> tuple[list[Matrix], Entering]:
        found = [
            products(_masked(transitions[kept.group.index], kept.slots), span, lin.count)
            for kept, span in zip(self.own.kept, spans, strict=True)
        ]

        def values(link: Link) -> Trace:
            return self._joined(link, lambda k: lin.push(link, found[k][0]))

        return [span for _, span in found], entered(self.plan.links, lin, values, {})

    def meet(self, plan: Plan, trace: Eligibility, credit: Sequence[Vector], gradients: list[jax.Array]) -> None:
        for link in self.plan.links:
            for slot, e in trace.e[link.index].items():
                signal = self._joined(link, lambda k, slot=slot, link=link: link.places.at(credit[k][slot]))
                add_at(gradients, link.weight_index, link.edges.contract(e, signal))

    def carry(self, plan: Plan, trace: Eligibility, spans: Sequence[Matrix], entering: Entering) -> Eligibility:
        return Eligibility([self._carried(link, trace.e[link.index], spans, entering) for link in self.plan.links])

    def _carried(self, link: Link, e: Trace, spans: Sequence[Matrix], entering: Entering) -> Trace:
        data, values = entering.of(link)
        spread = lambda mask: link.edges.spread(jnp.broadcast_to(mask, (1, *link.places.y_shape)))
        carried = self._joined(link, lambda k: link.places.carry(e, spans[k], link.edges.spread), spread)
        return {slot: (carried[slot] + link.edges.accumulate(data, values[slot])).astype(e[slot].dtype) for slot in e}

    def _joined(self, link: Link, of: Any, spread: Any = lambda mask: mask) -> Any:
        """What is found for each of a link's sets of kept slots, at the elements of `y` of that set."""
        numbers = self.own.of_y[link.y_var, link.group.index].reshape(link.places.y_shape)
        sets = sorted({*numbers.reshape(-1).tolist()})
        if len(sets) == 1:
            return of(sets[0])
        masks = [spread(jnp.asarray(numbers == k)) for k in sets]
        chosen = lambda *parts: total([jnp.where(m, part, 0) for m, part in zip(masks, parts, strict=True)])
        return jax.tree.map(chosen, *(of(k) for k in sets))


def _credit(kept: Kept, transitions: Sequence[Matrix], past: Vector, later: Vector) -> tuple[Vector, Vector]:
    nothing = scale(past, 0)
    return credit(kept.group, _masked(transitions[kept.group.index], kept.slots), nothing, past, later)


def _masked(matrix: Matrix, slots: Sequence[int]) -> Matrix:
    rows = enumerate(matrix)
    return [[entry if i in slots and j in slots else None for j, entry in enumerate(row)] for i, row in rows]


def _in_step(lin: Linearised, block: Block) -> tuple[Signals, list[Vector]]:
    """The derivatives of each step's loss within the step, and for each group by its states before the step."""
    plan, count = lin.plan, len(lin.plan.weight_vars)
    own, marks = lin.weights[:count], lin.weights[count:]
    still = zero_shifts(plan.program.hidden_outvars)

    def run(weights: Any, ys: Any, hidden: Any) -> Any:
        def one(step: Step, y: Any, hidden: Any) -> Any:
            step = dataclasses.replace(step, hidden=hidden)
            return run_perturbed(plan, [*weights, *marks], step, y, still, by_previous=True)[0]

        return jax.vmap(one)(lin.steps, ys, hidden)

    (outputs, _), pull = jax.vjp(run, own, zero_shifts(plan.saved_vars, lin.count), list(lin.steps.hidden))
    assert block.cotangents is not None
    weights, y, past = pull(fitting(outputs, block.cotangents))
    return Signals([], [], y, weights), [g.cotangent_slots(plan.of_group(g, past)) for g in plan.graph.hidden_groups]


_found: weakref.WeakKeyDictionary[Plan, SnApOne | None] = weakref.WeakKeyDictionary()


def one_step(plan: Plan, influence: InfluencePattern) -> SnApOne | None:
    """SnAp-1 of a plan; None where parameter elements do not have positions of their own."""
    if plan not in _found:
        _found[plan] = _one_step(plan, influence)
    return _found[plan]


def _one_step(plan: Plan, influence: InfluencePattern) -> SnApOne | None:
    if plan.nonlinear or plan.pulls_each_step or any(link.places.step_by_step for link in plan.links):
        return None
    own = own_positions(plan.graph, plan.weight_vars, influence)
    if own is None:
        return None
    return SnApOne(own, dataclasses.replace(plan, links=tuple(_narrowed(link, own) for link in plan.links)))


def _narrowed(link: Link, own: OwnPositions) -> Link:
    """A link with a trace for the slots that it reaches within a step."""
    found = own.groups[link.group.index].group
    numbers = {*own.of_y[link.y_var, link.group.index].tolist()}
    slots = sorted({slot for number in numbers for slot in own.kept[number].slots})
    places = dataclasses.replace(link.places, group=found)
    return dataclasses.replace(link, group=found, places=places, slots=tuple(slots))
