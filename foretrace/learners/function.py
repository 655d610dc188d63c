"""The learner for a plain function `step(params, state, *inputs) -> (state, out)`: pure functions that jit and vmap."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from foretrace._jax import is_float
from foretrace.compiler import CompilationReport, ETraceGraph
from foretrace.engine.blocks import default_block, even_block
from foretrace.engine.evaluate import Step
from foretrace.engine.finite import finite_flags, parameter_flags, require_finite
from foretrace.engine.linearise import Cotangents
from foretrace.engine.plan import Plan, make_plan
from foretrace.engine.rule import Rule
from foretrace.engine.sequence import Ran, States, Window, drive, drive_windows, run_steps, scan_blocks
from foretrace.errors import ExampleInputError
from foretrace.frontends import FunctionModel


@dataclass(frozen=True)
class Carry:
    """What a learner carries from one piece of a sequence to the next: a pytree.

    Attributes:
        state: The model's state.
        trace: The rule's trace.
    """

    state: Any
    trace: Any


jax.tree_util.register_dataclass(Carry, ["state", "trace"], [])


@dataclass(frozen=True, eq=False)
class FunctionLearner:
    """Online gradients of a step function. Every method is pure.

    Attributes:
        graph: The compiled step.
        rule: The learning rule.
        block: Steps in a block; None to choose by size. It changes the speed alone.
        window: Steps with exact credit, by reverse mode; None for online credit alone.
        check_finite: Whether NaN and infinities are reported where they first appear.
    """

    graph: ETraceGraph
    rule: Rule
    block: int | None = None
    window: int | None = None
    check_finite: bool = False
    plan: Plan = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("block", "window"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ValueError(f"`{name}` is a number of steps from 1 on, or None; got {value!r}.")
        object.__setattr__(self, "plan", make_plan(self.graph))
        object.__setattr__(self, "graph", self.plan.graph)

    @property
    def report(self) -> CompilationReport:
        """What the compiler found; print it."""
        return self.graph.explain()

    @property
    def model(self) -> FunctionModel:
        """The traced function."""
        return self.graph.module_info

    def init(self, state: Any) -> Carry:
        """The carry before a sequence that starts from a state, with empty traces."""
        self.model.flatten_state(state)
        return Carry(state, self.rule.init(self.plan))

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
            params: The parameters.
            carry: From `init`, or from the piece of the sequence before.
            xs: Inputs, time first; for a step with several inputs, a tuple of them.
            ys: Targets, time first; None where the loss needs none.
            loss: `loss(out, y)`, or `loss(out)` without targets: a scalar for each step.
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
        grads, carry, (losses, aux, flags) = self._grad(params, carry, xs, ys, mask, external, loss, has_aux)
        if self.check_finite:
            self._require_finite(parameter_flags(self.model.flatten_params(params), 1), flags, carry)
        return grads, carry, ((losses, aux) if has_aux else losses)

    def _grad(
        self,
        params: Any,
        carry: Carry,
        xs: Any,
        ys: Any,
        mask: Any,
        external: Any,
        loss: Callable[..., Any],
        has_aux: bool = False,
    ) -> tuple[Any, Carry, Any]:
        """As `grad`, with losses, aux and what was observed of finite values."""
        flat, states, items = self._prepare(params, carry, xs, ys, mask, external)
        losses = _Losses(self, loss, ys is not None, has_aux)
        if self.window is None:
            total, states, trace, found = drive(
                self.plan, self.rule, flat, states, carry.trace, items, losses.forward, self._block(items)
            )
        else:
            total, states, trace, found = drive_windows(
                self.plan, self.rule, flat, states, carry.trace, items, losses.window, self.window
            )
        assert total is not None
        return self.model.unflatten_params(total), self._carry(states, trace), found

    def _require_finite(self, params: Any, flags: Any, carry: Carry) -> None:
        require_finite(self.plan, params, flags, self.model.flatten_state(carry.state)[0])

    def evolve(self, params: Any, carry: Carry, xs: Any, *, external: Any = None) -> tuple[Carry, Any]:
        """Runs states and traces over a sequence without a loss.

        Returns:
            The carry after the sequence, and the outputs, time first.
        """
        flat, states, items = self._prepare(params, carry, xs, None, None, external)

        def forward(params: Sequence[Any], states: States, part: Any) -> Ran:
            states, steps, outputs = run_steps(self.plan, params, states, part["inputs"])
            return Ran(states, steps, None, outputs, part["external"])

        _, states, trace, outputs = drive(
            self.plan, self.rule, flat, states, carry.trace, items, forward, self._block(items), gradients=False
        )
        return self._carry(states, trace), jax.vmap(self.model.unflatten_output)(outputs)

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
            params: The parameters.
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
        if not isinstance(update_every, int) or update_every < 1:
            raise ValueError(f"`update_every` is a number of steps from 1 on; got {update_every!r}.")
        opt_state = optimizer.init(params) if opt_state is None else opt_state
        items = {"xs": xs, "ys": ys, "mask": mask, "external": external}

        def period(before: Any, part: Any) -> tuple[Any, Any]:
            params, opt_state, carry = before
            given = (part["xs"], part["ys"], part["mask"], part["external"])
            grads, carry, (losses, _, flags) = self._grad(params, carry, *given, loss)
            of_params = parameter_flags(self.model.flatten_params(params), len(losses)) if self.check_finite else None
            updates, opt_state = optimizer.update(grads, opt_state, params)
            params = jax.tree.map(lambda p, u: (p + u).astype(jnp.result_type(p)), params, updates)
            return (params, opt_state, carry), (losses, flags, of_params)

        (params, opt_state, carry), (losses, flags, of_params) = scan_blocks(
            period, (params, opt_state, carry), items, update_every
        )
        if self.check_finite:
            self._require_finite(of_params, flags, carry)
        return params, opt_state, carry, losses

    def _block(self, items: Any) -> int:
        if self.block is not None:
            return self.block
        length = jax.tree.leaves(items)[0].shape[0]
        return even_block(length, default_block(self.plan, self.rule))

    def flatten(self, params: Any, state: Any, xs: Any) -> tuple[list[Any], States, list[Any]]:
        """Parameters, state and a sequence of inputs as the engine takes them."""
        flat = self.model.flatten_params(params)
        return flat, States(*self.model.flatten_state(state)), _flatten_sequence(self.model, xs)

    def _prepare(
        self, params: Any, carry: Carry, xs: Any, ys: Any, mask: Any, external: Any
    ) -> tuple[list[Any], States, dict[str, Any]]:
        flat, states, inputs = self.flatten(params, carry.state, xs)
        items = {"inputs": inputs, "ys": ys, "mask": mask, "external": external}
        length = inputs[0].shape[0]
        for name, value in (("ys", ys), ("mask", mask), ("external", external)):
            for leaf in jax.tree.leaves(value):
                if jnp.ndim(leaf) < 1 or leaf.shape[0] != length:
                    raise ValueError(
                        f"`{name}` has an array of shape {jnp.shape(leaf)}, but the inputs have {length} steps. "
                        "Every sequence has time as its first axis."
                    )
        return flat, states, items

    def _carry(self, states: States, trace: Any) -> Carry:
        return Carry(self.model.unflatten_state(states.hidden, states.other), trace)


@dataclass(frozen=True, eq=False)
class _Losses:
    """A user's loss over the outputs of a block, side by side."""

    learner: FunctionLearner
    loss: Callable[..., Any]
    targets: bool
    has_aux: bool

    def forward(self, params: Sequence[Any], states: States, part: Any) -> Ran:
        states, steps, outputs = run_steps(self.learner.plan, params, states, part["inputs"])
        gradient = jax.value_and_grad(self._one, has_aux=True, allow_int=True)
        (_, (values, aux)), by_outputs = jax.vmap(gradient)(outputs, part["ys"], part["mask"])
        by_hidden = [jnp.zeros_like(value) for value in steps.hidden]
        collected = (values, aux, self._observed(steps, outputs, values))
        return Ran(states, steps, Cotangents(by_outputs, by_hidden), collected, part["external"])

    def window(self, params: Sequence[Any], states: States, part: Any) -> tuple[jax.Array, Window]:
        states, steps, outputs = run_steps(self.learner.plan, params, states, part["inputs"])
        weighted, (values, aux) = jax.vmap(self._one)(outputs, part["ys"], part["mask"])
        return jnp.sum(weighted), Window(states, steps, (values, aux, self._observed(steps, outputs, values)))

    def _one(self, outputs: Sequence[Any], y: Any, mask: Any) -> tuple[Any, Any]:
        out = self.learner.model.unflatten_output(outputs)
        found = self.loss(out, y) if self.targets else self.loss(out)
        value, aux = found if self.has_aux else (found, None)
        if jnp.shape(value) != () or not is_float(jnp.asarray(value)):
            raise ValueError(
                f"The loss of one step is {jnp.result_type(value)}{list(jnp.shape(value))}; it must be one floating "
                "number. Sum or average over the batch inside the loss."
            )
        return (value if mask is None else value * mask), (value, aux)

    def _observed(self, steps: Step, outputs: Any, losses: Any) -> Any:
        return finite_flags(steps, outputs, losses) if self.learner.check_finite else None


def _flatten_sequence(model: FunctionModel, xs: Any) -> list[Any]:
    """The arrays of a sequence of inputs, checked against the form of one step's."""
    several = len(model.input_tree.skeleton.children()) > 1
    inputs = xs if several else (xs,)
    leaves = jax.tree.leaves(inputs)
    if not leaves or any(jnp.ndim(leaf) < 1 for leaf in leaves):
        raise ExampleInputError("A sequence of inputs has time as its first axis; got an array without axes.")
    lengths = sorted({leaf.shape[0] for leaf in leaves})
    if len(lengths) > 1 or lengths[0] == 0:
        raise ExampleInputError(f"The inputs have {lengths} steps. Every input has the same number, at least one.")
    first = jax.tree.map(lambda a: a[0], inputs)
    flat = model.flatten_inputs(*first)
    return [jnp.asarray(leaf, one.dtype) for leaf, one in zip(leaves, flat, strict=True)]
