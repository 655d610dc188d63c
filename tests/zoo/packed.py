"""States that hold several values of a position in one array: side by side along an axis, stacked, interleaved."""

import jax.numpy as jnp
from jax.nn import sigmoid

from .records import BATCH, HIDDEN, INPUT, OUT, WIDE, Table, spike, spikes, weight

packed = Table()

CURRENT = {"w": "all -> s", "alpha": "all -> s", "beta": "all -> s"}


@packed.function("current-based LIF, v and i side by side", [("s", 2)], CURRENT, draw=spikes(BATCH, INPUT))
def current_based(rng):
    def step(params, state, x):
        v, i = jnp.split(state["s"], 2, -1)
        fired = spike(v - 1.0)
        i = sigmoid(params["alpha"]) * i + x @ params["w"]
        v = sigmoid(params["beta"]) * v + i - fired
        return {"s": jnp.concatenate([v, i], axis=-1)}, fired

    params = {"w": weight(rng, INPUT, WIDE, gain=1.5), "alpha": weight(rng, WIDE), "beta": weight(rng, WIDE)}
    return step, params, {"s": jnp.asarray(rng.uniform(0.2, 1.4, size=(BATCH, 2 * WIDE)))}


ADAPTIVE = {"w": "all -> s", "beta": "all -> s", "gamma": "all -> s", "w_out": "none-needed"}


@packed.function("adaptive LIF, v and threshold side by side", [("s", 2)], ADAPTIVE, draw=spikes(BATCH, INPUT))
def adaptive(rng):
    def step(params, state, x):
        v, threshold = jnp.split(state["s"], 2, -1)
        fired = spike(v - (1.0 + threshold))
        gamma = sigmoid(params["gamma"])
        threshold = gamma * threshold + (1.0 - gamma) * fired
        v = sigmoid(params["beta"]) * v + x @ params["w"] - fired * (1.0 + threshold)
        return {"s": jnp.concatenate([v, threshold], axis=-1)}, fired @ params["w_out"]

    params = {"w": weight(rng, INPUT, WIDE, gain=1.5), "beta": weight(rng, WIDE), "gamma": weight(rng, WIDE)}
    params |= {"w_out": weight(rng, WIDE, OUT)}
    return step, params, {"s": jnp.asarray(rng.uniform(0.2, 1.4, size=(BATCH, 2 * WIDE)))}


@packed.function(
    "recurrent current-based LIF, v and i side by side",
    [("s", 2)],
    {"w": "direct -> s", "w_rec": "direct -> s"},
    draw=spikes(BATCH, INPUT),
)
def recurrent(rng):
    def step(params, state, x):
        v, i = jnp.split(state["s"], 2, -1)
        fired = spike(v - 1.0)
        i = 0.8 * i + x @ params["w"] + fired @ params["w_rec"]
        v = 0.9 * v + i - fired
        return {"s": jnp.concatenate([v, i], axis=-1)}, fired

    params = {"w": weight(rng, INPUT, WIDE, gain=1.5), "w_rec": weight(rng, WIDE, WIDE)}
    return step, params, {"s": jnp.asarray(rng.uniform(0.2, 1.4, size=(BATCH, 2 * WIDE)))}


@packed.function("v, i and adaptation side by side", [("s", 3)], {"w": "all -> s", "b": "all -> s"})
def three_values(rng):
    def step(params, state, x):
        v, i, a = jnp.split(state["s"], 3, -1)
        i = 0.8 * i + x @ params["w"]
        a = 0.7 * a + 0.2 * jnp.tanh(v)
        v = 0.9 * v + i - a + params["b"]
        return {"s": jnp.concatenate([v, i, a], axis=-1)}, jnp.tanh(v)

    params = {"w": weight(rng, INPUT, WIDE), "b": weight(rng, WIDE)}
    return step, params, {"s": weight(rng, BATCH, 3 * WIDE)}


@packed.function("v and i stacked along a leading axis", [("s", 2)], {"w": "all -> s"})
def stacked(rng):
    def step(params, state, x):
        v, i = state["s"]
        i = 0.8 * i + x @ params["w"]
        v = 0.9 * v + jnp.sin(i)
        return {"s": jnp.stack([v, i])}, v * i

    return step, {"w": weight(rng, INPUT, WIDE)}, {"s": weight(rng, 2, BATCH, WIDE)}


