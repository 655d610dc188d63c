"""`check_finite`: what first was not finite, and at which step, for both kinds of models, compiled or not."""

import functools
from collections.abc import Callable
from typing import Any

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import foretrace as ft
from learners.nets import make, restart

STEPS, SIZE = 10, 3
XS = jnp.asarray(np.random.default_rng(0).uniform(0.5, 1.0, size=(STEPS, SIZE)))
NAN_AT_7 = XS.at[7, 1].set(jnp.nan)
GROWING = XS.at[4].set(1e300)


def step(params: Any, state: Any, x: Any) -> Any:
    v = 0.5 * state["v"] + x @ params["w"]
    grown = state["grown"] + v * v
    return {"v": v, "grown": grown}, v


class Net(brainstate.nn.Module):
    """The same step as a module."""

    def __init__(self, w: Any) -> None:
        super().__init__()
        self.w = brainstate.ParamState(w)

    def init_state(self, *_: Any, **__: Any) -> None:
        self.v = brainstate.HiddenState(jnp.zeros(SIZE))
        self.grown = brainstate.HiddenState(jnp.zeros(SIZE))

    def update(self, x: Any) -> Any:
        state = {"v": self.v.value, "grown": self.grown.value}
        state, out = step({"w": self.w.value}, state, x)
        self.v.value, self.grown.value = state["v"], state["grown"]
        return out


STATE = {"v": jnp.zeros(SIZE), "grown": jnp.zeros(SIZE)}
W = 0.3 * jnp.eye(SIZE) + 0.1


def total(out: Any) -> Any:
    return jnp.sum(out)


def zero_log(out: Any) -> Any:
    """Minus infinity where the output first passes a limit."""
    return jnp.log(jnp.where(out[0] > 0.8, 0.0, 1.0)) + jnp.sum(out)


@functools.cache
def compiled() -> ft.Learner:
    return ft.compile(step, "D_RTRL", XS[0], params={"w": W}, state=STATE, check_finite=True)


def by_function(w: Any, xs: Any, loss: Callable[[Any], Any], *, window: int | None = None) -> None:
    learner = ft.Learner(compiled().graph, compiled().rule, block=4, window=window, check_finite=True)
    learner.grad({"w": w}, learner.init(STATE), xs, loss=loss)


def by_jit(w: Any, xs: Any, loss: Callable[[Any], Any]) -> None:
    run = jax.jit(lambda w, xs: compiled().grad({"w": w}, compiled().init(STATE), xs, loss=loss)[0])
    jax.block_until_ready(run(w, xs))
    jax.effects_barrier()


def by_module(w: Any, xs: Any, loss: Callable[[Any], Any], *, jit: bool = False, **options: Any) -> None:
    learner = ft.compile(Net(w), "D_RTRL", XS[0], check_finite=True)
    run = lambda xs: learner.etrace_grad(xs, step_fn=lambda x: loss(learner(x)), **options)
    jax.block_until_ready((brainstate.transform.jit(run) if jit else run)(xs))
    jax.effects_barrier()


PASSED = int(np.argmax(jax.lax.scan(lambda s, x: step({"w": W}, s, x), STATE, XS)[1][:, 0] > 0.8))
WAYS = {
    "function": by_function,
    "function, windows": functools.partial(by_function, window=3),
    "function, jit": by_jit,
    "module": by_module,
    "module, windows": functools.partial(by_module, chunk_size=4),
    "module, jit": functools.partial(by_module, jit=True),
}
CASES = {
    "input": (W, NAN_AT_7, total, r"Input `input\[0\]` is not finite at step 7"),
    "state": (W, GROWING, total, "State `grown` is not finite after step 4"),
    "loss": (W, XS, zero_log, f"The loss is not finite at step {PASSED}"),
    "parameter": (W.at[0, 0].set(jnp.inf), XS, total, "Parameter `w` is not finite"),
}


@pytest.mark.parametrize(
    ("way", "case"),
    [
        *(("function", case) for case in CASES),
        *(("module", case) for case in CASES),
        ("function, windows", "input"),
        ("function, jit", "state"),
        ("function, jit", "parameter"),
        ("module, windows", "loss"),
        ("module, jit", "input"),
        ("module, jit", "loss"),
    ],
)
def test_the_first_appearance_is_named(way: str, case: str) -> None:
    w, xs, loss, message = CASES[case]
    error: type[Exception] = jax.errors.JaxRuntimeError if "jit" in way else ft.NonFiniteError
    with pytest.raises(error, match=message):
        WAYS[way](w, xs, loss)


