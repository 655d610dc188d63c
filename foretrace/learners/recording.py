"""A user's `step_fn`, traced to a pure function with the learner's call laid open.

`step_fn` runs the learner and returns a loss; it may touch any states on the way. To drive it in blocks, two things
must come out of it: the values that the model's step started from, and the derivative of the loss by what the step
gave. So while it is traced, the learner's call is recorded: the model runs on explicit weights, and explicit *shifts*
of zero are added to its outputs and to its new states. The derivative of the loss by the shifts is the learning
signal that the rule takes.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import brainstate
import jax
import jax.numpy as jnp

from foretrace._jax import ClosedJaxpr, eval_jaxpr, get_opaque_trace_state, is_float
from foretrace.engine.evaluate import Step
from foretrace.engine.finite import finite_flags
from foretrace.engine.plan import Plan
from foretrace.engine.sequence import States, run_weighted
from foretrace.learners.alone import lock_of
from foretrace.learners.losses import checked_loss, split_loss

if TYPE_CHECKING:
    from foretrace.learners.driver import SequenceDriverMixin

StepFunction = Callable[..., Any]
Shifts = tuple[list[Any], list[Any]]


class Called(NamedTuple):
    """What a call of `step_fn` gave, beside the states.

    Attributes:
        loss: Its loss as a plain array, or None where it is driven without one.
        result: What else it returned: with a loss, its auxiliary value; else everything.
        steps: What each step of the model started from, stacked.
        external: What the rule takes at each of these steps.
        flags: What of each step is finite, or None where that is not wanted.
    """

    loss: Any
    result: Any
    steps: Step
    external: Any
    flags: Any = None


class OtherForm(Exception):
    """The learner was called with another number of steps than the trace is for."""

    def __init__(self, length: int | None) -> None:
        super().__init__(length)
        self.length = length


class _Recorder:
    """Stands in for one call of a learner."""

    def __init__(
        self, learner: "SequenceDriverMixin", length: int | None, weights: Sequence[Any], shifts: Shifts | None
    ) -> None:
        self.learner, self.length, self.weights, self.shifts = learner, length, weights, shifts
        self.context = get_opaque_trace_state()
        self.calls = 0
        self.steps: Any = None
        self.outputs: Any = None
        self.external: Any = None

    def call(self, learner: "SequenceDriverMixin", args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if learner.executor is not self.learner.executor:
            raise ValueError(
                "`step_fn` calls another learner than the one that drives the sequence. Drive each learner by itself."
            )
        self.calls += 1
        if self.calls > 1:
            raise ValueError(
                "`step_fn` calls the learner more than once. It must do so exactly once: every call is a step."
            )
        if get_opaque_trace_state() != self.context:  # what is recorded would not leave the inner trace
            raise ValueError(
                "`step_fn` calls the learner inside another transformation (a jit, a loop, a branch, a vmap). It must "
                "call it exactly once, outside of them; pass several steps at once as `MultiStepData`."
            )
        executor = learner.executor
        stacked = learner.stacked(args, kwargs)
        if stacked.length != self.length:
            raise OtherForm(stacked.length)
        before = States(*executor.read_state())
        states, self.steps, outputs = run_weighted(executor.plan, self.weights, before, stacked.inputs)
        self.outputs, self.external = outputs, stacked.external
        hidden = states.hidden
        if self.shifts is not None:
            outputs, hidden = _added(outputs, self.shifts[0]), _added(hidden, self.shifts[1])
        executor.write(hidden, states.other)
        return executor.output(outputs, stacked.length)


RECORDER: ContextVar[_Recorder | None] = ContextVar("recorder", default=None)
"""What stands in for the call of a learner, while a `step_fn` is traced."""


@contextmanager
def _model_refused(model: brainstate.nn.Module) -> Iterator[None]:
    """Within the block, a call of the model past its learner is an error: it would move the states a second time.

    The thread that records holds the lock of the model, so that the method below is put in place and taken away by one
    thread at a time. A call from another thread waits until the recording is over.
    """
    run, lock, recording = model.update, lock_of(model), threading.get_ident()

    def update(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != recording:
            with lock:
                return run(*args, **kwargs)
        raise ValueError(
            f"`step_fn` calls the model, {type(model).__name__}, itself. "
            "Call the learner instead: it runs the model, and takes the traces along."
        )

    with lock:
        before = vars(model).get("update")
        vars(model)["update"] = update
        try:
            yield
        finally:
            if before is None:
                del vars(model)["update"]
            else:
                vars(model)["update"] = before


@dataclass(frozen=True, eq=False)
class TracedStep:
    """A pure `step_fn`.

    Attributes:
        states: All states that it touches.
        written: Which of them it writes.
        length: Steps of the model in one call; None for a call of one step without a time axis.
        loss_tree: The structure of the loss, which holds its unit.
    """

    closed_jaxpr: ClosedJaxpr
    out_tree: Any
    states: tuple[brainstate.State, ...]
    written: tuple[bool, ...]
    length: int | None
    loss_tree: Any

    def __call__(
        self, values: Sequence[Any], weights: Sequence[Any], shifts: Shifts | None, items: Any
    ) -> tuple[Called, tuple[Any, ...]]:
        """Runs it on values of its states; gives their new values too."""
        leaves = jax.tree.leaves((weights, shifts, items, tuple(values)))
        flat = eval_jaxpr(self.closed_jaxpr.jaxpr, self.closed_jaxpr.consts, *leaves)
        return jax.tree.unflatten(self.out_tree, flat)


def trace_step(
    learner: "SequenceDriverMixin",
    step_fn: StepFunction,
    items: Sequence[Any],
    *,
    length: int | None,
    loss_shape: tuple[int, ...] | None,
    has_aux: bool = False,
    shifted: bool = False,
    observed: bool = False,
) -> TracedStep:
    """Traces a `step_fn` with the learner's call laid open.

    Args:
        learner: The learner.
        step_fn: The user's function.
        items: What it takes, as abstract values.
        length: Steps in the call that it is expected to make; None for one step without a time axis.
        loss_shape: The shape of the loss that it returns; None where it is driven without one.
        has_aux: Whether it returns `(loss, aux)`.
        shifted: Whether shifts are to be arguments.
        observed: Whether it says what is finite.

    Raises:
        OtherForm: It calls the learner with another number of steps.
        ValueError: It does not call the learner exactly once, or does not return a loss.
    """
    loss_trees: list[Any] = []

    def run(weights: Any, shifts: Any, items: Any) -> Called:
        recorder = _Recorder(learner, length, weights, shifts)
        token = RECORDER.set(recorder)
        try:
            with _model_refused(learner.model):
                found = step_fn(*items)
        finally:
            RECORDER.reset(token)
        if not recorder.calls:
            raise ValueError(
                "`step_fn` does not call the learner. It must call it exactly once, `out = learner(x)`: "
                "the learner, not the model itself, takes the traces through a step."
            )
        loss, result = (None, found) if loss_shape is None else split_loss(found, has_aux, "`step_fn`")
        value = None if loss_shape is None else checked_loss(loss, loss_shape, "`step_fn`")
        loss_trees.append(jax.tree.structure(loss))
        flags = _finite(recorder, value, length or 1) if observed else None
        return Called(value, result, recorder.steps, recorder.external, flags)

    plan = learner.executor.plan
    weights = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in (*plan.weight_vars, *plan.mark_vars)]
    shifts = jax.eval_shape(lambda: zero_shifts(plan, length)) if shifted else None
    stateful = brainstate.transform.StatefulFunction(run, return_only_write=False)
    arguments = (weights, shifts, tuple(items))
    stateful.make_jaxpr(*arguments)
    key = stateful.get_arg_cache_key(*arguments)
    trace = stateful.get_state_trace_by_cache(key)
    return TracedStep(
        stateful.get_jaxpr_by_cache(key),
        stateful.get_out_treedef_by_cache(key),
        tuple(trace.states),
        tuple(trace.been_writen),
        length,
        loss_trees[-1],
    )


def _finite(recorder: _Recorder, loss: jax.Array | None, length: int) -> jax.Array:
    """What of each step is finite; one loss for several steps counts as the last one's, none as a finite one."""
    if loss is None:
        losses = jnp.zeros(length)
    else:
        losses = loss if jnp.shape(loss) else jnp.zeros(length, loss.dtype).at[-1].set(loss)
    return finite_flags(recorder.steps, recorder.outputs, losses)


def zero_shifts(plan: Plan, length: int | None) -> Shifts:
    """Shifts of zero for the outputs of each step and for the states after the last."""
    program, lead = plan.program, (length or 1,)
    outputs = [
        jnp.zeros((*lead, *leaf.aval.shape), leaf.aval.dtype) if is_float(leaf.aval) else None
        for leaf in program.outputs
    ]
    return outputs, [jnp.zeros(leaf.aval.shape, leaf.aval.dtype) for leaf in program.hidden]


def _added(values: Sequence[Any], shifts: Sequence[Any]) -> list[Any]:
    return [v if s is None else v + s for v, s in zip(values, shifts, strict=True)]
