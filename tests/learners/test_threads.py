"""Several threads on one module: each waits for the other, and nothing is left behind on the model."""

import threading
from collections.abc import Callable
from typing import Any

import brainstate
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft

XS = jnp.ones((3, 2, 3))


def make() -> tuple[brainstate.nn.Module, Any]:
    brainstate.random.seed(0)
    net = brainstate.nn.GRUCell(3, 4)
    return net, ft.compile(net, "D_RTRL", XS[0], batch_size=2)


def in_threads(*works: Callable[[], Any]) -> list[Any]:
    """What each of some functions returned or raised, each in a thread of its own."""
    found: list[Any] = [None] * len(works)

    def run(place: int) -> None:
        try:
            found[place] = works[place]()
        except Exception as error:
            found[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    return found


def test_two_threads_trace_one_module_one_after_another() -> None:
    net, learner = make()
    inside = []

    def gradient() -> Any:
        def step_fn(x: Any) -> Any:
            inside.append("in")
            threading.Event().wait(0.1)  # as long as the other thread may come in between
            inside.append("out")
            return jnp.mean(learner(x) ** 2)

        return learner.etrace_grad(XS, step_fn=step_fn)

    found = in_threads(gradient, gradient)
    assert all(isinstance(grads, dict) for grads in found), found
    assert inside == ["in", "out"] * 2
    assert "update" not in vars(net)
    assert net(XS[0]).shape == (2, 4)


def test_a_call_of_the_model_waits_while_another_thread_traces() -> None:
    net, learner = make()
    tracing = threading.Event()

    def step_fn(x: Any) -> Any:
        tracing.set()
        threading.Event().wait(0.1)
        return jnp.mean(learner(x) ** 2)

    def call(used: Any) -> Callable[[], Any]:
        def wait_and_call() -> Any:
            tracing.wait(timeout=60)
            return np.asarray(used(XS[0]))

        return wait_and_call

    _, of_model, of_learner = in_threads(lambda: learner.etrace_grad(XS, step_fn=step_fn), call(net), call(learner))
    assert of_model.shape == of_learner.shape == (2, 4)
    assert np.isfinite(np.asarray(net.h.value)).all()


def test_the_model_is_refused_inside_of_a_step_and_free_after_it() -> None:
    net, learner = make()
    with pytest.raises(ValueError, match="calls the model, GRUCell, itself"):
        learner.etrace_grad(XS, step_fn=lambda x: jnp.mean(net(x)))
    assert "update" not in vars(net)
    assert net(XS[0]).shape == (2, 4)
