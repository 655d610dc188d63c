"""The differentiable call of a learner: some steps of a model as one function whose gradient is the rule's.

A call is a pure function of flat arrays: parameters, states, trace and inputs give outputs, new states and a
new trace. Its derivative is not that of the equations. Backward, the cotangents of outputs and of the states after the
call become the rule's gradient of the parameters, by the trace from before the call. The states before it and the
trace get none: what led to them is what the trace stands for. Inputs get the exact derivative within the call, so that
a model in front of the learner learns too.

With `exact`, credit inside the call is by reverse mode, and the trace carries what arrives at its start.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from foretrace._jax import is_float
from foretrace.engine.evaluate import Step, run_forward
from foretrace.engine.linearise import Cotangents
from foretrace.engine.plan import Plan
from foretrace.engine.sequence import States, run_steps
from foretrace.learners.blocks import BlockSize
from foretrace.learners.drive import Ran, drive
from foretrace.rules.rule import Rule, require_windows

DifferentiableCall = Callable[..., tuple[list[Any], list[Any], list[Any], Any]]


def make_call(plan: Plan, rule: Rule, *, exact: bool, block: BlockSize = None) -> DifferentiableCall:
    """The function `(params, hidden, other, trace, inputs, external) -> (outputs, hidden, other, trace)`.

    Args:
        plan: The plan of the model.
        rule: The rule.
        exact: Whether credit inside a call is by reverse mode.
        block: How large a block is.

    Returns:
        A differentiable function. Inputs, external values and outputs have a leading axis of steps.
    """
    if exact:
        require_windows(rule)
    forward, backward = _exact(plan, rule, block) if exact else _online(plan, rule, block)

    @jax.custom_vjp
    def call(*values: Any) -> Any:
        return forward(*values)[0]

    call.defvjp(forward, backward)
    return jax.jit(call)


def _advanced(plan: Plan, rule: Rule, params: Any, steps: Step, external: Any, trace: Any, block: BlockSize) -> Any:
    """The trace after some steps."""

    def forward(_: Any, states: States, part: Any) -> Ran:
        return Ran(states, part[0], None, None, part[1])

    return drive(plan, rule, params, States([], []), trace, (steps, external), forward, block, gradients=False)[2]


def _online(plan: Plan, rule: Rule, block: BlockSize) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def forward(params: Any, hidden: Any, other: Any, trace: Any, inputs: Any, external: Any) -> Any:
        states, steps, outputs = run_steps(plan, params, States(hidden, other), inputs)
        after = _advanced(plan, rule, params, steps, external, trace, block)
        return (outputs, states.hidden, states.other, after), (params, steps, external, trace)

    def backward(kept: Any, cotangents: Any) -> Any:
        params, steps, external, trace = kept
        by_outputs, by_hidden = cotangents[:2]
        length = steps.inputs[0].shape[0]
        arriving = Cotangents(_floating(by_outputs), last_of(by_hidden, length))

        def ran(_: Any, states: States, part: Any) -> Ran:
            steps, outputs, hidden, external = part
            return Ran(states, steps, Cotangents(outputs, hidden), None, external)

        items = (steps, arriving.outputs, arriving.hidden, external)
        gradients = drive(plan, rule, params, States([], []), trace, items, ran, block)[0]
        return gradients, None, None, None, _by_inputs(plan, params, steps, arriving), None

    return forward, backward


def _by_inputs(plan: Plan, params: Any, steps: Step, arriving: Cotangents) -> list[Any]:
    """The derivatives by the floating inputs, each within its step."""
    weights = plan.weights(params)

    def one(step: Step, by_outputs: Any, by_hidden: Any) -> Any:
        def run(inputs: Any) -> Any:
            given = Step(step.hidden, step.other, _merged(inputs, step.inputs), [])
            hidden, _, outputs, _ = run_forward(plan, weights, given)
            return _floating(outputs), hidden

        _, pullback = jax.vjp(run, _floating(step.inputs))
        return pullback((by_outputs, by_hidden))[0]

    return jax.vmap(one)(steps, arriving.outputs, arriving.hidden)


def _exact(plan: Plan, rule: Rule, block: BlockSize) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def forward(params: Any, hidden: Any, other: Any, trace: Any, inputs: Any, external: Any) -> Any:
        def run(params: Any, hidden: Any, moving: Any) -> Any:
            states, steps, outputs = run_steps(plan, params, States(hidden, other), _merged(moving, inputs))
            return (_floating(outputs), states.hidden), (outputs, states, steps)

        _, pullback, (outputs, states, steps) = jax.vjp(run, params, hidden, _floating(inputs), has_aux=True)
        after = _advanced(plan, rule, params, steps, external, trace, block)
        synthetic = rule.synthetic_gradient(plan, trace, states.hidden)
        return (outputs, states.hidden, states.other, after), (params, pullback, trace, synthetic)

    def backward(kept: Any, cotangents: Any) -> Any:
        params, pullback, trace, synthetic = kept
        by_hidden = cotangents[1]
        if synthetic is not None:
            by_hidden = [a + b for a, b in zip(by_hidden, synthetic, strict=True)]
        inside, signal, by_inputs = pullback((_floating(cotangents[0]), by_hidden))
        before = rule.credit(plan, params, trace, signal)
        return [a + b for a, b in zip(inside, before, strict=True)], None, None, None, by_inputs, None

    return forward, backward


def last_of(values: Sequence[Any], length: int) -> list[Any]:
    """Cotangents of the states after the last of some steps, as those of each step's states."""
    return [jnp.zeros((length, *jnp.shape(v)), jnp.result_type(v)).at[-1].set(v) for v in values]


def _floating(values: Sequence[Any]) -> list[Any]:
    """The values with nothing in the place of those that have no derivative."""
    return [value if is_float(value) else None for value in values]


def _merged(moving: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    return [value if part is None else part for part, value in zip(moving, values, strict=True)]
