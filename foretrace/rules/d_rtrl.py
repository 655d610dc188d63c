"""D-RTRL: a trace for every parameter and position, carried by the diagonal of the transition.

A block is walked from its end, piece by piece (`engine/pieces.py`). Each piece gives a part of the gradient and what
enters the traces, and hands on two things: the credit of the states before it, and the product of its transitions. The
traces are read once, where they meet the credit of the states before the block, and changed once. A state that acts on
the next step through mixing alone, as the output of an LSTM does, has no such credit: where nobody asks for its trace
after a sequence, XLA never makes it. Gradients of sparse weights are larger than what makes them, and wait for the end
of the block; those of events are added up by events, in each piece, together with what enters the traces
(`engine/events.py`).

A block of one step is taken as the textbook has it, `e <- D e + F x` and then `l . e`: changed first and read
afterwards, a trace is written over in place, and the in-step gradient is in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from foretrace._checks import require_floating_dtype
from foretrace.engine.edges import Bilinear, Sparse
from foretrace.engine.events import Sums, event_links, no_events, through_block, visit
from foretrace.engine.in_step import add_at, add_products, in_step_gradient, remainder_gradient
from foretrace.engine.linearise import Cotangents, Linearised, Signals
from foretrace.engine.pieces import piece_steps, scan_back
from foretrace.engine.plan import Link, Plan
from foretrace.engine.slots import Matrix, Vector, add, subtract
from foretrace.engine.sweep import credit, no_credit
from foretrace.engine.traces import (
    Entering,
    Spans,
    Trace,
    advance_all,
    after,
    contract,
    enter,
    no_spans,
    zero_trace,
)
from foretrace.errors import NotSupportedError
from foretrace.rules.rule import Block, Rule


class Eligibility(NamedTuple):
    """What D-RTRL and its like keep.

    Attributes:
        e: The eligibility traces, for each link an array per slot.
        filtered: Where a rule filters them, the filtered traces of each link; None elsewhere.
    """

    e: list[Trace]
    filtered: list[Any] | None = None


class LearningSignals(NamedTuple):
    """What multiplies the traces at each of some steps.

    Attributes:
        signals: The derivatives of the losses, for all that acts otherwise than directly through the states of a group.
        partial: For each group, what multiplies the trace after each step.
        bypass: For each group, what multiplies the trace before each step; None for zero.
    """

    signals: Signals
    partial: Sequence[Vector]
    bypass: Sequence[Vector | None]


@dataclass(frozen=True)
class D_RTRL(Rule):
    """D-RTRL: the direct part of the influence of every parameter on every state.

    Keeps: for each weight, a value per batch element, `y` element and slot. Memory: parameters x batch x num_state.
    Time: that of BPTT, by sequence; step by step, one pass over the traces per step.
    Paper: Wang et al. 2024, "A differentiable brain simulator bridging brain simulation and brain-inspired computing".

    Attributes:
        trace_dtype: The floating dtype that traces are kept in; None for that of the states.

    Examples:
        >>> from foretrace.rules import D_RTRL
        >>> D_RTRL().name
        'D_RTRL'
    """

    name: ClassVar[str] = "D_RTRL"
    in_pieces: ClassVar[bool] = True
    trace_dtype: Any = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        require_floating_dtype("trace_dtype", self.trace_dtype)

    def init(self, plan: Plan) -> Eligibility:
        if self.trace_dtype is not None:
            _refuse_complex(plan, self.trace_dtype)
        return Eligibility([zero_trace(link, self.trace_dtype) for link in plan.links])

    def lasting(self, plan: Plan, trace: Eligibility) -> Eligibility:
        pairs = zip(plan.links, trace.e, strict=True)
        return trace._replace(e=[{slot: e[slot] for slot in plan.lasting_slots(link)} for link, e in pairs])

    def traces(self, plan: Plan, trace: Eligibility) -> dict[str, list[Any]] | None:
        return {name: part for name, part in trace._asdict().items() if part is not None}

    def transitions(self, lin: Linearised) -> list[Matrix]:
        """What carries the traces of each group from step to step."""
        return [lin.transition(group) for group in lin.plan.graph.hidden_groups]

    def cotangents(self, plan: Plan, block: Block) -> Cotangents | None:
        """The derivatives of the losses; None where there is nothing to learn from."""
        return block.cotangents

    def advance(
        self, plan: Plan, params: Sequence[Any], block: Block, trace: Any
    ) -> tuple[list[jax.Array] | None, Any]:
        weights = plan.weights(params)
        block = replace(block, cotangents=self.cotangents(plan, block))
        learns = block.cotangents is not None
        length = jax.tree.leaves(block.steps)[0].shape[0]
        if learns and length == 1 and self.reads_after(plan):
            return self._one_step(plan, params, Linearised(plan, weights, block.steps), block, trace)

        visited = event_links(plan, trace.e) if learns and self._has_own_pass else ()

        def back(handed: Any, part: Block) -> tuple[Any, Any]:
            credit, gradients, spans, sums = handed
            lin = Linearised(plan, weights, part.steps, postpones=[Bilinear, Sparse])
            transitions = self.transitions(lin)
            if learns:
                found, credit = self.gradients(lin, transitions, part, credit)
                gradients = [a + b for a, b in zip(gradients, found, strict=True)]
                add_products(gradients, lin.take_waiting(Bilinear))
            spans, entering = self.enter(lin, transitions, spans)
            if visited:
                sums, entering = visit(visited, lin, entering, sums)
            return (credit, gradients, spans, sums), (entering, lin.waiting)

        start = (self.no_credit(plan), plan.zero_gradients()) if learns else (None, None)
        size = piece_steps(plan, length)
        begin = (*start, self.no_spans(plan), no_events(visited))
        (credit, gradients, spans, sums), (entering, waiting) = scan_back(back, begin, block, size)
        if not learns:
            return None, self.carry(plan, trace, spans, entering)
        add_products(gradients, waiting.values())
        if visited:
            trace = _through_events(plan, trace.e, credit, spans, sums, entering, gradients)
            return plan.pull_back(params, gradients), trace
        self.meet(plan, trace, credit, gradients)
        if _outweigh(trace, gradients):
            spans = after(spans, gradients)
        return plan.pull_back(params, gradients), self.carry(plan, trace, spans, entering)

    @property
    def _has_own_pass(self) -> bool:
        """Whether what a trace is worth and its way through a block are those of D-RTRL itself."""
        own = ("gradients", "enter", "meet", "carry")
        return all(getattr(type(self), name) is getattr(D_RTRL, name) for name in own)

    def reads_after(self, plan: Plan) -> bool:
        """Whether the gradient of one step is told by the traces after it: nothing reads the states before it beside
        their transition, and the traces are as exact as the states."""
        same = all(jnp.dtype(self.trace_dtype or link.dtype) == link.dtype for link in plan.links)
        return same and not plan.bypassed

    def _one_step(
        self, plan: Plan, params: Sequence[Any], lin: Linearised, block: Block, trace: Eligibility
    ) -> tuple[list[jax.Array], Eligibility]:
        """The trace after one step, and the gradient that it gives: `l . e`, and what acts otherwise than by it."""
        spans, entering = self.enter(lin, self.transitions(lin), self.no_spans(plan))
        after = self.carry(plan, trace, spans, entering)
        own = self.learning_signals(lin, block)
        gradients = remainder_gradient(plan, lin, own.signals)
        add_credited(plan.links, after.e, jax.tree.map(lambda signal: signal[0], own.partial), gradients)
        return plan.pull_back(params, gradients), after

    def learning_signals(self, lin: Linearised, block: Block) -> "LearningSignals":
        """What multiplies the traces at each step."""
        assert block.cotangents is not None
        signals = lin.signals(block.cotangents)
        return LearningSignals(signals, signals.partial, signals.bypass)

    def no_credit(self, plan: Plan) -> Any:
        """The credit of the states where nothing comes later."""
        return [no_credit(group) for group in plan.graph.hidden_groups]

    def no_spans(self, plan: Plan) -> Any:
        """What the transitions of no steps come to."""
        return no_spans(plan.links)

    def gradients(
        self, lin: Linearised, transitions: Sequence[Matrix], block: Block, credit: Any
    ) -> tuple[list[jax.Array], Any]:
        """The gradients of the weights by the losses of some steps and by the credit of the states after them.

        Returns:
            One gradient for each weight, and the credit of the states before the steps.
        """
        return contracted(lin, transitions, *self.learning_signals(lin, block), credit)

    def enter(self, lin: Linearised, transitions: Sequence[Matrix], spans: Any) -> tuple[Any, Any]:
        """What the transitions of some steps and all later ones come to, and what enters the traces."""
        return enter(lin.plan.links, lin, transitions, spans)

    def meet(self, plan: Plan, trace: Eligibility, credit: Any, gradients: list[jax.Array]) -> None:
        """Adds to gradients what the trace before a block is worth, by the credit of the states there."""
        add_credited(plan.links, self.lasting(plan, trace).e, credit, gradients)

    def carry(self, plan: Plan, trace: Eligibility, spans: Any, entering: Any) -> Eligibility:
        """The trace after a block."""
        return Eligibility(advance_all(plan.links, trace.e, spans, entering))

    def credit(
        self, plan: Plan, params: Sequence[Any], trace: Eligibility, signal: Sequence[jax.Array]
    ) -> list[jax.Array]:
        gradients = plan.zero_gradients()
        groups = plan.graph.hidden_groups
        add_credited(plan.links, trace.e, [g.cotangent_slots(plan.of_group(g, signal)) for g in groups], gradients)
        return plan.pull_back(params, gradients)


def _through_events(
    plan: Plan,
    traces: Sequence[Trace],
    credit: Sequence[Vector],
    spans: Spans,
    sums: Sums,
    entering: Entering,
    gradients: list[jax.Array],
) -> Eligibility:
    """What `meet` and `carry` do, in one pass over the connections of the links that events were added up for."""
    after: dict[int, Trace] = {}
    for link in plan.links:
        if link.index in sums:
            span, own = spans[link.group.index], credit[link.group.index]
            found, after[link.index] = through_block(link, traces[link.index], span, own, sums[link.index])
            add_at(gradients, link.weight_index, found)
    others = [link for link in plan.links if link.index not in sums]
    add_credited(others, traces, credit, gradients)
    rest = advance_all(others, [traces[link.index] for link in others], spans, entering)
    after |= {link.index: e for link, e in zip(others, rest, strict=True)}
    return Eligibility([after[link.index] for link in plan.links])


def _refuse_complex(plan: Plan, trace_dtype: Any) -> None:
    for link in plan.links:
        if jnp.issubdtype(link.dtype, jnp.complexfloating):
            raise NotSupportedError(
                f"The trace of {link.name} is {link.dtype}, and `trace_dtype={trace_dtype!r}` would lose its imaginary "
                "part. Leave `trace_dtype` out for a model with complex states."
            )


def _outweigh(trace: Any, gradients: Sequence[jax.Array]) -> bool:
    """Whether a copy of the traces would cost more than a look at all gradients."""
    return sum(leaf.size for leaf in jax.tree.leaves(trace)) > 4 * sum(gradient.size for gradient in gradients)


def add_credited(
    links: Sequence[Link], traces: Sequence[Trace], credit: Sequence[Vector], gradients: list[jax.Array]
) -> None:
    """Adds to gradients what the traces of some links are worth, by the credit of each group's states."""
    for link in links:
        if traces[link.index]:
            add_at(gradients, link.weight_index, contract(link, traces[link.index], credit[link.group.index]))


