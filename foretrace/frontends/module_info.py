"""What is known of a brainstate module after its step was traced.

`ModuleInfo` holds the step program together with the states that it came from. A slot per state says which of the
program's arrays are its, and with which structure and unit they go back. Variables in the maps are those of
`closed_jaxpr`, which is the program's jaxpr: inputs in the order params, hidden, other, inputs.
"""

import dataclasses
import enum
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import brainstate
import jax
import jax.numpy as jnp

from foretrace._jax import ClosedJaxpr, Jaxpr, Literal, Var, close_jaxpr, eval_jaxpr, new_jaxpr
from foretrace.errors import ExampleInputError, NotSupportedError, StateMismatchError
from foretrace.frontends.base import Split
from foretrace.frontends.trees import TreeSpec
from foretrace.program.diagnostics import CompilationRecord, Path
from foretrace.program.records import StepProgram, path_name


class Role(enum.StrEnum):
    """What a state of the model is to the program."""

    PARAM = "param"
    HIDDEN = "hidden"
    OTHER = "other"


@dataclass(frozen=True)
class StateSlot:
    """Where one state of the model stands in the program.

    Attributes:
        path: The state's path in the model.
        role: Which list of the program holds its arrays.
        start: The place of its first array in that list.
        tree: The form of its value.
    """

    path: Path
    role: Role
    start: int
    tree: TreeSpec

    def take(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """The state's arrays out of the list of its role."""
        return leaves[self.start : self.start + len(self.tree.paths)]


@dataclass(frozen=True, eq=False)
class ModuleInfo:
    """A traced brainstate module.

    Attributes:
        model: The module.
        stateful_model: The traced function of brainstate.
        program: One step of the model.
        closed_jaxpr: The program's jaxpr; after `add_jaxpr_outs`, with further outputs at its end.
        retrieved_model_states: All states that the model holds, by path.
        compiled_model_states: The states that the step reads or writes, in the order of their first use.
        slots: Where each compiled state stands in the program.
        state_id_to_path: The path of each state, by `id`.
        state_tree_invars: For each compiled state, its value with variables in the place of arrays.
        state_tree_outvars: The same after the step; a parameter keeps its variables.
        hidden_path_to_invar: The variable of each hidden state before the step.
        hidden_path_to_outvar: The variable of each hidden state after the step.
        invar_to_hidden_path: The inverse of `hidden_path_to_invar`.
        outvar_to_hidden_path: The inverse of `hidden_path_to_outvar`.
        hidden_outvar_to_invar: From a hidden state's variable after the step to the one before.
        weight_invars: The variables of all parameter arrays.
        weight_path_to_invars: The variables of each parameter.
        invar_to_weight_path: The parameter of each variable.
        num_var_out: How many arrays the model returns.
        num_var_state: How many arrays the compiled states hold.
        input_tree: The form of `(args, kwargs)`.
        output_tree: The form of what the model returns.
        added_outvars: The variables that `add_jaxpr_outs` added.
        control_flow: The policy that the program was made with.
    """

    model: brainstate.nn.Module
    stateful_model: brainstate.transform.StatefulFunction
    program: StepProgram
    closed_jaxpr: ClosedJaxpr
    retrieved_model_states: Mapping[Path, brainstate.State]
    compiled_model_states: tuple[brainstate.State, ...]
    slots: tuple[StateSlot, ...]
    state_id_to_path: dict[int, Path]
    state_tree_invars: list[Any]
    state_tree_outvars: list[Any]
    hidden_path_to_invar: dict[Path, Var]
    hidden_path_to_outvar: dict[Path, Var]
    invar_to_hidden_path: dict[Var, Path]
    outvar_to_hidden_path: dict[Var, Path]
    hidden_outvar_to_invar: dict[Var, Var]
    weight_invars: list[Var]
    weight_path_to_invars: dict[Path, list[Var]]
    invar_to_weight_path: dict[Var, Path]
    num_var_out: int
    num_var_state: int
    input_tree: TreeSpec
    output_tree: TreeSpec
    added_outvars: tuple[Var, ...] = ()
    control_flow: Any = None

    def owners(self) -> dict[str, Any]:
        """The states that own the program's arrays, as `compile_program` takes them; some the model may only use."""
        states = {slot.path: state for slot, state in zip(self.slots, self.compiled_model_states, strict=True)}
        return {
            "hidden_states": [states[leaf.owner] for leaf in self.program.hidden],
            "param_states": [states[leaf.owner] for leaf in self.program.params],
        }

    @property
    def jaxpr(self) -> Jaxpr:
        """The jaxpr without its constants."""
        return self.closed_jaxpr.jaxpr

    @property
    def diagnostics(self) -> tuple[CompilationRecord, ...]:
        """What was decided on the way from the model to the program."""
        return self.program.diagnostics

    def with_program(self, program: StepProgram) -> "ModuleInfo":
        """The same module, told by an equivalent program with the same inputs and outputs."""
        return dataclasses.replace(self, program=program, closed_jaxpr=program.closed_jaxpr)

    def states_by_path(self) -> dict[Path, brainstate.State]:
        """The states that the model has now, and those that its step uses without holding them.

        By path, since `brainstate.nn.init_all_states` makes states anew.
        """
        found = dict(self.model.states().items())
        held = set(map(id, found.values()))
        for slot, state in zip(self.slots, self.compiled_model_states, strict=True):
            if id(state) not in held:
                found.setdefault(slot.path, state)
        return found

    def bound_states(self) -> tuple[brainstate.State, ...]:
        """The states of the compiled step as the model has them now, in the order of the slots."""
        found = self.states_by_path()
        return tuple(found[slot.path] for slot in self.slots)

    @property
    def split(self) -> Split:
        """The module taken apart: parameters and states by path, with the values that they have now."""
        states = self.states_by_path()
        params = {path: state.value for path, state in states.items() if isinstance(state, brainstate.ParamState)}
        carried = {slot.path: states[slot.path].value for slot in self.slots if slot.role is not Role.PARAM}
        return Split(self.step, params, carried, evaluation=self._evaluation)

    def step(self, params: Any, state: Any, *args: Any) -> tuple[Any, Any]:
        """One step as a pure function of values by path; the module's own states are left as they are."""
        states = self.states_by_path()
        # All states, also those that this step does not know, end with the values that they had.
        with held_values({**states, ("random",): brainstate.random.DEFAULT}, {**params, **state}):
            out = self.model(*args)
            return {path: states[path].value for path in state}, out

    def _evaluation(self, params: Any, state: Any, *args: Any) -> tuple[Any, Any]:
        with brainstate.environ.context(fit=False):
            return self.step(params, state, *args)

    def flatten_params(self, params: Mapping[Path, Any]) -> list[Any]:
        """The arrays of the parameters that the step uses."""
        return self._flatten(params, (Role.PARAM,))[Role.PARAM]

    def unflatten_params(self, leaves: Sequence[Any]) -> dict[Path, Any]:
        """Parameters by path, or gradients of them: zero for those that the module holds and the step does not use."""
        used = self.unflatten(Role.PARAM, leaves)
        unused = {
            path: jax.tree.map(jnp.zeros_like, state.value)
            for path, state in self.states_by_path().items()
            if isinstance(state, brainstate.ParamState) and path not in used
        }
        return {**used, **unused}

    def flatten_state(self, state: Mapping[Path, Any]) -> tuple[list[Any], list[Any]]:
        """The hidden arrays and the other arrays of states by path."""
        lists = self._flatten(state, (Role.HIDDEN, Role.OTHER))
        return lists[Role.HIDDEN], lists[Role.OTHER]

    def unflatten_state(self, hidden: Sequence[Any], other: Sequence[Any]) -> dict[Path, Any]:
        """States by path from their arrays."""
        return self.unflatten(Role.HIDDEN, hidden) | self.unflatten(Role.OTHER, other)

    def _flatten(self, values: Mapping[Path, Any], roles: Sequence[Role]) -> dict[Role, list[Any]]:
        lists: dict[Role, list[Any]] = {role: [] for role in roles}
        for slot in self.slots:
            if slot.role in lists:
                if not isinstance(values, Mapping) or slot.path not in values:
                    raise StateMismatchError(
                        f"There is no value for `{path_name(slot.path)}`. Parameters and states of a module are given "
                        "by path, as `learner.params` and `learner.carry.state` are."
                    )
                lists[slot.role] += slot.tree.flatten(values[slot.path], StateMismatchError)
        return lists

    def as_inputs(self, xs: Any) -> Any:
        """A step's inputs, or sequences of them, as a tuple; one input may stand alone."""
        args, named = self.input_tree.skeleton.children()
        if named.num_leaves:
            raise NotSupportedError("A step that takes inputs by name is driven by `etrace_grad` and its like alone.")
        return xs if len(args.children()) > 1 else (xs,)

    def in_form(self, inputs: Any) -> Any:
        """The inputs of a step, or sequences of them, in the form of `input_tree`."""
        return (tuple(inputs), {})

    def state_values(self) -> tuple[Any, ...]:
        """The present values of the compiled states."""
        return tuple(state.value for state in self.compiled_model_states)

    def flatten_states(self, values: Sequence[Any] | None = None) -> tuple[list[Any], list[Any], list[Any]]:
        """The program's params, hidden and other arrays of these state values.

        Args:
            values: One value per compiled state, in that order; the present ones for None.

        Returns:
            Three flat lists, without units.

        Examples:
            >>> import brainstate, jax.numpy as jnp
            >>> from foretrace.frontends import extract_module_info
            >>> cell = brainstate.nn.GRUCell(3, 4)
            >>> _ = brainstate.nn.init_all_states(cell)
            >>> info = extract_module_info(cell, jnp.ones(3))
            >>> params, hidden, other = info.flatten_states()
            >>> len(params), len(hidden), len(other)
            (4, 1, 0)
        """
        values = self.state_values() if values is None else values
        if len(values) != len(self.slots):
            raise StateMismatchError(
                f"Got {len(values)} state values for {len(self.slots)} states. "
                "Pass one value per state, in the order of `compiled_model_states`."
            )
        lists: dict[Role, list[Any]] = {role: [] for role in Role}
        for slot, value in zip(self.slots, values, strict=True):
            lists[slot.role] += slot.tree.flatten(value, StateMismatchError)
        return lists[Role.PARAM], lists[Role.HIDDEN], lists[Role.OTHER]

    def unflatten(self, role: Role, leaves: Sequence[Any]) -> dict[Path, Any]:
        """Values by path, units put back, of all states of one role; also for gradients and the like."""
        return {slot.path: slot.tree.unflatten(slot.take(leaves)) for slot in self.slots if slot.role is role}

    def flatten_inputs(self, *args: Any, **kwargs: Any) -> list[Any]:
        """The arrays of one step's inputs."""
        return self.input_tree.flatten((args, kwargs), ExampleInputError)

    def unflatten_output(self, leaves: Sequence[Any]) -> Any:
        """What the model returned, from the program's outputs."""
        return self.output_tree.unflatten(leaves)

    def add_jaxpr_outs(self, variables: Sequence[Var]) -> "ModuleInfo":
        """The same module, whose `jaxpr_call` also gives the values of these variables.

        Args:
            variables: Variables of `jaxpr`, wherever in it they are defined.

        Returns:
            A new record; this one stays as it is.

        Raises:
            ValueError: A variable is not one of this jaxpr.
        """
        jaxpr = self.jaxpr
        known = {*jaxpr.invars, *jaxpr.constvars, *(var for eqn in jaxpr.eqns for var in eqn.outvars)}
        strange = [var for var in variables if isinstance(var, Literal) or var not in known]
        if strange:
            raise ValueError(f"Not variables of this module's jaxpr: {strange}. Take them from `info.jaxpr`.")
        added = tuple(var for var in dict.fromkeys(variables) if var not in self.added_outvars)
        longer = new_jaxpr(jaxpr.constvars, jaxpr.invars, [*jaxpr.outvars, *added], jaxpr.eqns)
        return dataclasses.replace(
            self,
            closed_jaxpr=close_jaxpr(longer, self.closed_jaxpr.consts),
            added_outvars=self.added_outvars + added,
        )

    def split_state_outvars(self) -> tuple[list[Any], list[Any], list[Any]]:
        """The variables of the compiled states after the step: of weights, hidden states, other states."""
        by_role: dict[Role, list[Any]] = {role: [] for role in Role}
        for slot, tree in zip(self.slots, self.state_tree_outvars, strict=True):
            by_role[slot.role].append(tree)
        return by_role[Role.PARAM], by_role[Role.HIDDEN], by_role[Role.OTHER]

    def jaxpr_call(
        self, *args: Any, old_state_vals: Sequence[Any] | None = None, **kwargs: Any
    ) -> tuple[Any, dict[Path, Any], dict[Path, Any], dict[Var, Any]]:
        """Runs one step on values; the model's own states are neither changed nor, where values are given, read.

        Args:
            *args: The model's inputs.
            old_state_vals: One value per compiled state; the present ones for None.
            **kwargs: The model's named inputs.

        Returns:
            The model's output, the new hidden values by path, the new values of other states by path, and the values
            of the variables that were added by `add_jaxpr_outs`.
        """
        params, hidden, other = self.flatten_states(old_state_vals)
        inputs = self.flatten_inputs(*args, **kwargs)
        flat = eval_jaxpr(self.jaxpr, self.closed_jaxpr.consts, *params, *hidden, *other, *inputs)
        return self.unflatten_step(flat)

    def unflatten_step(self, flat: Sequence[Any]) -> tuple[Any, dict[Path, Any], dict[Path, Any], dict[Var, Any]]:
        """Output, hidden values, other values and added values, of the flat outputs of a step."""
        first, second = len(self.program.hidden), len(self.program.hidden) + len(self.program.other)
        third = second + self.num_var_out
        return (
            self.unflatten_output(flat[second:third]),
            self.unflatten(Role.HIDDEN, flat[:first]),
            self.unflatten(Role.OTHER, flat[first:second]),
            dict(zip(self.added_outvars, flat[third:], strict=False)),
        )

    def dict(self) -> dict[str, Any]:
        """All fields by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


@contextmanager
def held_values(states: Mapping[Path, brainstate.State], values: Mapping[Path, Any]) -> Iterator[None]:
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
