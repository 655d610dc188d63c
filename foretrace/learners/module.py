"""The learner for brainstate modules: a model, its graph and a rule, with the traces in a state of their own.

A learner is a module itself. Calling it runs one step of the model and takes the trace through it; the call may stand
anywhere in brainstate's transformations, and its gradient is the rule's (`foretrace.learners.differentiable`). Whole
sequences are driven by `SequenceDriverMixin`. The classes are braintrace's: they differ in nothing but the rule that
they take where none is given.
"""

import dataclasses
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import brainstate
import jax
import jax.numpy as jnp
from brainstate.util import FlattedDict

from foretrace._checks import optional_count, require_flag
from foretrace._html import cell
from foretrace._repr import one_line
from foretrace._signature import InitSignature
from foretrace.compiler import CompilationReport, ETraceGraph
from foretrace.compiler.graph import Discover
from foretrace.compiler.reporting.html import report_cell
from foretrace.engine.plan import Link
from foretrace.errors import NotSupportedError
from foretrace.learners.alone import alone
from foretrace.learners.blocks import BlockSize, checked_block
from foretrace.learners.data import Stacked, stack_inputs
from foretrace.learners.differentiable import DifferentiableCall, make_call
from foretrace.learners.driver import SequenceDriverMixin
from foretrace.learners.executor import ModuleExecutor
from foretrace.learners.learner import Carry, Learner
from foretrace.learners.options import by_position
from foretrace.learners.recording import RECORDER
from foretrace.learners.training import Trainable
from foretrace.program.control_flow import ControlFlowPolicy
from foretrace.program.diagnostics import Path
from foretrace.program.records import path_name
from foretrace.rules.config import ETraceConfig, config_of
from foretrace.rules.d_rtrl import D_RTRL
from foretrace.rules.dni import DNI
from foretrace.rules.factored import FactoredRule
from foretrace.rules.hybrid import Hybrid
from foretrace.rules.options import rule_of_config
from foretrace.rules.pp_prop import pp_prop
from foretrace.rules.registry import make_rule
from foretrace.rules.rule import Rule, require_windows
from foretrace.rules.snap import note_neighbourhoods
from foretrace.rules.uoro import UORO

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
_KEPT: dict[type, str] = {D_RTRL: "per_param", pp_prop: "io_factorized", UORO: "random_projection"}


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
        block: Steps in a block, or what the arrays of one may take, such as `"256MB"`; None to choose by size. It
            changes the speed alone.
        weights: The parameters that learn, by names or paths; None for all. The others are constants: they have no
            trace, `etrace_grad` leaves them out, and `brainstate.transform.grad` gives zeros for them.
        window: Steps with exact credit in `fit` and, where it gets no `chunk_size`, in `etrace_grad`; None for online
            credit alone.
        check_finite: Whether `etrace_grad`, `etrace_evolve` and `etrace_train` report NaN and infinities where they
            first appear. States, traces and parameters are then as before the call.
        config: The rule by its parts, for the classes of D-RTRL, pp_prop and UORO: another rule with traces of the
            same kind.
        rule: The rule; None for that of the class.
        **rule_options: Options of the rule. `chunked_trace`, `snap_max_jacobian_elements` and `mode` of other
            implementations are checked and change nothing; a `random_feedback_key` matters to random feedback alone.

    Attributes:
        model: The module.
        rule: The rule.
        etrace: The state with the rule's trace.
        rule_class: The rule of the class, where none is given.
        maps_samples: Whether it maps a model of one sample over a batch.
        choice: Where `"auto"` chose the rule, what it chose and why; None elsewhere.
    """

    rule_class: ClassVar[type[Rule] | None] = None
    __signature__: ClassVar[InitSignature] = InitSignature()  # brainstate's metaclass takes anything
    maps_samples: ClassVar[bool] = False

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
        block: BlockSize = None,
        weights: Any = None,
        window: int | None = None,
        check_finite: bool = False,
        config: ETraceConfig | None = None,
        rule: Rule | ETraceConfig | type[Rule] | None = None,
        **rule_options: Any,
    ) -> None:
        own = dict(zip(_DEFAULTS, (name, vjp_method, fast_solve, trace_dtype, control_flow, config), strict=True))
        given = [*rule_options, *(option for option, value in own.items() if value is not _DEFAULTS[option])]
        options = own | rule_options | by_position(rule if inspect.isclass(rule) else type(self), positional, given)
        given_name = options.pop("name")
        if not isinstance(given_name, str | None):
            raise TypeError(f"`name` is a text or None; got {given_name!r}.")
        super().__init__(name=given_name)
        block, check_finite = checked_block(block), require_flag("check_finite", check_finite)
        method, policy = options.pop("vjp_method"), options.pop("control_flow")
        self.model, self.block, self.fast_solve, self.check_finite = model, block, options["fast_solve"], check_finite
        self.rule = self._made_rule(rule, options)
        self._executor = ModuleExecutor(model, method, policy, discover, weights)
        self._compiled_call: DifferentiableCall | None = None
        self.window = optional_count("window", window)
        self.choice: Any = None
        if self.window is not None:
            require_windows(self.rule)
        self._is_probe = False
        self._standing: Any = None
        self._pure: Learner | None = None
        self.etrace: EligibilityTrace | None = None

    @one_line
    def __repr__(self) -> Iterator[str]:
        yield f"{self.rule.name} of {type(self.model).__name__}"
        yield self.graph.sizes if self.is_compiled else "not compiled"

    def _repr_html_(self) -> str:
        return report_cell(self.report, repr(self)) if self.is_compiled else cell(repr(self))

    def _made_rule(self, given: Any, options: dict[str, Any]) -> Rule:
        """The rule that was given, or that of the class; an option that is None and unknown to it is left out."""
        config = options.pop("config", None)
        rule = self.rule_class if given is None else given
        if rule is None:
            raise NotSupportedError(f"{type(self).__name__} has no rule of its own: pass `rule=`, or name one.")
        if config is None or not inspect.isclass(rule):
            return make_rule(rule, **options)
        found = rule_of_config(rule.__name__, config, options)
        if type(found) is not rule and _KEPT.get(rule) != config.trace_factorization:
            raise ValueError(
                f"{rule.__name__} does not stand for the rule of this config, {found.name} with "
                f"trace_factorization={config.trace_factorization!r}. Pass the config to `foretrace.compile` instead."
            )
        return found

    @property
    def vjp_method(self) -> str:
        """How credit is given inside a call."""
        return self.executor.vjp_method

    @property
    def config(self) -> ETraceConfig:
        """The rule by its parts; an AttributeError where no `ETraceConfig` describes it."""
        return config_of(self.rule)

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
        """Draws the graph, or says it in words; see `ModuleExecutor.show_graph`."""
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
        if self.executor.compile_graph(*inputs, **named_inputs) or self._compiled_call is None:
            self._make_call()
            self.etrace = None
        if self.etrace is None or self._is_probe:
            self.etrace = EligibilityTrace(self.rule.init(self.executor.plan))
        # `vmap_new_states` runs its function once in advance and keeps the states of the second run alone.
        self._is_probe = brainstate.transform.in_new_state_probe()

    def replace_rule(self, rule: Rule) -> None:
        """Learns by another rule from now on, with an empty trace."""
        self.rule, self._compiled_call = rule, None
        if self.is_compiled:
            self._make_call()
            self.etrace = EligibilityTrace(rule.init(self.executor.plan))

    def _make_call(self) -> None:
        plan, exact = self.executor.plan, self.executor.is_multi_step_vjp or self.rule.exact
        self._compiled_call = make_call(plan, self.rule, exact=exact, block=self.block)
        note_neighbourhoods(plan, self.rule)

    def run_as(self, model: brainstate.nn.Module) -> None:
        """Lets another module with the model's states stand for its step; the graph is to be compiled for it."""
        if self.executor.model is not model:
            before = self.executor
            given = (before.vjp_method, before.control_flow, before.discover, before.weights)
            self._executor = ModuleExecutor(model, *given)
            self._compiled_call, self.etrace = None, None

    @property
    def pure(self) -> Learner:
        """The pure learner: this one holds its carry, and the parameters."""
        if self._pure is None or self._pure.graph is not self.graph or self._pure.rule is not self.rule:
            options: dict[str, Any] = dict(block=self.block, window=self.window, check_finite=self.check_finite)
            self._pure = Learner(self.graph, self.rule, weights=self.executor.weights, choice=self.choice, **options)
        return self._pure

    @property
    def params(self) -> dict[Path, Any]:
        """The parameters by path, as they are now."""
        return self.executor.split.params

    @property
    def carry(self) -> Carry:
        """The model's states by path and the traces, as they are now."""
        return Carry(self.executor.split.state, self._compiled_trace().value)

    def put(self, params: Mapping[Path, Any], carry: Carry) -> None:
        """Gives the model these parameters and states, and the learner these traces."""
        states = self.executor.split.states()
        for path, value in {**params, **carry.state}.items():
            states[path].value = value
        self._compiled_trace().value = carry.trace

    def trainable(self, batch_size: int, seed: int, params: Any = None, state: Any = None) -> Trainable:
        """What training begins with: states made anew for a batch, and the parameters of the model."""
        if params is not None or state is not None:
            raise TypeError("A module holds its own parameters and states: leave out `params` and `state`.")
        brainstate.random.seed(seed)
        before = {path: (state, state.value) for path, state in self.model.states().items()}
        self.make_states(batch_size)
        self.reset_state(batch_size)
        split, states = self.executor.split, dict(self.model.states().items())
        left_alone = {p for p, (state, value) in before.items() if state.value is value and states.get(p) is state}
        made_anew = {p for p, s in states.items() if isinstance(s, brainstate.HiddenState) or p not in left_alone}
        persistent = tuple(path for path in split.state if path not in made_anew)
        return Trainable(self.pure, split.params, split.state, persistent, frozenset(states), self.put)

    def make_states(self, batch_size: int) -> None:
        """Makes the model's states anew for a batch."""
        brainstate.nn.init_all_states(self.model, batch_size=batch_size)

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
    def hidden_states(self) -> FlattedDict:
        """The model's hidden states by path."""
        used = self.executor.split.used if self.is_compiled else {}
        hidden = {leaf.owner for leaf in self.graph.program.hidden} if used else set()
        # A state that the compiled step does not use is known by its type alone.
        is_hidden = lambda path, state: path in hidden if path in used else isinstance(state, brainstate.HiddenState)
        return FlattedDict({path: state for path, state in self.executor.states.items() if is_hidden(path, state)})

    @property
    def other_states(self) -> FlattedDict:
        """All other states of the model by path."""
        known = {*self.param_states, *self.hidden_states}
        return FlattedDict({path: state for path, state in self.executor.states.items() if path not in known})

    def get_etrace_of(self, weight: brainstate.ParamState | Path | str) -> Any:
        """The traces of one parameter.

        Args:
            weight: The parameter, its path, or its dotted name.

        Returns:
            A trace for each place where the parameter enters and each group that it reaches there, by a name that says
            which. A rule whose trace has several parts (two factors, a filter) gives one such dictionary for each. A
            rule that keeps one trace for all parameters gives that one, by the rule's name.

        Raises:
            ValueError: The parameter has no trace; the message lists those that have.
        """
        own, trace = self._links_of(weight), self._compiled_trace().value
        parts = self.rule.traces(self.executor.plan, trace)
        if parts is None:
            return {self.rule.name: trace}
        by_part = tuple({name: part[link.index] for name, link in own.items()} for part in parts.values())
        return by_part[0] if len(by_part) == 1 else by_part

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
            known = ", ".join(f"`{name}`" for name in (*self.executor.keywords, external) if name)
            takes = f"By name it takes {known}." if known else "It takes none by name."
            raise TypeError(f"{type(self).__name__} takes no argument `{strange[0]}`. {takes}")
        own = {name: value for name, value in kwargs.items() if name != external}
        return stack_inputs(self.executor.traced, args, own, kwargs.get(external, self._standing) if external else None)

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

    The arguments are those of `ETraceAlgorithm`.

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
        recorder = RECORDER.get()
        return self._step(inputs, named_inputs) if recorder is None else recorder.call(self, inputs, named_inputs)

    @alone
    def _step(self, inputs: Sequence[Any], named_inputs: dict[str, Any]) -> Any:
        executor = self.executor
        stacked = self.stacked(inputs, named_inputs)
        params, hidden, other = executor.read()
        trace = self._compiled_trace()
        assert self._compiled_call is not None
        outputs, hidden, other, trace.value = self._compiled_call(
            params, hidden, other, trace.value, stacked.inputs, stacked.external
        )
        executor.write(hidden, other)
        return executor.output(outputs, stacked.length)


