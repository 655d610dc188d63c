"""The learner for brainstate modules: a model, its graph and a rule, with the traces in a state of their own.

A learner is a module itself. Calling it runs one step of the model and takes the trace through it; the call may stand
anywhere in brainstate's transformations, and its gradient is the rule's (`foretrace.learners.passage`). Whole sequences
are driven by `SequenceDriverMixin`. A class is one rule: it says which in `rule_class`.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import brainstate
import jax
import jax.numpy as jnp
from brainstate.util import FlattedDict

from foretrace._checks import optional_count, require_flag
from foretrace.algorithms.config import ETraceConfig
from foretrace.algorithms.d_rtrl import DRTRL
from foretrace.algorithms.factored import Factors, effect_of, entered_of
from foretrace.algorithms.hybrid import Hybrid
from foretrace.algorithms.pp_prop import PPProp
from foretrace.algorithms.uoro import UORO
from foretrace.compiler import CompilationReport, ETraceGraph
from foretrace.compiler.graph import Discover
from foretrace.engine.plan import Link
from foretrace.engine.rule import Rule
from foretrace.errors import NotSupportedError
from foretrace.frontends import Role
from foretrace.learners.alone import alone
from foretrace.learners.data import Stacked, stack_inputs
from foretrace.learners.driver import SequenceDriverMixin
from foretrace.learners.executor import ETraceVjpGraphExecutor
from foretrace.learners.options import by_position, own_options, rule_of_config
from foretrace.learners.passage import Passage, make_passage
from foretrace.learners.recording import recorded_call
from foretrace.program.control_flow import ControlFlowPolicy
from foretrace.program.diagnostics import Path
from foretrace.program.records import path_name

# What every learner takes beside the options of its rule, and may take by position.
_DEFAULTS: dict[str, Any] = {
    "name": None,
    "vjp_method": "single-step",
    "fast_solve": True,
    "trace_dtype": None,
    "control_flow": None,
    "config": None,
}

# The kind of trace of the rules that a config may exchange for others of that kind.
_KEPT: dict[type[Rule], str] = {DRTRL: "per_param", PPProp: "io_factorized", UORO: "random_projection"}


class EligibilityTrace(brainstate.ShortTermState):
    """The state that holds a rule's trace, a pytree of arrays."""


