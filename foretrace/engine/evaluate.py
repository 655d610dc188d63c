"""One step of a plan as a function of what derivatives are taken by.

The data equations are run with the weights of linear operators held fixed and a perturbation on the output of each;
what a perturbation of `y` is worth, the operator's own transpose turns into a gradient of the weight, for a whole block
of steps at once. New states are perturbed too, or held fixed but for their perturbations.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from foretrace._jax import JaxprEqn, Literal, Var, bind_eqn, is_float
from foretrace.compiler.groups import HiddenGroup
from foretrace.engine.plan import Plan


@dataclass(frozen=True)
class Step:
    """The flat values that one step starts from.

    Attributes:
        hidden: Hidden states before the step.
        other: Other states before the step.
        inputs: Inputs.
        saved: Outputs of linear operators, if a forward pass kept them.
    """

    hidden: list[Any]
    other: list[Any]
    inputs: list[Any]
    saved: list[Any]


jax.tree_util.register_dataclass(Step, ["hidden", "other", "inputs", "saved"], [])


def run_forward(
    plan: Plan, weights: Sequence[Any], step: Step, stopped: Mapping[int, Collection[int]] | None = None
) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
    """New hidden states, new other states, outputs, and the outputs of linear operators.

    Args:
        plan: The plan.
        weights: Its weights.
        step: Where the step starts.
        stopped: Operands of equations, by the identity of these, through which no derivative passes.
    """
    env = _start(plan, weights, step)
    for eqn in plan.jaxpr.eqns:
        operands = [_read(env, a) for a in eqn.invars]
        for place in (stopped or {}).get(id(eqn), ()):
            operands[place] = jax.lax.stop_gradient(operands[place])
        env.update(zip(eqn.outvars, bind_eqn(eqn, *operands), strict=True))
    outs = [_read(env, atom) for atom in plan.jaxpr.outvars]
    first, second = len(plan.program.hidden), len(plan.program.hidden) + len(plan.program.other)
    return outs[:first], outs[first:second], outs[second:], [env[var] for var in plan.saved_vars]


def run_perturbed(
    plan: Plan,
    weights: Sequence[Any],
    step: Step,
    y_shifts: Sequence[Any],
    state_shifts: Sequence[Any],
    held: Collection[Var] = (),
    further_shifts: Mapping[Var, Any] | None = None,
    by_previous: bool = False,
) -> tuple[tuple[list[Any], list[Any]], list[Any]]:
    """Runs one step under perturbations.

    Args:
        plan: The plan.
        weights: Its weights. Derivatives by them are those of all uses but linear operators.
        step: Where the step starts.
        y_shifts: Added to the output of each linear operator.
        state_shifts: Added to each new hidden state.
        held: New states that are held fixed, but for their shifts.
        further_shifts: Added to any other values of the step.
        by_previous: Whether derivatives by the step's previous states are asked for as well.

    Returns:
        Outputs and new hidden states, and the values of `plan.needed_vars`.
    """
    env = _start(plan, weights, step)
    saved = dict(zip(plan.saved_vars, step.saved, strict=True)) if step.saved else {}
    # A new state may be the output of an operator itself: then one variable is `y` and, behind the hold, the state.
    of_y = dict(zip(plan.saved_vars, y_shifts, strict=True))
    shifts = dict(zip(plan.program.hidden_outvars, state_shifts, strict=True))
    for var, shift in (further_shifts or {}).items():
        shifts[var] = shifts[var] + shift if var in shifts else shift
        env.update({var: env[var] + shift} if var in env else {})
    for eqn in plan.jaxpr.eqns:
        for var, value in zip(eqn.outvars, _run(plan, eqn, env, saved, by_previous), strict=True):
            value = value + of_y[var] if var in of_y else value
            value = jax.lax.stop_gradient(value) if var in held else value
            env[var] = value + shifts[var] if var in shifts else value
    hidden = [env[var] for var in plan.program.hidden_outvars]
    outputs = [_read(env, atom) for atom in plan.program.output_outvars]
    return (outputs, hidden), [jax.lax.stop_gradient(env[var]) for var in plan.needed_vars]


def from_states(plan: Plan, step: Step, group: HiddenGroup, values: Sequence[Any]) -> Step:
    """A step from other values of one group's states, without what was saved: that does not depend on them."""
    new = dict(zip(group.hidden_invars, values, strict=True))
    hidden = [new.get(var, old) for var, old in zip(plan.program.hidden_invars, step.hidden, strict=True)]
    return Step(hidden, step.other, step.inputs, [])


