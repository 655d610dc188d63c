"""The traced model: one step of any model as a step program, and the way between the model's values and flat arrays.

`trace_model` traces the step of a model that a frontend takes apart. Params, state, inputs and output are any
pytrees, quantities included. Floating arrays of the state are hidden states, whose history is credited, unless the
frontend says otherwise; integers, booleans and random keys are carried along. Units are taken off here and put back by
the methods of `TracedModel`, so that everything behind it computes with plain arrays.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax

from foretrace._jax import is_float
from foretrace._repr import counted, one_line
from foretrace._units import unit_errors
from foretrace.errors import CompilationError, ExampleInputError, NotSupportedError, StateMismatchError
from foretrace.frontends.base import FlatStep, Split, Step, frontend_of
from foretrace.frontends.trees import TRACED, Form, TreeSpec, form_text, structure_difference, tree_spec
from foretrace.program.build import build_program
from foretrace.program.diagnostics import Path
from foretrace.program.records import Leaf, StepProgram, path_name

_MISFIT = (TypeError, ValueError, IndexError, AssertionError)
_PASS_THROUGH = (CompilationError, jax.errors.JAXTypeError, jax.errors.JAXIndexError)


@dataclass(frozen=True, eq=False)
class TracedModel:
    """A traced model, and the way between its own values and the program's flat arrays.

    Attributes:
        split: The model taken apart: its step, and the parameters and state that it begins with.
        program: One step of it.
        flat: The traced step before the passes that made the program, with the forms of all values.
    """

    split: Split
    program: StepProgram
    flat: FlatStep

    @one_line
    def __repr__(self) -> Iterator[str]:
        yield getattr(self.step, "__name__", type(self.step).__name__)
        yield counted(len(self.program.params), "parameter")
        yield counted(len(self.program.hidden), "state")

    @property
    def step(self) -> Step:
        """The function `step(params, state, *inputs) -> (state, out)`."""
        return self.split.step

    def owner(self, leaf: Leaf) -> Any:
        """The object of the model's library that holds an array of the program; the leaf itself where there is none."""
        return self.split.owner(leaf)

    def with_program(self, program: StepProgram) -> "TracedModel":
        """The same model, told by an equivalent program."""
        return dataclasses.replace(self, program=program)

    def flatten_params(self, params: Any) -> list[Any]:
        """The arrays of the parameters, in the program's order; they may be given as the whole model."""
        return self.flat.params.flatten(self.split.params_of(params), advice=f"These are the parameters. {TRACED}")

    def unflatten_params(self, leaves: Sequence[Any]) -> Any:
        """Parameters, or anything that has one array per parameter (gradients), from the program's arrays."""
        return self.flat.params.unflatten(leaves)

    def flatten_state(self, state: Any) -> tuple[list[Any], list[Any]]:
        """The hidden arrays and the other arrays of a state."""
        flat = self.flat.state.flatten(self.split.state_of(state), StateMismatchError)
        return split_state(self.flat.hidden, flat)

    def unflatten_state(self, hidden: Sequence[Any], other: Sequence[Any]) -> Any:
        """A state from its hidden and its other arrays."""
        return self.flat.state.unflatten(join_state(self.flat.hidden, hidden, other))

    def as_inputs(self, xs: Any) -> tuple[Any, ...]:
        """A step's inputs, or sequences of them, as the tuple that the step takes; one input may stand alone."""
        args, named = self.flat.inputs.skeleton.children()
        if named.num_leaves:
            raise NotSupportedError("A step that takes inputs by name is driven by `etrace_grad` and its like alone.")
        return xs if len(args.children()) > 1 else (xs,)

    def flatten_inputs(self, *args: Any, **kwargs: Any) -> list[Any]:
        """The arrays of one step's inputs."""
        return self.flat.inputs.flatten((args, kwargs), ExampleInputError)

    def unflatten_output(self, leaves: Sequence[Any]) -> Any:
        """What the step returned, from the program's outputs."""
        return self.flat.outputs.unflatten(leaves)


def trace_model(
    model: Any, *inputs: Any, params: Any = None, state: Any = None, control_flow: Any = None, **how: Any
) -> TracedModel:
    """The one door: traces one step of a model of any library.

    Args:
        model: A module of brainstate, Flax NNX, Flax linen or Equinox, or a function
            `step(params, state, *inputs) -> (state, out)`.
        *inputs: The inputs of one step.
        params: The parameters of a step function, the variables of a linen module.
        state: The state before the first step, where the model does not hold or make it.
        control_flow: What becomes of `cond`, `scan` and `while`; the default policy for None.
        **how: Options of the model's frontend.

    Returns:
        The program, with the ways between the model's own values and flat arrays.

    Raises:
        TypeError: This is no model, or `params` and `state` do not go with it.
        ExampleInputError: No example input, or one that the step cannot take.
        StateMismatchError: The step does not give back a state of the form that it took.
        NotSupportedError: A parameter is not floating.

    Examples:
        >>> import jax.numpy as jnp
        >>> def step(params, state, x):
        ...     return params * state + x, state
        >>> model = trace_model(step, jnp.ones(3), params=jnp.ones(3), state=jnp.zeros(3))
        >>> len(model.program.hidden)
        1
    """
    frontend = frontend_of(model)
    unknown = [option for option in how if option not in frontend.options]
    if unknown:
        given, takes = (", ".join(f"`{option}`" for option in some) for some in (unknown, frontend.options))
        raise TypeError(f"{given} is no option for a model of kind `{frontend.name}`. It takes {takes or 'none'}.")
    split = frontend.split(model, inputs, params=params, state=state, **how)
    if not inputs and split.flat is None:
        raise ExampleInputError(
            "No example input was given. Pass the input of one step after the step function; "
            "for a step without input, let it take a dummy scalar."
        )
    flat = split.flat or _flat_step(split, inputs)
    with advised(CompilationError, flat.advice or (lambda error: None)):
        return TracedModel(split, _program(flat, control_flow), flat)


