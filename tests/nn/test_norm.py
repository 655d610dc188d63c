"""Normalisations: they compute what brainstate's do, and their scale and bias are traced."""

import functools
import inspect
from typing import Any

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from brainstate import BatchState, HiddenState, ParamState

import foretrace as ft
from foretrace import nn
from nn.flat import Flat, assert_same, flat

STEPS, BATCH, FEATURES = 4, 3, 4
SIZES = {
    "BatchNorm0d": (FEATURES,),
    "BatchNorm1d": (2, FEATURES),
    "BatchNorm2d": (2, 2, FEATURES),
    "BatchNorm3d": (2, 1, 2, FEATURES),
    "LayerNorm": (FEATURES,),
    "RMSNorm": (FEATURES,),
    "GroupNorm": (FEATURES,),
}
every_norm = pytest.mark.parametrize("name", SIZES)


def made(home: Any, name: str, **options: Any) -> Any:
    """A normalisation with a scale and bias that differ from one feature to the next."""
    norm = getattr(home, name)(SIZES[name], **(dict(num_groups=2) if name == "GroupNorm" else {}), **options)
    for k, state in enumerate(norm.states(ParamState).values()):
        state.value = {key: value + 0.1 * (k + 1) * np.arange(1, FEATURES + 1) for key, value in state.value.items()}
    return norm


@functools.cache
def data(name: str) -> Any:
    return jnp.asarray(1.0 + np.random.default_rng(0).normal(size=(STEPS, BATCH, *SIZES[name])))


class Leaky(brainstate.nn.Module):
    """A gain on the input, a normalisation, and a leaky state behind it."""

    def __init__(self, norm: Any, size: tuple[int, ...]) -> None:
        super().__init__()
        self.norm, self.size = norm, size
        self.gain = ParamState(jnp.linspace(0.5, 1.5, FEATURES))

    def init_state(self, *_: Any, **__: Any) -> None:
        self.h = HiddenState(jnp.zeros((BATCH, *self.size)))

    def update(self, x: Any) -> Any:
        self.h.value = 0.8 * self.h.value + jnp.tanh(self.norm(x * ft.element_wise(self.gain.value)))
        return self.h.value


@functools.cache
def solved(name: str, fit: bool) -> Flat:
    with brainstate.environ.context(fit=fit):
        return flat(Leaky(made(nn, name), SIZES[name]), data(name))


@every_norm
def test_output_is_that_of_brainstate(name: str) -> None:
    ours, theirs = made(nn, name), made(brainstate.nn, name)
    for fit in (True, False):
        with brainstate.environ.context(fit=fit):
            np.testing.assert_allclose(ours(data(name)[0]), theirs(data(name)[0]), rtol=1e-12)
    for mine, other in zip(ours.states(BatchState).values(), theirs.states(BatchState).values(), strict=True):
        np.testing.assert_allclose(mine.value, other.value, rtol=1e-12)


@pytest.mark.parametrize("name", ["BatchNorm2d", "LayerNorm", "RMSNorm", "GroupNorm"])
def test_scale_and_bias_get_the_gradient_of_bptt(name: str) -> None:
    model = solved(name, True)
    own = [parameter for parameter in model.histories if parameter.startswith("norm")]
    assert {model.histories[parameter] for parameter in own} == {"all"}
    wanted = model.through_time()
    assert_same(model.online(), {parameter: wanted[parameter] for parameter in own})


@pytest.mark.parametrize("name", ["BatchNorm2d", "LayerNorm"])
def test_first_step_gets_the_gradient_of_bptt(name: str) -> None:
    model = solved(name, True)
    assert_same(model.online(1), model.through_time(1))


@pytest.mark.parametrize("name", ["BatchNorm2d", "LayerNorm", "RMSNorm", "GroupNorm"])
def test_weight_before_keeps_direct_paths(name: str) -> None:
    model = solved(name, True)
    assert model.histories["gain"] == "direct"
    found, whole = model.online()["gain"], model.through_time()["gain"]
    assert np.max(np.abs(found - whole)) > 1e-6
    if name == "LayerNorm":
        np.testing.assert_allclose(found, model.by_the_oracle()["gain"], rtol=1e-10)


def test_running_statistics_mix_nothing() -> None:
    model = solved("BatchNorm0d", False)
    assert set(model.histories.values()) == {"all"}
    assert_same(model.online(), model.through_time())


def test_unmarked_normalisation_would_lose_its_history() -> None:
    model = flat(Leaky(made(brainstate.nn, "LayerNorm"), SIZES["LayerNorm"]), data("LayerNorm"))
    assert model.histories["norm.weight.scale"] == "in-step"


def test_learner_brings_running_statistics_up_to_date() -> None:
    name = "BatchNorm0d"
    net, plain = Leaky(made(nn, name), SIZES[name]), made(brainstate.nn, name)
    with brainstate.environ.context(fit=True):
        learner = ft.compile(net, "D_RTRL", data(name)[0])
        learner.etrace_evolve(data(name))
        for x in data(name):
            plain(x * net.gain.value)
    for key in ("running_mean", "running_var"):
        np.testing.assert_allclose(getattr(net.norm, key).value, getattr(plain, key).value, rtol=1e-10)


def test_group_norm_takes_one_example() -> None:
    norm = made(nn, "GroupNorm")
    x = data("GroupNorm")[0]
    np.testing.assert_allclose(jax.vmap(norm)(x), norm(x), rtol=1e-12)


def test_slope_of_prelu_is_traced() -> None:
    model = flat(Leaky(nn.PReLU(), (FEATURES,)), data("LayerNorm") - 1.0)
    assert model.histories["norm.weight"] == "all"
    assert_same(model.online(), model.through_time())


@every_norm
def test_signature_is_that_of_brainstate(name: str) -> None:
    theirs = inspect.signature(getattr(brainstate.nn, name).__init__).parameters
    assert list(inspect.signature(getattr(nn, name)).parameters) == list(theirs)[1:]


def test_features_must_come_last() -> None:
    with pytest.raises(ValueError, match="features on the last axes"):
        nn.BatchNorm1d((FEATURES, 2), feature_axis=0)


def test_parameters_must_be_applied() -> None:
    with pytest.raises(TypeError, match="ScaleAndBias"):
        nn.LayerNorm((FEATURES,), param_type=ParamState)
