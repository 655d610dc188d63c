"""Driving a rule over a sequence, block by block.

What a model and its loss do in a block comes as one function, `forward`: it runs the steps and gives the values that
each started from, the derivatives of each step's loss, and whatever is to be collected. `drive` does the rest: it cuts
the sequence into blocks, takes the trace through each, and adds the gradients up. The size of a block changes the speed
and never the result. `drive_windows` gives exact credit within windows instead, and the trace beyond them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from foretrace.engine.evaluate import Step, run_forward
from foretrace.engine.linearise import Cotangents
from foretrace.engine.plan import Plan
from foretrace.engine.rule import Block, Rule, require_windows


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


class Ran(NamedTuple):
    """What a block of steps gave.

    Attributes:
        states: The states after it.
        steps: The values that each step started from, stacked.
        cotangents: Derivatives of each step's loss; None where there is no loss.
        collected: Anything stacked over the steps, to be handed on.
        external: What the rule takes at each step beside the model's inputs, stacked.
        further: Gradients of parameters beyond the plan's, which the losses use and the model does not.
    """

    states: States
    steps: Step
    cotangents: Cotangents | None
    collected: Any
    external: Any = None
    further: Sequence[Any] = ()


Forward = Callable[[Sequence[Any], States, Any], Ran]


def drive(
    plan: Plan,
    rule: Rule,
    params: Sequence[Any],
    states: States,
    trace: Any,
    items: Any,
    forward: Forward,
    block: int,
    gradients: bool = True,
) -> tuple[list[jax.Array] | None, States, Any, Any]:
    """Takes a rule over a sequence under constant parameters.

    Args:
        plan: The plan.
        rule: The rule.
        params: Flat parameters: the plan's, then any that the losses alone use.
        states: The states before the sequence.
        trace: The rule's trace before it.
        items: What `forward` takes, a pytree with a leading axis of steps.
        forward: Runs a block.
        block: Steps in a block.
        gradients: Whether there are losses.

    Returns:
        The gradient of the summed losses (None without losses), the states, the trace, and what was collected.
    """
    block = 1 if plan.pulls_each_step else block
    zeros = [jnp.zeros(jnp.shape(p), jnp.result_type(p)) for p in params] if gradients else None
    own = params[: len(plan.program.params)]

    def advance(carry: Any, part: Any) -> tuple[Any, Any]:
        states, trace, total = carry
        ran = forward(params, states, part)
        found, trace = rule.advance(plan, own, Block(ran.steps, ran.cotangents, ran.external), trace)
        if total is not None and found is not None:
            total = [a + b for a, b in zip(total, [*found, *ran.further], strict=True)]
        return (ran.states, trace, total), ran.collected

    (states, trace, total), collected = scan_blocks(advance, (states, trace, zeros), items, block)
    return total, states, trace, collected


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


@dataclass(frozen=True)
class Window:
    """What a window of steps gave, beside its summed loss."""

    states: States
    steps: Step
    collected: Any
    external: Any = None


jax.tree_util.register_dataclass(Window, ["states", "steps", "collected", "external"], [])

WindowForward = Callable[[Sequence[Any], States, Any], tuple[jax.Array, Window]]


def drive_windows(
    plan: Plan,
    rule: Rule,
    params: Sequence[Any],
    states: States,
    trace: Any,
    items: Any,
    forward: WindowForward,
    window: int,
) -> tuple[list[jax.Array], States, Any, Any]:
    """Exact reverse mode inside each window, plus the trace at its start times what is asked of the states there.

    Args:
        plan: The plan.
        rule: The rule that keeps the trace.
        params: Flat parameters: the plan's, then any that the losses alone use.
        states: The states before the sequence.
        trace: The trace before it.
        items: What `forward` takes, with a leading axis of steps.
        forward: Runs a window and gives its summed loss, differentiable by parameters and hidden states.
        window: Steps in a window.

    Returns:
        As `drive`.

    Raises:
        NotSupportedError: The rule learns from a signal from outside.
    """
    require_windows(rule)
    zeros = [jnp.zeros(jnp.shape(p), jnp.result_type(p)) for p in params]
    own, further = params[: len(plan.program.params)], zeros[len(plan.program.params) :]

    def advance(carry: Any, part: Any) -> tuple[Any, Any]:
        states, trace, total = carry

        def loss(params: Any, hidden: Any) -> Any:
            value, ran = forward(params, states._replace(hidden=hidden), part)
            return (value, ran.states.hidden), ran

        (value, end), pullback, ran = jax.vjp(loss, list(params), list(states.hidden), has_aux=True)
        asked = rule.foretold(plan, trace, end)
        inside, signal = pullback((jnp.ones_like(value), [jnp.zeros_like(h) for h in end] if asked is None else asked))
        before = [*rule.credit(plan, own, trace, signal), *further]
        block = Block(jax.lax.stop_gradient(ran.steps), None, ran.external)
        _, trace = rule.advance(plan, own, block, trace)
        total = [a + b + c for a, b, c in zip(total, inside, before, strict=True)]
        return (ran.states, trace, total), ran.collected

    (states, trace, total), collected = scan_blocks(advance, (states, trace, zeros), items, window)
    return total, states, trace, collected


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
