"""Driving a rule over a sequence, block by block.

What a model and its loss do in a block comes as one function, `forward`: it runs the steps and gives the values that
each started from, the derivatives of each step's loss, and whatever is to be collected. `drive` does the rest: it cuts
the sequence into blocks, takes the trace through each, and adds the gradients up. The size of a block changes the speed
and never the result. `drive_windows` gives exact credit within windows instead, and the trace beyond them.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from foretrace.engine.evaluate import Step
from foretrace.engine.linearise import Cotangents
from foretrace.engine.plan import Plan
from foretrace.engine.sequence import States, scan_blocks
from foretrace.learners.blocks import steps_in_block
from foretrace.learners.sequences import length_of
from foretrace.rules.rule import Block, Rule, require_windows


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
    block: int | None,
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
        block: Steps in a block; None to choose by size.
        gradients: Whether there are losses.

    Returns:
        The gradient of the summed losses (None without losses), the states, the trace, and what was collected.
    """
    size = 1 if plan.pulls_each_step else steps_in_block(plan, rule, block, length_of(items))
    zeros = [jnp.zeros(jnp.shape(p), jnp.result_type(p)) for p in params] if gradients else None
    own = params[: len(plan.program.params)]

    def advance(carry: Any, part: Any) -> tuple[Any, Any]:
        states, trace, total = carry
        ran = forward(params, states, part)
        found, trace = rule.advance(plan, own, Block(ran.steps, ran.cotangents, ran.external), trace)
        if total is not None and found is not None:
            total = [a + b for a, b in zip(total, [*found, *ran.further], strict=True)]
        return (ran.states, trace, total), ran.collected

    (states, trace, total), collected = scan_blocks(advance, (states, trace, zeros), items, size)
    return total, states, trace, collected


WindowForward = Callable[[Sequence[Any], States, Any], tuple[jax.Array, Ran]]


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
    """Exact reverse mode inside each window, plus the trace at its start times the cotangent of the states there.

    Args:
        plan: As for `drive`, like what is not said here.
        rule: The rule that keeps the trace.
        params: Flat parameters.
        states: The states before the sequence.
        trace: The trace before it.
        items: What `forward` takes.
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
        after = rule.synthetic_gradient(plan, trace, end) or [jnp.zeros_like(h) for h in end]
        inside, signal = pullback((jnp.ones_like(value), after))
        before = [*rule.credit(plan, own, trace, signal), *further]
        block = Block(jax.lax.stop_gradient(ran.steps), None, ran.external)
        _, trace = rule.advance(plan, own, block, trace)
        total = [a + b + c for a, b, c in zip(total, inside, before, strict=True)]
        return (ran.states, trace, total), ran.collected

    (states, trace, total), collected = scan_blocks(advance, (states, trace, zeros), items, window)
    return total, states, trace, collected
