"""A plain function `step(params, state, *inputs) -> (state, out)`: a model in parts already."""

from typing import Any

import jax

from foretrace._checks import call_problem
from foretrace.frontends.base import Split, Step

name = "function"
options: tuple[str, ...] = ()


def accepts(model: Any) -> bool:
    """Whether this can be called."""
    return callable(model) and not isinstance(model, type)


def split(model: Any, inputs: tuple[Any, ...], *, params: Any = None, state: Any = None) -> Split:
    """The function with the parameters and the state that were given."""
    if params is None or state is None:
        raise TypeError(_missing(model, params, state))
    if inputs:
        _check_signature(model, len(inputs))
    return Split(model, params, state)


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
