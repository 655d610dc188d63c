"""E-prop against D-RTRL, against itself by hand in NumPy, and against BPTT where a leaky readout makes it exact."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lif_networks as nets
from foretrace.engine.plan import make_plan
from foretrace.rules.d_rtrl import D_RTRL
from foretrace.rules.eprop import EProp, filtered_groups
from online import walked_gradient
from oracle import bptt
from zoo import MODELS
from zoo.compiled import compiled
from zoo.flat import flat_values
from zoo.records import spike

KAPPA = 0.8


def gradient(network: nets.Network, rule: Any, block: int = 4) -> dict[str, np.ndarray]:
    return network.named(walked_gradient(network.graph, rule, nets.loss, *network.values, block=block))


def assert_close(found: dict[str, Any], wanted: dict[str, Any], tolerance: float = 1e-10) -> None:
    assert set(found) == set(wanted)
    for name in wanted:
        np.testing.assert_allclose(found[name], wanted[name], rtol=tolerance, atol=tolerance, err_msg=name)


def test_without_filter_and_with_symmetric_feedback_it_is_d_rtrl() -> None:
    network = nets.recurrent_lif()
    assert_close(gradient(network, EProp()), gradient(network, D_RTRL()))


@pytest.mark.parametrize("kappa", [0.0, KAPPA])
def test_symmetric_feedback_equals_the_hand_written_one(kappa: float) -> None:
    network = nets.recurrent_lif()
    back = np.asarray(network.params["w_out"]).T
    wanted = nets.numpy_gradient(network, lambda t, asked: asked @ back, kappa)
    assert_close(gradient(network, EProp(kappa_filter_decay=kappa)), wanted)


@pytest.mark.parametrize("kappa", [0.0, KAPPA])
def test_random_feedback_equals_the_hand_written_one(kappa: float) -> None:
    network = nets.recurrent_lif()
    rule = EProp(feedback="random", kappa_filter_decay=kappa, random_feedback_key=7)
    (weights,) = rule.feedback_weights(make_plan(network.graph))
    assert weights.shape == (nets.OUT, nets.HIDDEN)
    wanted = nets.numpy_gradient(network, lambda t, asked: asked @ np.asarray(weights), kappa)
    assert_close(gradient(network, rule), wanted)


def _leaky_readout(of_old: bool) -> nets.Network:
    """Feed-forward LIF, read out by leaky integrators with the decay of the filter."""

    def step(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
        fired = spike(state["v"] - 1.0)
        v = nets.LEAK * state["v"] - fired + x @ params["w_in"]
        read = fired if of_old else spike(v - 1.0)
        y = KAPPA * state["y"] + read @ params["w_out"]
        return {"v": v, "y": y}, y

    params, state, xs = nets.draws()
    del params["w_rec"]
    return nets.compiled(step, params, state | {"y": jnp.zeros((nets.BATCH, nets.OUT))}, xs)


@pytest.mark.parametrize("of_old", [False, True], ids=["new spikes", "spikes before the step"])
def test_the_filter_of_a_leaky_readout_makes_it_exact(of_old: bool) -> None:
    network = _leaky_readout(of_old)
    wanted = network.named(bptt(network.graph, nets.loss, *network.values))
    for block in (1, 4):
        assert_close(gradient(network, EProp(kappa_filter_decay=KAPPA), block), wanted)
    assert not np.allclose(gradient(network, D_RTRL())["w_in"], wanted["w_in"])


def test_random_feedback_leaves_a_leaky_readout_its_exact_signal() -> None:
    network = _leaky_readout(of_old=False)
    rule = EProp(feedback="random", kappa_filter_decay=KAPPA)
    hidden, readout = rule.feedback_weights(make_plan(network.graph))
    assert hidden is not None
    assert readout is None
    assert_close(
        {"w_out": gradient(network, rule)["w_out"]},
        {"w_out": network.named(bptt(network.graph, nets.loss, *network.values))["w_out"]},
    )


def test_a_signal_for_spikes_before_the_step_meets_the_trace_before_it() -> None:
    """Feedback weights equal to the readout's give the symmetric gradient, whichever spikes the readout takes."""
    network = _leaky_readout(of_old=True)
    rule = EProp(feedback="random")
    exact = jnp.asarray(network.params["w_out"]).T
    object.__setattr__(rule, "feedback_weights", lambda plan: [exact, None])
    assert_close(gradient(network, rule), gradient(network, D_RTRL()))


def test_a_model_whose_readout_is_outside_is_filtered() -> None:
    plan = make_plan(nets.compiled(_spikes_alone, *nets.draws()).graph)
    assert filtered_groups(plan) == plan.graph.hidden_groups


def _spikes_alone(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
    v = nets.LEAK * state["v"] + x @ params["w_in"]
    return {"v": v}, spike(v - 1.0)


FAST = (
    "recurrent ALIF, adapting within the step",
    "rolled state",
)
SLOW = (
    "recurrent LIF with delayed spikes",
    "module: marked ALIF in one packed state",
    "LSTM, separate gates",
    "lateral coupling by a roll",
    "three layers of LIF, the second one recurrent",
    "conv LIF layer",
    "LIF, unbatched",
    "short-term plasticity of the input",
)


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_blocks_change_nothing(name: str) -> None:
    (model,) = (m for m in MODELS if m.name == name)
    graph, built = compiled(model)
    values = flat_values(graph, model, built, 7)
    rule = EProp(feedback="random", kappa_filter_decay=KAPPA)
    by_steps, *others = (walked_gradient(graph, rule, nets.loss, *values, block=block) for block in (1, 3, 7))
    for other in others:
        for a, b in zip(by_steps, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="'symmetric' or 'random'"):
        EProp(feedback="both")
    with pytest.raises(ValueError, match="kappa_filter_decay"):
        EProp(kappa_filter_decay=1.0)


def test_a_random_key_may_be_given_in_any_form() -> None:
    key = jax.random.key(3)
    plan = make_plan(nets.recurrent_lif().graph)
    weights = [
        EProp(feedback="random", random_feedback_key=k).feedback_weights(plan)[0]
        for k in (3, key, jax.random.key_data(key))
    ]
    np.testing.assert_array_equal(weights[0], weights[1])
    np.testing.assert_array_equal(weights[0], weights[2])
