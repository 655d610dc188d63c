"""A `brainstate.nn.Module` taken apart: parameters and states by path.

brainstate finds the states that a call of the model reads and writes; here each gets its role. A `ParamState` is
a parameter, one leaf per array of its value. A `HiddenState` (also the packed `HiddenGroupState` and
`HiddenTreeState`, whose last axis holds several states of one neuron) is hidden where it is floating. Everything else,
batch statistics and random keys among them, is carried along. The model itself is left exactly as it was found.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import brainstate
import jax
import jax.numpy as jnp

from foretrace._jax import ClosedJaxpr, close_jaxpr, is_float, new_jaxpr
from foretrace.errors import (
    CompilationError,
    EmptyModelError,
    ExampleInputError,
    NoRecurrentStateError,
    NotSupportedError,
    StateMismatchError,
    StateNotInitializedError,
)
from foretrace.frontends.base import FlatStep, Split, same
from foretrace.frontends.guarded_call import guarded_call
from foretrace.frontends.traced import advised, example_input_errors, input_spec, require_float, split_state
from foretrace.frontends.trees import PathForm, TreeSpec, tree_spec
from foretrace.program.diagnostics import CompilationRecord, DiagnosticKind, DiagnosticLevel, Path
from foretrace.program.records import Leaf, path_name

States = dict[Path, brainstate.State]

_FOR_A_BATCH = (
    "For a batch, the states are made for it: pass `batch_size=` to `foretrace.compile`, or to "
    "`brainstate.nn.init_all_states`."
)

name = "brainstate"
options = ("named",)
holder = "foretrace.learners.vmap"


def accepts(model: Any) -> bool:
    """Whether this is a brainstate module."""
    return isinstance(model, brainstate.nn.Module)


def split(
    model: Any, inputs: tuple[Any, ...], *, params: Any = None, state: Any = None, named: Any = None
) -> "ModuleSplit":
    """Takes a module apart; the module is left as it is.

    Args:
        model: The module.
        inputs: The example inputs of one step.
        params: None: the module holds its parameters.
        state: None, likewise.
        named: Example inputs of one step that are given by name.
    """
    if params is not None or state is not None:
        raise TypeError(
            f"{type(model).__name__} is a brainstate module, which holds its own parameters and states: "
            "leave out `params` and `state`."
        )
    named = {} if named is None else dict(named)
    input_tree = input_spec(inputs, named)
    model_states = model.states()
    _make_random_keys(model_states.values())
    stateful = brainstate.transform.StatefulFunction(guarded_call(model), return_only_write=False)
    like_a_batch = lambda: any(jnp.ndim(leaf) > 1 for leaf in jax.tree.leaves((inputs, named)))
    advice = advised(ExampleInputError, lambda error: _FOR_A_BATCH if like_a_batch() else None)
    with advice, example_input_errors((inputs, named)), _initialisation_errors():
        stateful.make_jaxpr(*inputs, **named)
    key = stateful.get_arg_cache_key(*inputs, **named)
    used = _by_path(stateful.get_states_by_cache(key), model_states)
    written = {id(state) for state in stateful.get_write_states_by_cache(key)}
    _refuse_written_parameters({path: state for path, state in used.items() if id(state) in written})
    outputs = tree_spec(stateful.get_out_shapes_by_cache(key)[0], prefix=("output",))
    flat = _flat_step(stateful.get_jaxpr_by_cache(key), used, model_states, input_tree, outputs, written)
    return ModuleSplit(model, stateful, model_states, used, flat)


class ModuleSplit(Split):
    """A brainstate module taken apart. Its values change in place, and are read when they are asked for.

    Args:
        model: The module.
        stateful: The traced function of brainstate.
        model_states: All states that the model had when it was traced, by path.
        used: The states that the step reads or writes, in the order of their first use; some it may not hold.
        flat: The traced step.
    """

    def __init__(
        self,
        model: brainstate.nn.Module,
        stateful: brainstate.transform.StatefulFunction,
        model_states: Mapping[Path, brainstate.State],
        used: States,
        flat: FlatStep,
    ) -> None:
        vars(self).update(model=model, stateful=stateful, model_states=model_states, used=used, flat=flat)
        vars(self).update(param_form=flat.params, state_form=flat.state, params_of=same, state_of=same)

    model: brainstate.nn.Module
    stateful: brainstate.transform.StatefulFunction
    model_states: Mapping[Path, brainstate.State]
    used: States
    param_form: PathForm
    state_form: PathForm

    @property
    def params(self) -> dict[Path, Any]:
        """The parameters by path, as they are now."""
        return {p: state.value for p, state in self.states().items() if isinstance(state, brainstate.ParamState)}

    @property
    def state(self) -> dict[Path, Any]:
        """The states by path that the step uses, as they are now."""
        return self.values(self.state_form.parts)

    def values(self, paths: Iterable[Path]) -> dict[Path, Any]:
        """The values that some states have now."""
        states = self.states()
        return {path: states[path].value for path in paths}

    def states(self) -> States:
        """The states that the model has now, and those that its step uses without holding them.

        By path, since `brainstate.nn.init_all_states` makes states anew.
        """
        found = dict(self.model.states().items())
        own = set(map(id, found.values()))
        for path, state in self.used.items():
            if id(state) not in own:
                found.setdefault(path, state)
        return found

    def bound(self) -> States:
        """The states of the traced step as the model has them now, in the order of their first use."""
        found = self.states()
        return {path: found[path] for path in self.used}

    def owner(self, leaf: Leaf) -> Any:
        """The state that holds an array of the program."""
        return self.used[leaf.owner]

    def step(self, params: Any, state: Any, *args: Any) -> tuple[Any, Any]:
        """One step as a pure function of values by path; the module's own states are left as they are."""
        states = self.states()
        # All states, also those that this step does not know, end with the values that they had.
        with _with_values({**states, ("random",): brainstate.random.DEFAULT}, {**params, **state}):
            out = self.model(*args)
            return {path: states[path].value for path in state}, out

    def evaluated(self, params: Any, state: Any, *args: Any) -> tuple[Any, Any]:
        """The step as it is used after training."""
        with brainstate.environ.context(fit=False):
            return self.step(params, state, *args)


