"""D-RTRL: a trace for every parameter and position, carried by the diagonal of the transition."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from foretrace._checks import require_floating_dtype
from foretrace.engine.in_step import add_at, in_step_gradient
from foretrace.engine.linearise import Cotangents, Linearised, Signals
from foretrace.engine.plan import Plan
from foretrace.engine.slots import Matrix, Vector, add, subtract
from foretrace.engine.sweep import credit
from foretrace.engine.traces import Trace, advance_all, after, contract, zero_trace
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
    trace_dtype: Any = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        require_floating_dtype("trace_dtype", self.trace_dtype)

    def init(self, plan: Plan) -> Eligibility:
        if self.trace_dtype is not None:
            _refuse_complex(plan, self.trace_dtype)
        return Eligibility([zero_trace(link, self.trace_dtype) for link in plan.links])

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
        lin = Linearised(plan, plan.weights(params), block.steps)
        transitions = self.transitions(lin)
        cotangents = self.cotangents(plan, block)
        if cotangents is None:
            return None, self.carry(lin, transitions, trace)
        gradients = self.gradients(lin, transitions, block, cotangents, trace)
        if _outweigh(trace, gradients):
            transitions = after(transitions, gradients)
        return plan.pull_back(params, gradients), self.carry(lin, transitions, trace)

    def carry(self, lin: Linearised, transitions: Sequence[Matrix], trace: Eligibility) -> Eligibility:
        """The trace after a block."""
        return Eligibility(advance_all(lin, transitions, trace.e))

    def gradients(
        self, lin: Linearised, transitions: Sequence[Matrix], block: Block, cotangents: Cotangents, trace: Eligibility
    ) -> list[jax.Array]:
        """The gradients of the weights by the losses of a block, the trace before it given."""
        signals = lin.signals(cotangents)
        return contracted(lin, transitions, signals, signals.partial, signals.bypass, trace.e)

    def credit(
        self, plan: Plan, params: Sequence[Any], trace: Eligibility, signal: Sequence[jax.Array]
    ) -> list[jax.Array]:
        gradients = plan.zero_gradients()
        for link, e in zip(plan.links, trace.e, strict=True):
            own = link.group.cotangent_slots(plan.of_group(link.group, signal))
            add_at(gradients, link.weight_index, contract(link, e, own))
        return plan.pull_back(params, gradients)


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


def contracted(
    lin: Linearised,
    transitions: Sequence[Matrix],
    signals: Signals,
    partial: Sequence[Vector],
    bypass: Sequence[Vector | None],
    trace: Sequence[Trace],
) -> list[jax.Array]:
    """The gradients of the weights by signals on the states of a block, of losses or of a rule's own making.

    Args:
        lin: The derivatives of the block's steps.
        transitions: What carries the traces of each group.
        signals: The derivatives of the losses, for all that acts otherwise than directly through the states of a group.
        partial: For each group, what multiplies the trace after each step.
        bypass: For each group, what multiplies the trace before each step; None for zero.
        trace: The traces before the block.

    Returns:
        One gradient for each weight.
    """
    plan = lin.plan
    credits = [
        credit(group, transitions[group.index], partial[group.index], bypass[group.index])
        for group in plan.graph.hidden_groups
    ]
    history: list[Any] = [None] * len(plan.links)
    for link, e in zip(plan.links, trace, strict=True):
        later, start = credits[link.group.index]
        own, exact = partial[link.group.index], signals.partial[link.group.index]
        history[link.index] = lin.pull(link, later if own is exact else add(later, subtract(own, exact)))
        add_at(signals.weights, link.weight_index, contract(link, e, start))
    return in_step_gradient(plan, lin, signals, history)
