"""Neurons with learnable constants: their gradients, their ranges, and that the neuron stays what it was."""

import copy
from collections.abc import Callable
from typing import Any

import brainpy
import brainstate
import brainunit as u
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from brainstate import ParamState
from braintools.init import Constant
from braintools.surrogate import Sigmoid

import foretrace as ft
from foretrace import nn
from nn.flat import Flat, assert_same, flat

STEPS, BATCH, INPUT, UNITS = 3, 2, 3, 4

_random = np.random.default_rng(1)
XS = jnp.asarray(_random.normal(size=(STEPS, BATCH, INPUT)))
COMMON = dict(V_initializer=Constant(np.linspace(0.5, 1.6, UNITS) * u.mV), spk_fun=Sigmoid())
AT_REST = dict(V_rest=0.0 * u.mV, V_reset=0.0 * u.mV)


def lif(**options: Any) -> Any:
    return nn.LIF(UNITS, tau=5.0 * u.ms, **COMMON, **options)


def alif(**options: Any) -> Any:
    return nn.ALIF(UNITS, tau=5.0 * u.ms, tau_a=20.0 * u.ms, beta=0.3 * u.mV, **COMMON, **options)


def gif() -> Any:
    current = dict(I1_initializer=Constant(0.2 * u.mA), I2_initializer=Constant(0.1 * u.mA))
    jumps = dict(A1=-0.5 * u.mA, A2=0.2 * u.mA, R1=0.3, R2=0.8, a=0.02 / u.ms)
    threshold = dict(
        V_th_inf=1.0 * u.mV, V_th_reset=1.5 * u.mV, V_th_initializer=Constant(np.linspace(0.8, 1.8, UNITS) * u.mV)
    )
    return nn.GIF(UNITS, R=1.0 * u.ohm, tau=5.0 * u.ms, **current, **jumps, **threshold, **AT_REST, **COMMON)


LEARNED: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "LIF": (lif, ("tau", "V_th")),
    "ALIF": (alif, ("tau", "V_th", "tau_a", "beta")),
    "GIF": (gif, ("tau", "V_th_inf", "V_th_reset", "b", "k1")),
}


class Layer(brainstate.nn.Module):
    """Neurons behind a marked layer, with recurrent connections if asked for; their spikes are the output."""

    def __init__(self, neuron: Any, recurrent: bool = False) -> None:
        super().__init__()
        self.neu = neuron
        weight = np.random.default_rng(2).normal(size=(INPUT, UNITS))
        self.comm = nn.Linear(INPUT, UNITS, w_init=weight * u.mA, b_init=0.1 * u.mA)
        back = 0.5 * np.random.default_rng(3).normal(size=(UNITS, UNITS)) * u.mA
        self.rec = nn.Linear(UNITS, UNITS, w_init=back, b_init=None) if recurrent else None

    def update(self, x: Any) -> Any:
        with brainstate.environ.context(dt=1.0 * u.ms):
            back = 0.0 * u.mA if self.rec is None else self.rec(self.neu.get_spike())
            return self.neu(self.comm(x) + back)


@pytest.fixture(scope="module", params=LEARNED)
def layer(request: pytest.FixtureRequest) -> tuple[Flat, tuple[str, ...]]:
    make, names = LEARNED[request.param]
    return flat(Layer(nn.learnable(make(), *names)), XS, BATCH), names


def test_gradients_are_those_of_bptt(layer: tuple[Flat, tuple[str, ...]]) -> None:
    solved, names = layer
    wanted = solved.through_time()
    assert {f"neu.{name}" for name in names} < set(wanted)
    assert_same(solved.online(), wanted)


def test_history_is_kept_whole(layer: tuple[Flat, tuple[str, ...]]) -> None:
    solved, _ = layer
    assert set(solved.histories.values()) == {"all"}


def test_recurrent_neurons_follow_the_oracle() -> None:
    solved = flat(Layer(nn.learnable(lif(), "tau", "V_th"), recurrent=True), XS, BATCH)
    assert solved.histories["neu.tau"] == "direct"
    assert_same(solved.online(), solved.by_the_oracle())
    assert_same(solved.online(1), solved.through_time(1))