@contextmanager
def _with_values(states: Mapping[Path, brainstate.State], values: Mapping[Path, Any]) -> Iterator[None]:
    """Within the block, states have these values, and afterwards the ones that they had before."""
    with brainstate.StateTraceStack():  # brainstate lets no traced value into a state elsewhere
        before = {path: state.value for path, state in states.items()}
        try:
            for path, value in values.items():
                states[path].value = value
            yield
        finally:
            for path, value in before.items():
                states[path].value = value


def _flat_step(
    traced: ClosedJaxpr,
    used: States,
    model_states: Mapping[Path, brainstate.State],
    inputs: TreeSpec,
    outputs: TreeSpec,
    written: set[int],
) -> FlatStep:
    touched = set(map(id, used.values()))
    specs = {path: tree_spec(state.value, prefix=path) for path, state in used.items()}
    floating = {path for path, spec in specs.items() if all(is_float(aval) for aval in spec.avals)}
    flags = {path: path in floating and isinstance(used[path], brainstate.HiddenState) for path in specs}
    params = PathForm(
        {path: spec for path, spec in specs.items() if isinstance(used[path], brainstate.ParamState)},
        {
            path: tree_spec(state.value, prefix=path)
            for path, state in model_states.items()
            if isinstance(state, brainstate.ParamState) and id(state) not in touched
        },
    )
    require_float(params)
    packed = frozenset(p for p, state in used.items() if flags[p] and isinstance(state, brainstate.HiddenGroupState))
    state = PathForm({path: spec for path, spec in specs.items() if path not in params.parts}, packed=packed)
    hidden = tuple(flags[path] for path, spec in state.parts.items() for _ in spec.paths)
    records = (*_untouched_records(model_states, touched), *_not_floating_records(used, flags, specs))
    carried = [
        f"`{path_name(path)}` ({type(used[path]).__name__})"
        for path in specs
        if path in floating and id(used[path]) in written
    ]
    closed = _ordered(traced, PathForm(specs), params, state, hidden, len(inputs.paths), len(outputs.paths))
    return FlatStep(closed, params, state, hidden, inputs, outputs, records, lambda error: _advice(error, carried))


