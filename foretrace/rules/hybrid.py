"""Hybrid: for each weight and group, whichever trace is smaller, that of D-RTRL or that of pp_prop."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax

from foretrace._jax import Var
from foretrace.engine.in_step import add_at, add_products, in_step_gradient
from foretrace.engine.linearise import Linearised, Signals
from foretrace.engine.plan import Link, Plan
from foretrace.engine.slots import Matrix
from foretrace.engine.sweep import credit
from foretrace.engine.traces import Trace, advance_all, contract, enter, no_spans, zero_trace
from foretrace.rules.factored import (
    Factors,
    advance_factors,
    contract_factors,
    effect_of,
    entered_of,
    factors_size,
    signals_of,
    trace_size,
    zero_factors,
)
from foretrace.rules.pp_prop import pp_prop
from foretrace.rules.rule import Block


class HybridTrace(NamedTuple):
    """What a hybrid keeps.

    Attributes:
        whole: The traces per parameter, of the links that have them.
        factors: The factors of all other links.
    """

    whole: list[Trace]
    factors: Factors


@dataclass(frozen=True)
class Hybrid(pp_prop):
    """Hybrid: D-RTRL's trace for a weight where that is the smaller one, and pp_prop's two factors elsewhere.

    Keeps: per weight and group, a value for each parameter (biases, convolutions, sparse weights) or two factors.
    Memory: the smaller of both, link by link. Time: between those of pp_prop and D-RTRL.
    Paper: Wang et al. 2024, "A differentiable brain simulator bridging brain simulation and brain-inspired computing".

    Attributes:
        decay_or_rank: As in `pp_prop`, for the links in factors.

    Examples:
        >>> from foretrace.rules import Hybrid
        >>> Hybrid(0.9).decays
        Decays(entered=0.9, effect=0.9)
    """

    name: ClassVar[str] = "hybrid"

    def init(self, plan: Plan) -> HybridTrace:  # type: ignore[override]
        whole, factored = choose(plan)
        return HybridTrace([zero_trace(link) for link in whole], zero_factors(plan, factored))

    def traces(self, plan: Plan, trace: HybridTrace) -> dict[str, list[Any]] | None:  # type: ignore[override]
        whole, factored = choose(plan)
        of_links = [
            (whole, {"e": trace.whole}),
            (
                factored,
                {"entered": entered_of(factored, trace.factors), "effect": effect_of(factored, trace.factors)},
            ),
        ]
        found: dict[str, list[Any]] = {name: [None] * len(plan.links) for name in ("e", "entered", "effect")}
        for links, parts in of_links:
            for name, values in parts.items():
                for link, value in zip(links, values, strict=True):
                    found[name][link.index] = value
        return found

    def advance(  # type: ignore[override]
        self, plan: Plan, params: Sequence[Any], block: Block, trace: HybridTrace
    ) -> tuple[list[jax.Array] | None, HybridTrace]:
        whole, factored = choose(plan)
        lin = Linearised(plan, plan.weights(params), block.steps)
        transitions = [lin.transition(group) for group in plan.graph.hidden_groups]
        signals = None if block.cotangents is None else lin.signals(block.cotangents)
        parts, products, factors = advance_factors(factored, lin, transitions, trace.factors, self.decays, signals)
        spans, entering = enter(whole, lin, transitions, no_spans(whole))
        after = HybridTrace(advance_all(whole, trace.whole, spans, entering), factors)
        if signals is None:
            return None, after
        started, history = _history(plan, lin, transitions, signals, trace.whole)
        gradients = in_step_gradient(plan, lin, signals, history, without=_replaced(plan))
        for place, part in parts + started:
            add_at(gradients, place, part)
        add_products(gradients, products)
        return plan.pull_back(params, gradients), after

    def credit(  # type: ignore[override]
        self, plan: Plan, params: Sequence[Any], trace: HybridTrace, signal: Sequence[jax.Array]
    ) -> list[jax.Array]:
        whole, factored = choose(plan)
        joined, gradients = signals_of(plan, signal), plan.zero_gradients()
        parts = contract_factors(factored, trace.factors, self.decays, joined)
        for link, e in zip(whole, trace.whole, strict=True):
            parts.append((link.weight_index, contract(link, e, joined[link.group.index])))
        for place, part in parts:
            add_at(gradients, place, part)
        return plan.pull_back(params, gradients)


def choose(plan: Plan) -> tuple[list[Link], list[Link]]:
    """The links that have a trace per parameter, since that is no larger than two factors, and the others."""
    small = {link.index for link in plan.links if trace_size(link) <= factors_size(plan, link)}
    whole = [link for link in plan.links if link.index in small]
    return whole, [link for link in plan.links if link.index not in small]


def _history(
    plan: Plan, lin: Linearised, transitions: Sequence[Matrix], signals: Signals, traces: Sequence[Trace]
) -> tuple[list[tuple[int, jax.Array]], list[jax.Array | None]]:
    """What the traces before the block are worth, and what is added to the in-step cotangents of each link's `y`."""
    whole, factored = choose(plan)
    credits = {
        g: credit(plan.graph.hidden_groups[g], transitions[g], signals.partial[g], signals.bypass[g])
        for g in {link.group.index for link in whole}
    }
    started = [
        (link.weight_index, contract(link, e, credits[link.group.index][1]))
        for link, e in zip(whole, traces, strict=True)
    ]
    history: list[jax.Array | None] = [None] * len(plan.links)
    for link in whole:
        history[link.index] = lin.pull(link, credits[link.group.index][0])
    replaced = _replaced(plan)
    for link in factored:  # the factors hold the present step too
        if link.y_var not in replaced:
            history[link.index] = -lin.pull(link, signals.partial[link.group.index])
    return started, history


def _replaced(plan: Plan) -> set[Var]:
    """Outputs of linear operators whose whole in-step gradient the factors replace."""
    whole, factored = choose(plan)
    linear = {occurrence.y_var for occurrence in plan.linear.values()}
    return linear & {link.y_var for link in factored} - {link.y_var for link in whole} - plan.aside
