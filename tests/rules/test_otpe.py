"""OTPE against its recursions in NumPy: a layer that feeds another has a second trace, one that is read has not."""

from typing import Any

import numpy as np
import pytest

from foretrace.rules.otpe import OTPE
from recursions import (
    BATCH,
    HIDDEN,
    INPUT,
    NETWORKS,
    OUT,
    STEPS,
    Network,
    assert_same,
    fired,
    in_factors,
    loss_derivative,
    per_parameter,
    surrogate,
)
from zoo.records import spike

LEAK, SECOND = 0.85, 3
SLOW = [pytest.param(mode, block, marks=pytest.mark.slow) for mode in ("full", "approx") for block in (3, 12)]


def two_layers(previous: bool = False) -> Network:
    """A layer of potentials and currents feeds a leaky second one, with its spikes of now or of the step before."""
    rng = np.random.default_rng(3)
    params = {"w1": 0.5 + rng.normal(size=(INPUT, HIDDEN)) / 2, "w2": rng.normal(size=(HIDDEN, SECOND)) / 2}
    params |= {"w_out": rng.normal(size=(SECOND, OUT)) / 2}
    state = {"v": rng.uniform(0.2, 1.4, size=(BATCH, HIDDEN)), "g": rng.normal(size=(BATCH, HIDDEN)) / 2}
    state |= {"u": rng.normal(size=(BATCH, SECOND))}

    def step(params: Any, state: Any, x: Any) -> Any:
        g = 0.8 * state["g"] + x @ params["w1"]
        v = 0.9 * state["v"] * (1 - spike(state["v"] - 1)) + 0.5 * g
        u = 0.7 * state["u"] + spike((state["v"] if previous else v) - 1) @ params["w2"]
        return {"v": v, "g": g, "u": u}, u @ params["w_out"]

    return Network(step, params, state, (rng.random((STEPS, BATCH, INPUT)) < 0.6).astype(float), [])


def by_hand(network: Network, mode: str, limit: float = np.inf, previous: bool = False) -> dict[str, np.ndarray]:
    params, (v, g, u) = network.params, (network.state[name] for name in "vgu")
    total = {name: np.zeros_like(value) for name, value in params.items()}
    p = z = np.zeros((BATCH, INPUT))
    e2, average = np.zeros((BATCH, HIDDEN)), np.zeros((BATCH, HIDDEN))
    e = R = np.zeros((BATCH, INPUT, HIDDEN))
    for t, x in enumerate(network.inputs):
        before = np.einsum("bi,bn->bin", z, average / sum(LEAK**i for i in range(t))) if t else R
        before = R if mode == "full" else before
        g = 0.8 * g + x @ params["w1"]
        old, v = v, 0.9 * v * (1 - fired(v - 1)) + 0.5 * g
        a = fired((old if previous else v) - 1)
        u = 0.7 * u + a @ params["w2"]
        error = loss_derivative(u @ params["w_out"])
        signal = error @ params["w_out"].T
        p, slope = LEAK * p + x, surrogate(v - 1)
        z = np.clip(LEAK * z + p, -limit, limit)
        average = LEAK * average + slope * 0.5
        e = LEAK * e + 0.5 * x[:, :, None]
        R = np.clip(LEAK * R + slope[:, None] * e, -limit, limit)
        now = R if mode == "full" else np.einsum("bi,bn->bin", z, average / sum(LEAK**i for i in range(t + 1)))
        total["w1"] += np.einsum("bn,bin->in", signal @ params["w2"].T, before if previous else now)
        e2 = LEAK * e2 + a
        total["w2"] += e2.T @ signal
        total["w_out"] += u.T @ error
    return total


@pytest.mark.parametrize(("mode", "block"), [("full", 1), ("full", 7), ("approx", 1), ("approx", 7), *SLOW])
def test_two_layers_equal_the_recursions_in_any_block(mode: str, block: int) -> None:
    network = two_layers()
    assert_same(network.gradient(OTPE(leak=LEAK, mode=mode), block), by_hand(network, mode))


@pytest.mark.parametrize("mode", ["full", pytest.param("approx", marks=pytest.mark.slow)])
def test_spikes_of_the_step_before_meet_the_trace_of_the_step_before(mode: str) -> None:
    network = two_layers(previous=True)
    assert_same(network.gradient(OTPE(leak=LEAK, mode=mode), 5), by_hand(network, mode, previous=True))


@pytest.mark.parametrize("mode", ["full", "approx"])
def test_a_limit_cuts_the_trace_of_effects(mode: str) -> None:
    network, limit = two_layers(), {"full": 0.5, "approx": 6.0}[mode]
    wanted = by_hand(network, mode, limit)
    assert not np.allclose(wanted["w1"], by_hand(network, mode)["w1"], rtol=1e-2)
    assert_same(network.gradient(OTPE(leak=LEAK, mode=mode, trace_clip_abs=limit), 5), wanted)


@pytest.mark.parametrize("name", ["recurrent LIF", pytest.param("vanilla RNN", marks=pytest.mark.slow)])
def test_a_layer_that_is_read_keeps_the_leaky_trace_alone(name: str) -> None:
    network = NETWORKS[name]()
    leaking = per_parameter(network, lambda step: LEAK * np.broadcast_to(np.eye(step.F.shape[-1]), step.D.shape))
    assert_same(network.gradient(OTPE(leak=LEAK), 7), leaking)


def test_a_layer_that_is_read_is_that_of_ottt_in_factors() -> None:
    network = NETWORKS["recurrent LIF"]()
    assert_same(network.gradient(OTPE(leak=LEAK, mode="approx"), 7), in_factors(network, LEAK, 0.0))


@pytest.mark.parametrize(
    "bad", [{"leak": 2.0}, {"leak": 0.5, "mode": "half"}, {"leak": 0.5, "trace_clip_abs": 0.0}, {"leak": "fast"}]
)
def test_refuses_bad_options(bad: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=list(bad)[-1]):
        OTPE(**bad)


def test_asks_for_the_leak() -> None:
    with pytest.raises(TypeError, match="leak"):
        OTPE()  # type: ignore[call-arg]