@pytest.mark.parametrize("way", WAYS)
def test_a_finite_run_passes(way: str) -> None:
    WAYS[way](W, XS, total)


def test_windows_of_multi_step_data_count_steps() -> None:
    learner = ft.compile(Net(W), "D_RTRL", XS[0], check_finite=True)
    losses = lambda x: jnp.sum(learner(ft.MultiStepData(x)), axis=1)
    with pytest.raises(ft.NonFiniteError, match=r"Input `input\[0\]` is not finite at step 7"):
        learner.etrace_grad(NAN_AT_7, step_fn=losses, chunk_size=4)


def test_training_says_from_which_step_a_parameter_is_lost() -> None:
    optax = pytest.importorskip("optax")
    explode = optax.GradientTransformation(
        lambda params: jnp.zeros((), int),
        lambda grads, count, params: (jax.tree.map(lambda g: g / (count != 1), grads), count + 1),
    )
    message = "Parameter `w` is not finite from step 4 on"
    learner = compiled()
    with pytest.raises(ft.NonFiniteError, match=message):
        learner.train({"w": W}, learner.init(STATE), XS, loss=total, optimizer=explode, update_every=2)
    other = ft.compile(Net(W), "D_RTRL", XS[0], check_finite=True)
    with pytest.raises(ft.NonFiniteError, match=message):
        other.etrace_train(XS, step_fn=lambda x: total(other(x)), optimizer=explode, update_every=2)


def test_it_is_off_by_default_and_leaves_no_trace_in_the_program() -> None:
    assert not make()[1].check_finite
    plain = ft.Learner(compiled().graph, compiled().rule)
    assert not plain.check_finite
    programs = [
        str(jax.make_jaxpr(lambda w, one=one: one.grad({"w": w}, one.init(STATE), XS, loss=total))(W))
        for one in (plain, compiled())
    ]
    assert ["is_finite" in program for program in programs] == [False, True]


def test_a_module_unchecked_returns_what_is_not_finite() -> None:
    net, learner = make()
    restart(net, learner)
    found = learner.etrace_grad(jnp.full((3, 2, 3), jnp.nan), step_fn=lambda x: jnp.sum(learner(x)))
    assert not np.isfinite(found[("w",)]).all()


METHODS: dict[str, Callable[..., Any]] = {
    "grad": lambda one, xs, options: one.etrace_grad(xs, step_fn=lambda x: total(one(x)), **options),
    "evolve": lambda one, xs, options: one.etrace_evolve(xs, **options),
    "train": lambda one, xs, options: one.etrace_train(
        xs, step_fn=lambda x: total(one(x)), optimizer=optax.sgd(0.1), **options
    ),
}


@pytest.mark.parametrize(
    ("method", "options"),
    [("grad", {}), ("grad", {"chunk_size": 2}), ("evolve", {}), ("evolve", {"chunk_size": 2}), ("train", {})],
)
def test_a_module_is_as_before_after_the_error(method: str, options: dict[str, Any]) -> None:
    """The last of five steps is bad: with windows of two, the first two of three pieces were done already."""
    net = Net(W)
    learner = ft.compile(net, "D_RTRL", XS[0], check_finite=True)
    learner(XS[0])
    held = lambda: [net.w.value, net.v.value, net.grown.value, learner.etrace.value]
    before = jax.tree.map(np.asarray, held())
    with pytest.raises(ft.NonFiniteError, match=r"Input .* at step 4"):
        METHODS[method](learner, XS[:5].at[4].set(jnp.nan), options)
    jax.tree.map(np.testing.assert_array_equal, held(), before)
    METHODS[method](learner, XS[:5], options)
    assert np.isfinite(net.v.value).all()


def test_evolving_a_function_is_checked_too() -> None:
    learner = compiled()
    with pytest.raises(ft.NonFiniteError, match=r"Input .* at step 7"):
        learner.evolve({"w": W}, learner.init(STATE), NAN_AT_7)
