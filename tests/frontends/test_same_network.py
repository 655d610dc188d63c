"""One network in five forms: a function, NNX, linen, Equinox and brainstate. One gradient."""

import brainstate
import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import foretrace as ft
from frameworks.records import BATCH, HIDDEN, INPUT, drawn

STEPS, OUT = 9, 2
XS, YS = drawn(1, STEPS, BATCH, INPUT), drawn(2, STEPS, BATCH, OUT)
H = jnp.zeros((BATCH, HIDDEN))
SHAPES = {"w": (INPUT, HIDDEN), "u": (HIDDEN, HIDDEN), "leak": (HIDDEN,), "readout": (HIDDEN, OUT)}
VALUES = {name: 0.5 * drawn(n, *shape) for n, (name, shape) in enumerate(SHAPES.items())}


def squared(out, y):
    return jnp.sum((out - y) ** 2)


def equations(p, h, x):
    a = jax.nn.sigmoid(p["leak"])
    h = a * h + (1 - a) * jnp.tanh(x @ p["w"] + h @ p["u"])
    return h, h @ p["readout"]


def gradient(model, holder, **options):
    learner = ft.compile(model, "D_RTRL", XS[0], **options)
    grads = jax.jit(lambda params: learner.grad(params, learner.init(), XS, YS, loss=squared)[0])(
        learner.model.split.params_of(holder)
    )
    names = [leaf.name for leaf in learner.graph.program.params]
    return dict(zip(names, jax.tree.leaves(grads), strict=True))


class NNXNetwork(nnx.Module):
    def __init__(self):
        for name, value in VALUES.items():
            setattr(self, name, nnx.Param(value))

    def __call__(self, carry, x):
        return equations({name: getattr(self, name)[...] for name in VALUES}, carry, x)


class LinenNetwork(nn.Module):
    @nn.compact
    def __call__(self, carry, x):
        return equations({n: self.param(n, lambda _, n=n: VALUES[n]) for n in VALUES}, carry, x)


class EquinoxNetwork(eqx.Module):
    w: jax.Array
    u: jax.Array
    leak: jax.Array
    readout: jax.Array

    def __call__(self, carry, x):
        return equations({name: getattr(self, name) for name in VALUES}, carry, x)


class BrainstateNetwork(brainstate.nn.Module):
    def __init__(self):
        super().__init__()
        for name, value in VALUES.items():
            setattr(self, name, brainstate.ParamState(value))

    def init_state(self, batch_size=None):
        self.h = brainstate.HiddenState(H)

    def update(self, x):
        self.h.value, out = equations({name: getattr(self, name).value for name in VALUES}, self.h.value, x)
        return out


def of_nnx():
    return gradient(NNXNetwork(), NNXNetwork(), state=H)


def of_linen():
    variables = LinenNetwork().init(jax.random.key(0), H, XS[0])
    return gradient(LinenNetwork(), variables, params=variables, state=H)


def of_equinox():
    module = EquinoxNetwork(**VALUES)
    return gradient(module, module, state=H)


def of_brainstate():
    learner = ft.compile(BrainstateNetwork(), "D_RTRL", XS[0], batch_size=BATCH)
    grads = learner.etrace_grad(XS, YS, step_fn=lambda x, y: squared(learner(x), y), reduction="sum")
    return {path[0]: value for path, value in grads.items()}


@pytest.fixture(scope="module")
def of_function():
    return gradient(equations, VALUES, params=VALUES, state=H)


@pytest.mark.parametrize("form", [of_nnx, of_linen, of_equinox, of_brainstate])
def test_gradient_is_that_of_the_function(form, of_function):
    found = form()
    assert set(found) == set(VALUES)
    for name, wanted in of_function.items():
        np.testing.assert_allclose(found[name], wanted, rtol=1e-10, atol=1e-10)
