"""A plain function `step(params, state, *inputs) -> (state, out)`: a model in parts already."""

from typing import Any

import jax

from foretrace._checks import call_problem
from foretrace.frontends.base import Split, Step
from foretrace.frontends.traced import TracedModel, trace_split


def trace_function(step: Step, *example_inputs: Any, params: Any, state: Any, control_flow: Any = None) -> TracedModel:
    """Traces one step of a function to a step program.

    Args:
        step: `step(params, state, *inputs) -> (state, out)`.
        *example_inputs: The inputs of one step; only shapes, dtypes and units matter.
        params: A pytree of floating arrays.
        state: A pytree of arrays. Floating ones are hidden states, the rest is carried along.
        control_flow: What becomes of `cond`, `scan` and `while`; the default policy for None.

    Returns:
        The program, with the ways between pytrees and flat arrays.

    Raises:
        ExampleInputError: No example input, or one that the step cannot take.
        StateMismatchError: The step does not give back a state of the form that it took.
        NotSupportedError: A parameter is not floating.

    Examples:
        >>> import jax.numpy as jnp
        >>> def step(params, state, x):
        ...     state = jnp.tanh(params["w"] * state + x)
        ...     return state, state.sum()
        >>> model = trace_function(step, jnp.ones(3), params={"w": jnp.ones(3)}, state=jnp.zeros(3))
        >>> [leaf.name for leaf in model.program.params + model.program.hidden]
        ['w', 'state']
    """
    if not callable(step):
        raise TypeError(
            f"A step is a function `step(params, state, *inputs) -> (state, out)`; got {type(step).__name__}."
        )
    if example_inputs:
        _check_signature(step, len(example_inputs))
    return trace_split(Split(step, params, state), *example_inputs, control_flow=control_flow)


class FunctionFrontend:
    """A plain function is in parts already: its parameters and state are given."""

    name = "function"
    options: tuple[str, ...] = ()

    def accepts(self, model: Any) -> bool:
        """Whether this can be called."""
        return callable(model) and not isinstance(model, type)

    def split(self, model: Any, inputs: tuple[Any, ...], *, params: Any = None, state: Any = None) -> Split:
        """The function with the parameters and the state that were given."""
        if params is None or state is None:
            raise TypeError(_missing(model, params, state))
        _check_signature(model, len(inputs))
        return Split(model, params, state)


FRONTEND = FunctionFrontend()


def _missing(model: Any, params: Any, state: Any) -> str:
    given = [name for name, value in (("params", params), ("state", state)) if value is not None]
    return (
        f"Got {type(model).__name__} with {' and '.join(given) or 'neither params nor state'}. A function "
        "`step(params, state, *inputs) -> (state, out)` is given together with `params=` and `state=`."
        f"{_tree_hint(model, type(model).__name__)}"
    )


def _tree_hint(model: Any, name: str) -> str:
    """What to do with something that is a tree of parameters and can be called."""
    if jax.tree.leaves(model) == [model]:
        return ""
    return (
        f" `{name}` is a tree of parameters itself: pass it as `params=`, and as the step a function that calls it, "
        "such as `def step(module, state, x): state = module(x, state); return state, state`."
    )


def _check_signature(step: Step, count: int) -> None:
    """Refuses a step that cannot be called with parameters, state and inputs, before it is called."""
    problem = call_problem(step, 2 + count)
    if problem is None:
        return
    name = getattr(step, "__name__", type(step).__name__)
    raise TypeError(
        f"A step is called as `step(params, state, *inputs)`, here with {count} input(s), and `{name}` cannot be: "
        f"{problem}.{_tree_hint(step, name)}"
    )
