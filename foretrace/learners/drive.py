"""Driving a rule over a sequence, block by block.

What a model and its loss do in a block comes as one function, `forward`: it runs the steps and gives the values that
each started from, the derivatives of each step's loss, and whatever is to be collected. `drive` does the rest: it cuts
the sequence into blocks, takes the trace through each, and adds the gradients up. The size of a block changes the speed
and never the result. `drive_windows` gives exact credit within windows instead, and the trace beyond them.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from foretrace.engine.evaluate import Step
from foretrace.engine.in_step import add_products
from foretrace.engine.linearise import Cotangents, Product
from foretrace.engine.plan import Plan
from foretrace.engine.sequence import States, scan_blocks
from foretrace.learners.blocks import BlockSize, steps_collected, steps_in_block
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
    block: BlockSize,
    gradients: bool = True,
    asked: Collection[int] | None = None,
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
        block: How large a block is.
        gradients: Whether there are losses.
        asked: The places of the plan's parameters whose gradient is asked for; None for all that learn.

    Returns:
        The gradient of the summed losses, zeros for what is not asked for (None without losses), the states, the trace,
        and what was collected.
    """
    size = 1 if plan.pulls_each_step else steps_in_block(plan, rule, block, length_of(items))
    own = params[: len(plan.program.params)]
    # Sums are carried for what learns alone; a rule's zeros for constants are not even added up.
    learned = [
        place
        for place in range(len(params))
        if place >= len(own) or place in (plan.learned if asked is None else asked)
    ]
    zeros = [_zeros(params[place]) for place in learned] if gradients else None
    together = steps_collected(plan, rule) if gradients and size == 1 else 1

    def added(total: Any, found: Sequence[Any]) -> Any:
        return [a + found[place] if place < len(found) else a for a, place in zip(total, learned, strict=True)]

    def advance(carry: Any, part: Any) -> tuple[Any, Any]:
        states, trace, total = carry
        ran = forward(params, states, part)
        taken, products = Block(ran.steps, ran.cotangents, ran.external), list[Product]()
        if together > 1:
            found, products, trace = rule.collect(plan, own, taken, trace)
        else:
            found, trace = rule.advance(plan, own, taken, trace)
        if total is not None and found is not None:
            total = added(total, [*found, *ran.further])
        return (ran.states, trace, total), (ran.collected, products)

    def several(carry: Any, part: Any) -> tuple[Any, Any]:
        (states, trace, total), (collected, products) = scan_blocks(advance, carry, part, size)
        made = []
        for product in products:
            place = plan.own_parameters.get(product.weight_index)
            if place is None:
                made.append(product)
            elif place in learned:
                total[learned.index(place)] = product.added_to(total[learned.index(place)])
        if made:
            summed = plan.zero_gradients()
            add_products(summed, made)
            total = added(total, plan.pull_back(own, summed))
        return (states, trace, total), collected

    (states, trace, total), collected = scan_blocks(several, (states, trace, zeros), items, size * together)
    if total is not None:
        summed = dict(zip(learned, total, strict=True))
        total = [summed[place] if place in summed else _zeros(value) for place, value in enumerate(params)]
    return total, states, trace, collected


def _zeros(value: Any) -> jax.Array:
    return jnp.zeros(jnp.shape(value), jnp.result_type(value))


def _constants_held(plan: Plan, params: Sequence[Any]) -> list[Any]:
    """The parameters, those that do not learn without a derivative."""
    constant = frozenset(range(len(plan.program.params))) - plan.learned
    return [jax.lax.stop_gradient(value) if place in constant else value for place, value in enumerate(params)]


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
    forward = forward if rule.segment is None else _in_segments(forward, rule.segment)
    zeros = [_zeros(p) for p in params]
    own, further = params[: len(plan.program.params)], zeros[len(plan.program.params) :]

    def advance(carry: Any, part: Any) -> tuple[Any, Any]:
        states, trace, total = carry

        def loss(params: Any, hidden: Any) -> Any:
            value, ran = forward(_constants_held(plan, params), states._replace(hidden=hidden), part)
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


def _in_segments(forward: WindowForward, segment: int) -> WindowForward:
    """The same window, of which reverse mode keeps the states between segments alone and runs the rest again.

    What each step starts from is not given: a rule that keeps no trace has no use for it.
    """

    def run(params: Sequence[Any], states: States, part: Any) -> tuple[jax.Array, Any]:
        value, ran = forward(params, states, part)
        return value, ran._replace(steps=cast(Step, None))

    def whole(params: Sequence[Any], states: States, items: Any) -> tuple[jax.Array, Ran]:
        def one(states: States, part: Any) -> tuple[States, Any]:
            value, ran = jax.checkpoint(run)(list(params), states, part)
            losses = jnp.zeros(length_of(part), value.dtype).at[0].set(value)
            return ran.states, (losses, ran.collected)

        states, (losses, collected) = scan_blocks(one, states, items, segment)
        return jnp.sum(losses), Ran(states, cast(Step, None), None, collected)

    return whole