def contracted(
    lin: Linearised,
    transitions: Sequence[Matrix],
    signals: Signals,
    partial: Sequence[Vector],
    bypass: Sequence[Vector | None],
    later: Sequence[Vector],
) -> tuple[list[jax.Array], list[Vector]]:
    """The gradients of the weights by signals on the states of some steps, of losses or of a rule's own making.

    Args:
        lin: The derivatives of the steps.
        transitions: What carries the traces of each group.
        signals: The derivatives of the losses, for all that acts otherwise than directly through the states of a group.
        partial: For each group, what multiplies the trace after each step.
        bypass: For each group, what multiplies the trace before each step; None for zero.
        later: For each group, the credit of its states after the last step.

    Returns:
        One gradient for each weight, and for each group the credit of its states before the first step.
    """
    plan = lin.plan
    credits = [
        credit(group, transitions[group.index], partial[group.index], bypass[group.index], later[group.index])
        for group in plan.graph.hidden_groups
    ]
    history: list[Any] = [None] * len(plan.links)
    for link in plan.links:
        after, own, exact = credits[link.group.index][0], partial[link.group.index], signals.partial[link.group.index]
        history[link.index] = lin.pull(link, after if own is exact else add(after, subtract(own, exact)))
    return in_step_gradient(plan, lin, signals, history), [start for _, start in credits]
