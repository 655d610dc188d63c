"""What a gradient costs: the memory that XLA plans for it, and the time that it takes on this machine."""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import jax


def compiled_gradient(learner: Any, params: Any, state: Any, loss: Any, inputs: Any, beside: Any) -> Any:
    """The gradient of a whole batch of trials as a compiled function of parameters, inputs and what stands beside them.

    Args:
        learner: A learner.
        params: The parameters.
        state: The state that trials begin with.
        loss: From the output of a step and what stands beside it, to the loss and what is observed.
        inputs: The inputs of the batch, or their shapes; nothing is run.
        beside: What stands beside them at each step, or the shapes of it.
    """

    def gradient(params: Any, inputs: Any, beside: Any) -> Any:
        grads, _, (losses, _) = learner.grad(params, learner.init(state), inputs, beside, loss=loss, has_aux=True)
        return grads, losses

    return jax.jit(gradient).lower(params, inputs, beside).compile()


def working_memory(compiled: Any) -> int | None:
    """Bytes that a compiled function takes beside its arguments, traces and results included; None if not known."""
    found = compiled.memory_analysis()
    if found is None:
        return None
    return int(found.temp_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes)


def seconds_in_turn(runs: Sequence[Callable[[], Any]], repeats: int) -> list[float]:
    """The median time of each; all are called in every round, so that a slow moment falls on all of them."""
    for run in runs:
        jax.block_until_ready(run())
    rounds = [[_timed(run) for run in runs] for _ in range(repeats)]
    return [median(times) for times in zip(*rounds, strict=True)]


def _timed(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - began
