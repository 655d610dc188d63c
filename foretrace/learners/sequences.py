"""What learners ask of sequences: arrays with time first, all of one length, and one weight for each step."""

from typing import Any

import jax
import jax.numpy as jnp

from foretrace._checks import require_numeric
from foretrace.frontends.trees import TreeSpec, tree_spec


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
