"""A plain function `step(params, state, *inputs) -> (state, out)`: a model in parts already."""

from typing import Any

import jax

from foretrace._checks import call_problem
from foretrace.frontends.base import Split

name = "function"
options: tuple[str, ...] = ()


def accepts(model: Any) -> bool:
    """Whether this can be called."""
    return callable(model) and not isinstance(model, type)


def split(model: Any, inputs: tuple[Any, ...], *, params: Any = None, state: Any = None) -> Split:
    """The function with the parameters and the state that were given."""
    if params is None or state is None:
        given = [name for name, value in (("params", params), ("state", state)) if value is not None]
        raise TypeError(
            f"Got {type(model).__name__} with {' and '.join(given) or 'neither params nor state'}. A function "
            "`step(params, state, *inputs) -> (state, out)` is given together with `params=` and `state=`."
            f"{_tree_hint(model, type(model).__name__)}"
        )
    problem = call_problem(model, 2 + len(inputs)) if inputs else None
    if problem is not None:
        own = getattr(model, "__name__", type(model).__name__)
        raise TypeError(
            f"A step is called as `step(params, state, *inputs)`, here with {len(inputs)} input(s), and `{own}` cannot "
            f"be: {problem}.{_tree_hint(model, own)}"
        )
    return Split(model, params, state)


def _tree_hint(model: Any, name: str) -> str:
    """What to do with something that is a tree of parameters and can be called."""
    if jax.tree.leaves(model) == [model]:
        return ""
    return (
        f" `{name}` is a tree of parameters itself: pass it as `params=`, and as the step a function that calls it, "
        "such as `def step(module, state, x): state = module(x, state); return state, state`."
    )
