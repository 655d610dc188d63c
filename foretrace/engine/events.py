"""Traces and gradients of sparse weights whose data are events: one visit for a whole block.

For a connection from `i` to `j` a block of steps comes to two sums over the steps at which `i` fired: of the cotangents
of `y_j` for the gradient, and of what `y_j` does to each slot by the end of the block for the trace. What the trace
before the block is worth, and its way through the block, take one pass over all connections. So the work follows the
spikes, but for that one pass a block.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from foretrace.engine.edges import Sparse
from foretrace.engine.in_step import product_number
from foretrace.engine.linearise import Linearised
from foretrace.engine.plan import Link, Plan
from foretrace.engine.slots import Matrix, Vector
from foretrace.engine.traces import Entering, Trace
from foretrace.ops.events import add_events, carry_connections, no_sums

Sums = dict[int, tuple[list[jax.Array], jax.Array]]
"""By the number of a link: what events have added to the gradient of its weight and to the trace of each slot, and for
which rows that counts; for all others it is zero."""


def event_links(plan: Plan, traces: Sequence[Trace] | None = None) -> tuple[Link, ...]:
    """The links whose connections are visited by events: unbatched sparse products that count events, each with one
    place in one group, and with traces as exact as the states (None for such traces)."""
    keys = [(link.y_var, link.weight.var) for link in plan.links]

    def is_visited(link: Link) -> bool:
        edges, key = link.edges, keys[link.index]
        if not isinstance(edges, Sparse) or edges.batch or key not in plan.products or keys.count(key) > 1:
            return False
        kept = [] if traces is None else [array.dtype for array in traces[link.index].values()]
        same = {link.dtype, plan.weight_vars[link.weight_index].aval.dtype, *kept} == {link.dtype}
        still = link.places.width == 1 and not link.places.step_by_step
        return same and still and edges.has_visits(link.dtype)

    return tuple(link for link in plan.links if is_visited(link))


def no_events(links: Sequence[Link]) -> Sums:
    """The sums before the first event."""
    sizes = lambda link: (1 + len(link.slots), link.edges.shape[-1], link.edges.data_size)
    return {link.index: no_sums(*sizes(link), link.dtype) for link in links}


def visit(links: Sequence[Link], lin: Linearised, entering: Entering, sums: Sums) -> tuple[Sums, Entering]:
    """Adds what the events of some steps do, to gradients and to traces at once.

    Args:
        links: The links that are visited by events; their gradients are taken out of those that wait.
        lin: The derivatives of the steps.
        entering: What enters the traces at these steps.
        sums: What the events of later steps have added.

    Returns:
        The sums, and what enters the traces of all other links.
    """
    found = {}
    for link in links:
        edges: Any = link.edges
        fired, values = entering.of(link)
        product = lin.waiting.pop(product_number(lin.plan, link.y_var, link.weight.var))
        parts = [product.cotangents, *(values[slot][:, 0] for slot in link.slots)]
        parts = [part.astype(link.dtype) for part in parts]
        found[link.index] = add_events(*sums[link.index], fired, parts, *edges.index)
    return found, entering.only([link for link in lin.plan.links if link.index not in found])


def through_block(
    link: Link, trace: Trace, span: Matrix, credit: Vector, sums: tuple[list[jax.Array], jax.Array]
) -> tuple[jax.Array, Trace]:
    """Takes the trace of a link through a block that was visited by events.

    Args:
        link: The link.
        trace: Its trace before the block.
        span: The product of the transitions of the block.
        credit: The credit of the group's states before the block.
        sums: What the events of the block have added.

    Returns:
        The gradient of the weight, and the trace after the block.
    """
    edges: Any = link.edges
    places = [(i, j) for i in range(len(link.slots)) for j in range(len(link.slots))]
    own = {(i, j): span[link.slots[i]][link.slots[j]] for i, j in places}
    entries = {place: entry for place, entry in own.items() if entry is not None}
    by_column = [*(credit[slot] for slot in link.slots), *entries.values()]
    table = jnp.stack([link.places.at(values)[0].astype(link.dtype) for values in by_column], axis=-1)
    traces = [trace[slot][0] for slot in link.slots]
    columns, starts = edges.index
    gradient, after = carry_connections(traces, *sums, columns, starts, table, tuple(entries))
    return gradient, {slot: values[None] for slot, values in zip(link.slots, after, strict=True)}
