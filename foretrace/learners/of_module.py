"""From a brainstate module and a rule to a learner: its states are made, and its graph is compiled."""

from typing import Any

import brainstate
import jax
import jax.numpy as jnp

from foretrace.errors import ExampleInputError
from foretrace.learners.data import one_step
from foretrace.learners.module import ETraceAlgorithm, learner_of
from foretrace.learners.vmap import ETraceVmap


def make_learner(
    model: brainstate.nn.Module,
    rule: Any,
    inputs: tuple[Any, ...],
    batch_size: int | None,
    seed: int | None,
    vmap: bool,
    options: dict[str, Any],
) -> ETraceAlgorithm:
    """A learner of a module, its states initialised and its graph compiled.

    With `vmap` the module is written for one sample and mapped over the batch. Arguments as for `foretrace.compile`.
    """
    if vmap:
        _check_batch(inputs, batch_size)
    learner = learner_of(rule, model, **options)
    if seed is not None:
        brainstate.random.seed(seed)
    if vmap:
        brainstate.nn.vmap_init_all_states(model, axis_size=batch_size, state_tag="new")
        learner = ETraceVmap(learner, vmap_states="new")
    else:
        brainstate.nn.init_all_states(model, **({} if batch_size is None else {"batch_size": batch_size}))
    learner.compile_graph(*inputs)
    return learner


def _check_batch(inputs: tuple[Any, ...], batch_size: int | None) -> None:
    if batch_size is None:
        raise ValueError("`vmap=True` maps a model over a batch: say how large it is with `batch_size=`.")
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(one_step(inputs))]
    if any(shape[:1] != (batch_size,) for shape in shapes):
        raise ExampleInputError(
            f"With `vmap=True` and `batch_size={batch_size}`, every example input has {batch_size} samples along its "
            f"first axis; got {', '.join(map(str, shapes))}. Pass the input of one step for the whole batch."
        )
