"""A plain function `step(params, state, *inputs) -> (state, out)` as a step program.

Params, state, inputs and output are any pytrees, quantities included. Floating arrays of the state are hidden states,
whose history is credited; integers, booleans and random keys are carried along. Units are taken off here and put back
by the methods of `FunctionModel`, so that everything behind it computes with plain arrays.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from foretrace._checks import call_problem
from foretrace._jax import is_float
from foretrace.errors import ExampleInputError, StateMismatchError
from foretrace.frontends.base import Split, Step
from foretrace.frontends.tracing import example_input_errors, input_spec, require_float
from foretrace.frontends.trees import TRACED, TreeSpec, form_text, structure_difference, tree_spec
from foretrace.program.build import build_program
from foretrace.program.diagnostics import Path
from foretrace.program.records import StepProgram


@dataclass(frozen=True, eq=False)
class FunctionModel:
    """A traced step function, and the way between its pytrees and the program's flat arrays.

    Attributes:
        split: The model taken apart: its step, and the parameters and state that it begins with.
        program: One step of it.
        params_tree: The form of the parameters.
        state_tree: The form of the state, hidden and other arrays together.
        hidden: Which arrays of the state are hidden.
        input_tree: The form of the tuple of inputs.
        output_tree: The form of what the step returns beside the state.
    """

    split: Split
    program: StepProgram
    params_tree: TreeSpec
    state_tree: TreeSpec
    hidden: tuple[bool, ...]
    input_tree: TreeSpec
    output_tree: TreeSpec

    @property
    def step(self) -> Step:
        """The function `step(params, state, *inputs) -> (state, out)`."""
        return self.split.step

    def owners(self) -> dict[str, Any]:
        """Nothing: no objects of a library stand behind the program's arrays."""
        return {}

    def with_program(self, program: StepProgram) -> "FunctionModel":
        """The same model, told by an equivalent program."""
        return dataclasses.replace(self, program=program)

    def flatten_params(self, params: Any) -> list[Any]:
        """The arrays of the parameters, in the program's order; they may be given as the whole model."""
        return self.params_tree.flatten(self.split.params_of(params), advice=f"These are the parameters. {TRACED}")

    def unflatten_params(self, leaves: Sequence[Any]) -> Any:
        """Parameters, or anything that has one array per parameter (gradients), from the program's arrays."""
        return self.params_tree.unflatten(leaves)

    def flatten_state(self, state: Any) -> tuple[list[Any], list[Any]]:
        """The hidden arrays and the other arrays of a state."""
        return _split_state(self.hidden, self.state_tree.flatten(self.split.state_of(state), StateMismatchError))

    def unflatten_state(self, hidden: Sequence[Any], other: Sequence[Any]) -> Any:
        """A state from its hidden and its other arrays."""
        return self.state_tree.unflatten(_join_state(self.hidden, hidden, other))

    def as_inputs(self, xs: Any) -> Any:
        """A step's inputs, or sequences of them, as the tuple that the step takes; one input may stand alone."""
        return xs if len(self.input_tree.skeleton.children()) > 1 else (xs,)

    def in_form(self, inputs: Any) -> Any:
        """The inputs of a step, or sequences of them, in the form of `input_tree`."""
        return inputs

    def flatten_inputs(self, *inputs: Any) -> list[Any]:
        """The arrays of one step's inputs."""
        return self.input_tree.flatten(inputs, ExampleInputError)

    def unflatten_output(self, leaves: Sequence[Any]) -> Any:
        """What the step returned, from the program's outputs."""
        return self.output_tree.unflatten(leaves)


def trace_function(
    step: Step, *example_inputs: Any, params: Any, state: Any, control_flow: Any = None
) -> FunctionModel:
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


def trace_split(split: Split, *example_inputs: Any, control_flow: Any = None) -> FunctionModel:
    """Traces one step of a model that a frontend has taken apart; arguments and errors as for `trace_function`."""
    if not example_inputs:
        raise ExampleInputError(
            "No example input was given. Pass the input of one step after the step function; "
            "for a step without input, let it take a dummy scalar."
        )
    params_tree = _arrays("params", split.params, split.param_paths)
    state_tree = _arrays("state", split.state, split.state_paths)
    input_tree = input_spec(example_inputs)
    require_float(params_tree)
    recurrent = split.hidden or (True,) * len(state_tree.avals)
    hidden = tuple(bool(flag and is_float(aval)) for flag, aval in zip(recurrent, state_tree.avals, strict=True))
    trees = (params_tree, state_tree, input_tree)
    closed_jaxpr, output_tree = _trace(split.step, *trees, hidden, example_inputs)
    return FunctionModel(
        split=split,
        program=_program(closed_jaxpr, *trees, output_tree, hidden, control_flow),
        params_tree=params_tree,
        state_tree=state_tree,
        hidden=hidden,
        input_tree=input_tree,
        output_tree=output_tree,
    )


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