@packed.function("v and i side by side along the leading axis", [("s", 2)], {"w": "all -> s"})
def leading(rng):
    def step(params, state, x):
        v, i = state["s"][:WIDE], state["s"][WIDE:]
        i = 0.8 * i + (x @ params["w"]).T
        v = 0.9 * v + i * v
        return {"s": jnp.concatenate([v, i])}, v

    return step, {"w": weight(rng, INPUT, WIDE)}, {"s": weight(rng, 2 * WIDE, BATCH)}


@packed.function("v and i interleaved along one axis", [("s", 2)], {"w": "all -> s"})
def interleaved(rng):
    def step(params, state, x):
        v, i = state["s"][:, ::2], state["s"][:, 1::2]
        i = 0.8 * i + x @ params["w"]
        v = 0.9 * v + i * v
        return {"s": jnp.stack([v, i], axis=-1).reshape(BATCH, 2 * WIDE)}, v

    return step, {"w": weight(rng, INPUT, WIDE)}, {"s": weight(rng, BATCH, 2 * WIDE)}


ROTATED = {"nu": "all -> h", "theta": "all -> h", "w1": "all -> h", "w2": "all -> h", "w_out": "none-needed"}


@packed.function("recurrent trace unit, both parts side by side", [("h", 2)], ROTATED)
def recurrent_trace_unit(rng):
    def step(params, state, x):
        h1, h2 = jnp.split(state["h"], 2, -1)
        radius = jnp.exp(-jnp.exp(params["nu"]))
        angle = jnp.exp(params["theta"])
        cos, sin, norm = radius * jnp.cos(angle), radius * jnp.sin(angle), jnp.sqrt(1.0 - radius**2)
        new1 = cos * h1 - sin * h2 + norm * (x @ params["w1"])
        new2 = cos * h2 + sin * h1 + norm * (x @ params["w2"])
        h = jnp.concatenate([new1, new2], axis=-1)
        return {"h": h}, jnp.tanh(h) @ params["w_out"]

    params = {"nu": weight(rng, WIDE), "theta": weight(rng, WIDE)}
    params |= {"w1": weight(rng, INPUT, WIDE), "w2": weight(rng, INPUT, WIDE), "w_out": weight(rng, 2 * WIDE, OUT)}
    return step, params, {"h": weight(rng, BATCH, 2 * WIDE)}


@packed.function("v, i and a shorter value of its own side by side", [("s", 2)], {"w": "all -> s", "w_c": "all -> s"})
def unequal(rng):
    def step(params, state, x):
        v, i, c = state["s"][:, :WIDE], state["s"][:, WIDE : 2 * WIDE], state["s"][:, 2 * WIDE :]
        i = 0.8 * i + x @ params["w"]
        v, c = 0.9 * v + i * v, jnp.tanh(0.6 * c + x @ params["w_c"])
        return {"s": jnp.concatenate([v, i, c], axis=-1)}, jnp.concatenate([v, c], axis=-1)

    params = {"w": weight(rng, INPUT, WIDE), "w_c": weight(rng, INPUT, HIDDEN)}
    return step, params, {"s": weight(rng, BATCH, 2 * WIDE + HIDDEN)}


@packed.function("v and i side by side, the adaptation apart", [("s a", 3)], {"w": "all -> s", "b": "all -> a"})
def beside_another(rng):
    def step(params, state, x):
        v, i = jnp.split(state["s"], 2, -1)
        a = 0.7 * state["a"] + params["b"] * jnp.tanh(v)
        i = 0.8 * i + x @ params["w"]
        v = 0.9 * v + i - state["a"]
        return {"s": jnp.concatenate([v, i], axis=-1), "a": a}, v * a

    params = {"w": weight(rng, INPUT, WIDE), "b": weight(rng, WIDE)}
    return step, params, {"s": weight(rng, BATCH, 2 * WIDE), "a": weight(rng, BATCH, WIDE)}


@packed.function("v and i side by side, v with the currents of neighbours", ["s"], {"w": "direct -> s"})
def parts_that_mix(rng):
    def step(params, state, x):
        v, i = jnp.split(state["s"], 2, -1)
        i = 0.8 * i + x @ params["w"]
        v = 0.9 * v + i + 0.5 * jnp.roll(i, 1, axis=-1)
        return {"s": jnp.concatenate([v, i], axis=-1)}, v

    return step, {"w": weight(rng, INPUT, WIDE)}, {"s": weight(rng, BATCH, 2 * WIDE)}
