"""A block in pieces: from its end to its start, each as large as the processor's cache takes.

What the derivatives of a step need is several times the step itself. Held for a whole block, these arrays leave the
cache, and every one of them is new memory; held for a piece, they stay where they are and are used again. What later
pieces are worth is handed on from piece to piece, so the size of a piece changes the speed and never the result.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from foretrace._jax import one_processor
from foretrace.engine.plan import Plan

CACHED = 256 * 2**10  # bytes of one value of all positions over the steps of a piece


def piece_steps(plan: Plan, length: int) -> int:
    """How many steps of a block are one piece; all of them where the processor has no such cache, and on many devices,
    which would exchange the gradients of every piece."""
    largest = max((math.prod(g.varshape) * jnp.dtype(g.dtype).itemsize for g in plan.graph.hidden_groups), default=0)
    fitting = max(1, CACHED // max(largest, 1))
    if not one_processor() or length <= fitting:
        return length
    even = [size for size in range(fitting // 2 + 1, 2 * fitting) if length % size == 0]
    return min(even, key=lambda size: abs(size - fitting), default=fitting)


def scan_back(back: Callable[[Any, Any], tuple[Any, Any]], carry: Any, block: Any, size: int) -> tuple[Any, Any]:
    """Walks a block from its end in pieces of some steps; the first piece takes what is left over.

    Args:
        back: From what is handed on and a piece of the block to what is handed on and what the piece gives.
        carry: What is handed to the last piece.
        block: A pytree with a leading axis of steps.
        size: Steps in a piece.

    Returns:
        What the first piece hands on, and what the pieces give, joined in the order of the steps.
    """
    length = jax.tree.leaves(block)[0].shape[0]
    if length <= size:
        return back(carry, block)
    count, left = divmod(length, size)

    def one(carry: Any, number: jax.Array) -> tuple[Any, Any]:
        # Cut out here and not before the loop, which would copy the whole block.
        return back(carry, jax.tree.map(lambda a: _cut(a, left + number * size, size), block))

    carry, found = jax.lax.scan(one, carry, jnp.arange(count), reverse=True)
    found = jax.tree.map(lambda a: a.reshape(count * size, *a.shape[2:]), found)
    if not left:
        return carry, found
    carry, first = back(carry, jax.tree.map(lambda a: a[:left], block))
    return carry, jax.tree.map(lambda *parts: jnp.concatenate(parts), first, found)


def _cut(array: Any, begin: jax.Array, size: int) -> Any:
    """Some steps of an array; the cotangents of integers hold nothing, wherever they are cut."""
    if array.dtype == jax.dtypes.float0:
        return array[:size]
    return jax.lax.dynamic_slice_in_dim(array, begin, size)
