"""Spiking networks as plain functions: neurons of one to four states, synapses, plasticity, stacks, convolution."""

import jax
import jax.numpy as jnp
from jax.nn import sigmoid

from .records import BATCH, HIDDEN, INPUT, OUT, WIDE, Table, spike, spikes, weight

spiking = Table()

EVENTS = spikes(BATCH, INPUT)


def _potential(rng, *shape):
    """Potentials spread around the threshold, which is one."""
    return jnp.asarray(rng.uniform(0.2, 1.4, size=shape))


def _input(rng, *shape):
    """Weights that are positive on average, so that every neuron fires now and then."""
    return 0.45 + weight(rng, *shape)


@spiking.function("LIF", ["v"], {"w": "all -> v", "w_out": "none-needed"}, draw=EVENTS)
def lif(rng):
    def step(params, state, x):
        v = 0.9 * state["v"] - spike(state["v"] - 1.0) + x @ params["w"]
        return {"v": v}, spike(v - 1.0) @ params["w_out"]

    params = {"w": _input(rng, INPUT, HIDDEN), "w_out": weight(rng, HIDDEN, OUT)}
    return step, params, {"v": _potential(rng, BATCH, HIDDEN)}


@spiking.function("LIF, hard reset", ["v"], {"w": "all -> v", "b": "all -> v"}, draw=EVENTS)
def lif_hard_reset(rng):
    def step(params, state, x):
        fired = jax.lax.stop_gradient(spike(state["v"] - 1.0))
        v = 0.9 * state["v"] * (1.0 - fired) + x @ params["w"] + params["b"]
        return {"v": v}, spike(v - 1.0)

    params = {"w": _input(rng, INPUT, HIDDEN), "b": weight(rng, HIDDEN)}
    return step, params, {"v": _potential(rng, BATCH, HIDDEN)}


@spiking.function("LIF, unbatched", ["v"], {"w": "all -> v", "w_out": "none-needed"}, draw=spikes(INPUT))
def lif_unbatched(rng):
    step, params, state = lif(rng)
    return step, params, {"v": state["v"][0]}


@spiking.function(
    "LIF, learned decay and threshold",
    ["v"],
    {"w": "all -> v", "tau": "all -> v", "threshold": "all -> v"},
    draw=EVENTS,
)
def lif_learned(rng):
    def step(params, state, x):
        fired = spike(state["v"] - params["threshold"])
        v = sigmoid(params["tau"]) * state["v"] - params["threshold"] * fired + x @ params["w"]
        return {"v": v}, spike(v - params["threshold"])

    params = {"w": _input(rng, INPUT, HIDDEN), "tau": 2.0 + weight(rng, HIDDEN)}
    params["threshold"] = 1.0 + weight(rng, HIDDEN, gain=0.1)
    return step, params, {"v": _potential(rng, BATCH, HIDDEN)}


@spiking.function(
    "recurrent LIF",
    ["v"],
    {"w_in": "direct -> v", "w_rec": "direct -> v", "w_out": "none-needed"},
    draw=EVENTS,
)
def lif_recurrent(rng):
    def step(params, state, x):
        fired = spike(state["v"] - 1.0)
        v = 0.9 * state["v"] - fired + x @ params["w_in"] + fired @ params["w_rec"]
        return {"v": v}, spike(v - 1.0) @ params["w_out"]

    params = {
        "w_in": _input(rng, INPUT, HIDDEN),
        "w_rec": weight(rng, HIDDEN, HIDDEN),
        "w_out": weight(rng, HIDDEN, OUT),
    }
    return step, params, {"v": _potential(rng, BATCH, HIDDEN)}


@spiking.function("ALIF", ["v a"], {"w": "all -> v"}, draw=EVENTS)
def alif(rng):
    def step(params, state, x):
        fired = spike(state["v"] - 1.0 - 0.5 * state["a"])
        v = 0.9 * state["v"] - fired + x @ params["w"]
        a = 0.95 * state["a"] + fired
        return {"v": v, "a": a}, spike(v - 1.0 - 0.5 * a)

    return (
        step,
        {"w": _input(rng, INPUT, HIDDEN)},
        {"v": _potential(rng, BATCH, HIDDEN), "a": weight(rng, BATCH, HIDDEN)},
    )


