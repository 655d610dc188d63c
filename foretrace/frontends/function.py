"""A plain function `step(params, state, *inputs) -> (state, out)` as a step program.

Params, state, inputs and output are any pytrees, quantities included. Floating arrays of the state are hidden states,
whose history is credited; integers, booleans and random keys are carried along. Units are taken off here and put back
by the methods of `FunctionModel`, so that everything behind it computes with plain arrays.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from foretrace._checks import call_problem
from foretrace._jax import is_float
from foretrace.errors import ExampleInputError, StateMismatchError
from foretrace.frontends.tracing import example_input_errors, input_spec, require_float
from foretrace.frontends.trees import TRACED, TreeSpec, form_text, structure_difference, tree_spec
from foretrace.program.build import build_program
from foretrace.program.records import StepProgram

Step = Callable[..., tuple[Any, Any]]


@dataclass(frozen=True, eq=False)
class FunctionModel:
    """A traced step function, and the way between its pytrees and the program's flat arrays.

    Attributes:
        step: The user's function.
        program: One step of it.
        params_tree: The form of the parameters.
        state_tree: The form of the state, hidden and other arrays together.
        input_tree: The form of the tuple of inputs.
        output_tree: The form of what the step returns beside the state.
    """

    step: Step
    program: StepProgram
    params_tree: TreeSpec
    state_tree: TreeSpec
    input_tree: TreeSpec
    output_tree: TreeSpec

    def with_program(self, program: StepProgram) -> "FunctionModel":
        """The same model, told by an equivalent program."""
        return dataclasses.replace(self, program=program)

    def flatten_params(self, params: Any) -> list[Any]:
        """The arrays of the parameters, in the program's order."""
        return self.params_tree.flatten(params, advice=f"These are the parameters. {TRACED}")

    def unflatten_params(self, leaves: Sequence[Any]) -> Any:
        """Parameters, or anything that has one array per parameter (gradients), from the program's arrays."""
        return self.params_tree.unflatten(leaves)

    def flatten_state(self, state: Any) -> tuple[list[Any], list[Any]]:
        """The hidden arrays and the other arrays of a state."""
        return _split_state(self.state_tree, self.state_tree.flatten(state, StateMismatchError))

    def unflatten_state(self, hidden: Sequence[Any], other: Sequence[Any]) -> Any:
        """A state from its hidden and its other arrays."""
        return self.state_tree.unflatten(_join_state(self.state_tree, hidden, other))

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
    if not example_inputs:
        raise ExampleInputError(
            "No example input was given. Pass the input of one step after the step function; "
            "for a step without input, let it take a dummy scalar."
        )
    _check_signature(step, len(example_inputs))
    params_tree, state_tree = _arrays("params", params), _arrays("state", state)
    input_tree = input_spec(example_inputs)
    require_float(params_tree)
    closed_jaxpr, output_tree = _trace(step, params_tree, state_tree, input_tree, example_inputs)
    return FunctionModel(
        step=step,
        program=_program(closed_jaxpr, params_tree, state_tree, input_tree, output_tree, control_flow),
        params_tree=params_tree,
        state_tree=state_tree,
        input_tree=input_tree,
        output_tree=output_tree,
    )


def _check_signature(step: Step, count: int) -> None:
    """Refuses a step that cannot be called with parameters, state and inputs, before it is called."""
    problem = call_problem(step, 2 + count)
    if problem is None:
        return
    name = getattr(step, "__name__", type(step).__name__)
    hint = ""
    if jax.tree.leaves(step) != [step]:
        hint = (
            f" `{name}` is a tree of parameters itself: pass it as `params=`, and as the step a function that calls "
            "it, such as `def step(module, state, x): state = module(x, state); return state, state`."
        )
    raise TypeError(
        f"A step is called as `step(params, state, *inputs)`, here with {count} input(s), and `{name}` cannot be: "
        f"{problem}.{hint}"
    )


def _arrays(name: str, value: Any) -> TreeSpec:
    """The form of parameters or a state, which hold arrays alone."""
    try:
        return tree_spec(value, bare=name)
    except TypeError as error:
        raise TypeError(
            f"`{name}` is a pytree of arrays, and {error} Keep functions and settings out of the tree: close over them "
            "in the step, or split the module, as `equinox.partition(module, equinox.is_inexact_array)` does, and join "
            "it inside of the step."
        ) from error


def _trace(
    step: Step, params_tree: TreeSpec, state_tree: TreeSpec, input_tree: TreeSpec, inputs: Any
) -> tuple[Any, TreeSpec]:
    """The flat step in the program's order, and the form of its output."""
    hidden, other = _split_state(state_tree, state_tree.avals)
    output_trees: list[TreeSpec] = []
    first, second = len(params_tree.avals), len(params_tree.avals) + len(hidden)
    third = second + len(other)

    def flat_step(*flat: Any) -> list[Any]:
        old_state = state_tree.unflatten(_join_state(state_tree, flat[first:second], flat[second:third]))
        result = step(params_tree.unflatten(flat[:first]), old_state, *input_tree.unflatten(flat[third:]))
        new_state, out = _checked_result(result, state_tree)
        output_trees.append(tree_spec(out, prefix=("output",)))
        new_hidden, new_other = _split_state(state_tree, jax.tree.leaves(new_state))
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
    control_flow: Any,
) -> StepProgram:
    avals = list(closed_jaxpr.in_avals)
    params = params_tree.leaves(avals[: len(params_tree.paths)])
    state_avals = avals[len(params) : len(params) + len(state_tree.paths)]
    hidden_count = len(_split_state(state_tree, state_tree.avals)[0])
    state_leaves = state_tree.leaves(_join_state(state_tree, state_avals[:hidden_count], state_avals[hidden_count:]))
    hidden, other = _split_state(state_tree, state_leaves)
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


def _split_state(state_tree: TreeSpec, leaves: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    hidden: list[Any] = []
    other: list[Any] = []
    for aval, leaf in zip(state_tree.avals, leaves, strict=True):
        (hidden if is_float(aval) else other).append(leaf)
    return hidden, other


def _join_state(state_tree: TreeSpec, hidden: Sequence[Any], other: Sequence[Any]) -> list[Any]:
    remaining_hidden, remaining_other = iter(hidden), iter(other)
    return [next(remaining_hidden if is_float(aval) else remaining_other) for aval in state_tree.avals]
