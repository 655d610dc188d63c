"""From a traced step to a step program.

`build_program` takes a closed jaxpr and the leaves of its inputs and outputs, in the order of `StepProgram`, checks
that they make a recurrent step, and runs the passes: inlining, control flow, normal form. Frontends call nothing else.
"""

from collections.abc import Sequence

from foretrace._jax import ClosedJaxpr
from foretrace.errors import (
    CompilationError,
    EmptyModelError,
    NoRecurrentStateError,
    StateMismatchError,
)
from foretrace.program.control_flow import ControlFlowPolicy, lower_control_flow
from foretrace.program.diagnostics import CompilationRecord, DiagnosticKind, DiagnosticLevel
from foretrace.program.inline import inline_calls
from foretrace.program.normalise import normalise
from foretrace.program.records import Leaf, StepProgram


def build_program(
    closed_jaxpr: ClosedJaxpr,
    *,
    params: Sequence[Leaf],
    hidden: Sequence[Leaf],
    other: Sequence[Leaf],
    inputs: Sequence[Leaf],
    outputs: Sequence[Leaf],
    control_flow: ControlFlowPolicy | None = None,
) -> StepProgram:
    """Makes a step program of a traced step.

    Args:
        closed_jaxpr: The step; inputs in the order params, hidden, other, inputs, outputs in the order hidden, other,
            outputs.
        params: Trainable arrays.
        hidden: Recurrent states.
        other: States carried along without credit.
        inputs: The step's inputs.
        outputs: What the step returns.
        control_flow: What to do with control flow; the defaults of `ControlFlowPolicy` where it is None.

    Returns:
        The program, with what the passes decided in `diagnostics`.

    Raises:
        CompilationError: One of its subclasses: no parameters, no recurrent state, a state that changes its shape or
            dtype, control flow that cannot be differentiated.

    Examples:
        >>> import jax
        >>> closed = jax.make_jaxpr(lambda w, h, x: (w * h + x, h))(0.5, 1.0, 2.0)
        >>> w, h, x = (Leaf((name,), var.aval) for name, var in zip('whx', closed.jaxpr.invars))
        >>> program = build_program(closed, params=[w], hidden=[h], other=[], inputs=[x], outputs=[h])
        >>> (new_h,), _, _ = program([0.5], [1.0], [], [2.0])
        >>> float(new_h)
        2.5
    """
    _check_counts(closed_jaxpr, (params, hidden, other, inputs), (hidden, other, outputs))
    _check_roles(params, hidden)
    _check_states(closed_jaxpr, (*hidden, *other), first=len(params))
    untouched = _untouched_states(closed_jaxpr, hidden, first=len(params))
    lowered, records = lower_control_flow(inline_calls(closed_jaxpr), params, hidden, control_flow)
    final = normalise(lowered, len(hidden), len(params))
    return StepProgram(
        jaxpr=final.jaxpr,
        consts=tuple(final.consts),
        params=tuple(params),
        hidden=tuple(hidden),
        other=tuple(other),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        diagnostics=(*untouched, *records),
        open_loops=control_flow is None or control_flow.scan_descent != "never",
    )


def _check_counts(
    closed_jaxpr: ClosedJaxpr, entering: Sequence[Sequence[Leaf]], leaving: Sequence[Sequence[Leaf]]
) -> None:
    jaxpr = closed_jaxpr.jaxpr
    for side, found, roles, leaves in (
        ("takes", len(jaxpr.invars), "params, hidden, other, inputs", entering),
        ("returns", len(jaxpr.outvars), "hidden, other, outputs", leaving),
    ):
        if found != sum(map(len, leaves)):
            counts = " + ".join(str(len(group)) for group in leaves)
            raise CompilationError(
                f"The traced step {side} {found} arrays, but {counts} are described ({roles}). "
                "Describe every array of the step, in that order."
            )
    for leaf, var in zip((leaf for group in entering for leaf in group), jaxpr.invars, strict=True):
        if (tuple(leaf.aval.shape), leaf.aval.dtype) != (tuple(var.aval.shape), var.aval.dtype):
            raise CompilationError(
                f"`{leaf.name}` is described as {leaf.aval.str_short()} but the traced step takes "
                f"{var.aval.str_short()} there. Give the leaves in the order of the step's inputs."
            )


def _check_roles(params: Sequence[Leaf], hidden: Sequence[Leaf]) -> None:
    if not params:
        raise EmptyModelError("The model has no parameters, so there is nothing to learn. Give it at least one.")
    if not hidden:
        raise NoRecurrentStateError(
            "The model has no recurrent state, so there is no history to credit. Mark what it carries from step to "
            "step as hidden state, or train it as a feed-forward model."
        )


def _check_states(closed_jaxpr: ClosedJaxpr, states: Sequence[Leaf], first: int) -> None:
    """Gathers every state that leaves the step other than it entered."""
    entering = closed_jaxpr.jaxpr.invars[first : first + len(states)]
    problems = [
        f"`{leaf.name}` leaves the step as {new.aval.str_short()} but entered as {old.aval.str_short()}"
        for leaf, old, new in zip(states, entering, closed_jaxpr.jaxpr.outvars, strict=False)
        if (old.aval.shape, old.aval.dtype) != (new.aval.shape, new.aval.dtype)
    ]
    if problems:
        raise StateMismatchError(
            "; ".join(problems) + ". A recurrent state keeps its shape and dtype: reshape or convert inside the step, "
            "start from a state of the right kind, or return the value as an output."
        )


def _untouched_states(closed_jaxpr: ClosedJaxpr, hidden: Sequence[Leaf], first: int) -> tuple[CompilationRecord, ...]:
    jaxpr = closed_jaxpr.jaxpr
    return tuple(
        CompilationRecord(
            kind=DiagnosticKind.STATE_UNTOUCHED,
            level=DiagnosticLevel.INFO,
            message=f"State `{leaf.name}` leaves the step as it entered.",
            hidden_paths=(leaf.path,),
        )
        for leaf, old, new in zip(hidden, jaxpr.invars[first:], jaxpr.outvars, strict=False)
        if old is new
    )
