"""A forgotten `jit` in a loop is told of: by a type of its own, once, and never where the call is traced."""

import warnings
from typing import Any

import brainstate
import jax
import jax.numpy as jnp
import pytest

import foretrace as ft
from foretrace.learners import unjitted
from foretrace.learners.unjitted import Calls

XS = jnp.ones((3, 2, 3))
PARAMS, STATE = 0.1 * jnp.ones((3, 4)), jnp.zeros((2, 4))


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unjitted, "MANY", 3)


def leaky() -> Any:
    def step(params: Any, state: Any, x: Any) -> Any:
        state = 0.5 * state + x @ params
        return state, state

    return ft.compile(step, "D_RTRL", XS[0], params=PARAMS, state=STATE)


def grad(learner: Any, xs: Any = XS, params: Any = PARAMS) -> Any:
    return learner.grad(params, learner.init(), xs, loss=lambda out: jnp.sum(out**2))[0]


def warned(run: Any) -> list[Any]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run()
    return [one for one in found if issubclass(one.category, ft.UnjittedWarning)]


def test_a_loop_without_jit_is_told_of_once_at_the_users_line() -> None:
    learner = leaky()
    found = warned(lambda: [grad(learner) for _ in range(5)])
    assert len(found) == 1
    assert "@jax.jit" in str(found[0].message)
    assert found[0].filename == __file__


def test_a_few_calls_and_calls_of_other_shapes_are_not() -> None:
    learner = leaky()
    assert warned(lambda: [grad(learner, xs) for xs in (XS, XS, XS[:2], XS[:2])]) == []


def test_a_jitted_loop_is_not() -> None:
    learner = leaky()
    jitted = jax.jit(lambda params: grad(learner, params=params))
    mapped = jax.vmap(lambda params: grad(learner, params=params))
    assert warned(lambda: [jitted(PARAMS * k) for k in range(5)]) == []
    assert warned(lambda: [mapped(jnp.stack([PARAMS] * 2)) for _ in range(5)]) == []


def test_a_module_is_told_to_use_its_own_jit() -> None:
    learner = ft.compile(brainstate.nn.GRUCell(3, 4), "D_RTRL", XS[0], batch_size=2)
    evolve = lambda: learner.etrace_evolve(XS)
    jitted = brainstate.transform.jit(evolve)
    assert warned(lambda: [jitted() for _ in range(5)]) == []
    found = warned(lambda: [evolve() for _ in range(5)])
    assert len(found) == 1
    assert "@brainstate.transform.jit" in str(found[0].message)
    assert found[0].filename == __file__


def test_who_has_turned_jit_off_is_not_told() -> None:
    calls = Calls()
    with jax.disable_jit():
        assert warned(lambda: [calls.note("grad", XS) for _ in range(5)]) == []
