"""Single steps: the derivative of a call is the rule's, in a loop of one's own and on an NNX module."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import foretrace as ft
from frameworks.records import BATCH, HIDDEN, INPUT, drawn

XS = drawn(1, 6, BATCH, INPUT)
RULES = {
    "D_RTRL": {},
    "pp_prop": {"decay_or_rank": 0.9},
    "BPTT": {},
    "RTRL": {},
    "LowRank": {"rank": 2, "every": 1},
    "UORO": {},
    "ThreeFactor": {},
}


def step(params: Any, state: Any, x: jax.Array) -> Any:
    h = 0.8 * state["h"] + jnp.tanh(x @ params["w"] + state["h"] @ params["u"])
    return {"h": h, "count": state["count"] + 1}, h @ params["out"]


PARAMS = {"w": drawn(2, INPUT, HIDDEN), "u": drawn(3, HIDDEN, HIDDEN), "out": drawn(4, HIDDEN, 2)}
STATE = {"h": drawn(5, BATCH, HIDDEN), "count": jnp.zeros((), int)}


def loss(out: jax.Array) -> jax.Array:
    return jnp.sum(out**2)


def assert_close(found: Any, wanted: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_gradients_of_single_steps_add_up_to_that_of_the_sequence(rule: str) -> None:
    learner = ft.compile(step, rule, XS[0], params=PARAMS, state=STATE, **RULES[rule])
    if rule == "BPTT":  # its credit ends where a call does
        learner = ft.compile(step, rule, XS[0], params=PARAMS, state=STATE, window=1)
    external = jnp.linspace(0.5, 1.5, len(XS)) if rule == "ThreeFactor" else None
    wanted, after, losses = learner.grad(PARAMS, learner.init(), XS, loss=loss, external=external)

    @jax.jit
    def one(carry: Any, x: jax.Array, given: Any) -> Any:
        def value(params: Any) -> Any:
            new, out = learner.step(params, carry, x, external=given)
            return loss(out), new

        return jax.value_and_grad(value, has_aux=True)(PARAMS)

    carry, total, values = learner.init(), jax.tree.map(jnp.zeros_like, PARAMS), []
    for t, x in enumerate(XS):
        (value, carry), grads = one(carry, x, None if external is None else external[t])
        total, values = jax.tree.map(jnp.add, total, grads), [*values, value]
    assert_close(total, wanted)
    assert_close(carry, after)
    np.testing.assert_allclose(jnp.stack(values), losses, rtol=1e-10)


def test_input_gets_the_derivative_within_the_step_and_the_carry_none() -> None:
    learner = ft.compile(step, "D_RTRL", XS[0], params=PARAMS, state=STATE)
    carry = learner.init()
    by_input = jax.grad(lambda x: loss(learner.step(PARAMS, carry, x)[1]))(XS[0])
    assert_close(by_input, jax.grad(lambda x: loss(step(PARAMS, STATE, x)[1]))(XS[0]))

    def of_state(h: jax.Array) -> jax.Array:
        return loss(learner.step(PARAMS, learner.init({**STATE, "h": h}), XS[0])[1])

    assert not jnp.any(jax.grad(of_state)(STATE["h"]))


def test_carry_of_another_learner_is_refused() -> None:
    learner = ft.compile(step, "D_RTRL", XS[0], params=PARAMS, state=STATE)
    with pytest.raises(TypeError, match="starts from a carry"):
        learner.step(PARAMS, STATE, XS[0])


class Held(nnx.Module):
    """Holds its state in a Variable."""

    def __init__(self) -> None:
        self.w = nnx.Param(drawn(2, INPUT, HIDDEN))
        self.h = nnx.Variable(jnp.zeros((BATCH, HIDDEN)))

    def __call__(self, x: jax.Array) -> jax.Array:
        self.h[...] = 0.8 * self.h[...] + jnp.tanh(x @ self.w[...])
        return self.h[...]


class Both(nnx.Module):
    """Takes a carry, and holds a second state in a Variable."""

    def __init__(self) -> None:
        self.w = nnx.Param(drawn(2, INPUT, HIDDEN))
        self.slow = nnx.Variable(jnp.zeros((BATCH, HIDDEN)))

    def __call__(self, carry: jax.Array, x: jax.Array) -> Any:
        carry = 0.8 * carry + jnp.tanh(x @ self.w[...])
        self.slow[...] = 0.9 * self.slow[...] + carry
        return carry, self.slow[...]


def cell() -> nnx.Module:
    return nnx.GRUCell(INPUT, HIDDEN, dtype=jnp.float64, param_dtype=jnp.float64, rngs=nnx.Rngs(0))


FORMS = {"cell": (cell, {}), "held": (Held, {}), "both": (Both, {"state": drawn(6, BATCH, HIDDEN)})}


@pytest.mark.parametrize("form", FORMS)
def test_nnx_module_is_called_step_by_step(form: str) -> None:
    make, given = FORMS[form]
    model = make()
    learner = ft.compile(model, "D_RTRL", XS[0], **given)
    wanted, after, _ = learner.grad(model, learner.init(), XS, loss=loss)
    online = learner.stateful(model)

    @nnx.jit
    def one(online: Any, x: jax.Array) -> Any:
        return nnx.grad(lambda online: loss(online(x)), argnums=nnx.DiffState(0, nnx.Param))(online)

    total = None
    for x in XS:
        grads = nnx.to_pure_dict(one(online, x)["model"])
        total = grads if total is None else jax.tree.map(jnp.add, total, grads)
    assert_close(total, nnx.to_pure_dict(wanted))
    assert_close(jax.tree.leaves(online.carry), jax.tree.leaves(after))
    if form != "cell":
        assert_close(jax.tree.leaves(nnx.state(model, lambda path, _: path in {("h",), ("slow",)})), held(after))


def held(carry: Any) -> list[Any]:
    return jax.tree.leaves(getattr(carry.state, "others", carry.state))


def test_nnx_optimizer_trains_the_module_inside() -> None:
    @nnx.jit
    def update(online: Any, optimizer: Any, x: jax.Array) -> Any:
        value, grads = nnx.value_and_grad(lambda online: loss(online(x)), argnums=nnx.DiffState(0, nnx.Param))(online)
        optimizer.update(online, grads)
        return value

    def last_loss(rate: float) -> Any:
        model = Held()
        online = ft.compile(model, "D_RTRL", XS[0]).stateful(model)
        optimizer = nnx.Optimizer(online, optax.sgd(rate), wrt=nnx.Param)
        return [update(online, optimizer, XS[0]) for _ in range(30)][-1]

    assert last_loss(0.01) < last_loss(0.0) / 2


def test_reset_empties_the_traces() -> None:
    model = Held()
    online = ft.compile(model, "D_RTRL", XS[0]).stateful(model)
    empty = jax.tree.map(jnp.copy, online.carry)
    online(XS[0])
    assert any(bool(jnp.any(leaf)) for leaf in jax.tree.leaves(online.carry.trace))
    online.reset()
    assert_close(jax.tree.leaves(online.carry), jax.tree.leaves(empty))


def test_other_models_are_told_of_step() -> None:
    learner = ft.compile(step, "D_RTRL", XS[0], params=PARAMS, state=STATE)
    with pytest.raises(TypeError, match=r"learner.step\(params, carry, x\)"):
        learner.stateful(PARAMS)
