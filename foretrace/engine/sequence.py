"""The model over a sequence: some steps in a row, and loops over blocks of them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from foretrace.engine.evaluate import Step, run_forward
from foretrace.engine.plan import Plan


class States(NamedTuple):
    """What a model carries from step to step.

    Attributes:
        hidden: Hidden states, flat.
        other: Other states, flat.
        extra: Whatever else the loss carries, any pytree.
    """

    hidden: list[Any]
    other: list[Any]
    extra: Any = None


def scan_blocks(advance: Callable[[Any, Any], tuple[Any, Any]], carry: Any, items: Any, block: int) -> tuple[Any, Any]:
    """Scans over blocks of steps, a shorter last one included; what each block gives is joined along the steps."""
    length = _length(items)
    full = (length - 1) // block
    parts = []
    if full:

        def one(carry: Any, number: jax.Array) -> tuple[Any, Any]:
            # Cut out here and not before the loop, which would copy the whole sequence.
            part = jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, number * block, block), items)
            return advance(carry, part)

        carry, found = jax.lax.scan(one, carry, jnp.arange(full))
        parts.append(jax.tree.map(lambda a: a.reshape(full * block, *a.shape[2:]), found))
    # The last block stands outside of the loop, full or not: what is not used of its carry is then not computed.
    carry, found = advance(carry, jax.tree.map(lambda a: a[full * block :], items))
    parts.append(found)
    return carry, jax.tree.map(lambda *arrays: arrays[0] if len(arrays) == 1 else jnp.concatenate(arrays), *parts)


def _length(items: Any) -> int:
    leaves = jax.tree.leaves(items)
    if not leaves:
        raise ValueError("A sequence needs at least one array with a leading axis of steps.")
    return int(leaves[0].shape[0])


def run_steps(
    plan: Plan, params: Sequence[Any], states: States, inputs: Sequence[Any]
) -> tuple[States, Step, list[jax.Array]]:
    """Runs the model over stacked inputs; gives the states, what each step started from, and the outputs."""
    return run_weighted(plan, plan.weights(params), states, inputs)


def run_weighted(
    plan: Plan, weights: Sequence[Any], states: States, inputs: Sequence[Any]
) -> tuple[States, Step, list[jax.Array]]:
    """As `run_steps`, from the weights that the parameters make."""

    def one(carry: Any, x: Any) -> tuple[Any, Any]:
        hidden, other = carry
        new_hidden, new_other, outputs, saved = run_forward(plan, weights, Step(hidden, other, x, []))
        return (new_hidden, new_other), (Step(hidden, other, x, saved), outputs)

    carry = (list(states.hidden), list(states.other))
    (hidden, other), (steps, outputs) = scan_or_run(one, carry, list(inputs))
    return States(hidden, other, states.extra), steps, outputs


def scan_or_run(one: Callable[[Any, Any], Any], carry: Any, items: Any) -> tuple[Any, Any]:
    """`lax.scan`, without its loop where there is one step alone."""
    if _length(items) > 1:
        return jax.lax.scan(one, carry, items)
    carry, found = one(carry, jax.tree.map(lambda a: a[0], items))
    return carry, jax.tree.map(lambda a: jnp.asarray(a)[None], found)
