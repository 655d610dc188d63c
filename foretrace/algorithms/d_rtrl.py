"""D-RTRL: a trace for every parameter and position, carried by the diagonal of the transition."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax

from foretrace.engine.rule import Block, Rule
from foretrace.engine.in_step import add_at, in_step_gradient
from foretrace.engine.linearise import Linearised
from foretrace.engine.plan import Plan
from foretrace.engine.sweep import credit
from foretrace.engine.traces import Trace, advance, contract, zero_trace


@dataclass(frozen=True)
class DRTRL(Rule):
    """D-RTRL: the direct part of the influence of every parameter on every state.

    Keeps: for each weight, a value per batch element, `y` element and slot. Memory: parameters x batch x num_state.
    Time: that of BPTT, by sequence; step by step, one pass over the traces per step.
    Paper: Wang et al. 2024, "A differentiable brain simulator bridging brain simulation and brain-inspired computing".

    Attributes:
        trace_dtype: The dtype that traces are kept in; None for that of the states.
    """

    name: ClassVar[str] = "D_RTRL"
    trace_dtype: Any = None

    def init(self, plan: Plan) -> list[Trace]:
        return [zero_trace(link, self.trace_dtype) for link in plan.links]

    def advance(
        self, plan: Plan, params: Sequence[Any], block: Block, trace: list[Trace]
    ) -> tuple[list[jax.Array] | None, list[Trace]]:
        weights = plan.weights(params)
        lin = Linearised(plan, weights, block.steps)
        transitions = [lin.transition(group) for group in plan.graph.hidden_groups]
        after = [
            advance(link, lin, transitions[link.group.index], e) for link, e in zip(plan.links, trace, strict=True)
        ]
        if block.cotangents is None:
            return None, after
        signals = lin.signals(block.cotangents)
        asked = [
            credit(group, transitions[group.index], signals.partial[group.index], signals.bypass[group.index])
            for group in plan.graph.hidden_groups
        ]
        history: list[Any] = [None] * len(plan.links)
        for link, e in zip(plan.links, trace, strict=True):
            later, start = asked[link.group.index]
            history[link.index] = lin.pull(link, later)
            add_at(signals.weights, link.weight_index, contract(link, e, start))
        gradients = in_step_gradient(plan, lin, signals, history)
        return plan.pull_back(params, gradients), after

    def credit(
        self, plan: Plan, params: Sequence[Any], trace: list[Trace], signal: Sequence[jax.Array]
    ) -> list[jax.Array]:
        gradients = plan.zero_gradients()
        for link, e in zip(plan.links, trace, strict=True):
            places = [plan.program.hidden_invars.index(var) for var in link.group.hidden_invars]
            joined = link.group.concat_hidden([signal[k] for k in places])
            add_at(gradients, link.weight_index, contract(link, e, joined))
        return plan.pull_back(params, gradients)
