"""E-prop: D-RTRL's traces, low-passed, with a learning signal that need not know the readout weights.

In the paper, `dE/dw = sum_t L_t ebar_t`. The eligibility trace is `e_t = psi_t eps_t`: the trace of the states, as in
D-RTRL, times the derivative of the spike by them, which is the factor of the group's output. It is low-passed,
`ebar_t = kappa ebar_{t-1} + e_t`, as a leaky readout does, so a loss on such a readout is credited to earlier spikes.

A block of steps needs no system of twice the size for that. The learning signal, filtered backward over the block,
`G_k = L_k + kappa G_{k+1}`, meets `psi_k eps_k` where `L_k` would meet `ebar_k`; the `ebar` from before the block meets
`kappa G_1`. So `G` is handed from piece to piece of a block beside the credit of the states.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from foretrace._checks import BELOW_ONE, require_choice, require_number
from foretrace._jax import is_float
from foretrace.compiler.batch import Batch, find_batch
from foretrace.compiler.groups import HiddenGroup
from foretrace.compiler.paths import is_apart_from_outputs
from foretrace.engine.in_step import add_at
from foretrace.engine.linearise import Cotangents, Linearised, Signals
from foretrace.engine.outputs import loss_by_output, output_factor, output_factor_before, output_pull
from foretrace.engine.plan import Link, Plan
from foretrace.engine.slots import Matrix, Vector, add, scale, subtract, total
from foretrace.engine.sweep import backward_filter, credit, no_credit
from foretrace.engine.traces import Entering, Spans, Trace, stepped
from foretrace.rules.d_rtrl import D_RTRL, Eligibility, LearningSignals, contracted
from foretrace.rules.helpers import FixedRandomFeedback, as_key, key_numbers
from foretrace.rules.rule import Block


@dataclass(frozen=True)
class EProp(D_RTRL):
    """E-prop: D-RTRL's trace, filtered, with symmetric or fixed random feedback.

    Keeps: D-RTRL's traces; with a filter, one more value for each. Memory and time: D-RTRL's, up to twice as much.
    Paper: Bellec et al. 2020, "A solution to the learning dilemma for recurrent networks of spiking neurons".

    Random feedback stands for the weights between a group and the outputs, and the filter for the leak of a readout
    there. A group that the outputs read without any weights between is itself a readout: its signal is exact and its
    trace is not filtered again. A model with such groups alone has its readout outside, and all are filtered. The
    derivative of a loss that reads a group's states without the outputs stays exact, too.

    Attributes:
        feedback: `'symmetric'` for the derivative of the loss, `'random'` for fixed random weights from the outputs.
        kappa_filter_decay: `kappa` of the filter, from 0 (none) to below 1.
        random_feedback_key: A seed or JAX random key for the feedback weights; None for the seed 0.
        trace_dtype: As in `D_RTRL`.

    Examples:
        >>> from foretrace.rules import EProp
        >>> EProp(feedback="random", kappa_filter_decay=0.9).feedback
        'random'
    """

    name: ClassVar[str] = "EProp"
    feedback: str = "symmetric"
    kappa_filter_decay: float = 0.0
    random_feedback_key: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("feedback", self.feedback, ("symmetric", "random"))
        require_number("kappa_filter_decay", self.kappa_filter_decay, "a number in [0, 1)", 0, BELOW_ONE)
        key = 0 if self.random_feedback_key is None else key_numbers("random_feedback_key", self.random_feedback_key)
        object.__setattr__(self, "random_feedback_key", key)

    def init(self, plan: Plan) -> Eligibility:
        empty = super().init(plan)
        self.feedback_weights(plan)  # refuses here what it cannot feed, not in the middle of a sequence
        if not self.kappa_filter_decay:
            return empty
        chosen = filtered_groups(plan)
        filtered = [
            jnp.zeros(link.trace_shape, self.trace_dtype or link.dtype) if link.group in chosen else None
            for link in plan.links
        ]
        return empty._replace(filtered=filtered)

    def feedback_weights(self, plan: Plan) -> list[jax.Array | None]:
        """For each group the fixed weights from the outputs, `(outputs, units)`; None where the signal is exact.

        Their entries have the standard deviation `1 / sqrt(units)`.
        """
        return [self._weights(plan, group) for group in plan.graph.hidden_groups]

    def _weights(self, plan: Plan, group: HiddenGroup) -> jax.Array | None:
        if self.feedback == "symmetric" or not is_apart_from_outputs(plan.graph, group):
            return None
        batch = _batch(plan, group)
        units = int(np.prod(group.varshape)) // batch.size
        key = jax.random.fold_in(as_key(self.random_feedback_key), group.index)
        return FixedRandomFeedback(batch.features, units, key, 1 / float(np.sqrt(units))).B

    def no_credit(self, plan: Plan) -> "FilteredCredit":
        states = super().no_credit(plan)
        return FilteredCredit(
            states, {g.index: jnp.zeros(g.varshape, states[g.index][0].dtype) for g, _ in self._own_signals(plan)}
        )

    def gradients(
        self, lin: Linearised, transitions: Sequence[Matrix], block: Block, credit: "FilteredCredit"
    ) -> tuple[list[jax.Array], "FilteredCredit"]:
        own, later = self._filtered_signals(lin, block, dict(credit.filtered))
        gradients, states = contracted(lin, transitions, *own, credit.states)
        return gradients, FilteredCredit(states, later)

    def reads_after(self, plan: Plan) -> bool:
        return not self.kappa_filter_decay and super().reads_after(plan)

    def learning_signals(self, lin: Linearised, block: Block) -> LearningSignals:
        return self._filtered_signals(lin, block, dict(self.no_credit(lin.plan).filtered))[0]

    def _filtered_signals(
        self, lin: Linearised, block: Block, later: dict[int, jax.Array]
    ) -> tuple[LearningSignals, dict[int, jax.Array]]:
        """What multiplies the traces, given `G` of the next step, and `G` of the first."""
        assert block.cotangents is not None
        signals, kappa = lin.signals(block.cotangents), self.kappa_filter_decay
        partial, bypass = list(signals.partial), list(signals.bypass)
        for group, matrix in self._own_signals(lin.plan):
            if matrix is None:
                own = _exact(lin, group, block.cotangents, signals)
            else:
                own = _fed(lin, group, block.cotangents, matrix)
            number = group.index
            partial[number], bypass[number], later[number] = own.filtered(lin, kappa, later[number])
        return LearningSignals(signals, partial, bypass), later

    def _own_signals(self, plan: Plan) -> list[tuple[HiddenGroup, jax.Array | None]]:
        """The groups whose learning signal is filtered or fed by fixed weights, with these."""
        chosen = filtered_groups(plan) if self.kappa_filter_decay else ()
        pairs = zip(plan.graph.hidden_groups, self.feedback_weights(plan), strict=True)
        return [(group, matrix) for group, matrix in pairs if group in chosen or matrix is not None]

    def meet(self, plan: Plan, trace: Eligibility, credit: "FilteredCredit", gradients: list[jax.Array]) -> None:
        super().meet(plan, trace, credit.states, gradients)
        for link, bar in zip(plan.links, trace.filtered or [None] * len(trace.e), strict=True):
            if bar is not None:
                later = credit.filtered[link.group.index]
                signal = later if _reads_past(plan, link.group) else self.kappa_filter_decay * later
                add_at(gradients, link.weight_index, link.edges.contract(bar, link.places.at(signal)))

    def no_spans(self, plan: Plan) -> "FilteredSpans":
        spans, chosen = super().no_spans(plan), filtered_groups(plan) if self.kappa_filter_decay else ()
        swept = {g.index: no_credit(g) for g in chosen if g.index in spans}
        return FilteredSpans(spans, swept, jnp.ones(()))

    def enter(
        self, lin: Linearised, transitions: Sequence[Matrix], spans: "FilteredSpans"
    ) -> tuple["FilteredSpans", "FilteredEntering"]:
        states, entering = super().enter(lin, transitions, spans.states)
        kappa, plan = self.kappa_filter_decay, lin.plan
        factors = {g.index: output_factor(lin, plan.group_outputs[g.index]) for g in filtered_groups(plan) if kappa}
        powers = spans.power * kappa ** jnp.arange(lin.count - 1, -1, -1, dtype=spans.power.dtype)
        swept: dict[int, Vector] = {}
        rows: dict[int, jax.Array] = {}
        for index, later in spans.swept.items():
            group, factor = plan.graph.hidden_groups[index], factors.pop(index)
            weighted = [jnp.einsum("k,k...->k...", powers.astype(part.dtype), part) for part in factor]
            credits, swept[index] = credit(group, transitions[index], weighted, None, later)
            own = add(credits, weighted)
            rows |= {link.index: lin.push_row(link, own) for link in plan.links if link.group is group}
        after = FilteredSpans(states, swept, spans.power * kappa**lin.count)
        return after, FilteredEntering(entering, rows, factors)

    def carry(
        self, plan: Plan, trace: Eligibility, spans: "FilteredSpans", entering: "FilteredEntering"
    ) -> Eligibility:
        states = super().carry(plan, trace, spans.states, entering.states)
        if trace.filtered is None:
            return states
        parts = zip(plan.links, trace.e, trace.filtered, strict=True)
        return states._replace(
            filtered=[
                None if bar is None else _low_passed(link, e, bar, self, spans, entering) for link, e, bar in parts
            ]
        )


class FilteredCredit(NamedTuple):
    """What later losses are worth: by the states, and by the filtered traces.

    Attributes:
        states: The credit of each group's states.
        filtered: `G` of the next step, by the number of the group.
    """

    states: list[Vector]
    filtered: dict[int, jax.Array]


class FilteredSpans(NamedTuple):
    """What takes the traces before some steps to the end of a block.

    Attributes:
        states: The products of the transitions.
        swept: What a state adds to the filtered trace by then, by the number of the group.
        power: What is left of a filtered trace.
    """

    states: Spans
    swept: dict[int, Vector]
    power: jax.Array


class FilteredEntering(NamedTuple):
    """What enters the traces at each step.

    Attributes:
        states: What enters those of the states.
        rows: What the operator of each link adds to the filtered trace by the end of the block.
        factors: `psi`, of the groups that are walked step by step.
    """

    states: Entering
    rows: dict[int, jax.Array]
    factors: dict[int, Vector]


@dataclass(frozen=True)
class GroupSignal:
    """The learning signal of one group over a block: on its output, and beside it.

    Attributes:
        group: The group.
        on_output: `L`, the part on the output, `(K, *varshape)`.
        past: Whether the step reads the output of the states from which it starts, so that `L_k` meets `ebar_{k-1}`.
        partial: The part on the new states beside the output.
        bypass: The part on the previous states beside the output; None for zero.
    """

    group: HiddenGroup
    on_output: jax.Array
    past: bool
    partial: Vector
    bypass: Vector | None

    def filtered(self, lin: Linearised, kappa: float, later: jax.Array) -> tuple[Vector, Vector | None, jax.Array]:
        """Signals on new and previous states that come to the same, and `G` of the first step, given the one after."""
        output = lin.plan.group_outputs[self.group.index]
        summed = backward_filter(self.on_output, kappa, later)
        first = summed[0].astype(later.dtype)
        if self.past and not kappa:
            more = scale(output_factor_before(lin, output), self.on_output)
            return self.partial, more if self.bypass is None else add(self.bypass, more), first
        if self.past:
            summed = jnp.concatenate([summed[1:], later[None].astype(summed.dtype)])
        return add(self.partial, output_pull(lin, output, summed)), self.bypass, first


def _low_passed(
    link: Link, trace: Trace, bar: jax.Array, rule: EProp, spans: FilteredSpans, entering: FilteredEntering
) -> jax.Array:
    """The filtered trace after a block, given both traces before it."""
    index, (data, values) = link.group.index, entering.states.of(link)
    if index in spans.swept:
        left = spans.power.astype(bar.dtype) * bar
        entered = link.edges.accumulate(data, entering.rows[link.index])
        return (left + entered + _times(link, spans.swept[index], trace)).astype(bar.dtype)

    # Positions move from step to step; the filtered trace stays at the position of the output.
    def one(carry: Any, step: Any) -> tuple[Any, None]:
        trace, bar = carry
        matrix, psi, *rest = step
        trace = stepped(link, trace, matrix, *jax.tree.map(lambda a: a[None], rest))
        return (trace, (rule.kappa_filter_decay * bar + _times(link, psi, trace)).astype(bar.dtype)), None

    steps = (entering.states.transitions[index], entering.factors[index], data, values)
    return jax.lax.scan(one, (trace, bar), steps)[0][1]


def _times(link: Link, factor: Vector, trace: Trace) -> jax.Array:
    """The trace of the states times factors, summed over the slots."""
    return total([link.edges.spread(link.places.at(factor[slot])) * e for slot, e in trace.items()])


def _reads_past(plan: Plan, group: HiddenGroup) -> bool:
    return plan.group_outputs[group.index].from_states == "previous" and group.index in plan.bypassed


def _exact(lin: Linearised, group: HiddenGroup, cotangents: Cotangents, signals: Signals) -> GroupSignal:
    """The derivatives of the losses: by the group's output, and by the states beside it."""
    output, past = lin.plan.group_outputs[group.index], _reads_past(lin.plan, group)
    own = loss_by_output(lin, output, cotangents)
    partial, bypass = signals.partial[group.index], signals.bypass[group.index]
    if past:
        share = scale(output_factor_before(lin, output), own)
        return GroupSignal(group, own, past, partial, scale(share, -1.0) if bypass is None else subtract(bypass, share))
    return GroupSignal(group, own, past, subtract(partial, output_pull(lin, output, own)), bypass)