@spiking.function(
    "recurrent ALIF, adapting within the step",
    ["v a"],
    {"w_in": "direct -> v a", "w_rec": "direct -> v a", "beta": "direct -> v a", "w_out": "none-needed"},
    draw=EVENTS,
)
def alif_recurrent(rng):
    def step(params, state, x):
        beta = jax.nn.softplus(params["beta"])
        fired = spike(state["v"] - 1.0 - beta * state["a"])
        v = 0.9 * state["v"] - fired + x @ params["w_in"] + fired @ params["w_rec"]
        fired = spike(v - 1.0 - beta * state["a"])
        a = 0.95 * state["a"] + fired
        return {"v": v, "a": a}, fired @ params["w_out"]

    params = {"w_in": _input(rng, INPUT, HIDDEN), "w_rec": weight(rng, HIDDEN, HIDDEN), "beta": weight(rng, HIDDEN)}
    params["w_out"] = weight(rng, HIDDEN, OUT)
    return step, params, {"v": _potential(rng, BATCH, HIDDEN), "a": _potential(rng, BATCH, HIDDEN)}


@spiking.function("GIF with 4 states", ["v i1 i2 theta"], {"w": "all -> v"}, draw=EVENTS)
def gif(rng):
    def step(params, state, x):
        v, i1, i2, theta = (state[name] for name in ("v", "i1", "i2", "theta"))
        fired = spike(v - theta)
        new = {
            "v": 0.9 * v - fired + 0.3 * i1 + 0.2 * i2 + x @ params["w"],
            "i1": 0.5 * i1 - 0.4 * fired,
            "i2": 0.95 * i2 + fired * (0.1 - 0.2 * i2),
            "theta": theta + 0.1 * (1.0 - theta) + 0.05 * v + 0.3 * fired,
        }
        return new, spike(new["v"] - new["theta"])

    state = {"v": _potential(rng, BATCH, HIDDEN), "i1": weight(rng, BATCH, HIDDEN), "i2": weight(rng, BATCH, HIDDEN)}
    return step, {"w": _input(rng, INPUT, HIDDEN)}, state | {"theta": _potential(rng, BATCH, HIDDEN)}


@spiking.function("LIF with an exponential synapse", ["v g"], {"w": "all -> v g"}, draw=EVENTS)
def lif_exponential(rng):
    def step(params, state, x):
        g = 0.8 * state["g"] + x @ params["w"]
        v = 0.9 * state["v"] - spike(state["v"] - 1.0) + 0.5 * g
        return {"v": v, "g": g}, spike(v - 1.0)

    return (
        step,
        {"w": _input(rng, INPUT, HIDDEN)},
        {"v": _potential(rng, BATCH, HIDDEN), "g": weight(rng, BATCH, HIDDEN)},
    )


@spiking.function(
    "recurrent LIF with a dual-exponential synapse, current from the step before",
    ["v rise decay"],
    {"w_in": "direct -> rise decay", "w_rec": "direct -> rise decay"},
    draw=EVENTS,
)
def lif_dual_exponential(rng):
    def step(params, state, x):
        fired = spike(state["v"] - 1.0)
        arriving = x @ params["w_in"] + fired @ params["w_rec"]
        v = 0.9 * state["v"] - fired + state["decay"] - state["rise"]
        return {"v": v, "rise": 0.5 * state["rise"] + arriving, "decay": 0.9 * state["decay"] + arriving}, spike(
            v - 1.0
        )

    params = {"w_in": _input(rng, INPUT, HIDDEN), "w_rec": weight(rng, HIDDEN, HIDDEN)}
    state = {
        "v": _potential(rng, BATCH, HIDDEN),
        "rise": weight(rng, BATCH, HIDDEN),
        "decay": weight(rng, BATCH, HIDDEN),
    }
    return step, params, state


@spiking.function(
    "recurrent LIF with short-term plasticity",
    ["v u r"],
    {"w_in": "direct -> v", "w_rec": "direct -> v"},
    draw=EVENTS,
)
def lif_plastic(rng):
    def step(params, state, x):
        fired = spike(state["v"] - 1.0)
        u = state["u"] + 0.1 * (0.2 - state["u"]) + 0.2 * (1.0 - state["u"]) * fired
        r = state["r"] + 0.05 * (1.0 - state["r"]) - u * state["r"] * fired
        v = 0.9 * state["v"] - fired + x @ params["w_in"] + (u * state["r"] * fired) @ params["w_rec"]
        return {"v": v, "u": u, "r": r}, spike(v - 1.0)

    params = {"w_in": _input(rng, INPUT, HIDDEN), "w_rec": weight(rng, HIDDEN, HIDDEN, gain=3.0)}
    state = {name: jnp.asarray(rng.uniform(0.2, 0.9, size=(BATCH, HIDDEN))) for name in "ur"}
    return step, params, state | {"v": _potential(rng, BATCH, HIDDEN)}


