"""What braintrace knows of a traced brainstate module: a view on the traced model, whose parts are made when read.

Variables in the maps are those of `closed_jaxpr`, which is the program's jaxpr: inputs in the order params, hidden,
other, inputs.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import brainstate
import jax

from foretrace._jax import ClosedJaxpr, Literal, Var, close_jaxpr, eval_jaxpr, new_jaxpr
from foretrace._repr import counted, one_line
from foretrace.errors import StateMismatchError
from foretrace.frontends import TracedModel, trace_model
from foretrace.frontends.brainstate import ModuleSplit
from foretrace.frontends.traced import join_state
from foretrace.program.diagnostics import Path

_PARTS = (
    "stateful_model closed_jaxpr jaxpr retrieved_model_states compiled_model_states state_id_to_path "
    "state_tree_invars state_tree_outvars hidden_path_to_invar hidden_path_to_outvar invar_to_hidden_path "
    "outvar_to_hidden_path hidden_outvar_to_invar weight_invars weight_path_to_invars invar_to_weight_path "
    "num_var_out num_var_state program diagnostics"
).split()


def extract_module_info(
    model: brainstate.nn.Module, *model_args: Any, control_flow: Any = None, **model_kwargs: Any
) -> "ModuleInfo":
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
    return ModuleInfo(trace_model(model, *model_args, named=model_kwargs, control_flow=control_flow))


@dataclass(frozen=True, eq=False)
class ModuleInfo:
    """A traced brainstate module. What is not listed here is read from the traced model.

    Attributes:
        traced: The traced model.
        added_outvars: The variables that `add_jaxpr_outs` added.
    """

    traced: TracedModel
    added_outvars: tuple[Var, ...] = ()

    @one_line
    def __repr__(self) -> Iterator[str]:
        yield type(self.split.model).__name__
        yield counted(len(self.traced.program.params), "parameter")
        yield counted(len(self.traced.program.hidden), "state")

    def __getattr__(self, name: str) -> Any:
        if name == "traced":  # not there yet, while a copy is made
            raise AttributeError(name)
        return getattr(self.traced, name)

    @property
    def split(self) -> ModuleSplit:
        """The module taken apart."""
        return cast(ModuleSplit, self.traced.split)

    model = property(lambda self: self.split.model, doc="The module.")
    stateful_model = property(lambda self: self.split.stateful, doc="The traced function of brainstate.")
    jaxpr = property(lambda self: self.closed_jaxpr.jaxpr, doc="The jaxpr without its constants.")
    diagnostics = property(lambda self: self.program.diagnostics, doc="What was decided while the model was traced.")
    retrieved_model_states = property(
        lambda self: self.split.model_states, doc="All states that the model holds, by path."
    )
    compiled_model_states = property(
        lambda self: tuple(self.split.used.values()),
        doc="The states that the step reads or writes, in the order of their first use.",
    )
    weight_invars = property(lambda self: list(self.program.param_invars), doc="The variables of all parameter arrays.")
    num_var_out = property(lambda self: len(self.program.outputs), doc="How many arrays the model returns.")
    num_var_state = property(
        lambda self: len((*self.program.params, *self.program.hidden, *self.program.other)),
        doc="How many arrays the compiled states hold.",
    )

    @functools.cached_property
    def closed_jaxpr(self) -> ClosedJaxpr:
        """The program's jaxpr; after `add_jaxpr_outs`, with further outputs at its end."""
        closed = self.traced.program.closed_jaxpr
        jaxpr = closed.jaxpr
        outvars = [*jaxpr.outvars, *self.added_outvars]
        return close_jaxpr(new_jaxpr(jaxpr.constvars, jaxpr.invars, outvars, jaxpr.eqns), closed.consts)

    @functools.cached_property
    def state_id_to_path(self) -> dict[int, Path]:
        """The path of each state, by `id`."""
        return {id(state): path for path, state in {**self.split.model_states, **self.split.used}.items()}

    def _variables(self, hidden: Sequence[Any], other: Sequence[Any]) -> dict[Path, list[Any]]:
        """The variables of each state by path, those of parameters included."""
        joined = join_state(self.traced.flat.hidden, hidden, other)
        return self.weight_path_to_invars | self.split.state_form.by_path(joined)

    @functools.cached_property
    def _entering(self) -> dict[Path, list[Var]]:
        return self._variables(self.program.hidden_invars, self.program.other_invars)

    @functools.cached_property
    def _leaving(self) -> dict[Path, list[Any]]:
        return self._variables(self.program.hidden_outvars, self.program.other_outvars)

    def _trees(self, variables: Mapping[Path, Sequence[Any]]) -> list[Any]:
        forms = self.split.param_form.parts | self.split.state_form.parts
        return [jax.tree.unflatten(forms[path].skeleton, variables[path]) for path in self.split.used]

    state_tree_invars = property(
        lambda self: self._trees(self._entering),
        doc="For each compiled state, its value with variables in the place of arrays.",
    )
    state_tree_outvars = property(
        lambda self: self._trees(self._leaving), doc="The same after the step; a parameter keeps its variables."
    )

    @functools.cached_property
    def hidden_path_to_invar(self) -> dict[Path, Var]:
        """The variable of each hidden state before the step."""
        return {leaf.owner: self._entering[leaf.owner][0] for leaf in self.program.hidden}

    @functools.cached_property
    def hidden_path_to_outvar(self) -> dict[Path, Var]:
        """The variable of each hidden state after the step."""
        return {path: self._leaving[path][0] for path in self.hidden_path_to_invar}

    hidden_outvar_to_invar = property(
        lambda self: {var: self.hidden_path_to_invar[path] for path, var in self.hidden_path_to_outvar.items()},
        doc="From a hidden state's variable after the step to the one before.",
    )
    weight_path_to_invars = property(
        lambda self: self.split.param_form.by_path(self.program.param_invars), doc="The variables of each parameter."
    )
    invar_to_hidden_path = property(
        lambda self: {var: path for path, var in self.hidden_path_to_invar.items()},
        doc="The inverse of `hidden_path_to_invar`.",
    )
    outvar_to_hidden_path = property(
        lambda self: {var: path for path, var in self.hidden_path_to_outvar.items()},
        doc="The inverse of `hidden_path_to_outvar`.",
    )
    invar_to_weight_path = property(
        lambda self: {var: path for path, found in self.weight_path_to_invars.items() for var in found},
        doc="The parameter of each variable.",
    )

    def flatten_states(self, values: Sequence[Any] | None = None) -> tuple[list[Any], list[Any], list[Any]]:
        """The program's params, hidden and other arrays; of the present states, or of one value per compiled state."""
        values = [state.value for state in self.split.used.values()] if values is None else values
        if len(values) != len(self.split.used):
            raise StateMismatchError(
                f"Got {len(values)} state values for {len(self.split.used)} states. "
                "Pass one value per state, in the order of `compiled_model_states`."
            )
        by_path = dict(zip(self.split.used, values, strict=True))
        return (self.traced.flatten_params(by_path), *self.traced.flatten_state(by_path))

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
        return dataclasses.replace(self, added_outvars=tuple(dict.fromkeys([*self.added_outvars, *variables])))

    def split_state_outvars(self) -> tuple[list[Any], list[Any], list[Any]]:
        """The variables of the compiled states after the step: of weights, hidden states, other states."""
        trees = dict(zip(self.split.used, self.state_tree_outvars, strict=True))
        weights = [trees.pop(path) for path in self.split.param_form.parts]
        hidden = [trees.pop(path) for path in self.hidden_path_to_invar]
        return weights, hidden, list(trees.values())

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
        inputs = self.traced.flatten_inputs(*args, **kwargs)
        flat = eval_jaxpr(self.jaxpr, self.closed_jaxpr.consts, *params, *hidden, *other, *inputs)
        return self.unflatten_step(flat)

    def unflatten_step(self, flat: Sequence[Any]) -> tuple[Any, dict[Path, Any], dict[Path, Any], dict[Var, Any]]:
        """Output, hidden values, other values and added values, of the flat outputs of a step."""
        first, second = len(self.program.hidden), len(self.program.hidden) + len(self.program.other)
        third = second + self.num_var_out
        values = self.traced.unflatten_state(flat[:first], flat[first:second])
        hidden = {path: values.pop(path) for path in self.hidden_path_to_invar}
        added = dict(zip(self.added_outvars, flat[third:], strict=False))
        return self.traced.unflatten_output(flat[second:third]), hidden, values, added

    def dict(self) -> dict[str, Any]:
        """All parts by name."""
        return {name: getattr(self, name) for name in _PARTS}