class ETraceAlgorithm(SequenceDriverMixin, brainstate.nn.Module):
    """A model that learns online: the base of all learners for brainstate modules.

    Args:
        model: The module, with its states initialised before `compile_graph`.
        *positional: Options of the rule that may be given by position, as `foretrace.learners.options` lists them.
        name: A name for the learner.
        vjp_method: `'single-step'` for online credit alone; `'multi-step'` for exact credit inside each call or window,
            and the trace beyond it.
        fast_solve: Taken for scripts that set it. Every solution here is the fast one.
        trace_dtype: The dtype that traces are kept in, for rules that allow a choice.
        control_flow: What becomes of `cond`, `scan` and `while`.
        discover: Which operators are traced; see `foretrace.compile_etrace_graph`.
        block: Steps in a block; None to choose by size. It changes the speed alone.
        check_finite: Whether `etrace_grad`, `etrace_evolve` and `etrace_train` report NaN and infinities where they
            first appear. States, traces and parameters are then as before the call.
        config: The rule by its parts, for the classes of D-RTRL, pp_prop and UORO: another rule with traces of the
            same kind.
        **rule_options: Options of the rule. `chunked_trace`, `snap_max_jacobian_elements` and `mode` of other
            implementations are checked and change nothing; a `random_feedback_key` matters to random feedback alone.

    Attributes:
        model: The module.
        rule: The rule.
        etrace: The state with the rule's trace.
        rule_class: The rule of the class.
    """

    rule_class: ClassVar[type[Rule] | None] = None

    def __init__(
        self,
        model: brainstate.nn.Module,
        *positional: Any,
        name: str | None = None,
        vjp_method: str = "single-step",
        fast_solve: bool = True,
        trace_dtype: Any = None,
        control_flow: ControlFlowPolicy | None = None,
        discover: Discover = "auto",
        block: int | None = None,
        check_finite: bool = False,
        config: ETraceConfig | None = None,
        **rule_options: Any,
    ) -> None:
        own = dict(zip(_DEFAULTS, (name, vjp_method, fast_solve, trace_dtype, control_flow, config), strict=True))
        given = [*rule_options, *(option for option, value in own.items() if value is not _DEFAULTS[option])]
        options = own | rule_options | by_position(type(self), positional, given)
        given_name = options.pop("name")
        if not isinstance(given_name, str | None):
            raise TypeError(f"`name` is a text or None; got {given_name!r}.")
        super().__init__(name=given_name)
        block, check_finite = optional_count("block", block), require_flag("check_finite", check_finite)
        method, policy = options.pop("vjp_method"), options.pop("control_flow")
        self.model, self.block, self.fast_solve, self.check_finite = model, block, options["fast_solve"], check_finite
        self.rule = self.make_rule(**options)
        self._executor = ETraceVjpGraphExecutor(model, method, control_flow=policy, discover=discover)
        self._passage: Passage | None = None
        self._is_probe = False
        self._standing: Any = None
        self.etrace: EligibilityTrace | None = None

    @classmethod
    def make_rule(cls, **options: Any) -> Rule:
        """The engine's rule of this class; an option that is None and unknown to the rule is left out.

        Raises:
            NotSupportedError: The class has no rule.
            TypeError: The rule has no such option.
            ValueError: A `config` whose rule is not of this class's kind.
        """
        if cls.rule_class is None:
            raise NotSupportedError(f"{cls.__name__} has no rule of its own: take a class of a rule, or name one.")
        config = options.pop("config", None)
        if config is None:
            return cls.rule_class(**own_options(cls.__name__, cls.rule_class, options))
        rule = rule_of_config(cls.__name__, config, options)
        if type(rule) is not cls.rule_class and _KEPT.get(cls.rule_class) != config.trace_factorization:
            raise ValueError(
                f"{cls.__name__} does not stand for the rule of this config, {rule.name} with "
                f"trace_factorization={config.trace_factorization!r}. Pass the config to `foretrace.compile` instead."
            )
        return rule

    @property
    def executor(self) -> ETraceVjpGraphExecutor:
        """The compiled step of the model."""
        return self._executor

    @property
    def vjp_method(self) -> str:
        """How credit is given inside a call."""
        return self.executor.vjp_method

    @property
    def is_compiled(self) -> bool:
        """Whether `compile_graph` was called."""
        return self.executor.is_compiled

    @property
    def graph(self) -> ETraceGraph:
        """What the compiler found."""
        return self.executor.graph

    @property
    def report(self) -> CompilationReport:
        """What the compiler found, for people; print it."""
        return self.graph.explain()

    def show_graph(self, path: Any = None, *, verbose: bool | None = None, return_msg: bool = False) -> Any:
        """Draws the graph, or says it in words; see `ETraceGraphExecutor.show_graph`."""
        return self.executor.show_graph(path, verbose=verbose, return_msg=return_msg)

    @alone
    def compile_graph(self, *inputs: Any, **named_inputs: Any) -> None:
        """Traces the model and makes the traces; nothing happens for inputs and states of the form as before.

        Args:
            *inputs: Inputs of one step; of `MultiStepData`, the first step is taken.
            **named_inputs: Named inputs of one step.
        """
        named_inputs.pop(self.rule.external or "", None)
        if brainstate.transform.in_new_state_probe():
            self.run_as(self.model)  # states of single samples are being made
        if self.executor.compile_graph(*inputs, **named_inputs) or self._passage is None:
            self._make_passage()
            self.etrace = None
        if self.etrace is None or self._is_probe:
            self.etrace = EligibilityTrace(self.rule.init(self.executor.plan))
        # `vmap_new_states` runs its function once in advance and keeps the states of the second run alone.
        self._is_probe = brainstate.transform.in_new_state_probe()

    def replace_rule(self, rule: Rule) -> None:
        """Learns by another rule from now on, with an empty trace."""
        self.rule, self._passage = rule, None
        if self.is_compiled:
            self._make_passage()
            self.etrace = EligibilityTrace(rule.init(self.executor.plan))

    def _make_passage(self) -> None:
        plan, exact = self.executor.plan, self.executor.is_multi_step_vjp
        self._passage = make_passage(plan, self.rule, exact=exact, block=self.block)

    def run_as(self, model: brainstate.nn.Module) -> None:
        """Lets another module with the model's states stand for its step; the graph is to be compiled for it."""
        if self.executor.model is not model:
            before = self.executor
            self._executor = ETraceVjpGraphExecutor(
                model, before.vjp_method, control_flow=before.control_flow, discover=before.discover
            )
            self._passage, self.etrace = None, None

    def init_etrace_state(self, *_: Any, **__: Any) -> None:
        """Empties the traces, as before the first step."""
        empty, state = self.rule.init(self.executor.plan), self._compiled_trace()
        # Traces of a learner under vmap have a leading axis that the plan does not know.
        state.value = jax.tree.map(lambda e, v: jnp.broadcast_to(e, v.shape), empty, state.value)

    def _compiled_trace(self) -> EligibilityTrace:
        _ = self.executor.plan  # says what to do where nothing is compiled
        assert self.etrace is not None
        return self.etrace

    def reset_state(self, batch_size: int | None = None, **_: Any) -> None:
        """Empties the traces; the model's own states are left to `brainstate.nn.reset_all_states`.

        Args:
            batch_size: Where the model's states were made anew for another batch, that batch: the graph is compiled
                for it.
        """
        batch_size = optional_count("batch_size", batch_size, "samples")
        if batch_size is not None and not self.executor.states_fit():
            args, kwargs = self.executor.input_of_batch(batch_size)
            self.compile_graph(*args, **kwargs)
        else:
            self.init_etrace_state()

    @property
    def path_to_states(self) -> FlattedDict:
        """The model's states by path."""
        return self.executor.states

    @property
    def state_id_to_path(self) -> dict[int, Path]:
        """The path of each state, by `id`."""
        return self.executor.state_id_to_path

    @property
    def param_states(self) -> FlattedDict:
        """The model's parameters by path."""
        return self._states_of(Role.PARAM)

    @property
    def hidden_states(self) -> FlattedDict:
        """The model's hidden states by path."""
        return self._states_of(Role.HIDDEN)

    @property
    def other_states(self) -> FlattedDict:
        """All other states of the model by path."""
        return self._states_of(Role.OTHER)

    def _states_of(self, role: Role) -> FlattedDict:
        compiled = {slot.path: slot.role for slot in self.executor.info.slots} if self.is_compiled else {}
        states = self.executor.states
        return FlattedDict({path: s for path, s in states.items() if compiled.get(path, _role_by_type(s)) is role})

    def get_etrace_of(self, weight: brainstate.ParamState | Path | str) -> dict[str, Any]:
        """The traces of one parameter.

        Args:
            weight: The parameter, its path, or its dotted name.

        Returns:
            A trace for each place where the parameter enters and each group that it reaches there, by a name that says
            which. A rule that keeps one trace for all parameters gives that one, by the rule's name.

        Raises:
            ValueError: The parameter has no trace; the message lists those that have.
        """
        own, trace = self._links_of(weight), self._compiled_trace().value
        if not isinstance(trace, list) or len(trace) != len(self.executor.plan.links):
            return {self.rule.name: trace}
        return {name: trace[link.index] for name, link in own.items()}

    def _links_of(self, weight: brainstate.ParamState | Path | str) -> dict[str, Link]:
        """The links of a parameter, each by a name of its own."""
        links = self.executor.plan.links
        path, _ = self._find(weight)
        own = [link for link in links if path in self._owners(link)]
        if not own:
            known = dict.fromkeys(f"`{path_name(owner)}`" for link in links for owner in self._owners(link))
            listed = f"These have one: {', '.join(known)}." if known else "No parameter has one."
            raise ValueError(f"The parameter `{path_name(path)}` has no trace. {listed} `learner.report` says why.")
        names = [link.name for link in own]
        return {
            name if names.count(name) == 1 else f"{name} ({link.weight.name}, {link.index})": link
            for name, link in zip(names, own, strict=True)
        }

    def _owners(self, link: Link) -> list[Path]:
        return [self.graph.program.params[i].owner for i in link.weight.parameters]

    def stacked(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Stacked:
        """The inputs of a call as flat arrays with a leading axis of steps.

        Raises:
            TypeError: A named argument belongs neither to the rule nor to the model's step.
        """
        external = self.rule.external
        strange = [name for name in kwargs if name != external and name not in self.executor.keywords]
        if strange:
            known = [*self.executor.keywords, *([external] if external else [])]
            raise TypeError(
                f"{type(self).__name__} takes no argument `{strange[0]}`. "
                + (
                    f"By name it takes {', '.join(f'`{name}`' for name in known)}."
                    if known
                    else "It takes none by name."
                )
            )
        own = {name: value for name, value in kwargs.items() if name != external}
        return stack_inputs(self.executor.info, args, own, kwargs.get(external, self._standing) if external else None)

    @property
    def modulator(self) -> Any:
        """The third factor of calls that bring none, for rules with one; it may be set at any time."""
        return getattr(self.rule, "modulator", None) if self._standing is None else self._standing

    @modulator.setter
    def modulator(self, value: Any) -> None:
        if value is not None and self.rule.external != "modulator":
            raise ValueError(f"{self.rule.name} takes no modulator. `ThreeFactor` does.")
        self._standing = value

    def update(self, *inputs: Any, **named_inputs: Any) -> Any:
        """Runs one step, or with `MultiStepData` several."""
        raise NotImplementedError


class ETraceVjpAlgorithm(ETraceAlgorithm):
    """A learner whose calls have the rule's gradient as their derivative.

    Examples:
        >>> import brainstate, jax.numpy as jnp
        >>> from foretrace.learners.module import ParamDimVjpAlgorithm
        >>> cell = brainstate.nn.GRUCell(3, 4)
        >>> _ = brainstate.nn.init_all_states(cell)
        >>> learner = ParamDimVjpAlgorithm(cell)
        >>> learner.compile_graph(jnp.ones(3))
        >>> loss = lambda: jnp.sum(learner(jnp.ones(3)))
        >>> sorted(brainstate.transform.grad(loss, learner.param_states)())
        [('Wh', 'weight'), ('Wrz', 'weight')]
    """

    def update(self, *inputs: Any, **named_inputs: Any) -> Any:
        """Runs the model for one step, and takes the traces through it.

        Args:
            *inputs: The model's inputs. With `MultiStepData` among them, all of its steps are run, and outputs have a
                leading axis of time; plain values beside it are the same at every step.
            **named_inputs: The model's named inputs, and what the rule takes at a step (`modulator=`, `y_target=`).

        Returns:
            What the model returns.
        """
        recorded, result = recorded_call(self, inputs, named_inputs)
        return result if recorded else self._step(inputs, named_inputs)

    @alone
    def _step(self, inputs: Sequence[Any], named_inputs: dict[str, Any]) -> Any:
        executor = self.executor
        stacked = self.stacked(inputs, named_inputs)
        params, hidden, other = executor.read(Role.PARAM, Role.HIDDEN, Role.OTHER)
        trace = self._compiled_trace()
        assert self._passage is not None
        outputs, hidden, other, trace.value = self._passage(
            params, hidden, other, trace.value, stacked.inputs, stacked.external
        )
        executor.write(hidden, other)
        return executor.output(outputs, stacked.length)


class ParamDimVjpAlgorithm(ETraceVjpAlgorithm):
    """D-RTRL: a trace for every parameter and position.

    Examples:
        >>> import brainstate
        >>> ParamDimVjpAlgorithm(brainstate.nn.GRUCell(3, 4)).rule.name
        'D_RTRL'
    """

    rule_class = DRTRL


class IODimVjpAlgorithm(ETraceVjpAlgorithm):
    """pp_prop, also known as ES-D-RTRL: a trace in two factors, one for each input and one for each output.

    Examples:
        >>> import brainstate
        >>> IODimVjpAlgorithm(brainstate.nn.GRUCell(3, 4), 0.9).rule.name
        'pp_prop'
    """

    rule_class = PPProp

    def get_etrace_of(self, weight: brainstate.ParamState | Path | str) -> Any:
        """The two factors of one parameter's trace.

        Args:
            weight: The parameter, its path, or its dotted name.

        Returns:
            A pair: what entered, and what its output did to the states, each for every place where the parameter enters
            and every group that it reaches there, by a name that says which. A rule without factors, as a `config` may
            ask for, gives its traces as they are.

        Raises:
            ValueError: The parameter has no trace; the message lists those that have.
        """
        own, trace = self._links_of(weight), self._compiled_trace().value
        if not isinstance(trace, Factors):
            return super().get_etrace_of(weight)
        links = self.executor.plan.links
        factors = entered_of(links, trace), effect_of(links, trace)
        return tuple({name: kept[link.index] for name, link in own.items()} for kept in factors)


class HybridDimVjpAlgorithm(ETraceVjpAlgorithm):
    """For each relation, the smaller of a trace per parameter and a factored one.

    Examples:
        >>> import brainstate
        >>> HybridDimVjpAlgorithm(brainstate.nn.GRUCell(3, 4), 0.9).rule.name
        'hybrid'
    """

    rule_class = Hybrid


class RandomProjectionVjpAlgorithm(ETraceVjpAlgorithm):
    """UORO: the whole influence of the parameters by one random projection, without bias.

    Examples:
        >>> import brainstate
        >>> RandomProjectionVjpAlgorithm(brainstate.nn.GRUCell(3, 4)).rule.name
        'UORO'
    """

    rule_class = UORO


def _role_by_type(state: brainstate.State) -> Role:
    if isinstance(state, brainstate.ParamState):
        return Role.PARAM
    return Role.HIDDEN if isinstance(state, brainstate.HiddenState) else Role.OTHER
