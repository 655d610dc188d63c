"""The one learner: a model, its graph and a rule, as pure functions that jit and vmap.

It is the same for every kind of model. Parameters, states and gradients have the form that the model's library gives
them; what is carried from one piece of a sequence to the next is a `Carry`. Whatever holds values itself, such as the
learner of a brainstate module, holds a carry and calls this one.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from foretrace._checks import optional_count, require_count, require_flag
from foretrace._optional import is_instance
from foretrace._repr import arrays_text, one_line
from foretrace.compiler import CompilationReport, ETraceGraph
from foretrace.compiler.reporting.html import report_cell
from foretrace.engine.evaluate import Step
from foretrace.engine.finite import finite_flags, parameter_flags, require_finite
from foretrace.engine.linearise import Cotangents
from foretrace.engine.plan import Plan, make_plan
from foretrace.engine.sequence import States, run_steps, scan_blocks
from foretrace.errors import ExampleInputError
from foretrace.frontends import TracedModel
from foretrace.frontends.trees import form_text
from foretrace.learners.blocks import BlockSize, checked_block
from foretrace.learners.devices import Shardings, on_devices, output_spec, shardings_of, specs
from foretrace.learners.differentiable import DifferentiableCall, make_call
from foretrace.learners.drive import Ran, drive, drive_windows
from foretrace.learners.losses import check_loss_call, checked_loss, reads_params, split_loss, warn_of_constants
from foretrace.learners.sequences import (
    TraceForm,
    begin_optimizer,
    check_length,
    check_mask,
    length_of,
    sequence_advice,
)
from foretrace.learners.training import Trainable
from foretrace.learners.unjitted import Calls
from foretrace.learners.weights import learned_parameters
from foretrace.rules.registry import make_rule
from foretrace.rules.rule import Rule, require_windows


@dataclass(frozen=True)
class Carry:
    """What a learner carries from one piece of a sequence to the next: a pytree.

    Attributes:
        state: The model's state.
        trace: The rule's trace.
    """

    state: Any
    trace: Any

    @one_line
    def __repr__(self) -> Iterator[str]:
        yield f"state: {arrays_text(self.state)}; trace: {arrays_text(self.trace)}"


jax.tree_util.register_dataclass(Carry, ["state", "trace"], [])


@dataclass(frozen=True, eq=False)
class Learner:
    """A model that learns online. Every method is pure.

    Attributes:
        graph: The compiled step.
        rule: The learning rule.
        block: Steps in a block, or what the arrays of one may take, such as `"256MB"`; None to choose by size. It
            changes the speed alone.
        window: Steps with exact credit, by reverse mode; None for online credit alone.
        check_finite: Whether NaN and infinities are reported where they first appear.
        weights: The parameters that learn, by names or paths; None for all. The others are constants.
        choice: Where `"auto"` chose the rule, what it chose and why, a `Choice`; None elsewhere.
    """

    graph: ETraceGraph
    rule: Rule
    block: BlockSize = None
    window: int | None = None
    check_finite: bool = False
    weights: Any = None
    choice: Any = dataclasses.field(default=None, repr=False)
    plan: Plan = dataclasses.field(init=False, repr=False)
    _calls: Calls = dataclasses.field(init=False, repr=False, default_factory=Calls)

    @one_line
    def __repr__(self) -> Iterator[str]:
        yield self.rule.name
        yield self.graph.sizes
        yield f"blocks of {self.block}" if self.block else ""
        yield f"windows of {self.window}" if self.window else ""
        whole = len(self.plan.program.params)
        yield "" if len(self.plan.learned) == whole else f"{len(self.plan.learned)} of {whole} parameters learn"

    def _repr_html_(self) -> str:
        return report_cell(self.report, repr(self))

    def __post_init__(self) -> None:
        object.__setattr__(self, "block", checked_block(self.block))
        object.__setattr__(self, "window", optional_count("window", self.window))
        require_flag("check_finite", self.check_finite)
        if self.window is not None:
            require_windows(self.rule)
        object.__setattr__(self, "plan", make_plan(self.graph, learned_parameters(self.graph.program, self.weights)))
        object.__setattr__(self, "graph", self.plan.graph)

    def __deepcopy__(self, memo: Any) -> "Learner":
        """The learner itself: it holds no values that change, so whatever is copied may share it."""
        return self

    @property
    def report(self) -> CompilationReport:
        """What the compiler found; print it."""
        return self.graph.explain()

    @property
    def model(self) -> TracedModel:
        """The traced model, and the way between its own forms and flat arrays."""
        return self.graph.model

    @property
    def pure(self) -> "Learner":
        """This learner. Whatever holds a carry has the pure learner behind it under the same name."""
        return self

    @property
    def carry(self) -> Carry:
        """The carry before the first step."""
        return self.init()

    @property
    def params(self) -> Any:
        """The parameters that the model was compiled with, in its library's own form."""
        return self.model.split.params

    @property
    def state(self) -> Any:
        """The state that the model was compiled with."""
        return self.model.split.state

    def with_rule(self, rule: Any, **options: Any) -> "Learner":
        """A learner of the same model by another rule; the model is not compiled again.

        Args:
            rule: A name, a class or a record, as for `foretrace.compile`.
            **options: Options of the rule.

        Examples:
            >>> import jax.numpy as jnp
            >>> import foretrace as ft
            >>> step = lambda w, h, x: (0.5 * h + w * x, h)
            >>> learner = ft.compile(step, "D_RTRL", jnp.ones(2), params=jnp.ones(2), state=jnp.zeros(2))
            >>> learner.with_rule("BPTT").rule.name
            'BPTT'
        """
        return dataclasses.replace(self, rule=make_rule(rule, **options), choice=None)

    def init(self, state: Any = None) -> Carry:
        """The carry before a sequence that starts from a state, with empty traces.

        Args:
            state: The state; None for the one that the model was compiled with.
        """
        if isinstance(state, Carry):
            raise TypeError(
                "`init` takes a state and got a carry: pass `carry.state` to begin there with empty traces."
            )
        state = self._given(state)
        self.model.flatten_state(state)
        return Carry(state, self.rule.init(self.plan))

    def certificate(self, carry: Carry) -> jax.Array:
        """An upper bound on the error of the gradients so far: the norm of their difference from RTRL's.

        The bound grows from call to call. What a call adds to it bounds the error of that call's gradient. It holds for
        gradients of `grad` and `train`; those that are taken through `step` are not counted.

        Args:
            carry: From `grad` or `train`.

        Returns:
            One number.

        Raises:
            NotSupportedError: The rule has no bound. `LowRank` has one, with `certify=True`.

        Examples:
            >>> import jax.numpy as jnp
            >>> import foretrace as ft
            >>> step = lambda w, h, x: (jnp.tanh(h @ w + x), h)
            >>> rule = ft.LowRank(rank=2, certify=True)  # all there is to keep of two states
            >>> learner = ft.compile(step, rule, jnp.ones(2), params=jnp.eye(2), state=jnp.zeros(2))
            >>> _, carry, _ = learner.grad(jnp.eye(2), learner.init(), jnp.ones((9, 2)), loss=jnp.sum)
            >>> bool(learner.certificate(carry) < 1e-6)
            True
        """
        return self.rule.certificate(self.plan, carry.trace)

    def shardings(self, mesh: Mesh, *, batch: str | None = None, units: str | None = None) -> Shardings:
        """Where parameters, states and traces are placed on many devices; place them there, and call as on one.

        Args:
            mesh: The devices, from `jax.make_mesh`; its axes may be automatic or explicit.
            batch: The axis of the mesh that the batch is shared out over, the first axis of inputs and states; None to
                keep it whole.
            units: The axis that units are shared out over: the last axis of hidden states, and of the parameters and
                traces that have an axis of that size there; None to keep them whole.

        Returns:
            `params`, `carry` and `sequence`, for `jax.device_put`.

        Raises:
            ValueError: The mesh has no such axis, or the batch or the units cannot be divided by it.

        Examples:
            >>> import jax, jax.numpy as jnp
            >>> import foretrace as ft
            >>> step = lambda w, h, x: (0.5 * h + x @ w, h)
            >>> learner = ft.compile(step, "D_RTRL", jnp.ones((4, 3)), params=jnp.ones((3, 2)), state=jnp.zeros((4, 2)))
            >>> mesh = jax.make_mesh((1,), ("data",))
            >>> shardings = learner.shardings(mesh, batch="data")
            >>> carry = jax.device_put(learner.init(), shardings.carry)
            >>> tuple(shardings.carry.state.spec), tuple(shardings.sequence.spec)
            (('data', None), (None, 'data'))
        """
        return shardings_of(self, mesh, batch, units)

    def step(self, params: Any, carry: Carry, *inputs: Any, external: Any = None) -> tuple[Carry, Any]:
        """Runs one step, for loops of one's own; differentiate what follows from it by `jax.grad`.

        The derivative by the parameters is the rule's: through this step and, by the trace of the carry, through the
        past. Inputs get the derivative within the step, the carry that goes in none.

        Args:
            params: The parameters, or the model that holds them.
            carry: From `init`, or from the step before.
            *inputs: The inputs of the step.
            external: What the rule takes beside them (a modulator, targets to project).

        Returns:
            The carry after the step, and the output.

        Examples:
            >>> import jax, jax.numpy as jnp
            >>> import foretrace as ft
            >>> step = lambda w, h, x: (0.5 * h + w * x, h + w * x)
            >>> learner = ft.compile(step, "D_RTRL", jnp.ones(()), params=jnp.ones(()), state=jnp.zeros(()))
            >>> carry, _ = learner.step(jnp.ones(()), learner.init(), jnp.ones(()))
            >>> jax.grad(lambda w: learner.step(w, carry, jnp.ones(()))[1])(jnp.ones(())).item()
            2.0
        """
        one = lambda tree: jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], tree)
        given = one(inputs) if len(inputs) != 1 else one(inputs[0])
        flat, states, trace, items = self._prepare(params, carry, given, None, None, one(external))
        called = self._call(flat, states.hidden, states.other, trace, items["inputs"], items["external"])
        outputs, hidden, other, trace = called
        return self._carry(States(hidden, other), trace), self.model.unflatten_output([out[0] for out in outputs])

    def stateful(self, model: Any) -> Any:
        """For a Flax NNX module: a module that holds the carry, and is called like the model, `out = online(x)`.

        Args:
            model: The module that the learner was compiled from, or one of the same form.

        Returns:
            A `foretrace.learners.nnx_module.OnlineModule`, for `nnx.grad`, `nnx.jit` and `nnx.Optimizer`.

        Raises:
            TypeError: Not an NNX module. A brainstate module's learner holds its carry itself; values of all others
                are immutable, and `step` hands the carry back.
        """
        if not is_instance(model, "flax.nnx", "Module"):
            raise TypeError(
                f"`stateful` takes the NNX module that holds the parameters; got {form_text(model)}. For any other "
                "model, loop over `carry, out = learner.step(params, carry, x)`."
            )
        from foretrace.learners.nnx_module import OnlineModule

        return OnlineModule(self, model)

    def grad(
        self,
        params: Any,
        carry: Carry,
        xs: Any,
        ys: Any = None,
        *,
        loss: Callable[..., Any],
        mask: Any = None,
        has_aux: bool = False,
        external: Any = None,
    ) -> tuple[Any, Carry, Any]:
        """The gradient of the summed per-step losses over a sequence.

        Args:
            params: The parameters, or the model that holds them.
            carry: From `init`, or from the piece of the sequence before.
            xs: Inputs, time first; for a step with several inputs, a tuple of them.
            ys: Targets, time first; None where the loss needs none.
            loss: `loss(out, y)`, or `loss(out)` without targets: a scalar for each step. A loss with an argument named
                `params` is given the parameters too, and differentiated by them.
            mask: Weights `(T,)` of the losses; traces run on where it is zero.
            has_aux: Whether `loss` returns `(loss, aux)`.
            external: What the rule takes at each step beside the inputs (a modulator, targets to project), time first.

        Returns:
            The gradient, like the parameters; the carry after the sequence; the losses of each step, or with `has_aux`
            the pair of losses and aux.

        Examples:
            >>> import jax.numpy as jnp
            >>> import foretrace as ft
            >>> def step(params, state, x):
            ...     state = 0.5 * state + x @ params
            ...     return state, state
            >>> learner = ft.compile(step, "D_RTRL", jnp.ones(2), params=jnp.ones((2, 1)), state=jnp.zeros(1))
            >>> carry = learner.init(jnp.zeros(1))
            >>> grads, carry, losses = learner.grad(
            ...     jnp.ones((2, 1)), carry, jnp.ones((3, 2)), loss=lambda out: jnp.sum(out)
            ... )
            >>> grads.ravel().tolist(), losses.tolist()
            ([4.25, 4.25], [2.0, 3.0, 3.5])
        """
        has_aux = require_flag("has_aux", has_aux)
        grads, carry, (losses, aux, flags) = self._grad(params, carry, (xs, ys, mask, external), loss, has_aux)
        if self.check_finite:
            self._require_finite(parameter_flags(self.model.flatten_params(params), 1), flags, carry)
        self._calls.note("grad", params, carry, xs)
        return grads, carry, ((losses, aux) if has_aux else losses)

    def _grad(
        self, params: Any, carry: Carry, given: tuple[Any, ...], loss: Callable[..., Any], has_aux: bool = False
    ) -> tuple[Any, Carry, Any]:
        """As `grad`, of `(xs, ys, mask, external)`, with losses, aux and what was observed of finite values."""
        learned = self.model.split.params_of(params)
        found = lambda params, carry, given: self._grad_there(params, carry, given, loss, has_aux)
        return on_devices(found, (learned, carry, given), lambda: (specs(learned), specs(carry), PartitionSpec()))

    def _grad_there(
        self, params: Any, carry: Carry, given: tuple[Any, ...], loss: Callable[..., Any], has_aux: bool
    ) -> tuple[Any, Carry, Any]:
        """As `_grad`, of arrays whose places are left to XLA."""
        flat, states, trace, items = self._prepare(params, carry, *given)
        if not self.plan.program.outputs:
            raise ValueError(
                "The step returns no output, and the loss of a step reads nothing else. Return what the loss needs "
                "beside the state, `return state, out`."
            )
        check_loss_call(loss, targets=given[1] is not None)
        read = jax.tree.structure(params) if reads_params(loss) else None
        losses = Losses(self, loss, given[1] is not None, has_aux, read)
        losses.warn_of_constants(params, items)
        flat += [] if read is None else jax.tree.leaves(params)
        start = (self.plan, self.rule, flat, states, trace, items)
        window = length_of(items) if self.rule.exact and self.window is None else self.window
        if window is None:
            total, states, trace, found = drive(*start, losses.forward, self.block)
        else:
            total, states, trace, found = drive_windows(*start, losses.window, window)
        assert total is not None
        own, further = self._own(total)
        grads = self.model.unflatten_params(own)
        if losses.params is not None:
            grads = jax.tree.map(jnp.add, grads, jax.tree.unflatten(losses.params, further))
        return grads, self._carry(states, trace), found

    def _own(self, flat: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        """The arrays of the parameters as the engine has them, and again as a loss reads them."""
        count = len(self.plan.program.params)
        return flat[:count], flat[count:]

    def _require_finite(self, params: Any, flags: Any, carry: Carry) -> None:
        require_finite(self.plan, params, flags, self.model.flatten_state(carry.state)[0])

    def evolve(self, params: Any, carry: Carry, xs: Any, *, external: Any = None) -> tuple[Carry, Any]:
        """Runs states and traces over a sequence without a loss.

        Returns:
            The carry after the sequence, and the outputs, time first.
        """
        learned = self.model.split.params_of(params)
        like = lambda: (specs(carry), output_spec(self.plan.program.outputs, xs), PartitionSpec())
        after, outputs, flags = on_devices(self._evolve, (learned, carry, xs, external), like)
        if self.check_finite:
            self._require_finite(parameter_flags(self.model.flatten_params(params), 1), flags, after)
        self._calls.note("evolve", params, after, xs)
        return after, self.model.unflatten_output(outputs)

    def _evolve(self, params: Any, carry: Carry, xs: Any, external: Any) -> tuple[Carry, list[Any], Any]:
        """The carry after a sequence, the flat outputs, and what was observed of finite values."""
        flat, states, trace, items = self._prepare(params, carry, xs, None, None, external)

        def forward(params: Sequence[Any], states: States, part: Any) -> Ran:
            states, steps, outputs = run_steps(self.plan, params, states, part["inputs"])
            flags = finite_flags(steps, outputs, jnp.zeros(length_of(part))) if self.check_finite else None
            return Ran(states, steps, None, (outputs, flags), part["external"])

        _, states, trace, (outputs, flags) = drive(
            self.plan, self.rule, flat, states, trace, items, forward, self.block, gradients=False
        )
        return self._carry(states, trace), outputs, flags

    def run(self, params: Any, state: Any, xs: Any) -> tuple[Any, Any]:
        """Runs the model over a sequence as it is used after training: without a loss, and without traces.

        Args:
            params: The parameters, or the model that holds them.
            state: The state to start from, or a carry whose state is meant.
            xs: Inputs, time first.

        Returns:
            The state after the sequence, and the outputs, time first.
        """
        state = self.model.split.state_of(state.state if isinstance(state, Carry) else state)
        params = self.model.split.params_of(params)
        _flatten_sequence(self.model, xs)

        def ran(params: Any, state: Any, xs: Any) -> tuple[Any, Any]:
            one = lambda state, x: self.model.split.evaluated(params, state, *x)
            return jax.lax.scan(one, state, self.model.as_inputs(xs))

        return on_devices(ran, (params, state, xs), lambda: (specs(state), output_spec(self.plan.program.outputs, xs)))

    def train(
        self,
        params: Any,
        carry: Carry,
        xs: Any,
        ys: Any = None,
        *,
        loss: Callable[..., Any],
        optimizer: Any,
        opt_state: Any = None,
        update_every: int = 1,
        mask: Any = None,
        external: Any = None,
    ) -> tuple[Any, Any, Carry, Any]:
        """Learns while the sequence runs: the weights change every few steps, the traces run on.

        Args:
            params: The parameters, or the model that holds them.
            carry: From `init`, or from the piece before.
            xs: Inputs, time first.
            ys: Targets, time first.
            loss: As for `grad`.
            optimizer: An optax gradient transformation.
            opt_state: Its state; None to begin with `optimizer.init(params)`.
            update_every: Steps between updates. The gradient of these steps' summed losses is used; a shorter last
                period updates too.
            mask: As for `grad`.
            external: As for `grad`.

        Returns:
            New parameters, optimizer state, carry, and the losses of each step.
        """
        update_every = require_count("update_every", update_every)
        params = self.model.split.params_of(params)
        items = (xs, ys, mask, external)
        self._prepare(params, carry, *items)
        opt_state = begin_optimizer(optimizer, opt_state, params)

        def period(before: Any, part: Any) -> tuple[Any, Any]:
            params, opt_state, carry = before
            grads, carry, (losses, _, flags) = self._grad(params, carry, part, loss)
            of_params = parameter_flags(self.model.flatten_params(params), len(losses)) if self.check_finite else None
            updates, opt_state = optimizer.update(grads, opt_state, params)
            params = jax.tree.map(lambda p, u: (p + u).astype(jnp.result_type(p)), params, updates)
            return (params, opt_state, carry), (losses, flags, of_params)

        before = (params, opt_state, carry)
        (params, opt_state, carry), (losses, flags, of_params) = on_devices(
            lambda *before: scan_blocks(period, before[:3], before[3], update_every),
            (*before, items),
            lambda: (specs(before), PartitionSpec()),
        )
        if self.check_finite:
            self._require_finite(of_params, flags, carry)
        self._calls.note("train", params, carry, xs)
        return params, opt_state, carry, losses

    def trainable(self, batch_size: int, seed: int, params: Any = None, state: Any = None) -> Trainable:
        """What training begins with: these parameters and this state, or those that the model was compiled with."""
        params = self.params if params is None else self.model.split.params_of(params)
        return Trainable(self, params, self.model.unflatten_state(*self.model.flatten_state(self._given(state))))

    def _given(self, state: Any) -> Any:
        """The state that was given, or the one that the model was compiled with."""
        return self.state if state is None else self.model.split.state_of(state)

    def flatten(self, params: Any, state: Any, xs: Any) -> tuple[list[Any], States, list[Any]]:
        """Parameters, state and a sequence of inputs as the engine takes them."""
        flat = self.model.flatten_params(params)
        return flat, States(*self.model.flatten_state(state)), _flatten_sequence(self.model, xs)

    def _prepare(
        self, params: Any, carry: Carry, xs: Any, ys: Any, mask: Any, external: Any
    ) -> tuple[list[Any], States, Any, dict[str, Any]]:
        """Everything that a sequence starts from and runs over, checked: parameters, states, trace and items."""
        if not isinstance(carry, Carry):
            raise TypeError(
                f"A sequence starts from a carry and got {form_text(carry)}. Begin with `carry = learner.init(state)`, "
                "and hand on the carry that each call returns."
            )
        flat, states, inputs = self.flatten(params, carry.state, xs)
        trace = self._trace_form.checked(carry.trace)
        items = {"inputs": inputs, "ys": ys, "mask": mask, "external": external}
        length = length_of(inputs)
        check_mask(mask, length)
        for name, value in (("ys", ys), ("external", external)):
            check_length(name, value, length)
        if external is not None and self.rule.external is None:
            raise ValueError(f"{self.rule.name} takes nothing beside the inputs: leave out `external`.")
        return flat, states, trace, items

    @functools.cached_property
    def _call(self) -> DifferentiableCall:
        exact = self.rule.exact or self.window is not None
        return make_call(self.plan, self.rule, exact=exact, block=self.block)

    @functools.cached_property
    def _trace_form(self) -> TraceForm:
        return TraceForm(self.rule, self.plan)

    def _carry(self, states: States, trace: Any) -> Carry:
        return Carry(self.model.unflatten_state(states.hidden, states.other), trace)


def at_start(learner: Any, params: Any, state: Any, what: str) -> tuple[Learner, Any, Any]:
    """The pure learner, the parameters and the state of any learner, to begin a sequence with.

    Args:
        learner: A learner; a `TypeError` says so of anything else.
        params: The parameters; None for those that the learner has, or was compiled with.
        state: The state, or a carry whose state is meant; None likewise.
        what: What is done with it, for the message.
    """
    if not hasattr(type(learner), "pure"):
        raise TypeError(f"{what} takes a learner from `foretrace.compile`; got {type(learner).__name__}.")
    start = learner.carry.state if state is None else state.state if isinstance(state, Carry) else state
    given = learner.params if params is None else learner.pure.model.split.params_of(params)
    return learner.pure, given, start


@dataclass(frozen=True, eq=False)
class Losses:
    """A user's loss over the outputs of a block, side by side.

    Attributes:
        learner: The learner.
        loss: The loss of one step.
        targets: Whether it takes a target.
        has_aux: Whether it returns an auxiliary value.
        params: The structure of the parameters, where the loss reads them; their arrays come behind the engine's own.
    """

    learner: Learner
    loss: Callable[..., Any]
    targets: bool
    has_aux: bool
    params: Any = None

    def forward(self, params: Sequence[Any], states: States, part: Any) -> Ran:
        own, further = self.learner._own(params)
        states, steps, outputs = run_steps(self.learner.plan, own, states, part["inputs"])
        gradient = jax.value_and_grad(self._summed, argnums=(0, 1), has_aux=True, allow_int=True)
        (_, (values, aux)), (by_outputs, by_params) = gradient(outputs, list(further), part)
        by_hidden = [jnp.zeros_like(value) for value in steps.hidden]
        collected = (values, aux, self._observed(steps, outputs, values))
        return Ran(states, steps, Cotangents(by_outputs, by_hidden), collected, part["external"], by_params)

    def window(self, params: Sequence[Any], states: States, part: Any) -> tuple[jax.Array, Ran]:
        own, further = self.learner._own(params)
        states, steps, outputs = run_steps(self.learner.plan, own, states, part["inputs"])
        total, (values, aux) = self._summed(outputs, further, part)
        collected = (values, aux, self._observed(steps, outputs, values))
        return total, Ran(states, steps, None, collected)

    def warn_of_constants(self, params: Any, items: Any) -> None:
        """Says where the loss closes over parameters, so that it has no derivative by them."""
        if self.params is None:
            program = self.learner.plan.program
            of_step = lambda a: jax.ShapeDtypeStruct(jnp.shape(a)[1:], jnp.result_type(a))
            ys, mask = jax.tree.map(of_step, (items["ys"], items["mask"]))
            outputs = [jax.ShapeDtypeStruct(leaf.aval.shape, leaf.aval.dtype) for leaf in program.outputs]
            one = jax.make_jaxpr(lambda *given: self._one([], *given)[0])(outputs, ys, mask)
            warn_of_constants(one.consts, params, program.params)

    def _summed(self, outputs: Sequence[Any], params: Sequence[Any], part: Any) -> tuple[jax.Array, Any]:
        """The summed losses of the steps, with what `_one` gives beside each."""
        weighted, beside = jax.vmap(functools.partial(self._one, params))(list(outputs), part["ys"], part["mask"])
        return jnp.sum(weighted), beside

    def _one(self, params: Sequence[Any], outputs: Sequence[Any], y: Any, mask: Any) -> tuple[Any, Any]:
        out = self.learner.model.unflatten_output(outputs)
        read = {} if self.params is None else {"params": jax.tree.unflatten(self.params, params)}
        value, aux = split_loss(self.loss(*([out, y] if self.targets else [out]), **read), self.has_aux)
        number = checked_loss(value)
        return (number if mask is None else number * mask), (number, aux)

    def _observed(self, steps: Step, outputs: Any, losses: Any) -> Any:
        return finite_flags(steps, outputs, losses) if self.learner.check_finite else None


def _flatten_sequence(model: TracedModel, xs: Any) -> list[Any]:
    """The arrays of a sequence of inputs, checked against the form of one step's."""
    inputs = model.as_inputs(xs)
    leaves = jax.tree.leaves(inputs)
    if not leaves or any(jnp.ndim(leaf) < 1 for leaf in leaves):
        raise ExampleInputError(
            f"A sequence of inputs is made of arrays with time as their first axis; got {form_text(xs)}."
        )
    lengths = sorted({jnp.shape(leaf)[0] for leaf in leaves})
    if len(lengths) > 1 or lengths[0] == 0:
        raise ExampleInputError(f"The inputs have {lengths} steps. Every input has the same number, at least one.")
    first = jax.tree.map(lambda a: a[0], inputs)
    advice = sequence_advice(model.flat.inputs, (inputs, {}))
    flat = model.flat.inputs.flatten((first, {}), ExampleInputError, advice)
    return [jnp.asarray(leaf, one.dtype) for leaf, one in zip(leaves, flat, strict=True)]
