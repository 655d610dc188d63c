"""What learners ask of sequences, and of what goes on from call to call: a rule's trace, the state of an optimizer.

Sequences are arrays with time first, all of one length, with one weight for each step.
"""

from typing import Any

import jax
import jax.numpy as jnp

from foretrace._checks import require_numeric, require_optimizer
from foretrace.engine.plan import Plan
from foretrace.errors import StateMismatchError
from foretrace.frontends.trees import TreeSpec, structure_difference, tree_spec
from foretrace.rules.rule import Rule


def length_of(tree: Any) -> int:
    """The number of steps of a tree of sequences: the length of the first axis of its arrays."""
    return int(jnp.shape(jax.tree.leaves(tree)[0])[0])


def check_mask(mask: Any, length: int) -> None:
    """Refuses a mask that is not one number for each of some steps."""
    if mask is None:
        return
    require_numeric("mask", mask, f"one weight for each of the {length} steps, an array of shape ({length},)")
    if jnp.shape(mask) != (length,):
        raise ValueError(
            f"`mask` has the shape {jnp.shape(mask)}; it is one weight for each of the {length} steps, ({length},). To "
            "weigh the samples of a batch, give their weights beside the targets, `(targets, weights)`, and use them "
            "in the loss."
        )


def check_length(name: str, value: Any, length: int) -> None:
    """Refuses a tree with an array that has not one entry for each of some steps."""
    for leaf in jax.tree.leaves(value):
        require_numeric(name, leaf, "arrays with time as the first axis")
        if jnp.shape(leaf)[:1] != (length,):
            raise ValueError(
                f"`{name}` has an array of shape {jnp.shape(leaf)}, but the inputs have {length} steps. "
                "Every sequence has time as its first axis."
            )


def sequence_advice(step: TreeSpec, sequence: Any) -> str:
    """What was probably meant by a sequence whose items do not have the form of one step's inputs."""
    found = tree_spec(sequence)
    if found.skeleton != step.skeleton:
        return "A step with several inputs takes a tuple of sequences, one for each."
    pairs = [(want.shape, got.shape) for want, got in zip(step.avals, found.avals, strict=True)]
    if all(got == want for want, got in pairs):
        return "These are the inputs of one step: put time in front, `xs[None]` for a sequence of one step."
    if all((*got[1:2], got[0], *got[2:])[1:] == want for want, got in pairs if len(got) > 1):
        return "This looks like batch first: time is the first axis, as `jnp.swapaxes(xs, 0, 1)` gives it."
    if all(got[2:] == want[1:] for want, got in pairs):
        return "A learner is compiled for one batch size: compile one for this batch, or pad it and weigh the loss."
    return "A sequence is the inputs of the traced step with time in front: pass such arrays, or compile anew."


class TraceForm:
    """The form of a rule's trace on a model."""

    def __init__(self, rule: Rule, plan: Plan) -> None:
        self.rule = rule
        self.spec: TreeSpec = tree_spec(jax.eval_shape(lambda: rule.init(plan)), prefix=("trace",))

    def checked(self, trace: Any) -> Any:
        """The trace, its arrays checked against the form.

        Raises:
            StateMismatchError: It has another structure, shape or dtype.
        """
        if structure_difference(self.spec, tree_spec(trace)):
            raise StateMismatchError(
                f"This is no trace of {self.rule.name} on this model, but of another rule, of other options or of "
                "another model. A trace goes on with the learner that made it: begin with `learner.init(state)`."
            )
        advice = (
            "This is the trace of a learner for another batch size or `trace_dtype`. A trace goes on with the learner "
            "that made it: begin with `learner.init(state)`."
        )
        return self.spec.unflatten(self.spec.flatten(trace, StateMismatchError, advice))


def begin_optimizer(optimizer: Any, opt_state: Any, params: Any) -> Any:
    """The state that an optimizer starts from: the given one, checked, or a new one for None."""
    require_optimizer("optimizer", optimizer)
    if opt_state is None:
        return optimizer.init(params)
    wanted, found = _form(jax.eval_shape(optimizer.init, params)), _form(opt_state)
    if wanted != found:
        raise ValueError(
            "`opt_state` is not the state of this optimizer for these parameters. Pass what the last call returned, or "
            f"None to begin anew; got {found}, where {wanted} was expected."
        )
    return opt_state


def _form(tree: Any) -> tuple[Any, list[tuple[int, ...]]]:
    """The structure of a tree and the shapes of its leaves."""
    return jax.tree.structure(tree), [jnp.shape(leaf) for leaf in jax.tree.leaves(tree)]
