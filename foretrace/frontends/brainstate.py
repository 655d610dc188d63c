"""A `brainstate.nn.Module` as a step program.

brainstate finds the states that a call of the model reads and writes; here each gets its role. A `ParamState` is
a parameter, one leaf per array of its value. A `HiddenState` (also the packed `HiddenGroupState` and
`HiddenTreeState`, whose last axis holds several states of one neuron) is hidden where it is floating. Everything else,
batch statistics and random keys among them, is carried along. The model itself is left exactly as it was found.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import brainstate

from foretrace._jax import ClosedJaxpr, close_jaxpr, is_float, new_jaxpr
from foretrace.errors import (
    EmptyModelError,
    NoRecurrentStateError,
    NotSupportedError,
    StateMismatchError,
    StateNotInitializedError,
)
from foretrace.frontends.guarded_call import guarded_call
from foretrace.frontends.module_info import ModuleInfo, Role, StateSlot
from foretrace.frontends.tracing import example_input_errors, input_spec, require_float
from foretrace.frontends.trees import TreeSpec, tree_spec
from foretrace.program.build import build_program
from foretrace.program.diagnostics import CompilationRecord, DiagnosticKind, DiagnosticLevel, Path
from foretrace.program.records import Leaf, StepProgram, path_name


def extract_module_info(
    model: brainstate.nn.Module, *model_args: Any, control_flow: Any = None, **model_kwargs: Any
) -> ModuleInfo:
    """Traces one call of a brainstate module to a step program.

    Args:
        model: The module, with its states initialised.
        *model_args: The inputs of one step; only shapes, dtypes and units matter.
        control_flow: What becomes of `cond`, `scan` and `while`; the default policy for None.
        **model_kwargs: Named inputs of one step.

    Returns:
        The program and the states that it came from.

    Raises:
        ExampleInputError: The model cannot take the example input.
        StateNotInitializedError: The model's states do not exist yet.
        StateMismatchError: A state leaves the step with another unit or structure than it entered with.
        NotSupportedError: The step writes a parameter, or a parameter is not floating.

    Examples:
        >>> import brainstate, jax.numpy as jnp
        >>> cell = brainstate.nn.GRUCell(3, 4)
        >>> _ = brainstate.nn.init_all_states(cell)
        >>> info = extract_module_info(cell, jnp.ones(3))
        >>> list(info.hidden_path_to_invar)
        [('h',)]
    """
    if not isinstance(model, brainstate.nn.Module):
        raise TypeError(f"`extract_module_info` takes a brainstate.nn.Module; got {type(model).__name__}.")
    input_tree = input_spec((model_args, model_kwargs))
    input_tree = dataclasses.replace(input_tree, paths=tuple(("input", *path[2:]) for path in input_tree.paths))
    retrieved = model.states()
    _make_random_keys(retrieved.values())
    stateful = brainstate.transform.StatefulFunction(guarded_call(model, retrieved), return_only_write=False)
    with example_input_errors((model_args, model_kwargs)), _initialisation_errors():
        stateful.make_jaxpr(*model_args, **model_kwargs)

    key = stateful.get_arg_cache_key(*model_args, **model_kwargs)
    states = tuple(stateful.get_states_by_cache(key))
    paths = _paths(states, retrieved)
    _refuse_written_parameters(stateful.get_write_states_by_cache(key), paths)
    out_shapes, _ = stateful.get_out_shapes_by_cache(key)
    slots = _slots(states, paths)
    output_tree = tree_spec(out_shapes, prefix=("output",))

    traced = stateful.get_jaxpr_by_cache(key)
    try:
        program = _program(traced, states, slots, input_tree, output_tree, control_flow)
    except (EmptyModelError, NoRecurrentStateError, StateMismatchError) as error:
        written = {id(state) for state in stateful.get_write_states_by_cache(key)}
        raise type(error)(f"{error} {_advice(error, states, slots, written)}") from error
    records = (*_untouched_records(retrieved, states), *_not_floating_records(states, slots))
    program = dataclasses.replace(program, diagnostics=(*records, *program.diagnostics))
    return _module_info(
        model, stateful, program, retrieved, states, slots, paths, input_tree, output_tree, control_flow
    )


def _advice(error: Exception, states: Sequence[brainstate.State], slots: Sequence[StateSlot], written: set[int]) -> str:
    """What a module that cannot be compiled probably lacks."""
    if isinstance(error, StateMismatchError):
        return (
            "For a batch, the states are made for it: pass `batch_size=` to `foretrace.compile`, or to "
            "`brainstate.nn.init_all_states`."
        )
    if isinstance(error, EmptyModelError):
        return "What is to be trained is a `brainstate.ParamState`."
    carried = [
        f"`{path_name(slot.path)}` ({type(state).__name__})"
        for state, slot in zip(states, slots, strict=True)
        if id(state) in written and all(is_float(aval) for aval in slot.tree.avals)
    ]
    found = f" The step writes {', '.join(carried)}." if carried else ""
    return f"A state with a history is a `brainstate.HiddenState`.{found}"


def _make_random_keys(states: Iterable[brainstate.State]) -> None:
    """brainstate makes a random state's key when it is first read, which must not happen within the trace.

    Not by a read, which would count as a use: a `vmap` around this would draw from the state.
    """
    for state in (brainstate.random.DEFAULT, *states):
        if isinstance(state, brainstate.random.RandomState):
            state.check_if_deleted()


@contextmanager
def _initialisation_errors() -> Iterator[None]:
    """Tells a state that `init_state` would have made from any other missing attribute."""
    try:
        yield
    except AttributeError as error:
        owner = type(error.obj)
        makers = [vars(base)["init_state"] for base in owner.__mro__ if "init_state" in vars(base)]
        if not any(error.name in getattr(getattr(maker, "__code__", None), "co_names", ()) for maker in makers):
            raise
        raise StateNotInitializedError(
            f"The state `{error.name}` of {owner.__name__} does not exist yet. "
            "Call `brainstate.nn.init_all_states(model)` (with `batch_size=...` for batches) before tracing the model."
        ) from error


def _paths(states: Sequence[brainstate.State], retrieved: Mapping[Path, brainstate.State]) -> dict[int, Path]:
    """The path of each state by `id`; states that the step uses but the model does not hold are called external."""
    paths = {id(state): path for path, state in retrieved.items()}
    taken = set(paths.values())
    for state in states:
        if id(state) in paths:
            continue
        path: Path = ("external", type(state).__name__)
        number = 1
        while path in taken:
            path, number = ("external", type(state).__name__, number), number + 1
        paths[id(state)] = path
        taken.add(path)
    return paths


def _refuse_written_parameters(written: Sequence[brainstate.State], paths: Mapping[int, Path]) -> None:
    names = [f"`{path_name(paths[id(state)])}`" for state in written if isinstance(state, brainstate.ParamState)]
    if names:
        raise NotSupportedError(
            f"The step writes to the parameter {', '.join(names)}. A parameter is constant within a step: update it "
            "with the gradient outside, or make it a HiddenState or ShortTermState if it is part of the dynamics."
        )


def _slots(states: Sequence[brainstate.State], paths: Mapping[int, Path]) -> tuple[StateSlot, ...]:
    counts = dict.fromkeys(Role, 0)
    slots = []
    for state in states:
        path = paths[id(state)]
        tree = tree_spec(state.value, prefix=path)
        role = _role(state, tree)
        if role is Role.PARAM:
            require_float(tree)
        slots.append(StateSlot(path, role, counts[role], tree))
        counts[role] += len(tree.paths)
    return tuple(slots)


def _role(state: brainstate.State, tree: TreeSpec) -> Role:
    if isinstance(state, brainstate.ParamState):
        return Role.PARAM
    if isinstance(state, brainstate.HiddenState) and all(is_float(aval) for aval in tree.avals):
        return Role.HIDDEN
    return Role.OTHER


def _program(
    traced: ClosedJaxpr,
    states: Sequence[brainstate.State],
    slots: Sequence[StateSlot],
    input_tree: TreeSpec,
    output_tree: TreeSpec,
    control_flow: Any,
) -> StepProgram:
    """brainstate's jaxpr, `(inputs, states) -> (output, states)`, with the values in the program's order."""
    input_count, output_count = len(input_tree.paths), len(output_tree.paths)
    invars: dict[Role, list[Any]] = {role: [] for role in Role}
    outvars: dict[Role, list[Any]] = {role: [] for role in Role}
    leaves: dict[Role, list[Leaf]] = {role: [] for role in Role}
    start = 0
    for state, slot in zip(states, slots, strict=True):
        stop = start + len(slot.tree.paths)
        entering = traced.jaxpr.invars[input_count + start : input_count + stop]
        invars[slot.role] += entering
        outvars[slot.role] += traced.jaxpr.outvars[output_count + start : output_count + stop]
        packed = slot.role is Role.HIDDEN and isinstance(state, brainstate.HiddenGroupState)
        leaves[slot.role] += slot.tree.leaves([var.aval for var in entering], slot.path, packed)
        start = stop
    input_vars, output_vars = traced.jaxpr.invars[:input_count], traced.jaxpr.outvars[:output_count]
    ordered = new_jaxpr(
        traced.jaxpr.constvars,
        [*invars[Role.PARAM], *invars[Role.HIDDEN], *invars[Role.OTHER], *input_vars],
        [*outvars[Role.HIDDEN], *outvars[Role.OTHER], *output_vars],
        traced.jaxpr.eqns,
    )
    return build_program(
        close_jaxpr(ordered, traced.consts),
        params=tuple(leaves[Role.PARAM]),
        hidden=tuple(leaves[Role.HIDDEN]),
        other=tuple(leaves[Role.OTHER]),
        inputs=input_tree.leaves([var.aval for var in input_vars]),
        outputs=output_tree.leaves([var.aval for var in output_vars]),
        control_flow=control_flow,
    )


def _untouched_records(
    retrieved: Mapping[Path, brainstate.State], touched: Sequence[brainstate.State]
) -> list[CompilationRecord]:
    """Says which parameters and hidden states the model holds without using them in the step."""
    touched_ids = {id(state) for state in touched}
    records = []
    for path, state in retrieved.items():
        if id(state) in touched_ids:
            continue
        if isinstance(state, brainstate.ParamState):
            message = f"Parameter `{path_name(path)}` is not used in the step and gets no gradient."
            kind, level = DiagnosticKind.PARAMETER_UNUSED, DiagnosticLevel.WARNING
            records.append(CompilationRecord(kind, level, message, weight_path=path))
        elif isinstance(state, brainstate.HiddenState):
            message = f"Hidden state `{path_name(path)}` is neither read nor written in the step and is left alone."
            kind, level = DiagnosticKind.STATE_UNTOUCHED, DiagnosticLevel.INFO
            records.append(CompilationRecord(kind, level, message, hidden_paths=(path,)))
    return records


def _not_floating_records(states: Sequence[brainstate.State], slots: Sequence[StateSlot]) -> list[CompilationRecord]:
    """Says which hidden states are carried along because they have no derivative."""
    return [
        CompilationRecord(
            DiagnosticKind.STATE_MISMATCH,
            DiagnosticLevel.INFO,
            f"Hidden state `{path_name(slot.path)}` is {slot.tree.avals[0].dtype}, which has no derivative: "
            "it is carried along without credit.",
            hidden_paths=(slot.path,),
            context={"dtype": str(slot.tree.avals[0].dtype)},
        )
        for state, slot in zip(states, slots, strict=True)
        if isinstance(state, brainstate.HiddenState) and slot.role is Role.OTHER
    ]


def _module_info(
    model: brainstate.nn.Module,
    stateful: brainstate.transform.StatefulFunction,
    program: StepProgram,
    retrieved: Mapping[Path, brainstate.State],
    states: tuple[brainstate.State, ...],
    slots: tuple[StateSlot, ...],
    paths: dict[int, Path],
    input_tree: TreeSpec,
    output_tree: TreeSpec,
    control_flow: Any,
) -> ModuleInfo:
    """The record, with the maps between paths and the program's variables."""
    invars = {Role.PARAM: program.param_invars, Role.HIDDEN: program.hidden_invars, Role.OTHER: program.other_invars}
    outvars = {**invars, Role.HIDDEN: program.hidden_outvars, Role.OTHER: program.other_outvars}
    entering = {slot.path: list(slot.take(invars[slot.role])) for slot in slots}
    leaving = {slot.path: list(slot.take(outvars[slot.role])) for slot in slots}
    hidden = [slot.path for slot in slots if slot.role is Role.HIDDEN]
    weights = {slot.path: entering[slot.path] for slot in slots if slot.role is Role.PARAM}
    return ModuleInfo(
        model=model,
        stateful_model=stateful,
        program=program,
        closed_jaxpr=program.closed_jaxpr,
        retrieved_model_states=retrieved,
        compiled_model_states=states,
        slots=slots,
        state_id_to_path=paths,
        state_tree_invars=[slot.tree.unflatten_without_units(entering[slot.path]) for slot in slots],
        state_tree_outvars=[slot.tree.unflatten_without_units(leaving[slot.path]) for slot in slots],
        hidden_path_to_invar={path: entering[path][0] for path in hidden},
        hidden_path_to_outvar={path: leaving[path][0] for path in hidden},
        invar_to_hidden_path={entering[path][0]: path for path in hidden},
        outvar_to_hidden_path={leaving[path][0]: path for path in hidden},
        hidden_outvar_to_invar={leaving[path][0]: entering[path][0] for path in hidden},
        weight_invars=list(program.param_invars),
        weight_path_to_invars=weights,
        invar_to_weight_path={var: path for path, variables in weights.items() for var in variables},
        num_var_out=len(program.outputs),
        num_var_state=sum(len(slot.tree.paths) for slot in slots),
        input_tree=input_tree,
        output_tree=output_tree,
        control_flow=control_flow,
    )
