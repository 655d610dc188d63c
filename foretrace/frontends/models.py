"""One door for every kind of model: `trace_model` looks at what it was given and calls the frontend for it."""

from typing import Any

import brainstate
import jax

from foretrace.frontends.brainstate import extract_module_info
from foretrace.frontends.function import FunctionModel, trace_function
from foretrace.frontends.module_info import ModuleInfo


def trace_model(
    model: Any, *inputs: Any, params: Any = None, state: Any = None, control_flow: Any = None
) -> ModuleInfo | FunctionModel:
    """Traces a brainstate module or a step function; both results offer `program`.

    Args:
        model: A `brainstate.nn.Module`, or a function `step(params, state, *inputs) -> (state, out)`.
        *inputs: The inputs of one step.
        params: The parameters of a step function.
        state: The state of a step function.
        control_flow: What becomes of `cond`, `scan` and `while`; the default policy for None.

    Returns:
        A `ModuleInfo` for a module, a `FunctionModel` for a function.

    Raises:
        TypeError: The model is neither, or `params` and `state` do not go with it.

    Examples:
        >>> import jax.numpy as jnp
        >>> def step(params, state, x):
        ...     return params * state + x, state
        >>> model = trace_model(step, jnp.ones(3), params=jnp.ones(3), state=jnp.zeros(3))
        >>> len(model.program.hidden)
        1
    """
    if isinstance(model, brainstate.nn.Module):
        if params is not None or state is not None:
            raise TypeError(
                f"{type(model).__name__} is a brainstate module, which holds its own parameters and states: "
                "leave out `params` and `state`."
            )
        return extract_module_info(model, *inputs, control_flow=control_flow)
    if callable(model) and not isinstance(model, type) and params is not None and state is not None:
        return trace_function(model, *inputs, params=params, state=state, control_flow=control_flow)
    hint = ""
    if callable(model) and not isinstance(model, type) and jax.tree.leaves(model) != [model]:
        hint = (
            f" {type(model).__name__} is a tree of parameters that can be called: pass it as `params=`, and as the "
            "step a function that calls it, such as `def step(module, state, x): state = module(x, state); return "
            "state, state`."
        )
    given = [name for name, value in (("params", params), ("state", state)) if value is not None]
    raise TypeError(
        f"Got {model if isinstance(model, type) else type(model).__name__} with "
        f"{' and '.join(given) or 'neither params nor state'}. A model is a brainstate.nn.Module instance, or a "
        f"function `step(params, state, *inputs) -> (state, out)` together with `params=` and `state=`.{hint}"
    )
