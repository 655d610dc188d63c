"""Two small networks twice: as a step that is compiled, and by hand in NumPy with all that a published rule needs.

`Step` holds per step what enters each weight, `D`, `F`, `l` and the diagonal of the whole step, written down from the
equations of the network and not from any analysis. A rule is then a few lines over these arrays.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from online import online_gradient
from zoo.records import spike

STEPS, BATCH, INPUT, HIDDEN, OUT = 12, 2, 3, 4, 5
BLOCKS = (1, 3, 7, 12)


def loss(outputs: list[Any]) -> Any:
    """Its derivative by an output is `cos(k) + output`."""
    (out,) = outputs
    return jnp.sum(jnp.cos(jnp.arange(out.size)).reshape(out.shape) * out + 0.5 * out**2)


def loss_derivative(out: np.ndarray) -> np.ndarray:
    return np.cos(np.arange(out.size)).reshape(out.shape) + out


def surrogate(potential: np.ndarray) -> np.ndarray:
    sigmoid = 1 / (1 + np.exp(-2 * potential))
    return 2 * sigmoid * (1 - sigmoid)


def fired(potential: np.ndarray) -> np.ndarray:
    return (potential > 0).astype(float)


@dataclass
class Step:
    """One step by hand; axes are batch, unit and state.

    Attributes:
        x: What enters each traced weight; ones for a bias.
        D: New by previous states, mixing held constant.
        whole: The same, with what returns to a unit through the recurrent weights.
        F: New states by the current.
        l: The loss by the new states, each a variable of its own.
        readout: The exact gradient of the readout.
        b: The loss by the previous states.
    """

    x: dict[str, np.ndarray]
    D: np.ndarray
    whole: np.ndarray
    F: np.ndarray
    l: np.ndarray
    readout: np.ndarray
    b: np.ndarray


@dataclass
class Network:
    """A compiled network, its values, and the same by hand."""

    step: Callable
    params: dict[str, np.ndarray]
    state: dict[str, np.ndarray]
    inputs: np.ndarray
    by_hand: list[Step]

    def gradient(self, rule: Any, block: int, steps: int = STEPS) -> dict[str, np.ndarray]:
        """By the engine, keyed by parameter."""
        graph = ft.compile_etrace_graph(self.step, self.inputs[0], params=self.params, state=self.state)
        info = graph.module_info
        values = (info.flatten_params(self.params), *info.flatten_state(self.state))
        found = online_gradient(
            graph, rule, loss, *values, [[jnp.asarray(x)] for x in self.inputs[:steps]], block=block
        )
        return dict(zip(sorted(self.params), map(np.asarray, found), strict=True))

    def readout(self) -> np.ndarray:
        """The exact gradient of the readout."""
        return sum(step.readout for step in self.by_hand)


def recurrent_lif() -> Network:
    """Potential and synaptic current, recurrent, with a readout of the spikes and of the old potential."""
    rng = np.random.default_rng(1)
    params = {"w_in": 0.5 + rng.normal(size=(INPUT, HIDDEN)) / 2, "w_rec": rng.normal(size=(HIDDEN, HIDDEN)) / 2}
    params |= {"b": 0.1 * rng.normal(size=HIDDEN), "w_out": rng.normal(size=(HIDDEN, OUT)) / 2}
    state = {"v": rng.uniform(0.2, 1.4, size=(BATCH, HIDDEN)), "g": rng.normal(size=(BATCH, HIDDEN)) / 2}

    def step(params: Any, state: Any, x: Any) -> Any:
        s = spike(state["v"] - 1)
        g = 0.8 * state["g"] + x @ params["w_in"] + s @ params["w_rec"] + params["b"]
        v = 0.9 * state["v"] - s + 0.5 * g
        return {"v": v, "g": g}, (spike(v - 1) + 0.1 * state["v"]) @ params["w_out"]

    inputs = (rng.random((STEPS, BATCH, INPUT)) < 0.6).astype(float)
    return Network(step, params, state, inputs, _lif_by_hand(params, state["v"], state["g"], inputs))


def _lif_by_hand(params: Any, v: np.ndarray, g: np.ndarray, inputs: np.ndarray) -> list[Step]:
    steps = []
    for x in inputs:
        s, slope = fired(v - 1), surrogate(v - 1)
        new_g = 0.8 * g + x @ params["w_in"] + s @ params["w_rec"] + params["b"]
        new_v = 0.9 * v - s + 0.5 * new_g
        read = fired(new_v - 1) + 0.1 * v
        error = loss_derivative(read @ params["w_out"])
        back = error @ params["w_out"].T
        D = np.zeros((BATCH, HIDDEN, 2, 2))
        D[..., 0, 0], D[..., 0, 1], D[..., 1, 1] = 0.9 - slope, 0.4, 0.8
        whole = D.copy()
        whole[..., 0, 0] += 0.5 * slope * np.diag(params["w_rec"])
        whole[..., 1, 0] += slope * np.diag(params["w_rec"])
        l = np.stack([back * surrogate(new_v - 1), np.zeros_like(v)], axis=-1)
        b = np.stack([0.1 * back, np.zeros_like(v)], axis=-1)
        F = np.broadcast_to([0.5, 1.0], (BATCH, HIDDEN, 2))
        steps.append(Step({"w_in": x, "w_rec": s, "b": np.ones((BATCH, 1))}, D, whole, F, l, read.T @ error, b))
        v, g = new_v, new_g
    return steps


def vanilla_rnn() -> Network:
    """One state, recurrent, without a leak: nothing but the recurrent weights carries it on."""
    rng = np.random.default_rng(2)
    params = {"w_in": rng.normal(size=(INPUT, HIDDEN)) / 2, "w_rec": rng.normal(size=(HIDDEN, HIDDEN)) / 2}
    params |= {"b": 0.1 * rng.normal(size=HIDDEN), "w_out": rng.normal(size=(HIDDEN, OUT)) / 2}
    state = {"h": rng.normal(size=(BATCH, HIDDEN))}

    def step(params: Any, state: Any, x: Any) -> Any:
        h = jnp.tanh(x @ params["w_in"] + state["h"] @ params["w_rec"] + params["b"])
        return {"h": h}, h @ params["w_out"]

    inputs = rng.normal(size=(STEPS, BATCH, INPUT))
    return Network(step, params, state, inputs, _rnn_by_hand(params, state["h"], inputs))


def _rnn_by_hand(params: Any, h: np.ndarray, inputs: np.ndarray) -> list[Step]:
    steps = []
    for x in inputs:
        new = np.tanh(x @ params["w_in"] + h @ params["w_rec"] + params["b"])
        error = loss_derivative(new @ params["w_out"])
        F = (1 - new**2)[..., None]
        D = np.zeros((BATCH, HIDDEN, 1, 1))
        whole = D + F[..., None] * np.diag(params["w_rec"])[:, None, None]
        l = (error @ params["w_out"].T)[..., None]
        steps.append(
            Step({"w_in": x, "w_rec": h, "b": np.ones((BATCH, 1))}, D, whole, F, l, new.T @ error, np.zeros_like(l))
        )
        h = new
    return steps


def blocks_of(*case: Any) -> list[Any]:
    """A case in blocks of every size; those of one step and of two unequal parts are the quick ones."""
    return [pytest.param(*case, block, marks=() if block in (1, 7) else pytest.mark.slow) for block in BLOCKS]


NETWORKS = {"recurrent LIF": recurrent_lif, "vanilla RNN": vanilla_rnn}


def in_factors(network: Network, a_x: float, a_f: float) -> dict[str, np.ndarray]:
    """`e ~ q (x) p`, with `q` de-biased by the number of steps."""
    total = {"w_out": network.readout()}
    for name in network.by_hand[0].x:
        total[name] = np.zeros_like(network.params[name])
        p, q = np.zeros_like(network.by_hand[0].x[name]), np.zeros_like(network.by_hand[0].F)
        for t, step in enumerate(network.by_hand, start=1):
            past = np.einsum("bi,bns,bns->in", p, q, step.b) / (1 - a_f ** (t - 1)) if t > 1 else 0.0
            p = a_x * p + step.x[name]
            q = a_f * np.einsum("bnij,bnj->bni", step.D, q) + (1 - a_f) * step.F
            now = np.einsum("bi,bns,bns->in", p, q, step.l) / (1 - a_f**t)
            total[name] += (now + past).reshape(total[name].shape)
    return total


def per_parameter(network: Network, carry: Callable[[Step], np.ndarray], names: Any = None) -> dict[str, np.ndarray]:
    """`e <- carry e + F x` for every parameter, with the gradient `l e_t + b e_{t-1}`."""
    total = {"w_out": network.readout()}
    for name in names or network.by_hand[0].x:
        total[name] = np.zeros_like(network.params[name])
        e: Any = 0.0
        for step in network.by_hand:
            entering = np.einsum("bi,bns->bins", step.x[name], step.F)
            e = np.broadcast_to(e, entering.shape)
            found = np.einsum("bns,bins->in", step.b, e)
            e = np.einsum("bnst,bint->bins", carry(step), e) + entering
            found = found + np.einsum("bns,bins->in", step.l, e)
            total[name] += found.reshape(total[name].shape)
    return total


def assert_same(found: dict[str, Any], wanted: dict[str, Any], tolerance: float = 1e-10) -> None:
    """The same parameters with the same gradients, none of which is trivial."""
    assert set(found) == set(wanted)
    for name in wanted:
        assert np.any(np.abs(wanted[name]) > 1e-3), name
        np.testing.assert_allclose(found[name], wanted[name], rtol=tolerance, atol=tolerance, err_msg=name)
