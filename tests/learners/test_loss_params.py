"""Losses that read the parameters: their derivative by them is part of the gradient, for every rule and library."""

import functools
from typing import Any

import brainstate
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import foretrace as ft
from frameworks.records import BATCH, HIDDEN, INPUT, drawn

XS, YS = drawn(1, 5, BATCH, INPUT), drawn(2, 5, BATCH, HIDDEN)
MASK = jnp.array([1.0, 0.0, 2.0, 1.0, 0.5])
PARAMS = {"w": drawn(3, INPUT, HIDDEN), "leak": drawn(4, HIDDEN)}
STATE = jnp.zeros((BATCH, HIDDEN))


def step(params: Any, state: Any, x: jax.Array) -> Any:
    state = jax.nn.sigmoid(params["leak"]) * state + x @ params["w"]
    return state, state


def penalty(params: Any) -> jax.Array:
    return sum(0.1 * jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))


def plain(out: Any, y: Any) -> jax.Array:
    return jnp.sum((out - y) ** 2)


def penalised(out: Any, y: Any, params: Any) -> jax.Array:
    return plain(out, y) + penalty(params)


def assert_close(found: Any, wanted: Any) -> None:
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("rule", "options"),
    [("D_RTRL", {}), ("D_RTRL", {"window": 2}), ("D_RTRL", {"block": 1}), ("pp_prop", {"decay_or_rank": 0.9})]
    + [("BPTT", {}), ("RTRL", {})],
)
def test_penalty_adds_its_own_gradient_at_every_step(rule: str, options: dict[str, Any]) -> None:
    learner = ft.compile(step, rule, XS[0], params=PARAMS, state=STATE, **options)
    found, _, losses = learner.grad(PARAMS, learner.init(), XS, YS, loss=penalised, mask=MASK)
    without, _, values = learner.grad(PARAMS, learner.init(), XS, YS, loss=plain, mask=MASK)
    own = jax.grad(lambda params: jnp.sum(MASK) * penalty(params))(PARAMS)
    assert_close(found, jax.tree.map(jnp.add, without, own))
    assert_close(losses, values + penalty(PARAMS))


def test_gradient_is_that_of_plain_differentiation() -> None:
    learner = ft.compile(step, "D_RTRL", XS[0], params=PARAMS, state=STATE)

    def total(params: Any) -> jax.Array:
        _, outs = jax.lax.scan(lambda h, x: step(params, h, x), STATE, XS)
        return jnp.sum(jax.vmap(lambda out: jnp.sum(out * params["leak"]) ** 2)(outs))

    found, _, _ = learner.grad(PARAMS, learner.init(), XS, loss=lambda out, params: jnp.sum(out * params["leak"]) ** 2)
    assert_close(found, jax.grad(total)(PARAMS))


def test_training_reads_the_parameters_of_the_moment() -> None:
    learner = ft.compile(step, "D_RTRL", XS[0], params=PARAMS, state=STATE)
    nothing = lambda out, params: 0.0 * jnp.sum(out) + penalty(params)
    new, _, _, losses = learner.train(PARAMS, learner.init(), XS, loss=nothing, optimizer=optax.sgd(1.0))
    assert_close(new, jax.tree.map(lambda p: 0.8 ** len(XS) * p, PARAMS))
    assert_close(losses, 0.64 ** jnp.arange(len(XS)) * penalty(PARAMS))


class Layer(nnx.Module):
    """A leaky layer of Flax NNX."""

    def __init__(self) -> None:
        self.w, self.leak = nnx.Param(PARAMS["w"]), nnx.Param(PARAMS["leak"])

    def __call__(self, state: Any, x: Any) -> Any:
        return step({"w": self.w[...], "leak": self.leak[...]}, state, x)


class Module(eqx.Module):
    """The same of Equinox."""

    w: jax.Array
    leak: jax.Array

    def __call__(self, state: Any, x: Any) -> Any:
        return step({"w": self.w, "leak": self.leak}, state, x)


class Brain(brainstate.nn.Module):
    """The same of brainstate, with a parameter that the step does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.leak = brainstate.ParamState(PARAMS["w"]), brainstate.ParamState(PARAMS["leak"])
        self.unused = brainstate.ParamState(jnp.ones(2))

    def init_state(self, batch_size: int | None = None) -> None:
        self.h = brainstate.HiddenState(STATE)

    def update(self, x: Any) -> Any:
        self.h.value, out = step({"w": self.w.value, "leak": self.leak.value}, self.h.value, x)
        return out


def test_every_library_gives_its_own_form_to_the_loss() -> None:
    function = ft.compile(step, "D_RTRL", XS[0], params=PARAMS, state=STATE)
    wanted = function.grad(PARAMS, function.init(), XS, YS, loss=penalised)[0]
    for model in (Layer(), Module(**PARAMS)):
        learner = ft.compile(model, "D_RTRL", XS[0], state=STATE)
        found = learner.grad(model, learner.init(), XS, YS, loss=penalised)[0]
        assert_close(sorted(jax.tree.leaves(found), key=jnp.ndim), sorted(jax.tree.leaves(wanted), key=jnp.ndim))


def test_parameter_that_the_step_does_not_use_is_penalised_too() -> None:
    learner = ft.compile(Brain(), "D_RTRL", XS[0], batch_size=BATCH)
    found = learner.pure.grad(learner.params, learner.carry, XS, YS, loss=penalised)[0]
    np.testing.assert_allclose(found["unused",], 0.2 * len(XS) * jnp.ones(2))


@pytest.mark.parametrize("jit", [False, True])
def test_closing_over_parameters_is_said(jit: bool) -> None:
    learner = ft.compile(step, "D_RTRL", XS[0], params=PARAMS, state=STATE)

    def gradient(params: Any) -> Any:
        loss = lambda out, y: plain(out, y) + jnp.sum(params["w"] ** 2)
        return learner.grad(params, learner.init(), XS, YS, loss=loss)[0]

    with pytest.warns(UserWarning, match=r"closes over parameters \(`w`\)"):
        (jax.jit(gradient) if jit else gradient)(PARAMS)


def test_third_argument_of_another_name_is_refused() -> None:
    learner = ft.compile(step, "D_RTRL", XS[0], params=PARAMS, state=STATE)
    with pytest.raises(TypeError, match="named `params`"):
        learner.grad(PARAMS, learner.init(), XS, YS, loss=lambda out, y, weights: plain(out, y))


def test_parameters_that_were_given_already_are_left_alone() -> None:
    learner = ft.compile(step, "D_RTRL", XS[0], params=PARAMS, state=STATE)
    old = jax.tree.map(lambda p: 2.0 * p, PARAMS)
    found, _, losses = learner.grad(PARAMS, learner.init(), XS, YS, loss=functools.partial(penalised, params=old))
    without, _, values = learner.grad(PARAMS, learner.init(), XS, YS, loss=plain)
    assert_close(found, without)
    assert_close(losses, values + penalty(old))
