"""How many steps a block has: enough to make small products large, few enough to fit a memory budget.

The choice changes the speed alone. A block's arrays grow with its steps; the traces do not, and are passed over once
a block. So a block pays where it takes a few times as much memory as the traces, and need not be large where they are
small.
"""

import math
from typing import Any, TypeAlias

import jax
import numpy as np

from foretrace._checks import optional_count, require_bytes
from foretrace.engine.edges import Bilinear, Sparse
from foretrace.engine.events import event_links
from foretrace.engine.plan import Plan
from foretrace.rules.rule import Rule

BlockSize: TypeAlias = int | str | None
"""How large a block is: its steps; or what its arrays may take, such as `"256MB"`; None to choose."""

SMALLEST_BUDGET = 4 * 2**20
LARGEST_BUDGET = 208 * 2**20  # of a block and the traces: with what else is needed, a gradient stays within 256 MB
TRACES = 4  # a block of so many times the traces' memory makes a pass over the traces cheap
LARGEST_BLOCK = 400
ROWS = 512  # steps times samples of a product, by default


def default_block(plan: Plan, rule: Rule, budget: int | None = None) -> int:
    """The number of steps in a block.

    Args:
        plan: The plan of a model.
        rule: The rule, whose traces are measured.
        budget: Bytes that the arrays of a block may take; by default four times as much as the traces that later steps
            read or as the sparse weights, at least 4 MiB, and at most what these traces leave of 208 MiB, or three
            quarters of their size.

    Returns:
        A number of steps from 1 to 400.
    """
    least = 1
    if budget is None:
        traces, least = _lasting_bytes(plan, rule), _steps_for_products(plan, rule)
        passed = max(traces, _sparse_bytes(plan))
        budget = min(max(SMALLEST_BUDGET, TRACES * passed), max(LARGEST_BUDGET - traces, 3 * traces // 4))
    return int(min(LARGEST_BLOCK, max(least, budget // max(1, step_bytes(plan, rule)))))


def _steps_for_products(plan: Plan, rule: Rule) -> int:
    """The steps from which on the products of a block of a rule that takes it as a whole are worth their start."""
    rows = [edges.rows for edges in plan.products.values() if isinstance(edges, Bilinear)]
    return 1 if rule.in_pieces or not rows else -(-ROWS // max(rows))


def _sparse_bytes(plan: Plan) -> int:
    """The memory of sparse weights, whose gradients are passed over once a block, as traces are."""
    sparse = {weight for (_, weight), edges in plan.products.items() if isinstance(edges, Sparse)}
    return sum(_bytes(var.aval) for var in sparse & set(plan.weight_vars))


def even_block(length: int, largest: int) -> int:
    """The size that cuts a sequence into as few blocks as the largest size does, all about equally long."""
    count = -(-length // largest)
    return -(-length // count)


def steps_in_block(plan: Plan, rule: Rule, block: BlockSize, length: int) -> int:
    """How many of some steps are taken as one block: a multiple of what the rule takes together."""
    if isinstance(block, int):
        size = block
    else:
        size = even_block(length, default_block(plan, rule, None if block is None else require_bytes("block", block)))
    return -(-size // rule.block_multiple) * rule.block_multiple


def steps_collected(plan: Plan, rule: Rule) -> int:
    """Over how many blocks of one step the products of gradients are collected: as many as take no more memory than the
    gradients do, or than the smallest budget of a block."""
    if not rule.collects or plan.pulls_each_step:
        return 1
    products = [(y, edges) for (y, weight), edges in plan.products.items() if weight in plan.weight_vars]
    own = sum(_bytes(y.aval) + edges.data_size * y.aval.dtype.itemsize for y, edges in products)
    budget = max(SMALLEST_BUDGET, sum(_bytes(var.aval) for var in plan.weight_vars))
    return min(LARGEST_BLOCK, max(1, budget // max(1, own)))


def checked_block(value: Any) -> BlockSize:
    """The size of a block that a user gave, checked."""
    if not isinstance(value, str):
        return optional_count("block", value, 'steps, or what its arrays may take, such as "256MB"')
    require_bytes("block", value)
    return value


def trace_bytes(plan: Plan, rule: Rule) -> int:
    """The memory that a rule's traces take."""
    return _bytes_of(jax.eval_shape(lambda: rule.init(plan)))


def _lasting_bytes(plan: Plan, rule: Rule) -> int:
    """The memory of the traces that are passed over once a block, and not written alone."""
    return _bytes_of(jax.eval_shape(lambda: rule.lasting(plan, rule.init(plan))))


def step_bytes(plan: Plan, rule: Rule) -> int:
    """About what one step adds to the memory of a block: what it starts from and gives, and what a rule holds of it."""
    program = plan.program
    states = [leaf.aval for leaf in (*program.hidden, *program.other, *program.inputs, *program.outputs)]
    total = sum(_bytes(aval) for aval in (*states, *(var.aval for var in plan.saved_vars)))
    return total + (_entering_bytes(plan) if rule.in_pieces else _derivative_bytes(plan))


def _entering_bytes(plan: Plan) -> int:
    """What enters the traces in a step, and room for as much of the rest."""
    visited = event_links(plan)  # what their events do is added up at once, and not kept
    links = [link for link in plan.links if link not in visited]
    data = {link.source: link.edges.data_size for link in links}
    values = {
        (link.relation_index, link.group.index): len(link.slots) * link.places.reach.fan * _bytes(link.y_var.aval)
        for link in links
    }
    itemsize = max((link.y_var.aval.dtype.itemsize for link in plan.links), default=0)
    return 3 * (sum(data.values()) * itemsize + sum(values.values())) // 2


def _derivative_bytes(plan: Plan) -> int:
    """The derivatives of a step, for a rule that takes a block as a whole; XLA holds about a quarter at a time."""
    total = sum(_bytes(var.aval) for var in plan.saved_vars) + sum(2 * _bytes(var.aval) for var in plan.needed_vars)
    for group in plan.graph.hidden_groups:
        whole = sum(_bytes(var.aval) for var in group.hidden_outvars)
        total += whole * (3 + 2 * group.num_state)
    for link in plan.links:
        entering = len(link.slots) * link.places.reach.fan + 1
        total += entering * _bytes(link.y_var.aval) + link.edges.data_size * link.y_var.aval.dtype.itemsize
    return total // 4


def _bytes_of(shapes: Any) -> int:
    return sum(_bytes(leaf) for leaf in jax.tree.leaves(shapes))


def _bytes(aval: object) -> int:
    dtype = getattr(aval, "dtype", None)
    itemsize = dtype.itemsize if isinstance(dtype, np.dtype) else 8
    return math.prod(getattr(aval, "shape", ())) * itemsize