def test_shared_constant_without_a_batch() -> None:
    neuron = nn.learnable(nn.learnable(lif(), "tau", shared=True), "V_th")
    solved = flat(Layer(neuron), XS[:, 0])
    wanted = solved.through_time()
    assert wanted["neu.tau"].shape == ()
    assert solved.histories["neu.tau"] == "all"
    assert_same(solved.online(), wanted)


def test_synapse_learns_too() -> None:
    class Synapses(Layer):
        def update(self, x: Any) -> Any:
            with brainstate.environ.context(dt=1.0 * u.ms):
                return u.get_mantissa(self.neu(self.comm(x)))

    synapse = nn.learnable(nn.Expon(UNITS, tau=4.0 * u.ms, g_initializer=Constant(0.1 * u.mA)), "tau")
    solved = flat(Synapses(synapse), XS, BATCH)
    assert_same(solved.online(), solved.through_time())


@pytest.mark.parametrize("kind", LEARNED)
def test_neuron_computes_as_before(kind: str) -> None:
    make, names = LEARNED[kind]
    neurons = nn.learnable(make(), *names), make()

    @brainstate.transform.jit
    def spikes(current: Any) -> Any:
        with brainstate.environ.context(dt=1.0 * u.ms):
            return [[neuron(current) for _ in range(2)][-1] for neuron in neurons]

    for neuron in neurons:
        brainstate.nn.init_all_states(neuron)
    learned, plain = spikes(2.0 * jnp.ones(UNITS) * u.mA)
    np.testing.assert_allclose(learned, plain, rtol=1e-12)


def test_class_of_the_neuron_is_left_alone() -> None:
    neuron = nn.learnable(lif(), "tau")
    assert nn.LIF is brainpy.state.LIF
    assert isinstance(neuron, nn.LIF)
    assert type(neuron).__name__ == "LearnableLIF"
    assert not lif().states(ParamState)


def test_constants_keep_their_units() -> None:
    neuron = nn.learnable(alif(), "tau", "V_th", "beta")
    assert neuron.tau.unit == u.ms
    assert neuron.V_th.unit == neuron.beta.unit == u.mV
    neuron.tau = 0.01 * u.second
    np.testing.assert_allclose(neuron.tau / u.ms, np.full(UNITS, 10.0), rtol=1e-12)


def test_plain_numbers_learn_as_well() -> None:
    neuron = nn.learnable(nn.LIF(UNITS, R=1.0, tau=5, V_th=1.0, V_reset=0.0, V_rest=0.0), "tau", "V_th")
    np.testing.assert_allclose(neuron.tau, np.full(UNITS, 5.0), rtol=1e-12)


def test_no_step_leaves_the_range() -> None:
    neuron = nn.learnable(gif(), "tau", "k1", "V_th_inf")
    states = neuron.states(ParamState)
    brainstate.nn.init_all_states(neuron)

    @brainstate.transform.jit
    def gradient(step: Any) -> Any:
        for state in states.values():
            state.value = state.value + step
        with brainstate.environ.context(dt=1.0 * u.ms):
            grads = brainstate.transform.grad(lambda: jnp.sum(neuron(jnp.ones(UNITS) * u.mA)), states)()
        return grads, (neuron.tau / u.ms, neuron.k1 * u.ms, (neuron.V_th_inf - neuron.V_reset) / u.mV)

    for step in (-1e6, -1e3, 1e6, 1e12):
        grads, distances = gradient(step)
        assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(grads))
        assert all(np.all(distance > 0.0) and np.all(np.isfinite(distance)) for distance in distances)


def test_small_step_is_relative() -> None:
    neuron = nn.learnable(lif(), "tau")
    neuron.states(ParamState)[("tau",)].value += 0.01
    np.testing.assert_allclose(neuron.tau / u.ms, np.full(UNITS, 5.0 * 1.01), rtol=1e-3)


def test_limits_can_be_set_and_lifted() -> None:
    neuron = nn.learnable(lif(), "tau", "V_th", "R", above={"tau": 2.0 * u.ms, "V_th": None, "R": 0.0 * u.ohm})
    for state in neuron.states(ParamState).values():
        state.value = jax.tree.map(lambda leaf: leaf - 1000.0, state.value)
    assert np.all(neuron.tau >= 2.0 * u.ms)
    assert np.all(neuron.V_th < 0.0 * u.mV)
    assert np.all(neuron.R / u.ohm > 0.0)


