"""A call of a brainstate module, to be traced, that leaves nothing behind on the model.

brainstate restores the states of a traced call, but only those that kept their structure and unit; and modules may
store values outside of states (a projection keeps the current of this step). Left alone, both would hold tracers of
a trace that is over. The guarded call refuses a state that changes its form, and undoes everything else, whether the
step succeeds or raises.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import brainstate
import jax

from foretrace.errors import StateMismatchError
from foretrace.frontends.trees import same_structure, structure_difference, tree_spec
from foretrace.program.records import path_name


def guarded_call(model: brainstate.nn.Module) -> Callable[..., Any]:
    """The model as a function to be traced by brainstate.

    It raises `StateMismatchError` for a state that leaves the step with another structure or unit than it entered with.

    Examples:
        >>> import brainstate, jax.numpy as jnp
        >>> call = guarded_call(brainstate.nn.Linear(3, 4))
        >>> call(jnp.ones(3)).shape
        (4,)
    """
    names = {id(state): path_name(path) for path, state in model.states().items()}

    def call(*args: Any, **kwargs: Any) -> Any:
        # Outside of a trace this recorder sees concrete values, within one the tracers that stand for them.
        recorder = brainstate.StateTraceStack()
        try:
            with _attributes_kept(model), recorder:
                out = model(*args, **kwargs)
            for state, before in zip(recorder.states, recorder.original_state_values, strict=True):
                _require_same_form(state, before, names.get(id(state), type(state).__name__))
            return out
        finally:
            for state, before in zip(recorder.states, recorder.original_state_values, strict=True):
                if not same_structure(state.value, before):
                    state.value = before

    return call


def _require_same_form(state: brainstate.State, before: Any, name: str) -> None:
    if same_structure(state.value, before):
        return
    entered = tree_spec(before, bare=name)
    problem = structure_difference(entered, tree_spec(state.value, bare=name))
    if problem:
        raise StateMismatchError(
            f"State `{name}` leaves the step in another form than it entered. {problem} A state keeps its structure "
            "and unit: initialise it with the unit that the step gives it, or convert inside the step."
        )
    # A plain array where a quantity without unit was, or the reverse: the same numbers.
    state.value = entered.unflatten(jax.tree.leaves(state.value))


@contextmanager
def _attributes_kept(model: brainstate.nn.Module) -> Iterator[None]:
    """Undoes what happens in the block to attributes of modules, and to the dicts and lists that they hold."""
    modules = list({id(node): node for node in (model, *model.nodes().values())}.values())
    before = [dict(vars(module)) for module in modules]
    entries = [{name: value.copy() for name, value in kept.items() if type(value) in (dict, list)} for kept in before]
    try:
        yield
    finally:
        for module, kept, containers in zip(modules, before, entries, strict=True):
            vars(module).clear()
            vars(module).update(kept)
            for name, content in containers.items():
                held: Any = kept[name]
                held.clear()
                held.update(content) if isinstance(held, dict) else held.extend(content)