def run_returning(
    plan: Plan, weights: Sequence[Any], step: Step, group: HiddenGroup, values: Sequence[Any], back: Mapping[Var, Any]
) -> list[Any]:
    """New states of a group from other values of its previous ones, with what linear operators give held fixed.

    Args:
        plan: The plan.
        weights: Its weights.
        step: Where the step starts.
        group: The group.
        values: The values of its previous states.
        back: By the `y` of an operator, a function of a change of what it multiplies: what that adds to `y`.
    """
    env, saved = _start(plan, weights, from_states(plan, step, group, values)), dict[Var, Any]()
    if step.saved:
        saved.update(zip(plan.saved_vars, step.saved, strict=True))
    for eqn in plan.jaxpr.eqns:
        occurrence = plan.linear.get(id(eqn))
        if occurrence is None or len(eqn.outvars) > 1:
            env.update(zip(eqn.outvars, bind_eqn(eqn, *(_read(env, atom) for atom in eqn.invars)), strict=True))
            continue
        y = occurrence.y_var
        known = saved[y] if y in saved else bind_eqn(eqn, *(_read(env, atom) for atom in eqn.invars))[0]
        env[y] = jax.lax.stop_gradient(known)
        if y in back:
            x = _read(env, occurrence.x_var)
            env[y] = env[y] + back[y](x - jax.lax.stop_gradient(x))
    return [env[var] for var in group.hidden_outvars]


def fixed_values(plan: Plan, weights: Sequence[Any]) -> dict[Var, Any]:
    """The values that are the same in all steps."""
    variables = [*plan.jaxpr.constvars, *plan.weight_vars, *plan.mark_vars]
    return dict(zip(variables, [*plan.program.consts, *weights], strict=True))


def _start(plan: Plan, weights: Sequence[Any], step: Step) -> dict[Any, Any]:
    program = plan.program
    variables = [*program.hidden_invars, *program.other_invars, *program.input_invars]
    values = [*step.hidden, *step.other, *step.inputs]
    return fixed_values(plan, weights) | dict(zip(variables, values, strict=True))


def _read(env: Mapping[Any, Any], atom: Any) -> Any:
    return atom.val if isinstance(atom, Literal) else env[atom]


def _run(plan: Plan, eqn: JaxprEqn, env: Mapping[Any, Any], saved: Mapping[Var, Any], by_previous: bool) -> list[Any]:
    operands = [_read(env, atom) for atom in eqn.invars]
    occurrence = plan.linear.get(id(eqn))
    if occurrence is None:
        return bind_eqn(eqn, *operands)
    for weight in occurrence.weights:
        operands[weight.index] = jax.lax.stop_gradient(operands[weight.index])
    if len(eqn.outvars) > 1 or occurrence.y_var not in saved:
        return bind_eqn(eqn, *operands)
    variables = [(i, a) for i, a in enumerate(eqn.invars) if not isinstance(a, Literal)]
    moving = [i for i, a in variables if (is_float(a.aval) if by_previous else a in plan.differentiable)]
    moving = [i for i in moving if i not in {weight.index for weight in occurrence.weights}]
    value = saved[occurrence.y_var]
    return [_known(eqn, operands, moving, value) if moving else value]


def _known(eqn: JaxprEqn, operands: Sequence[Any], moving: Sequence[int], value: Any) -> Any:
    """An operator whose result is known: only its tangent is computed, by the operands that move."""

    def operator(*chosen: Any) -> Any:
        values = list(operands)
        for place, operand in zip(moving, chosen, strict=True):
            values[place] = operand
        return bind_eqn(eqn, *values)[0]

    @jax.custom_jvp
    def known(known_value: Any, *chosen: Any) -> Any:
        return known_value

    @known.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        return primals[0], jax.jvp(operator, primals[1:], tangents[1:])[1]

    return known(value, *(operands[i] for i in moving))


def zero_shifts(variables: Sequence[Var], steps: int | None = None) -> list[jax.Array]:
    """Perturbations of zero, for each of some steps where there are several."""
    lead = () if steps is None else (steps,)
    return [jnp.zeros((*lead, *var.aval.shape), var.aval.dtype) for var in variables]
