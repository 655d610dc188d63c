"""Which parameters learn: all of a model, or those that a user names.

A parameter that is left out is a constant to the learner: it has neither a trace nor a gradient, and costs nothing
beyond the model itself.
"""

from typing import Any

from foretrace._checks import require_list
from foretrace.program.diagnostics import Path
from foretrace.program.records import StepProgram, path_name, quoted


def learned_parameters(program: StepProgram, weights: Any) -> frozenset[int]:
    """The places of the parameters that learn.

    Args:
        program: The step program.
        weights: None for all; or a name or a path, or a list of these. `"cell"` and `("cell",)` stand for all
            parameters under `cell`, `"cell.w"` for that one.

    Raises:
        ValueError: Nothing of that name; the message lists the parameters.
    """
    if weights is None:
        return frozenset(range(len(program.params)))
    several = [weights] if isinstance(weights, str) or is_path(weights) else weights
    found: set[int] = set()
    for given in require_list("weights", several, "names or paths of parameters"):
        own = {i for i, leaf in enumerate(program.params) if _stands_for(given, leaf.path)}
        if not own:
            known = quoted(*(leaf.path for leaf in program.params))
            raise ValueError(f"`weights` names `{given}`, and the model has no such parameter. It has {known}.")
        found |= own
    if not found:
        raise ValueError("`weights` is empty: name at least one parameter that learns, or leave it out for all.")
    return frozenset(found)


def is_path(value: Any) -> bool:
    """Whether a value is a path of keys."""
    return isinstance(value, tuple) and bool(value) and all(isinstance(part, str | int) for part in value)


def _stands_for(given: Any, path: Path) -> bool:
    heads = [path[:count] for count in range(1, len(path) + 1)]
    return any(given == head or given == path_name(head) for head in heads) or (not path and given == path_name(path))
