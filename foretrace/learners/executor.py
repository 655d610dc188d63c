"""A module's step, compiled: the way between its states and the flat arrays that the engine computes with.

The executor looks a model's states up by path at every call. `brainstate.nn.init_all_states` replaces states by new
ones, and a learner that held on to the old ones would run beside its model without a word.
"""

from collections.abc import Sequence
from typing import Any, cast

import brainstate
import jax
import jax.numpy as jnp
from brainstate.util import FlattedDict

from foretrace._checks import require_choice
from foretrace.compiler import ETraceGraph, compile_program
from foretrace.compiler.graph import Discover
from foretrace.engine.plan import Plan, make_plan
from foretrace.engine.sequence import States, run_steps
from foretrace.errors import ExampleInputError, NotSupportedError, StateMismatchError
from foretrace.frontends import TracedModel, trace_model
from foretrace.frontends.brainstate import ModuleSplit
from foretrace.frontends.trees import TreeSpec, form_text, tree_spec
from foretrace.learners.data import one_step, stack_inputs
from foretrace.learners.unjitted import Calls
from foretrace.learners.weights import learned_parameters
from foretrace.program.control_flow import ControlFlowPolicy
from foretrace.program.diagnostics import Path


class ModuleExecutor:
    """A brainstate module with its compiled graph.

    Args:
        model: The module.
        vjp_method: `'single-step'` for online credit, `'multi-step'` for exact credit inside a window.
        control_flow: What becomes of `cond`, `scan` and `while`.
        discover: Which operators are traced; see `foretrace.compile_etrace_graph`.
        weights: The parameters that learn, by names or paths; None for all.
    """

    def __init__(
        self,
        model: brainstate.nn.Module,
        vjp_method: str = "single-step",
        control_flow: ControlFlowPolicy | None = None,
        discover: Discover = "auto",
        weights: Any = None,
    ) -> None:
        require_choice("vjp_method", vjp_method, ("single-step", "multi-step"))
        if not isinstance(model, brainstate.nn.Module):
            raise TypeError(f"A learner takes a brainstate.nn.Module; got {type(model).__name__}.")
        self.model, self.vjp_method, self.control_flow, self.discover = model, vjp_method, control_flow, discover
        self.weights = weights
        self.keywords: tuple[str, ...] = ()
        self.calls = Calls()
        self._plan: Plan | None = None
        self._fit: bool | None = None

    def compile_graph(self, *args: Any, **kwargs: Any) -> bool:
        """Traces the model and builds its graph, unless that was done for inputs and states of the same form.

        Args:
            *args: Inputs of one step; of `MultiStepData`, the first step is taken.
            **kwargs: Named inputs of one step.

        Returns:
            Whether anything was built.
        """
        args, kwargs = one_step(args), one_step(kwargs)
        if not jax.tree.leaves((args, kwargs)):
            raise ExampleInputError(
                "No example input was given. Pass the input of one step; "
                "for a model without input, let it take a dummy scalar."
            )
        if self.is_compiled and _same_form(self.traced.flat.inputs, tree_spec((args, kwargs))) and self.states_fit():
            return False
        traced = trace_model(self.model, *args, named=kwargs, control_flow=self.control_flow)
        graph = compile_program(traced, discover=self.discover)
        self._plan = make_plan(graph, learned_parameters(graph.program, self.weights))
        self.keywords = tuple(kwargs)
        self._fit = self._phase(traced, args, kwargs)
        return True

    def _phase(self, traced: TracedModel, args: Any, kwargs: Any) -> bool | None:
        """Whether the step was traced for training, where the model computes something else otherwise; None else."""
        fit = brainstate.environ.get("fit", None)
        if fit is None:
            return None
        with brainstate.environ.context(fit=not fit):
            other = trace_model(self.model, *args, named=kwargs, control_flow=self.control_flow)
        return None if str(other.program.jaxpr) == str(traced.program.jaxpr) else bool(fit)

    def _require_phase(self) -> None:
        """Raises where `brainstate.environ` says another phase than the step was traced for, and that matters."""
        fit = brainstate.environ.get("fit", None)
        if self._fit is not None and fit is not None and bool(fit) != self._fit:
            raise NotSupportedError(
                f"{type(self.model).__name__} was compiled under `fit={self._fit}` and is called under `fit={fit}`, "
                "where it computes something else. Call the model itself for the other phase, or compile a second "
                "learner there."
            )

    def states_fit(self) -> bool:
        """Whether the model's states have the form that the graph was compiled for."""
        return all(_same_form(form, tree_spec(state.value)) for form, state in self.states_with_forms().values())

    @property
    def is_compiled(self) -> bool:
        """Whether there is a graph."""
        return self._plan is not None

    @property
    def plan(self) -> Plan:
        """The engine's tables."""
        if self._plan is None:
            raise ValueError(
                f"The graph of {type(self.model).__name__} is not compiled yet. "
                "Call `compile_graph(x)` with the input of one step first, or make the learner by `foretrace.compile`."
            )
        return self._plan

    @property
    def graph(self) -> ETraceGraph:
        """The compiled graph."""
        return self.plan.graph

    @property
    def constant_paths(self) -> frozenset[Path]:
        """The parameters of which no array learns."""
        params, learned = self.plan.program.params, self.plan.learned
        return frozenset(leaf.owner for leaf in params) - {params[index].owner for index in learned}

    @property
    def traced(self) -> TracedModel:
        """The traced module."""
        return self.graph.model

    @property
    def split(self) -> ModuleSplit:
        """The module taken apart."""
        return cast(ModuleSplit, self.traced.split)

    @property
    def states(self) -> FlattedDict:
        """The model's states by path, and those that its step uses without holding them."""
        return FlattedDict(self.split.states() if self.is_compiled else dict(self.model.states().items()))

    path_to_states = states

    @property
    def state_id_to_path(self) -> dict[int, Path]:
        """The path of each state, by `id`."""
        return {id(state): path for path, state in self.states.items()}

    def states_with_forms(self) -> dict[Path, tuple[TreeSpec, brainstate.State]]:
        """The states of the compiled step as the model has them now, each with the form that it was traced with."""
        forms = self.split.param_form.parts | self.split.state_form.parts
        return {path: (forms[path], state) for path, state in self.split.bound().items()}

    def read(self) -> tuple[list[Any], list[Any], list[Any]]:
        """The flat parameters, hidden and other arrays of the model's states, to run the compiled step on them."""
        self._require_phase()
        values = self.split.values(self.split.used)
        return (self.traced.flatten_params(values), *self.traced.flatten_state(values))

    def read_state(self) -> tuple[list[Any], list[Any]]:
        """As `read`, without the parameters."""
        self._require_phase()
        return self.traced.flatten_state(self.split.state)

    def write(self, hidden: Sequence[Any], other: Sequence[Any]) -> None:
        """Gives the model's states the values of flat arrays; a state that the step only reads is left alone."""
        program = self.graph.program
        leaves, before = (*program.hidden, *program.other), (*program.hidden_invars, *program.other_invars)
        after = (*program.hidden_outvars, *program.other_outvars)
        written = {leaf.owner for leaf, a, b in zip(leaves, before, after, strict=True) if a is not b}
        states = self.split.bound()
        for path, value in self.traced.unflatten_state(hidden, other).items():
            if path in written:
                states[path].value = value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the compiled step, for one input or `MultiStepData`; traces are not touched."""
        stacked = stack_inputs(self.traced, args, kwargs)
        params, hidden, other = self.read()
        states, _, outputs = run_steps(self.plan, params, States(hidden, other), stacked.inputs)
        self.write(states.hidden, states.other)
        return self.output(outputs, stacked.length)

    def output(self, outputs: Sequence[Any], length: int | None) -> Any:
        """What the model returned, from stacked flat outputs; without the axis of steps for a call of one step."""
        return self.traced.unflatten_output([out[0] for out in outputs] if length is None else outputs)

    def show_graph(self, path: Any = None, *, verbose: bool | None = None, return_msg: bool = False) -> Any:
        """Draws the graph, or says it in words.

        Args:
            path: A file to write the drawing to; None to get the figure. A bool is read as `verbose`.
            verbose: True or False asks for words instead, and whether to print them.
            return_msg: Asks for words too, and to return them.

        Returns:
            The matplotlib figure; in words the text or None. Without matplotlib, a drawing for no file is words too.
        """
        if isinstance(path, bool):
            path, verbose = None, path
        in_words = verbose is not None or return_msg
        if not in_words:
            try:
                return self.graph.show_graph(path)
            except ImportError:
                if path is not None:
                    raise
        text = str(self.graph.explain())
        if verbose is not False:
            print(text)
        return text if return_msg else None

    def input_of_batch(self, batch_size: int) -> Any:
        """`(args, kwargs)` of zeros like the traced input, for the batch that the model's states have now."""
        before = {
            (aval.shape[axis], axis)
            for form, state in self.states_with_forms().values()
            for aval, leaf in zip(form.avals, jax.tree.leaves(state.value), strict=True)
            for axis in range(min(jnp.ndim(leaf), len(aval.shape)))
            if aval.shape[axis] != leaf.shape[axis] == batch_size
        }
        if len(before) != 1:
            raise StateMismatchError(
                f"The model's states do not follow from those that the graph was compiled for by a batch of "
                f"{batch_size}: {form_text([state.value for state in self.split.bound().values()])}. "
                "Call `compile_graph(x)` with an input of the new form."
            )
        ((old, axis),) = before
        inputs = self.traced.flat.inputs
        shapes = [list(aval.shape) for aval in inputs.avals]
        for shape in shapes:
            if len(shape) > axis and shape[axis] == old:
                shape[axis] = batch_size
        return inputs.unflatten([jnp.zeros(s, a.dtype) for s, a in zip(shapes, inputs.avals, strict=True)])

    @property
    def is_single_step_vjp(self) -> bool:
        """Whether credit is online alone."""
        return self.vjp_method == "single-step"

    @property
    def is_multi_step_vjp(self) -> bool:
        """Whether credit inside a window is exact."""
        return self.vjp_method == "multi-step"


def _same_form(expected: TreeSpec, found: TreeSpec) -> bool:
    if expected.treedef != found.treedef:
        return False
    pairs = zip(expected.avals, found.avals, strict=True)
    return all(a.shape == b.shape and a.dtype == b.dtype for a, b in pairs)
