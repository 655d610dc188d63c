"""A rule driven over a sequence of flat values, as the oracle is: the engine without a frontend."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from foretrace.compiler.graph import ETraceGraph
from foretrace.engine.linearise import Cotangents
from foretrace.engine.plan import make_plan
from foretrace.engine.rule import Rule
from foretrace.engine.sequence import Ran, States, drive, run_steps


def online_gradient(
    graph: ETraceGraph,
    rule: Rule,
    loss: Callable[[list[Any]], Any],
    params: Sequence[Any],
    hidden: Sequence[Any],
    other: Sequence[Any],
    inputs: Sequence[Sequence[Any]],
    block: int = 1,
    external: Any = None,
) -> list[jax.Array]:
    """The gradient of the summed losses by a rule, one array for each parameter.

    Args:
        graph: The compiled model.
        rule: The rule.
        loss: Of the flat outputs of one step.
        params: Flat parameters.
        hidden: Flat hidden states before the sequence.
        other: Flat other states before it.
        inputs: The flat inputs of each step.
        block: Steps in a block.
        external: What the rule takes at each step, stacked.
    """
    plan = make_plan(graph)
    stacked = [jnp.stack(values) for values in zip(*inputs, strict=True)]

    def forward(params: Sequence[Any], states: States, items: Any) -> Ran:
        states, steps, outputs = run_steps(plan, params, states, items[0])
        by_outputs = jax.vmap(jax.grad(loss, allow_int=True))(outputs)
        by_hidden = [jnp.zeros_like(value) for value in steps.hidden]
        return Ran(states, steps, Cotangents(by_outputs, by_hidden), None, items[1])

    @jax.jit
    def gradient(params: Any, hidden: Any, other: Any, items: Any) -> Any:
        return drive(plan, rule, params, States(hidden, other), rule.init(plan), items, forward, block)[0]

    return gradient(list(params), list(hidden), list(other), (stacked, external))
