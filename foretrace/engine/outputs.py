"""Derivatives at the output of a group: of the output by the group's states, and of losses by the output."""

from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from foretrace._jax import Var, eval_jaxpr
from foretrace.compiler.outputs import GroupOutput
from foretrace.engine.evaluate import Step, run_perturbed, zero_shifts
from foretrace.engine.linearise import Cotangents, Linearised, fitting
from foretrace.engine.slots import Vector, scale


def output_factor(lin: Linearised, output: GroupOutput) -> Vector:
    """The derivative of a group's output by each state of its position, at each step's new states.

    Args:
        lin: The derivatives of a block of steps.
        output: The output of one of its groups.

    Returns:
        An array `(K, *varshape)` for each slot.
    """
    count = len(output.states)
    return lin.over_steps(lambda values: _derivative(output, values[:count], values[count:]), output.needed_vars)


def output_factor_before(lin: Linearised, output: GroupOutput) -> Vector:
    """As `output_factor`, at the states from which each step starts; for an output computed of previous states."""
    hidden = lin.plan.of_group(output.group, lin.steps.hidden)
    return lin.over_steps(lambda consts, *states: _derivative(output, states, consts), output.jaxpr.constvars, *hidden)


def output_pull(lin: Linearised, output: GroupOutput, signal: jax.Array) -> Vector:
    """Pulls a learning signal on a group's output back to the group's new states.

    Args:
        lin: The derivatives of a block of steps.
        output: The output of one of its groups.
        signal: `(K, *varshape)`.

    Returns:
        `(da/ds)^T signal`, an array `(K, *varshape)` for each slot.
    """
    return scale(output_factor(lin, output), signal)


def loss_by_output(
    lin: Linearised, output: GroupOutput, cotangents: Cotangents, held: Collection[Var] | None = None
) -> jax.Array:
    """The derivative of each step's loss by a group's output, with some new states held fixed: the group's by default.

    Returns:
        An array `(K, *varshape)`.
    """
    held = output.group.hidden_outvars if held is None else held
    plan = lin.plan
    shifts = zero_shifts(plan.saved_vars), zero_shifts(plan.program.hidden_outvars)

    def one(step: Step, shift: jax.Array) -> Any:
        if output.var not in plan.differentiable:  # what was saved does not know that it depends on the output
            step = Step(step.hidden, step.other, step.inputs, [])
        return run_perturbed(plan, lin.weights, step, *shifts, held, {output.var: shift})[0]

    start = jnp.zeros((lin.count, *output.var.aval.shape), output.var.aval.dtype)
    (outputs, _), pullback = jax.vjp(lambda shift: jax.vmap(one)(lin.steps, shift), start)
    (found,) = pullback(fitting(outputs, cotangents))
    return _at_positions(output, found)


def _derivative(output: GroupOutput, states: Sequence[Any], constants: Sequence[Any]) -> Vector:
    """The derivative of the output by each state of its position, an array `(*varshape,)` for each slot."""
    group = output.group
    value, pullback = jax.vjp(lambda *given: eval_jaxpr(output.jaxpr, constants, *given)[0], *states)
    one = jnp.ones(group.varshape, group.dtype)
    if output.is_whole_state:
        last = group.cotangent_states([jnp.zeros_like(one)] * (group.num_state - 1) + [one])[-1]
        found = pullback(last.astype(value.dtype))
    else:
        found = pullback(one.reshape(value.shape).astype(value.dtype))
    if output.states == group.hidden_outvars:
        return group.cotangent_slots(found)
    dtype = jnp.result_type(*found)
    return [part.astype(dtype) for part in found]


def _at_positions(output: GroupOutput, cotangents: jax.Array) -> jax.Array:
    """Cotangents of the output's shape, behind further axes, by position: `(..., *varshape)`."""
    rank, last = output.var.aval.ndim, output.group.slots[-1].part
    taken = last.take(cotangents, rank) if last is not None and output.is_whole_state else cotangents
    taken = -jnp.imag(taken) if jnp.iscomplexobj(taken) else taken  # a cotangent, as in `HiddenGroup.cotangent_slots`
    return taken.reshape(*cotangents.shape[: cotangents.ndim - rank], *output.group.varshape)