def _fed(lin: Linearised, group: HiddenGroup, cotangents: Cotangents, matrix: jax.Array) -> GroupSignal:
    """Fixed weights times the derivatives of the losses by the outputs."""
    program = lin.plan.program
    floating = [c for c, leaf in zip(cotangents.outputs, program.outputs, strict=True) if is_float(leaf.aval)]
    signal = _to_units(group, _batch(lin.plan, group), floating, matrix)
    by_states = group.cotangent_slots(lin.plan.of_group(group, cotangents.hidden))
    return GroupSignal(group, signal, _reads_past(lin.plan, group), by_states, None)


def filtered_groups(plan: Plan) -> tuple[HiddenGroup, ...]:
    """The groups that a readout stands behind: those apart from the outputs, or all where none is."""
    groups = plan.graph.hidden_groups
    return tuple(group for group in groups if is_apart_from_outputs(plan.graph, group)) or groups


def _batch(plan: Plan, group: HiddenGroup) -> Batch:
    if not any(is_float(leaf.aval) for leaf in plan.program.outputs):
        raise ValueError("Random feedback comes from the outputs of a step, and this model returns no floating ones.")
    return find_batch(plan.graph, group)


def _to_units(group: HiddenGroup, batch: Batch, errors: Sequence[jax.Array], matrix: jax.Array) -> jax.Array:
    """The errors of each sample, times fixed weights, at the positions of the sample: `(K, *varshape)`."""
    count = errors[0].shape[0]
    parts = [error.reshape(count, -1)[:, rows] for error, rows in zip(errors, batch.outputs, strict=True)]
    joined = jnp.concatenate([jnp.broadcast_to(p, (count, batch.size, p.shape[-1])) for p in parts], axis=-1)
    fed = joined @ matrix.astype(joined.dtype)
    if batch.axis is None:
        return fed.reshape(count, *group.varshape)
    rest = [length for axis, length in enumerate(group.varshape) if axis != batch.axis]
    return jnp.moveaxis(fed.reshape(count, batch.size, *rest), 1, 1 + batch.axis)
