"""E-prop: D-RTRL's traces, low-passed, with a learning signal that need not know the readout weights.

In the paper, `dE/dw = sum_t L_t ebar_t`. The eligibility trace is `e_t = psi_t eps_t`: the trace of the states, as in
D-RTRL, times the derivative of the spike by them, which is the factor of the group's output. It is low-passed,
`ebar_t = kappa ebar_{t-1} + e_t`, as a leaky readout does, so a loss on such a readout is credited to earlier spikes.

A block of steps needs no system of twice the size for that. The learning signal, filtered backward over the block,
`G_k = L_k + kappa G_{k+1}`, meets `psi_k eps_k` where `L_k` would meet `ebar_k`; the `ebar` from before the block meets
`kappa G_1`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

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
from foretrace.engine.sweep import credit
from foretrace.engine.traces import Trace, advance, stepped
from foretrace.rules.d_rtrl import D_RTRL, Eligibility, contracted
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

    def carry(self, lin: Linearised, transitions: Sequence[Matrix], trace: Eligibility) -> Eligibility:
        if trace.filtered is None:
            return super().carry(lin, transitions, trace)
        factors = {
            group: output_factor(lin, lin.plan.group_outputs[group.index]) for group in filtered_groups(lin.plan)
        }
        traces, filtered = [], []
        for link, e, bar in zip(lin.plan.links, trace.e, trace.filtered, strict=True):
            transition = transitions[link.group.index]
            if bar is None:
                after, low = advance(link, lin, transition, e), None
            else:
                after, low = _filtered(link, lin, transition, factors[link.group], self.kappa_filter_decay, e, bar)
            traces.append(after)
            filtered.append(low)
        return Eligibility(traces, filtered)

    def gradients(
        self, lin: Linearised, transitions: Sequence[Matrix], block: Block, cotangents: Cotangents, trace: Eligibility
    ) -> list[jax.Array]:
        kappa = self.kappa_filter_decay
        if self.feedback == "symmetric" and not kappa:
            return super().gradients(lin, transitions, block, cotangents, trace)
        signals = lin.signals(cotangents)
        weights = self.feedback_weights(lin.plan)
        partial, bypass = list(signals.partial), list(signals.bypass)
        before: list[Any] = [None] * len(partial)
        chosen = filtered_groups(lin.plan) if kappa else ()
        for group, matrix in zip(lin.plan.graph.hidden_groups, weights, strict=True):
            if matrix is None and group not in chosen:
                continue
            own = _exact(lin, group, cotangents, signals) if matrix is None else _fed(lin, group, cotangents, matrix)
            partial[group.index], bypass[group.index], before[group.index] = own.filtered(lin, kappa)
        gradients = contracted(lin, transitions, signals, partial, bypass, trace.e)
        for link, bar in zip(lin.plan.links, trace.filtered or [None] * len(trace.e), strict=True):
            if bar is not None:
                part = link.edges.contract(bar, link.places.at(before[link.group.index]))
                add_at(gradients, link.weight_index, part)
        return gradients


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

    def filtered(self, lin: Linearised, kappa: float) -> tuple[Vector, Vector | None, jax.Array]:
        """Signals on new and previous states, and on the filtered trace before the block, that come to the same."""
        output = lin.plan.group_outputs[self.group.index]
        if self.past and not kappa:
            more = scale(output_factor_before(lin, output), self.on_output)
            return self.partial, more if self.bypass is None else add(self.bypass, more), self.on_output[0]
        summed = backward_filter(self.on_output, kappa)
        start = summed[0] if self.past else kappa * summed[0]
        if self.past:
            summed = jnp.concatenate([summed[1:], jnp.zeros_like(summed[:1])])
        return add(self.partial, output_pull(lin, output, summed)), self.bypass, start


def backward_filter(signal: jax.Array, kappa: float) -> jax.Array:
    """`G_k = L_k + kappa G_{k+1}` along the first axis."""
    if not kappa or signal.shape[0] == 1:
        return signal

    def back(later: jax.Array, own: jax.Array) -> tuple[jax.Array, jax.Array]:
        total = own + kappa * later
        return total, total

    return jax.lax.scan(back, jnp.zeros_like(signal[0]), signal, reverse=True)[1]


def _filtered(
    link: Link, lin: Linearised, transition: Matrix, factor: Vector, kappa: float, trace: Trace, bar: jax.Array
) -> tuple[Trace, jax.Array]:
    """Takes the trace of the states and the filtered one through a block."""
    if link.places.moves:
        return _filtered_by_steps(link, lin, transition, factor, kappa, trace, bar)
    powers = kappa ** jnp.arange(lin.count - 1, -1, -1, dtype=factor[0].dtype)
    weighted = [jnp.einsum("k,k...->k...", powers, part) for part in factor]
    later, start = credit(link.group, transition, weighted, None)
    entering = link.edges.accumulate(lin.data(link), lin.push_row(link, add(later, weighted)))
    total = kappa**lin.count * bar + entering + _times(link, start, trace)
    return advance(link, lin, transition, trace), total.astype(bar.dtype)


def _filtered_by_steps(
    link: Link, lin: Linearised, transition: Matrix, factor: Vector, kappa: float, trace: Trace, bar: jax.Array
) -> tuple[Trace, jax.Array]:
    """The same where positions move from step to step; the filtered trace stays at the position of the output."""

    def one(carry: Any, step: Any) -> tuple[Any, None]:
        trace, bar = carry
        matrix, psi, *rest = step
        data, entering = jax.tree.map(lambda a: a[None], rest)
        trace = stepped(link, trace, matrix, data, entering)
        return (trace, (kappa * bar + _times(link, psi, trace)).astype(bar.dtype)), None

    steps = (transition, factor, lin.data(link), lin.push(link, lin.identity(link.group)))
    return jax.lax.scan(one, (trace, bar), steps)[0]


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
