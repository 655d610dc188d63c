"""A small recurrent net with a readout, its data, and the ways to run it that tests compare."""

from collections.abc import Callable
from typing import Any

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
from brainstate import HiddenState, ParamState

from foretrace.learners.module import ParamDimVjpAlgorithm

STEPS, BATCH, INPUT, HIDDEN, OUT = 7, 2, 3, 4, 2

_random = np.random.default_rng(0)
XS = jnp.asarray(_random.normal(size=(STEPS, BATCH, INPUT)))
YS = jnp.asarray(_random.normal(size=(STEPS, BATCH, OUT)))
MASK = jnp.asarray([0.0, 1.0, 0.0, 2.0, 1.0, 0.0, 1.0])


class Net(brainstate.nn.Module):
    """A leaky recurrent layer and a readout."""

    def __init__(self) -> None:
        super().__init__()
        generator = np.random.default_rng(3)
        self.w = ParamState(jnp.asarray(generator.normal(size=(INPUT, HIDDEN))))
        self.u = ParamState(jnp.asarray(0.4 * generator.normal(size=(HIDDEN, HIDDEN))))
        self.read = ParamState(jnp.asarray(generator.normal(size=(HIDDEN, OUT))))

    def init_state(self, batch_size: int | None = None, **_: Any) -> None:
        self.h = HiddenState(jnp.zeros((HIDDEN,) if batch_size is None else (batch_size, HIDDEN)))

    def update(self, x: Any) -> Any:
        self.h.value = 0.6 * self.h.value + jnp.tanh(x @ self.w.value + self.h.value @ self.u.value)
        return self.h.value @ self.read.value


def make(vjp_method: str = "single-step", **options: Any) -> tuple[Net, ParamDimVjpAlgorithm]:
    """A fresh net and its compiled learner."""
    net = Net()
    brainstate.nn.init_all_states(net, batch_size=BATCH)
    learner = ParamDimVjpAlgorithm(net, vjp_method=vjp_method, **options)
    learner.compile_graph(XS[0])
    return net, learner


def restart(net: Net, learner: Any) -> None:
    """States and traces as before the first step; the states are new objects, as in users' scripts."""
    brainstate.nn.init_all_states(net, batch_size=BATCH)
    learner.reset_state()


def squared(out: Any, y: Any) -> Any:
    """The loss of one step."""
    return jnp.sum((out - y) ** 2)


def step_by_step(learner: Any, weights: Any = None, loss: Callable[..., Any] | None = None) -> dict[Any, Any]:
    """The gradient of the summed losses by brainstate's `grad` around a loop over calls."""
    loss = (lambda x, y: squared(learner(x), y)) if loss is None else loss
    weights = learner.param_states if weights is None else weights
    total = lambda: jnp.sum(brainstate.transform.for_loop(loss, XS, YS))
    return brainstate.transform.jit(lambda: brainstate.transform.grad(total, weights)())()


def backpropagated() -> dict[Any, Any]:
    """The gradient of the summed losses through time, without a learner."""
    net = Net()
    brainstate.nn.init_all_states(net, batch_size=BATCH)
    total = lambda: jnp.sum(brainstate.transform.for_loop(lambda x, y: squared(net(x), y), XS, YS))
    return brainstate.transform.jit(lambda: brainstate.transform.grad(total, net.states(ParamState))())()


def assert_close(found: Any, wanted: Any, tolerance: float = 1e-10) -> None:
    """The same trees with the same numbers."""
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance)