def _arrays(name: str, value: Any, paths: tuple[Path, ...] | None) -> TreeSpec:
    """The form of parameters or a state, which hold arrays alone, under the names that were given for them."""
    try:
        spec = tree_spec(value, bare=name)
    except TypeError as error:
        raise TypeError(
            f"`{name}` is a pytree of arrays, and {error} Keep functions and settings out of the tree: close over them "
            "in the step, or split the module, as `equinox.partition(module, equinox.is_inexact_array)` does, and join "
            "it inside of the step."
        ) from error
    return spec if paths is None else dataclasses.replace(spec, paths=paths)


def _trace(
    step: Step, params_tree: TreeSpec, state_tree: TreeSpec, input_tree: TreeSpec, flags: Sequence[bool], inputs: Any
) -> tuple[Any, TreeSpec]:
    """The flat step in the program's order, and the form of its output."""
    hidden, other = _split_state(flags, state_tree.avals)
    output_trees: list[TreeSpec] = []
    first, second = len(params_tree.avals), len(params_tree.avals) + len(hidden)
    third = second + len(other)

    def flat_step(*flat: Any) -> list[Any]:
        old_state = state_tree.unflatten(_join_state(flags, flat[first:second], flat[second:third]))
        result = step(params_tree.unflatten(flat[:first]), old_state, *input_tree.unflatten(flat[third:]))
        new_state, out = _checked_result(result, state_tree)
        output_trees.append(tree_spec(out, prefix=("output",)))
        new_hidden, new_other = _split_state(flags, jax.tree.leaves(new_state))
        return [*new_hidden, *new_other, *jax.tree.leaves(out)]

    with example_input_errors(inputs):
        closed_jaxpr = jax.make_jaxpr(flat_step)(*params_tree.avals, *hidden, *other, *input_tree.avals)
    return closed_jaxpr, output_trees[-1]


def _program(
    closed_jaxpr: Any,
    params_tree: TreeSpec,
    state_tree: TreeSpec,
    input_tree: TreeSpec,
    output_tree: TreeSpec,
    flags: Sequence[bool],
    control_flow: Any,
) -> StepProgram:
    avals = list(closed_jaxpr.in_avals)
    params = params_tree.leaves(avals[: len(params_tree.paths)])
    state_avals = avals[len(params) : len(params) + len(state_tree.paths)]
    state_leaves = state_tree.leaves(_join_state(flags, state_avals[: sum(flags)], state_avals[sum(flags) :]))
    hidden, other = _split_state(flags, state_leaves)
    return build_program(
        closed_jaxpr,
        params=params,
        hidden=tuple(hidden),
        other=tuple(other),
        inputs=input_tree.leaves(avals[len(params) + len(state_leaves) :]),
        outputs=output_tree.leaves(closed_jaxpr.out_avals[len(state_leaves) :]),
        control_flow=control_flow,
    )


def _checked_result(result: Any, state_tree: TreeSpec) -> tuple[Any, Any]:
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        found = f"{len(result)} values" if isinstance(result, (tuple, list)) else f"one value ({form_text(result)})"
        raise StateMismatchError(
            f"A step returns a pair `(state, out)`; this one returned {found}. Return the new state and what the loss "
            "reads, which may be the state again: `return state, state`."
        )
    new_state, out = result
    problem = structure_difference(state_tree, tree_spec(new_state, bare="state"))
    if problem:
        raise StateMismatchError(
            f"The state leaves the step in another form than it entered. {problem} "
            "A recurrent state keeps its structure and units: convert inside the step, or return the value as output."
        )
    return new_state, out


def _split_state(flags: Sequence[bool], leaves: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    both = list(zip(flags, leaves, strict=True))
    return [leaf for flag, leaf in both if flag], [leaf for flag, leaf in both if not flag]


def _join_state(flags: Sequence[bool], hidden: Sequence[Any], other: Sequence[Any]) -> list[Any]:
    remaining_hidden, remaining_other = iter(hidden), iter(other)
    return [next(remaining_hidden if flag else remaining_other) for flag in flags]
