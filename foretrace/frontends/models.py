"""One door for every kind of model: `trace_model` looks at what it was given and calls the frontend for it."""

from typing import Any

from foretrace._optional import is_brainstate_module
from foretrace.frontends.base import frontend_of
from foretrace.frontends.function import trace_split


def trace_model(
    model: Any, *inputs: Any, params: Any = None, state: Any = None, control_flow: Any = None, **how: Any
) -> Any:
    """Traces one step of a model of any library; every result offers `program`.

    Args:
        model: A module of brainstate, Flax NNX, Flax linen or Equinox, or a function
            `step(params, state, *inputs) -> (state, out)`.
        *inputs: The inputs of one step.
        params: The parameters of a step function, the variables of a linen module.
        state: The state before the first step, where the model does not hold or make it.
        control_flow: What becomes of `cond`, `scan` and `while`; the default policy for None.
        **how: Options of the model's frontend.

    Returns:
        A `ModuleInfo` for a brainstate module, a `FunctionModel` for any other model.

    Raises:
        TypeError: This is no model, or `params` and `state` do not go with it.

    Examples:
        >>> import jax.numpy as jnp
        >>> def step(params, state, x):
        ...     return params * state + x, state
        >>> model = trace_model(step, jnp.ones(3), params=jnp.ones(3), state=jnp.zeros(3))
        >>> len(model.program.hidden)
        1
    """
    if is_brainstate_module(model):
        if params is not None or state is not None:
            raise TypeError(
                f"{type(model).__name__} is a brainstate module, which holds its own parameters and states: "
                "leave out `params` and `state`."
            )
        _refuse_options("brainstate", (), how)
        from foretrace.frontends.brainstate import extract_module_info

        return extract_module_info(model, *inputs, control_flow=control_flow)
    frontend = frontend_of(model)
    _refuse_options(frontend.name, frontend.options, how)
    split = frontend.split(model, inputs, params=params, state=state, **how)
    return trace_split(split, *inputs, control_flow=control_flow)


def _refuse_options(name: str, known: tuple[str, ...], how: dict[str, Any]) -> None:
    unknown = [option for option in how if option not in known]
    if unknown:
        given, takes = (", ".join(f"`{option}`" for option in options) for options in (unknown, known))
        raise TypeError(f"{given} is no option for a model of kind `{name}`. It takes {takes or 'none'}.")