class ParamDimVjpAlgorithm(ETraceVjpAlgorithm):
    """D-RTRL: a trace for every parameter and position.

    The arguments are those of `ETraceAlgorithm`.

    Examples:
        >>> import brainstate
        >>> ParamDimVjpAlgorithm(brainstate.nn.GRUCell(3, 4)).rule.name
        'D_RTRL'
    """

    rule_class = D_RTRL


class IODimVjpAlgorithm(ETraceVjpAlgorithm):
    """pp_prop, also known as ES-D-RTRL: a trace in two factors, one for each input and one for each output.

    The arguments are those of `ETraceAlgorithm`.

    Examples:
        >>> import brainstate
        >>> IODimVjpAlgorithm(brainstate.nn.GRUCell(3, 4), 0.9).rule.name
        'pp_prop'
    """

    rule_class = pp_prop


class HybridDimVjpAlgorithm(ETraceVjpAlgorithm):
    """For each relation, the smaller of a trace per parameter and a factored one.

    The arguments are those of `ETraceAlgorithm`.

    Examples:
        >>> import brainstate
        >>> HybridDimVjpAlgorithm(brainstate.nn.GRUCell(3, 4), 0.9).rule.name
        'hybrid'
    """

    rule_class = Hybrid


class RandomProjectionVjpAlgorithm(ETraceVjpAlgorithm):
    """UORO: the whole influence of the parameters by one random projection, without bias.

    The arguments are those of `ETraceAlgorithm`.

    Examples:
        >>> import brainstate
        >>> RandomProjectionVjpAlgorithm(brainstate.nn.GRUCell(3, 4)).rule.name
        'UORO'
    """

    rule_class = UORO


