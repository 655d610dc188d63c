"""A rule driven over a sequence of flat values, as the oracle is: the engine without a frontend."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from foretrace.compiler.graph import ETraceGraph
from foretrace.engine.linearise import Cotangents
from foretrace.engine.plan import Plan, make_plan
from foretrace.engine.sequence import States, run_steps
from foretrace.learners.drive import Ran, drive
from foretrace.rules.rule import Block, Rule


def walked_gradient(
    graph: ETraceGraph,
    rule: Rule,
    loss: Callable[[list[Any]], Any],
    params: Sequence[Any],
    hidden: Sequence[Any],
    other: Sequence[Any],
    inputs: Sequence[Sequence[Any]],
    block: int,
    jit: Callable[..., Any] = jax.jit,
) -> list[jax.Array]:
    """As `online_gradient`, with the loop over blocks in Python: each size of block is compiled once for a graph."""
    plan, advance = _walker(graph, rule, loss, jit)
    hidden, other, trace = list(hidden), list(other), rule.init(plan)
    total: list[Any] = [np.zeros(p.shape, p.dtype) for p in params]
    for start in range(0, len(inputs), block):
        pieces = list(zip(*inputs[start : start + block], strict=True))
        total, hidden, other, trace = advance(list(params), hidden, other, pieces, trace, total)
    return total


@functools.lru_cache(maxsize=8)
def _walker(
    graph: ETraceGraph, rule: Rule, loss: Callable[[list[Any]], Any], jit: Callable[..., Any]
) -> tuple[Plan, Callable[..., Any]]:
    plan = make_plan(graph)

    @jit
    def advance(params: Any, hidden: Any, other: Any, inputs: Any, trace: Any, total: Any) -> Any:
        states, steps, outputs = run_steps(plan, params, States(hidden, other), [jnp.stack(i) for i in inputs])
        by_outputs = jax.vmap(jax.grad(loss, allow_int=True))(outputs)
        cotangents = Cotangents(by_outputs, [jnp.zeros_like(value) for value in steps.hidden])
        found, trace = rule.advance(plan, params, Block(steps, cotangents), trace)
        return [a + b for a, b in zip(total, found, strict=True)], states.hidden, states.other, trace

    return plan, advance


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
