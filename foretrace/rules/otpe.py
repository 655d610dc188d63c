"""OTPE: online training with estimates of what a spike does after it has arrived.

A spike that feeds a later layer goes on acting there while the potential that it raised leaks away. OTPE estimates that
with one more trace. Per weight, `e_t = leak e_{t-1} + F_t A(x_t)` is its influence on the states of its group, and
`R_t = leak R_{t-1} + (da_t/ds_t) e_t` that on the *sum of effects* of the group's output `a` (its spikes). The
derivative of a loss by the output through later groups, `c_t`, meets `R_t`; the rest of the learning signal, `e_t`:

    sum_t [ what acts otherwise than directly ]  +  (l_t - (da_t/ds_t)^T c_t) . e_t  +  c_t . R_t

In full mode `e` and `R` are the slots of one linear system (see `postsynaptic.py`), and a block is swept as D-RTRL
sweeps it. In approximate mode both are in factors:

    p_t = leak p_{t-1} + x_t           e_t ~ F_t (x) p_t
    z_t = leak z_{t-1} + p_t           R_t ~ gbar_t (x) z_t
    gbar_t = (sum_i leak^(t-i) (da_i/ds_i) F_i) / (sum_i leak^(t-i))

`c_t` is the exact derivative within the step. The authors' own program also replaces `da/ds` by its leaky average where
an error passes down through several layers; that is not done here.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from foretrace._checks import require_choice, require_positive
from foretrace.engine.in_step import add_at, add_products, in_step_gradient, remainder_gradient
from foretrace.engine.linearise import Linearised, Signals
from foretrace.engine.plan import Link, Plan
from foretrace.engine.slots import add, multiply, structure, subtract, unit_product
from foretrace.engine.sweep import credit, products
from foretrace.engine.traces import Trace, contract, stepped, zero_trace
from foretrace.rules.d_rtrl import Eligibility
from foretrace.rules.factored import (
    Decays,
    Factors,
    advance_factors,
    contract_factors,
    entered_of,
    signals_of,
    zero_data,
    zero_factors,
)
from foretrace.rules.ottt import check_leak, refuse_moving
from foretrace.rules.postsynaptic import System, estimating, is_far, without_last
from foretrace.rules.rule import Block, Rule


@dataclass(frozen=True, kw_only=True)
class OTPE(Rule):
    """OTPE: a leaky trace of every weight, and one more for what its spikes do to later layers.

    Keeps: full: a value per parameter, batch element and state, and one more where a layer feeds another; approximate:
    leaky sums of what enters each operator, and an average of what its output does. Memory: parameters x batch x
    (num_state + 1), or (2 inputs + outputs) x batch. Time: about that of D-RTRL, or of pp_prop.
    Paper: Summe et al. 2023, "Estimating post-synaptic effects for online training of feed-forward SNNs".

    Attributes:
        leak: What is left of a potential after a step, in [0, 1].
        mode: `full` or `approx`.
        trace_clip_abs: The largest absolute value that `R` may have (in approximate mode, `z`); None for no limit. With
            a limit, full mode walks through a block step by step.

    Examples:
        >>> from foretrace.rules import OTPE
        >>> OTPE(leak=0.9).mode
        'full'
    """

    name: ClassVar[str] = "OTPE"
    leak: float
    mode: str = "full"
    trace_clip_abs: float | None = None

    def __post_init__(self) -> None:
        check_leak(self.leak)
        require_choice("mode", self.mode, ("full", "approx"), ("a trace per parameter", "factors"))
        if self.trace_clip_abs is not None:
            require_positive("trace_clip_abs", self.trace_clip_abs, "a number above zero, or None for no limit")

    def init(self, plan: Plan) -> Any:
        refuse_moving(self.name, plan)
        if self.mode == "full":
            return Eligibility([zero_trace(link) for link in estimating(plan).links])
        far = [link for link in estimating(plan).links if is_far(link)]
        sums = [zero_data(plan, link) for link in far]
        averages = [jnp.zeros((link.places.width, *link.places.y_shape), link.dtype) for link in far]
        return Estimates(zero_factors(plan, plan.links), sums, averages, jnp.zeros(()))

    def advance(
        self, plan: Plan, params: Sequence[Any], block: Block, trace: Any
    ) -> tuple[list[jax.Array] | None, Any]:
        lin = Linearised(plan, plan.weights(params), block.steps)
        signals = None if block.cotangents is None else lin.signals(block.cotangents)
        systems = [System(self.leak, lin, group, signals, block.cotangents) for group in estimating(plan).groups]
        gradients: list[jax.Array] | None
        after: Any
        if self.mode == "approx":
            gradients, after = self._advance_factors(plan, lin, systems, signals, trace)
        elif self.trace_clip_abs is None:
            gradients, e = _swept(plan, lin, systems, signals, trace.e)
            after = Eligibility(e)
        else:
            gradients, e = _walked(plan, lin, systems, signals, trace.e, self.trace_clip_abs)
            after = Eligibility(e)
        return None if gradients is None else plan.pull_back(params, gradients), after

    def credit(self, plan: Plan, params: Sequence[Any], trace: Any, signal: Sequence[jax.Array]) -> list[jax.Array]:
        """As in `Rule`. The signal is on states, not on outputs, so it meets `e` alone."""
        joined, gradients = signals_of(plan, signal), plan.zero_gradients()
        if self.mode == "approx":
            parts = contract_factors(plan.links, trace.now, Decays(self.leak, 0.0), joined)
        else:
            parts = [
                (link.weight_index, contract(link, without_last(link, e), joined[link.group.index]))
                for link, e in zip(estimating(plan).links, trace.e, strict=True)
            ]
        for place, part in parts:
            add_at(gradients, place, part)
        return plan.pull_back(params, gradients)

    def _advance_factors(
        self, plan: Plan, lin: Linearised, systems: Sequence[System], signals: Signals | None, trace: "Estimates"
    ) -> tuple[list[jax.Array] | None, "Estimates"]:
        parts, after = _advance_estimates(lin, systems, trace, self, signals is not None)
        beside = None
        if signals is not None:
            partial = [s.partial[: s.count] for s in systems]
            bypass = [None if s.bypass is None else s.bypass[: s.count] for s in systems]
            beside = dataclasses.replace(signals, partial=partial, bypass=bypass)
        more, products, now = advance_factors(plan.links, lin, [], trace.now, Decays(self.leak, 0.0), beside)
        if signals is None:
            return None, after._replace(now=now)
        gradients = remainder_gradient(plan, lin, signals)
        for place, part in parts + more:
            add_at(gradients, place, part)
        add_products(gradients, products)
        return gradients, after._replace(now=now)


class Estimates(NamedTuple):
    """What approximate mode keeps.

    Attributes:
        now: `p` and the last `F`, of all links.
        sums: `z`, of the links to groups that feed others.
        averages: `gbar` times the sum of its weights, likewise.
        weight: The sum of the weights.
    """

    now: Factors
    sums: list[Any]
    averages: list[jax.Array]
    weight: jax.Array


def _swept(
    plan: Plan, lin: Linearised, systems: Sequence[System], signals: Signals | None, traces: Sequence[Trace]
) -> tuple[list[jax.Array] | None, list[Trace]]:
    """A block as D-RTRL takes it: sweeps over elementwise quantities, and one product of matrices per weight."""
    links = estimating(plan).links
    after = [_carried(lin, systems[link.group.index], link, e) for link, e in zip(links, traces, strict=True)]
    if signals is None:
        return None, after
    credits = [credit(system.group, system.transition, system.partial, system.bypass) for system in systems]
    history: list[jax.Array | None] = []
    for link, e in zip(links, traces, strict=True):
        system, (later, start) = systems[link.group.index], credits[link.group.index]
        more = subtract(system.entering(add(later, system.partial)), signals.partial[link.group.index])
        history.append(lin.pull(link, more))
        add_at(signals.weights, link.weight_index, contract(link, e, start))
    return in_step_gradient(plan, lin, signals, history), after


def _carried(lin: Linearised, system: System, link: Link, trace: Trace) -> Trace:
    unit = unit_product(structure(system.transition), system.group.varshape, system.group.dtype)
    factors, whole = products(system.transition, unit, lin.count)
    return stepped(link, trace, whole, lin.data(link), lin.push(link, multiply(factors, system.entrance)))


def _walked(
    plan: Plan,
    lin: Linearised,
    systems: Sequence[System],
    signals: Signals | None,
    traces: Sequence[Trace],
    limit: float,
) -> tuple[list[jax.Array] | None, list[Trace]]:
    """A block step by step, because a limit on a trace is not linear."""
    links, losses = estimating(plan).links, signals is not None
    own = [systems[link.group.index] for link in links]
    items = (
        [
            (system.transition, lin.data(link), lin.push(link, system.entrance))
            for link, system in zip(links, own, strict=True)
        ],
        [(system.partial, system.bypass) for system in own] if losses else None,
    )

    def one(carry: Any, item: Any) -> tuple[Any, None]:
        traces, gradients = carry
        moving, signals = item
        after = [
            _limited(link, stepped(link, e, matrix, *jax.tree.map(lambda a: a[None], rest)), limit)
            for link, e, (matrix, *rest) in zip(links, traces, moving, strict=True)
        ]
        if losses:
            gradients = list(gradients)
            for link, old, new, (now, past) in zip(links, traces, after, signals, strict=True):
                add_at(gradients, link.weight_index, contract(link, new, now))
                if past is not None:
                    add_at(gradients, link.weight_index, contract(link, old, past))
        return (after, gradients), None

    start = remainder_gradient(plan, lin, signals) if signals is not None else None
    (after, gradients), _ = jax.lax.scan(one, (list(traces), start), items, length=lin.count)
    return gradients, after


def _limited(link: Link, trace: Trace, limit: float) -> Trace:
    last = link.group.num_state
    return {slot: jnp.clip(values, -limit, limit) if slot == last else values for slot, values in trace.items()}


def _advance_estimates(
    lin: Linearised, systems: Sequence[System], trace: Estimates, rule: OTPE, losses: bool
) -> tuple[list[tuple[int, jax.Array]], Estimates]:
    """Takes the factors of `R` through a block, and gives `sum_k c_k . R_k` for each of their links."""
    leak, limit, plan = rule.leak, rule.trace_clip_abs, lin.plan
    links = [link for link in estimating(plan).links if is_far(link)]
    own = [systems[link.group.index] for link in links]
    entered = entered_of(plan.links, trace.now)
    items = (
        [lin.data(link) for link in links],
        [lin.push(link, system.entrance)[system.count] for link, system in zip(links, own, strict=True)],
        [(s.partial[-1], None if s.bypass is None else s.bypass[-1]) for s in own] if losses else None,
    )

    def one(carry: Any, item: Any) -> tuple[Any, Any]:
        entered, before = carry
        data, pushed, signals = item
        entered = jax.tree.map(lambda p, x: (leak * p + x).astype(p.dtype), entered, data)
        sums = jax.tree.map(lambda z, p: leak * z + p, before.sums, entered)
        sums = sums if limit is None else jax.tree.map(lambda z: jnp.clip(z, -limit, limit), sums)
        averages = [(leak * n + f).astype(n.dtype) for n, f in zip(before.averages, pushed, strict=True)]
        after = before._replace(sums=sums, averages=averages, weight=leak * before.weight + 1)
        if signals is None:
            return (entered, after), None
        now = _cotangents(links, after, [new for new, _ in signals])
        return (entered, after), (sums, now, _cotangents(links, before, [old for _, old in signals]))

    (_, after), found = jax.lax.scan(one, ([entered[link.index] for link in links], trace), items, length=lin.count)
    if not losses:
        return [], after
    sums, now, past = found
    earlier = jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest[:-1]]), trace.sums, sums)
    pairs = [*zip(links, sums, now, strict=True), *zip(links, earlier, past, strict=True)]
    return [(link.weight_index, link.edges.gradient(z, c)) for link, z, c in pairs if c is not None], after


def _cotangents(links: Sequence[Link], trace: Estimates, signals: Sequence[jax.Array | None]) -> list[jax.Array | None]:
    """Cotangents of each `y` from signals on the outputs, through `gbar`."""
    weight = jnp.where(trace.weight > 0, trace.weight, 1)
    return [
        None if signal is None else jnp.sum(n * link.places.at(signal), axis=0) / weight.astype(n.dtype)
        for link, n, signal in zip(links, trace.averages, signals, strict=True)
    ]