def _ordered(
    traced: ClosedJaxpr,
    used: PathForm,
    params: PathForm,
    state: PathForm,
    hidden: Sequence[bool],
    inputs: int,
    outputs: int,
) -> ClosedJaxpr:
    """brainstate's jaxpr, `(inputs, states) -> (output, states)`, with the values in the program's order."""
    entering, leaving = used.by_path(traced.jaxpr.invars[inputs:]), used.by_path(traced.jaxpr.outvars[outputs:])
    weights = [var for path in params.parts for var in entering[path]]
    before = split_state(hidden, [var for path in state.parts for var in entering[path]])
    after = split_state(hidden, [var for path in state.parts for var in leaving[path]])
    invars = [*weights, *before[0], *before[1], *traced.jaxpr.invars[:inputs]]
    outvars = [*after[0], *after[1], *traced.jaxpr.outvars[:outputs]]
    return close_jaxpr(new_jaxpr(traced.jaxpr.constvars, invars, outvars, traced.jaxpr.eqns), traced.consts)


def _advice(error: CompilationError, carried: Sequence[str]) -> str | None:
    """What a module that cannot be compiled probably lacks."""
    if isinstance(error, StateMismatchError):
        return _FOR_A_BATCH
    if isinstance(error, EmptyModelError):
        return "What is to be trained is a `brainstate.ParamState`."
    if not isinstance(error, NoRecurrentStateError):
        return None
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


def _by_path(states: Sequence[brainstate.State], model_states: Mapping[Path, brainstate.State]) -> States:
    """States by path; those that the step uses but the model does not hold are called external."""
    paths: dict[int, Path] = {id(state): path for path, state in model_states.items()}
    for state in states:
        if id(state) not in paths:
            name = ("external", type(state).__name__)
            number = sum(path[:2] == name for path in paths.values())
            paths[id(state)] = (*name, number) if number else name
    return {paths[id(state)]: state for state in states}


def _refuse_written_parameters(written: States) -> None:
    names = [f"`{path_name(path)}`" for path, state in written.items() if isinstance(state, brainstate.ParamState)]
    if names:
        raise NotSupportedError(
            f"The step writes to the parameter {', '.join(names)}. A parameter is constant within a step: update it "
            "with the gradient outside, or make it a HiddenState or ShortTermState if it is part of the dynamics."
        )


def _untouched_records(model_states: Mapping[Path, brainstate.State], touched: set[int]) -> Iterator[CompilationRecord]:
    """Says which parameters and hidden states the model holds without using them in the step."""
    for path, state in model_states.items():
        if isinstance(state, brainstate.ParamState) and id(state) not in touched:
            message = f"Parameter `{path_name(path)}` is not used in the step and gets no gradient."
            kind, level = DiagnosticKind.PARAMETER_UNUSED, DiagnosticLevel.WARNING
            yield CompilationRecord(kind, level, message, weight_path=path)
        elif isinstance(state, brainstate.HiddenState) and id(state) not in touched:
            message = f"Hidden state `{path_name(path)}` is neither read nor written in the step and is left alone."
            kind, level = DiagnosticKind.STATE_UNTOUCHED, DiagnosticLevel.INFO
            yield CompilationRecord(kind, level, message, hidden_paths=(path,))


def _not_floating_records(
    states: States, flags: Mapping[Path, bool], specs: Mapping[Path, TreeSpec]
) -> list[CompilationRecord]:
    """Says which hidden states are carried along because they have no derivative."""
    return [
        CompilationRecord(
            DiagnosticKind.STATE_MISMATCH,
            DiagnosticLevel.INFO,
            f"Hidden state `{path_name(path)}` is {specs[path].avals[0].dtype}, which has no derivative: "
            "it is carried along without credit.",
            hidden_paths=(path,),
            context={"dtype": str(specs[path].avals[0].dtype)},
        )
        for path, state in states.items()
        if isinstance(state, brainstate.HiddenState) and not flags[path]
    ]