@spiking.function("short-term plasticity of the input", ["u r", "v"], {"w": "all -> v"}, draw=EVENTS)
def plastic_input(rng):
    def step(params, state, x):
        u = state["u"] + 0.1 * (0.2 - state["u"]) + 0.2 * (1.0 - state["u"]) * x
        r = state["r"] + 0.05 * (1.0 - state["r"]) - u * state["r"] * x
        v = 0.9 * state["v"] - spike(state["v"] - 1.0) + (u * state["r"] * x) @ params["w"]
        return {"v": v, "u": u, "r": r}, spike(v - 1.0)

    state = {name: jnp.asarray(rng.uniform(0.2, 0.9, size=(BATCH, INPUT))) for name in "ur"}
    return step, {"w": weight(rng, INPUT, HIDDEN, gain=3.0)}, state | {"v": _potential(rng, BATCH, HIDDEN)}


@spiking.function(
    "two layers of LIF",
    ["v1", "v2"],
    {"w1": "direct -> v1", "w2": "all -> v2", "w_out": "none-needed"},
    draw=EVENTS,
)
def two_layers(rng):
    def step(params, state, x):
        v1 = 0.9 * state["v1"] - spike(state["v1"] - 1.0) + x @ params["w1"]
        v2 = 0.8 * state["v2"] - spike(state["v2"] - 1.0) + spike(v1 - 1.0) @ params["w2"]
        return {"v1": v1, "v2": v2}, spike(v2 - 1.0) @ params["w_out"]

    params = {"w1": _input(rng, INPUT, HIDDEN), "w2": _input(rng, HIDDEN, WIDE), "w_out": weight(rng, WIDE, OUT)}
    return step, params, {"v1": _potential(rng, BATCH, HIDDEN), "v2": _potential(rng, BATCH, WIDE)}


@spiking.function(
    "three layers of LIF, the second one recurrent",
    ["v1", "v2", "v3"],
    {"w1": "direct -> v1", "w2": "direct -> v2", "u2": "direct -> v2", "w3": "all -> v3", "b3": "all -> v3"},
    draw=EVENTS,
)
def three_layers(rng):
    def step(params, state, x):
        fired = {name: spike(state[name] - 1.0) for name in state}
        v1 = 0.9 * state["v1"] - fired["v1"] + x @ params["w1"]
        v2 = 0.8 * state["v2"] - fired["v2"] + spike(v1 - 1.0) @ params["w2"] + fired["v2"] @ params["u2"]
        v3 = 0.7 * state["v3"] - fired["v3"] + spike(v2 - 1.0) @ params["w3"] + params["b3"]
        return {"v1": v1, "v2": v2, "v3": v3}, spike(v3 - 1.0)

    params = {"w1": _input(rng, INPUT, HIDDEN), "w2": _input(rng, HIDDEN, WIDE), "u2": weight(rng, WIDE, WIDE)}
    params |= {"w3": _input(rng, WIDE, OUT), "b3": weight(rng, OUT)}
    sizes = {"v1": HIDDEN, "v2": WIDE, "v3": OUT}
    return step, params, {name: _potential(rng, BATCH, size) for name, size in sizes.items()}


@spiking.function("conv LIF layer", ["v"], {"kernel": "all -> v", "b": "all -> v"}, draw=spikes(BATCH, 7, INPUT))
def conv_lif(rng):
    def step(params, state, x):
        layout = ("NHC", "HIO", "NHC")
        current = jax.lax.conv_general_dilated(x, params["kernel"], (1,), "VALID", dimension_numbers=layout)
        v = 0.9 * state["v"] - spike(state["v"] - 1.0) + current + params["b"]
        return {"v": v}, spike(v - 1.0)

    params = {"kernel": weight(rng, 3, INPUT, HIDDEN), "b": weight(rng, HIDDEN)}
    return step, params, {"v": _potential(rng, BATCH, 5, HIDDEN)}


@spiking.function(
    "conv LIF layer, strided in two dimensions, with a recurrent kernel",
    ["v"],
    {"kernel": "direct -> v", "lateral": "direct -> v"},
    draw=spikes(BATCH, 1, 5, 6),
)
def conv_lif_recurrent(rng):
    def step(params, state, x):
        fired = spike(state["v"] - 1.0)
        current = jax.lax.conv(x, params["kernel"], (2, 2), "SAME") + jax.lax.conv(
            fired, params["lateral"], (1, 1), "SAME"
        )
        v = 0.9 * state["v"] - fired + current
        return {"v": v}, spike(v - 1.0)

    params = {"kernel": weight(rng, 4, 1, 3, 2, gain=2.0), "lateral": weight(rng, 4, 4, 2, 2, gain=0.5)}
    return step, params, {"v": _potential(rng, BATCH, 4, 3, 3)}
