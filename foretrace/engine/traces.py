"""Per-parameter traces: one value for every edge of a link, place and slot.

`advance` takes the traces through a block, `e <- (D_K ... D_1) e + sum_k A(x_k) s_k` with `s_k = D_K ... D_{k+1} F_k`:
one product of matrices per slot, however many steps the block has. Where positions move from step to step, or have
many values, the block is walked step by step.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from foretrace.engine.linearise import Linearised
from foretrace.engine.memory import check_trace
from foretrace.engine.plan import Link
from foretrace.engine.slots import Matrix, Vector, total
from foretrace.engine.sweep import products

Trace = dict[int, jax.Array]


def zero_trace(link: Link, dtype: Any = None) -> Trace:
    """A trace of zeros: an array for each slot that the link can reach."""
    check_trace(link, dtype)
    return {slot: jnp.zeros(link.trace_shape, dtype or link.dtype) for slot in link.slots}


def advance_all(lin: Linearised, transitions: Sequence[Matrix], traces: Sequence[Trace]) -> list[Trace]:
    """Takes the traces of all links through a block, given `D` of every group."""
    together = {link.group.index: link.group for link in lin.plan.links if not link.places.step_by_step}
    spans = {index: products(transitions[index], lin.identity(group)) for index, group in together.items()}
    return [
        advance(link, lin, transitions[link.group.index], trace, spans.get(link.group.index))
        for link, trace in zip(lin.plan.links, traces, strict=True)
    ]


def advance(
    link: Link, lin: Linearised, transition: Matrix, trace: Trace, span: tuple[Matrix, Matrix] | None = None
) -> Trace:
    """Takes a trace through a block.

    Args:
        link: The link.
        lin: The derivatives of the block's steps.
        transition: `D` of the link's group at each step.
        trace: The trace before the block.
        span: The products of `D` to the block's end, where they are known (`sweep.products`).

    Returns:
        The trace after it, in the same dtype.
    """
    data = lin.data(link)
    if not link.places.step_by_step:
        factors, whole = products(transition, lin.identity(link.group)) if span is None else span
        return stepped(link, trace, whole, data, lin.push(link, factors))
    entering = lin.entering(link)

    def one(trace: Trace, step: Any) -> tuple[Trace, None]:
        matrix, *rest = step
        data, values = jax.tree.map(lambda a: a[None], rest)
        return stepped(link, trace, matrix, data, values), None

    return jax.lax.scan(one, trace, (transition, data, entering))[0]


def stepped(link: Link, trace: Trace, matrix: Matrix, data: Any, entering: Trace) -> Trace:
    """A trace carried by one matrix at each position, with what enters added."""
    carried = link.places.carry(trace, matrix, link.edges.spread)
    return {
        slot: (carried[slot] + link.edges.accumulate(data, entering[slot])).astype(trace[slot].dtype) for slot in trace
    }


def contract(link: Link, trace: Trace, signal: Vector) -> jax.Array:
    """The gradient of the link's weight by a signal on the states."""
    return total([link.edges.contract(trace[slot], link.places.at(signal[slot])) for slot in trace])


def after(values: Any, others: Sequence[jax.Array]) -> Any:
    """The same values, any tree of arrays, but not before some others are known.

    Whoever reads a trace and then changes it passes what was read here, and changes the trace by the result: XLA then
    knows that the old trace is free, and writes the new one over it. Otherwise it copies the trace first, which takes
    as long as all the rest of a step. Nothing is above infinity, so what is added is zero; a NaN changes nothing.
    """
    largest = functools.reduce(jnp.maximum, [jnp.max(jnp.real(other), initial=0) for other in others], jnp.zeros(()))
    nothing = jnp.where(largest > jnp.inf, 1, 0)
    return jax.tree.map(lambda array: array + nothing.astype(array.dtype), values)
