"""The table of frontends: who is tried in which order, what is imported, and how others extend it."""

import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import brainstate
import jax.numpy as jnp
import pytest
from flax import nnx

import foretrace as ft
from foretrace.frontends import Split, base, register_frontend


class Leaky:
    """A model of a library that nobody here knows."""

    def __init__(self, decay):
        self.decay = decay


class LeakyFrontend:
    name = "leaky"
    options = ("start",)

    def accepts(self, model):
        return isinstance(model, Leaky)

    def split(self, model, inputs, *, params=None, state=None, start=0.0):
        def step(params, state, x):
            state = {"v": params["decay"] * state["v"] + x, "average": 0.9 * state["average"] + 0.1 * x}
            return state, state["v"]

        return Split(
            step,
            {"decay": jnp.asarray(model.decay)},
            {name: jnp.full_like(inputs[0], start) for name in ("average", "v")},
            hidden=(False, True),
            params_of=lambda value: {"decay": jnp.asarray(value.decay)} if isinstance(value, Leaky) else value,
            state_of=lambda value: value if isinstance(value, dict) else {"average": value, "v": value},
            param_paths=(("the", "decay"),),
        )


@pytest.fixture
def leaky(monkeypatch):
    monkeypatch.setattr(base, "_registered", [])
    return register_frontend(LeakyFrontend())


def test_registered_frontend_makes_a_learner(leaky):
    learner = ft.compile(Leaky(0.5), "D_RTRL", jnp.ones(2), start=1.0)
    program = learner.graph.program
    assert [leaf.name for leaf in (*program.params, *program.hidden, *program.other)] == ["the.decay", "v", "average"]
    assert learner.init().state["v"].tolist() == [1.0, 1.0]
    assert learner.init(jnp.zeros(2)).state["average"].tolist() == [0.0, 0.0]
    grads, _, _ = learner.grad(Leaky(0.5), learner.init(jnp.zeros(2)), jnp.ones((3, 2)), loss=jnp.sum)
    assert float(grads["decay"]) == pytest.approx(2 * (0 + 1 + 2))  # v: 1, 1.5, 1.75; dv: 0, 1, 2


def test_registered_frontend_is_asked_first(leaky, monkeypatch):
    monkeypatch.setattr(LeakyFrontend, "accepts", lambda self, model: isinstance(model, nnx.Module))
    assert base.frontend_of(nnx.Linear(1, 1, rngs=nnx.Rngs(0))) is leaky


def test_option_of_another_frontend_is_refused(leaky):
    with pytest.raises(TypeError, match="wrt"):
        ft.compile(Leaky(0.5), "D_RTRL", jnp.ones(2), wrt=nnx.Param)
    with pytest.raises(TypeError, match="kind `leaky`"):
        ft.compile_etrace_graph(Leaky(0.5), jnp.ones(2), wrt=nnx.Param)
    with pytest.raises(TypeError, match="kind `brainstate`"):
        ft.compile_etrace_graph(brainstate.nn.GRUCell(2, 2), jnp.ones(2), wrt=nnx.Param)


def test_frontend_needs_its_methods():
    with pytest.raises(TypeError, match="`accepts` and `split`"):
        register_frontend(object())


@pytest.mark.parametrize("model", [3, None, nnx.Linear, {}])
def test_no_model(model):
    with pytest.raises(TypeError, match="A model is a module of brainstate, Flax NNX, Flax linen or Equinox"):
        ft.compile(model, "D_RTRL", jnp.ones(2))


def test_libraries_are_not_imported_before_a_model_of_them_exists():
    code = (
        "import sys, foretrace; print([m for m in sys.modules if m in ('equinox', 'spyx', 'foretrace.frontends.nnx', "
    )
    code += "'foretrace.frontends.linen', 'foretrace.frontends.equinox')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_frontend_may_name_what_holds_its_models(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[Any, ...]] = []
    holder = ModuleType("holder_of_tests")
    vars(holder)["make_learner"] = lambda *values: given.append(values) or "a holder"
    monkeypatch.setitem(sys.modules, holder.__name__, holder)
    own = SimpleNamespace(name="own", options=(), holder=holder.__name__, accepts=lambda model: model == "own")
    monkeypatch.setattr(base, "_registered", [own])
    x = jnp.ones(2)
    assert ft.compile("own", "D_RTRL", x, batch_size=3, seed=1, block=5) == "a holder"
    assert given == [("own", ft.D_RTRL, (x,), 3, 1, False, {"block": 5})]
    with pytest.raises(TypeError, match="holds its own parameters"):
        ft.compile("own", "D_RTRL", x, params=x)
