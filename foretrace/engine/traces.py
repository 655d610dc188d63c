"""Per-parameter traces: one value for every edge of a link, place and slot.

A block takes a trace to `e <- (D_K ... D_1) e + sum_k A(x_k) s_k` with `s_k = D_K ... D_{k+1} F_k`. `enter` gives `x`
and `s` of the steps, piece by piece from the end of the block; `advance` then needs one product of matrices per slot,
however many steps there are. Where positions move from step to step, or have many values, `s` is `F` alone, and the
block is walked step by step.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from foretrace._jax import mesh_devices, one_processor
from foretrace.engine.linearise import Linearised
from foretrace.engine.memory import check_trace
from foretrace.engine.plan import Link
from foretrace.engine.slots import Matrix, Vector, total
from foretrace.engine.sweep import no_span, products

Trace = dict[int, jax.Array]
SAMPLE = 4096  # values of a sample from which it is taken by itself


def zero_trace(link: Link, dtype: Any = None) -> Trace:
    """A trace of zeros: an array for each slot that the link can reach."""
    check_trace(link, dtype)
    return {slot: jnp.zeros(link.trace_shape, dtype or link.dtype) for slot in link.slots}


class Entering(NamedTuple):
    """What enters the traces at each of some steps, every array with a leading axis of steps.

    Attributes:
        data: What each operator multiplies, by the source of the links that share it.
        values: For each slot of a group what the output of an operator does to it by the end of the block; by the end
            of the step where the group is walked step by step.
        transitions: `D` of the groups that are walked step by step, by their number.
    """

    data: dict[int, Any]
    values: dict[tuple[int, int], Trace]
    transitions: dict[int, Matrix]

    def of(self, link: Link) -> tuple[Any, Trace]:
        """What enters the trace of one link: data and values."""
        return self.data[link.source], self.values[_value_key(link)]

    def only(self, links: Sequence[Link]) -> "Entering":
        """What enters the traces of some of the links."""
        return Entering(
            {link.source: self.data[link.source] for link in links},
            {key: self.values[key] for key in map(_value_key, links)},
            {index: matrix for index, matrix in self.transitions.items() if index in {k.group.index for k in links}},
        )


def _value_key(link: Link) -> tuple[int, int]:
    """The same for all weights of an operator."""
    return link.relation_index, link.group.index


Spans = dict[int, Matrix]


def no_spans(links: Sequence[Link]) -> Spans:
    """For each group whose transitions are multiplied, the product of none."""
    return {link.group.index: no_span(link.group) for link in links if not link.places.step_by_step}


def enter(
    links: Sequence[Link], lin: Linearised, transitions: Sequence[Matrix], spans: Spans
) -> tuple[Spans, Entering]:
    """What enters the traces of some links at each step.

    Args:
        links: The links.
        lin: The derivatives of the steps.
        transitions: `D` of every group.
        spans: The products of the transitions after these steps.

    Returns:
        The products with these steps, and what enters.
    """
    if lin.count == 1:
        spans = {index: _unforeseen(lin, index, span) for index, span in spans.items()}
    found = {index: products(transitions[index], span, lin.count) for index, span in spans.items()}
    stepwise = {link.group.index: transitions[link.group.index] for link in links if link.group.index not in spans}

    def values(link: Link) -> Trace:
        return lin.entering(link) if link.group.index in stepwise else lin.push(link, found[link.group.index][0])

    return {index: span for index, (_, span) in found.items()}, entered(links, lin, values, stepwise)


def _unforeseen(lin: Linearised, index: int, span: Matrix) -> Matrix:
    """The same matrix, with zeros added of which XLA does not know that they are.

    Where `F` is a constant, XLA computes the trace after a step, `D e + F x`, a second time for whoever reads it, and
    copies the trace before the step for that. A sum of two products it computes once. Nothing is above infinity.
    """
    group = lin.plan.graph.hidden_groups[index]
    state = group.value_slots([value[0] for value in lin.plan.of_group(group, lin.steps.hidden)])[0]
    nothing = jnp.where(jnp.real(state) > jnp.inf, 1, 0)
    return jax.tree.map(lambda entry: entry + nothing.astype(entry.dtype), span)


def entered(
    links: Sequence[Link], lin: Linearised, values: Callable[[Link], Trace], stepwise: dict[int, Matrix]
) -> Entering:
    """What enters the traces of some links, with what the `y` of each does to its slots given."""
    return Entering(
        {key: lin.data(link) for key, link in {link.source: link for link in links}.items()},
        {key: values(link) for key, link in {_value_key(link): link for link in links}.items()},
        stepwise,
    )


def advance_all(links: Sequence[Link], traces: Sequence[Trace], spans: Spans, entering: Entering) -> list[Trace]:
    """Takes the traces of some links through a block, in the same dtypes.

    Args:
        links: The links.
        traces: Their traces before the block.
        spans: The products of all transitions of the block.
        entering: What enters at each of its steps.
    """
    return [_advanced(link, trace, spans, entering) for link, trace in zip(links, traces, strict=True)]


def _advanced(link: Link, trace: Trace, spans: Spans, entering: Entering) -> Trace:
    data, values = entering.of(link)
    if link.group.index in spans:
        return stepped(link, trace, spans[link.group.index], data, values)

    def one(trace: Trace, step: Any) -> tuple[Trace, None]:
        matrix, *rest = step
        data, values = jax.tree.map(lambda a: a[None], rest)
        return stepped(link, trace, matrix, data, values), None

    return jax.lax.scan(one, trace, (entering.transitions[link.group.index], data, values))[0]


def stepped(link: Link, trace: Trace, matrix: Matrix, data: Any, entering: Trace) -> Trace:
    """A trace carried by one matrix at each position, with what enters added."""
    if _by_sample(link, data):
        return _each_sample(link, trace, matrix, data, entering)
    carried = link.places.carry(trace, matrix, link.edges.spread)
    return {
        slot: (carried[slot] + link.edges.accumulate(data, entering[slot])).astype(trace[slot].dtype) for slot in trace
    }


def _by_sample(link: Link, data: Any) -> bool:
    """Whether a trace is changed sample by sample: where the sample of one processor is worth a product of its own. The
    product of a whole batch would be one more array of the size of the trace."""
    return one_processor() and not link.places.moves and link.edges.sample_size >= SAMPLE and len(data) > 1


def _each_sample(link: Link, trace: Trace, matrix: Matrix, data: Any, entering: Trace) -> Trace:
    """As `stepped`: each sample of the trace is written over in place.

    A sample is read at the end of the turn before its own, and handed on: slots act on one another, and where one is
    written while another is yet to be read, XLA copies the whole trace.
    """
    edges: Any = link.edges
    single = edges.of_sample()

    def cut(array: jax.Array, number: jax.Array | int) -> jax.Array:
        return jax.lax.dynamic_index_in_dim(array, number, 1, keepdims=False)

    def one(number: jax.Array, before: tuple[Trace, Trace]) -> tuple[Trace, Trace]:
        trace, own = before
        carried = link.places.carry(own, matrix, lambda values: cut(edges.spread(values), number))
        x, entered = edges.cut_sample(data, entering, number)
        for slot, values in entered.items():
            new = (carried[slot] + single.accumulate(x, values)).astype(trace[slot].dtype)
            trace = trace | {slot: jax.lax.dynamic_update_index_in_dim(trace[slot], new, number, 1)}
        return trace, {slot: cut(trace[slot], number + 1) for slot in own}

    first = {slot: cut(values, 0) for slot, values in trace.items()}
    return jax.lax.fori_loop(0, trace[link.slots[0]].shape[1], one, (trace, first))[0]


def contract(link: Link, trace: Trace, signal: Vector) -> jax.Array:
    """The gradient of the link's weight by a signal on the states."""
    return total([link.edges.contract(trace[slot], link.places.at(signal[slot])) for slot in trace])


def after(values: Any, others: Sequence[jax.Array]) -> Any:
    """The same values, any tree of arrays, but not before some others are known.

    Whoever reads a trace and then changes it passes what was read here, and changes the trace by the result: XLA then
    knows that the old trace is free, and writes the new one over it. Otherwise it copies the trace first, which takes
    as long as all the rest of a step. Nothing is above infinity, so what is added is zero; a NaN changes nothing. On
    many devices the look at all gradients would be one more exchange between them, so nothing waits there.
    """
    if mesh_devices() > 1:
        return values
    largest = functools.reduce(jnp.maximum, [jnp.max(jnp.real(other), initial=0) for other in others], jnp.zeros(()))
    nothing = jnp.where(largest > jnp.inf, 1, 0)
    return jax.tree.map(lambda array: array + nothing.astype(array.dtype), values)