def test_parameter_means_the_same_after_another_start() -> None:
    neuron, other = nn.learnable(lif(), "tau"), nn.learnable(nn.LIF(UNITS, tau=90.0 * u.ms), "tau")
    other.states(ParamState)[("tau",)].value = neuron.states(ParamState)[("tau",)].value
    np.testing.assert_allclose(other.tau / u.ms, neuron.tau / u.ms, rtol=1e-12)


def test_neuron_survives_splitting_and_copying() -> None:
    neuron = nn.learnable(lif(), "tau")
    merged = brainstate.graph.treefy_merge(*brainstate.graph.treefy_split(neuron))
    for other in (merged, copy.deepcopy(neuron)):
        other.tau = 7.0 * u.ms
        np.testing.assert_allclose(other.tau / u.ms, np.full(UNITS, 7.0), rtol=1e-12)
    np.testing.assert_allclose(neuron.tau / u.ms, np.full(UNITS, 5.0), rtol=1e-12)


@pytest.mark.parametrize(
    ("make", "names", "options", "message"),
    [
        (lif, (), {}, "no constant is named.*R, V_reset, V_rest, V_th, tau"),
        (lif, ("tau_m",), {}, "LIF has no constant `tau_m`"),
        (gif, ("V_th",), {}, "no constant `V_th`.*V_th_inf, V_th_reset"),
        (lambda: nn.LIFRef(UNITS), ("tau_ref",), {}, "no gradient"),
        (lambda: nn.learnable(lif(), "tau"), ("tau",), {}, "learns already"),
        (lambda: nn.LIF(UNITS, tau=-1.0 * u.ms), ("tau",), {}, "does not lie above 0"),
        (lif, ("tau",), dict(above={"V_th": None}), "`above` names V_th"),
        (lif, ("tau",), dict(above={"tau": 1.0 * u.mV}), "in ms, and cannot be compared"),
        (lambda: nn.LIF(UNITS, tau=np.ones(UNITS) * u.ms), ("tau",), dict(shared=True), "one number"),
    ],
)
def test_refusals(make: Any, names: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        nn.learnable(make(), *names, **options)


def test_state_is_not_a_constant() -> None:
    neuron = gif()
    brainstate.nn.init_all_states(neuron)
    with pytest.raises(ValueError, match="`V_th` is a state of Gif"):
        nn.learnable(neuron, "V_th")


def test_only_neurons_and_synapses() -> None:
    with pytest.raises(TypeError, match=r"a neuron or synapse is needed.*got Flatten"):
        nn.learnable(nn.Flatten(), "weight")


class Potential(Layer):
    """The potential is the output, so that a teacher's time constant shows at every step."""

    def update(self, x: Any) -> Any:
        super().update(x)
        return self.neu.V.value / u.mV


def test_time_constant_of_a_teacher_is_recovered() -> None:
    teacher, pupil = Potential(nn.LIF(UNITS, tau=20.0 * u.ms)), Potential(nn.learnable(nn.LIF(UNITS), "tau"))
    xs = jnp.asarray(np.random.default_rng(5).normal(size=(20, BATCH, INPUT)))
    brainstate.nn.init_all_states(teacher, batch_size=BATCH)
    ys = brainstate.transform.for_loop(teacher, xs)
    learner = ft.compile(pupil, "D_RTRL", xs[0], batch_size=BATCH)
    constant = pupil.neu.states(ParamState)[("tau",)]
    optimizer = optax.adam(0.1)
    memory = optimizer.init(constant.value)

    @brainstate.transform.jit
    def gradient() -> Any:
        brainstate.nn.reset_all_states(pupil, batch_size=BATCH)
        learner.reset_state()
        distance = lambda x, y: jnp.sum((learner(x) - y) ** 2)
        return learner.etrace_grad(xs, ys, step_fn=distance, return_value=True)

    losses = []
    for _ in range(60):
        grads, values = gradient()
        change, memory = optimizer.update(grads[("neu", "tau")], memory)
        constant.value = optax.apply_updates(constant.value, change)
        losses.append(float(jnp.mean(values)))
    assert losses[-1] < 0.05 * losses[0]
    np.testing.assert_allclose(pupil.neu.tau / u.ms, np.full(UNITS, 20.0), rtol=0.2)
