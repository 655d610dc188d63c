"""Traces and gradients of sparse weights whose data are events: one visit for a whole block.

For a connection from `i` to `j` a block of steps comes to two sums over the steps at which `i` fired: of the cotangents
of `y_j` for the gradient, and of what `y_j` does to each slot by the end of the block for the trace. What the trace
before the block is worth, and its way through the block, take one pass over all connections. So the work follows the
spikes, but for that one pass a block.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from foretrace.engine.edges import Sparse
from foretrace.engine.in_step import product_number
from foretrace.engine.linearise import Linearised
from foretrace.engine.plan import Link, Plan
from foretrace.engine.slots import Matrix, Vector
from foretrace.engine.traces import Entering, Trace
from foretrace.ops.events import carry_connections


class Events(NamedTuple):
    """What fired in each of some steps, and what it adds, for one link.

    Attributes:
        fired: Which elements of `x` are events, `(steps, rows)`.
        values: What an event adds to the gradient of a connection and to the trace of each slot, by the column of the
            connection, `(steps, columns, 1 + slots)`: side by side, since they are read together.
    """

    fired: jax.Array
    values: jax.Array


def event_links(plan: Plan, traces: Sequence[Trace]) -> tuple[Link, ...]:
    """The links whose connections are visited by events: unbatched sparse products that count events, each with one
    place in one group, and with a trace as exact as the states."""
    shared = [(link.y_var, link.weight.var) for link in plan.links]

    def visits(link: Link, trace: Trace) -> bool:
        key, edges = (link.y_var, link.weight.var), link.edges
        dtypes = {link.dtype, plan.weight_vars[link.weight_index].aval.dtype, *(e.dtype for e in trace.values())}
        alone = shared.count(key) == 1 and isinstance(plan.products.get(key), Sparse)
        still = link.places.width == 1 and not link.places.step_by_step
        return (
            alone
            and still
            and isinstance(edges, Sparse)
            and not edges.batch
            and len(dtypes) == 1
            and edges.has_visits(link.dtype)
        )

    return tuple(link for link, trace in zip(plan.links, traces, strict=True) if visits(link, trace))


def take_events(links: Sequence[Link], lin: Linearised, entering: Entering) -> tuple[Entering, dict[int, Events]]:
    """Puts together what events add to gradients and traces.

    Args:
        links: The links that are visited by events; their gradients are taken out of those that wait.
        lin: The derivatives of some steps.
        entering: What enters the traces at these steps.

    Returns:
        What enters the traces of all other links, and the events of these, by the number of the link.
    """
    found = {}
    for link in links:
        data, values = entering.of(link)
        _, cotangents = lin.waiting.pop(product_number(lin.plan, link.y_var, link.weight.var))
        parts = [cotangents, *(values[slot][:, 0] for slot in link.slots)]
        found[link.index] = Events(data, jnp.stack([part.astype(link.dtype) for part in parts], axis=-1))
    return entering.only([link for link in lin.plan.links if link.index not in found]), found


def through_block(
    link: Link, trace: Trace, span: Matrix, credit: Vector, events: Events
) -> tuple[jax.Array, Mapping[int, Any]]:
    """Takes the trace of a link through a block that is visited by events.

    Args:
        link: The link.
        trace: Its trace before the block.
        span: The product of the transitions of the block.
        credit: The credit of the group's states before the block.
        events: The events of the block.

    Returns:
        The gradient of the weight, and the trace after the block.
    """
    edges: Any = link.edges
    places = [(i, j) for i in range(len(link.slots)) for j in range(len(link.slots))]
    own = {(i, j): span[link.slots[i]][link.slots[j]] for i, j in places}
    entries = {place: entry for place, entry in own.items() if entry is not None}
    by_column = [*(credit[slot] for slot in link.slots), *entries.values()]
    table = jnp.stack([link.places.at(values)[0].astype(link.dtype) for values in by_column], axis=-1)
    gradient, carried = carry_connections([trace[slot][0] for slot in link.slots], edges.columns, table, tuple(entries))
    gradient, *after = edges.add_events([gradient, *carried], *events)
    return gradient, {slot: values[None] for slot, values in zip(link.slots, after, strict=True)}
