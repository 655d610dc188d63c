"""Where a NaN or an infinity first appeared: in a parameter, an input, a state, an output or a loss, and at which step.

While a block runs, one flag per step and array says whether it is finite; the arrays themselves are not kept.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from foretrace._jax import is_float
from foretrace.engine.evaluate import Step
from foretrace.engine.plan import Plan
from foretrace.errors import NonFiniteError

NEVER = np.iinfo(np.int32).max
PARAMETER, INPUT, STATE, OUTPUT, LOSS = "Parameter", "Input", "State", "Output", "The loss"


def finite_flags(steps: Step, outputs: Sequence[Any], losses: Any) -> jax.Array:
    """For each step of a block, whether each of its arrays is finite: `(K, arrays)`."""
    values = [*steps.inputs, *steps.hidden, *outputs, losses]
    return jnp.stack([_finite_by_step(value) for value in values], axis=1)


def parameter_flags(params: Sequence[Any], steps: int) -> jax.Array:
    """For each of some steps under the same parameters, whether each parameter is finite: `(K, parameters)`."""
    flags = jnp.stack([jnp.all(jnp.isfinite(p)) for p in params])
    return jnp.broadcast_to(flags, (steps, *flags.shape))


def require_finite(plan: Plan, params: jax.Array, flags: jax.Array, final: Sequence[Any]) -> None:
    """Raises `NonFiniteError` if anything of a run is not finite.

    Under `jit` the error is raised when the computation runs, as JAX reports errors of callbacks.

    Args:
        plan: The plan.
        params: From `parameter_flags`, for all steps, or for one where parameters stay as they are.
        flags: From `finite_flags`, for all steps.
        final: The hidden states after the last step.
    """
    after = jnp.stack([jnp.all(jnp.isfinite(h)) for h in final])
    if any(isinstance(value, jax.core.Tracer) for value in (params, flags, after)):
        jax.debug.callback(lambda *found: _report(plan, *map(np.asarray, found)), params, flags, after)
    else:
        _report(plan, np.asarray(params), np.asarray(flags), np.asarray(after))


def _finite_by_step(value: jax.Array) -> jax.Array:
    if not is_float(value):
        return jnp.ones(value.shape[0], bool)
    return jnp.all(jnp.isfinite(value), axis=tuple(range(1, value.ndim)))


def _report(plan: Plan, params: np.ndarray, flags: np.ndarray, final: np.ndarray) -> None:
    found = _appearances(plan, params, flags, final)
    if not found:
        return
    step, _, kind, name = min(found)
    if kind == PARAMETER:
        when = f" from step {step} on, counted from 0, after an update" if step > 0 else ""
        raise NonFiniteError(f"Parameter `{name}` is not finite{when}. Lower the learning rate, or clip gradients.")
    if kind == STATE and step < 0:
        raise NonFiniteError(f"State `{name}` is not finite before the first step. Check the initial state.")
    subject = kind if kind == LOSS else f"{kind} `{name}`"
    when = "after" if kind == STATE else "at"
    advice = "Check the data." if kind == INPUT else "Check what the step computes from finite values there."
    raise NonFiniteError(f"{subject} is not finite {when} step {step}, counted from 0; all before it was. {advice}")


def _appearances(
    plan: Plan, params: np.ndarray, flags: np.ndarray, final: np.ndarray
) -> list[tuple[int, int, str, str]]:
    """Where each array first is not finite, as `(step, order within the step, kind, name)`."""
    program = plan.program
    found = []
    for leaf, column in zip(program.params, params.T, strict=True):
        if not column.all():
            first = int(np.argmin(column))
            found.append((first if first else -2, -1, PARAMETER, leaf.name))
    arrays = [
        *((INPUT, 0, leaf.name) for leaf in program.inputs),
        *((STATE, 1, leaf.name) for leaf in program.hidden),
        *((OUTPUT, 2, leaf.name) for leaf in program.outputs),
        (LOSS, 3, ""),
    ]
    for (kind, order, name), column in zip(arrays, flags.T, strict=True):
        if not column.all():
            first = int(np.argmin(column))
            found.append((first - 1 if kind == STATE else first, order, kind, name))
    last = flags.shape[0] - 1
    found += [(last, 1, STATE, leaf.name) for leaf, good in zip(program.hidden, final, strict=True) if not good]
    return found