def _flat_step(split: Split, inputs: tuple[Any, ...]) -> FlatStep:
    """The step in the program's order, on flat arrays."""
    params = _arrays("params", split.params, split.param_paths)
    state = _arrays("state", split.state, split.state_paths)
    input_tree = input_spec(inputs, {})
    require_float(params)
    recurrent = split.hidden or (True,) * len(state.avals)
    flags = tuple(bool(flag and is_float(aval)) for flag, aval in zip(recurrent, state.avals, strict=True))
    outputs: list[TreeSpec] = []

    def step(weights: Any, hidden: Any, other: Any, given: Any) -> Any:
        args, kwargs = input_tree.unflatten(given)
        before = state.unflatten(join_state(flags, hidden, other))
        after, out = _checked_result(split.step(params.unflatten(weights), before, *args, **kwargs), state)
        outputs.append(tree_spec(out, prefix=("output",)))
        return split_state(flags, jax.tree.leaves(after)), jax.tree.leaves(out)

    with example_input_errors(inputs):
        closed = jax.make_jaxpr(step)(params.avals, *split_state(flags, state.avals), input_tree.avals)
    return FlatStep(closed, params, state, flags, input_tree, outputs[-1])


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


def _program(flat: FlatStep, control_flow: Any) -> StepProgram:
    avals = list(flat.closed_jaxpr.in_avals)
    first, count, states = len(flat.params.paths), sum(flat.hidden), len(flat.hidden)
    entering = avals[first : first + states]
    leaves = flat.state.leaves(join_state(flat.hidden, entering[:count], entering[count:]))
    hidden, other = split_state(flat.hidden, leaves)
    program = build_program(
        flat.closed_jaxpr,
        params=flat.params.leaves(avals[:first]),
        hidden=tuple(hidden),
        other=tuple(other),
        inputs=flat.inputs.leaves(avals[first + states :]),
        outputs=flat.outputs.leaves(flat.closed_jaxpr.out_avals[states:]),
        control_flow=control_flow,
    )
    return dataclasses.replace(program, diagnostics=(*flat.records, *program.diagnostics))


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


def split_state(flags: Sequence[bool], leaves: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The hidden and the other ones of the arrays of a state."""
    both = list(zip(flags, leaves, strict=True))
    return [leaf for flag, leaf in both if flag], [leaf for flag, leaf in both if not flag]


def join_state(flags: Sequence[bool], hidden: Sequence[Any], other: Sequence[Any]) -> list[Any]:
    """The arrays of a state from the hidden and the other ones."""
    remaining_hidden, remaining_other = iter(hidden), iter(other)
    return [next(remaining_hidden if flag else remaining_other) for flag in flags]


@contextmanager
def example_input_errors(inputs: Any) -> Iterator[None]:
    """Turns an exception over shapes, types or units inside the block into an `ExampleInputError` that it causes.

    A step that raises over these was most likely given an example input that does not fit. What JAX itself says about
    tracers, errors of this package, and every other exception are the user's to read and pass through untouched.
    """
    try:
        yield
    except _PASS_THROUGH:
        raise
    except Exception as error:
        if not isinstance(error, (*_MISFIT, *unit_errors())):
            raise
        raise ExampleInputError(
            f"The step cannot be traced with the example input ({form_text(inputs)}). It raised "
            f"{type(error).__name__}: {error} "
            "If the step itself is right, pass one step's input with the shape, dtype and unit that it takes."
        ) from error


@contextmanager
def advised(kind: type[CompilationError], advice: Callable[[CompilationError], str | None]) -> Iterator[None]:
    """Adds to an error of a kind inside the block what was probably meant, where that can be said of it."""
    try:
        yield
    except kind as error:
        text = advice(error)
        if text is None:
            raise
        raise type(error)(f"{error} {text}") from error


def input_spec(args: Any, kwargs: Any) -> TreeSpec:
    """The form of `(args, kwargs)`, the example inputs; what is not an array is refused."""
    try:
        parts = [tree_spec(part, prefix=("input",)) for part in (args, kwargs)]
    except TypeError as error:
        raise ExampleInputError(
            f"The example input ({form_text((args, kwargs))}) holds something that is no array: {error} "
            "Inputs are arrays, scalars, quantities, or pytrees of them."
        ) from error
    return dataclasses.replace(tree_spec((args, kwargs)), paths=parts[0].paths + parts[1].paths)


def require_float(spec: Form) -> None:
    """Refuses parameters that carry no derivative, all of them at once."""
    wrong = [
        f"`{path_name(path)}` ({aval.dtype})"
        for path, aval in zip(spec.paths, spec.avals, strict=True)
        if not is_float(aval)
    ]
    if wrong:
        raise NotSupportedError(
            f"Not floating, so not trainable: {', '.join(wrong)}. "
            "Keep integers, masks and random keys in the state, in the inputs, or as constants of the step."
        )