class DNILearner(ETraceVjpAlgorithm):
    """A learner with a synthesiser of gradients to come.

    Examples:
        >>> import brainstate
        >>> DNILearner(brainstate.nn.GRUCell(3, 4)).rule.name
        'DNI'
    """

    rule_class = DNI

    @property
    def synthesizer(self) -> Any:
        """What gives the gradient to come, or None."""
        return self.rule.synthesizer  # type: ignore[attr-defined]

    def group_signal_shapes(self) -> dict[int, tuple[int, ...]]:
        """The shape of the synthetic gradient of each group, by its index: `(*varshape, num_state)`."""
        return {group.index: (*group.varshape, group.num_state) for group in self.graph.hidden_groups}

    def attach_synthesizer(self, synthesizer: Any) -> None:
        """Takes another synthesiser, with its parameters as it begins them.

        Args:
            synthesizer: A `SyntheticGradient`, or anything with its `init` and `apply`.
        """
        self.replace_rule(dataclasses.replace(self.rule, synthesizer=synthesizer))  # type: ignore[type-var]


# The class of a rule's learners; a rule of one's own has that of the rule that it is made of.
HOLDERS: dict[type[Rule], type[ETraceVjpAlgorithm]] = {
    D_RTRL: ParamDimVjpAlgorithm,
    Hybrid: HybridDimVjpAlgorithm,
    FactoredRule: IODimVjpAlgorithm,
    UORO: RandomProjectionVjpAlgorithm,
    DNI: DNILearner,
    Rule: ETraceVjpAlgorithm,
}


def learner_of(rule: Rule | ETraceConfig | type[Rule], model: Any, *positional: Any, **options: Any) -> Any:
    """The learner of a module by a rule, its graph yet to be compiled.

    Args:
        rule: A rule, its class, or a config.
        model: The module.
        *positional: Options by position, as braintrace has them.
        **options: Options of the rule and of the learner.
    """
    made = rule.rule() if isinstance(rule, ETraceConfig) else rule
    kind = made if inspect.isclass(made) else type(made)
    holder = next(HOLDERS[base] for base in kind.__mro__ if base in HOLDERS)
    return holder(model, *positional, rule=rule, **options)
