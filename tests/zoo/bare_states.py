"""New states with nothing behind them: each *is* the output of an operator, an input or another state."""

import jax.numpy as jnp
from jax.nn import sigmoid

import foretrace as ft

from .records import BATCH, HIDDEN, INPUT, OUT, WIDE, Table, normal, spike, weight

bare_states = Table()


@bare_states.function("linear RNN, the product is the state", ["h"], {"w": "direct -> h"})
def linear_rnn(rng):
    def step(params, state, x):
        h = jnp.concatenate([x, state["h"]], -1) @ params["w"]
        return {"h": h}, h

    return step, {"w": weight(rng, INPUT + HIDDEN, HIDDEN)}, {"h": weight(rng, BATCH, HIDDEN)}


@bare_states.function("projected input that waits for a step", ["h u"], {"w": "all -> u", "w_out": "none-needed"})
def delayed_input(rng):
    def step(params, state, x):
        h = 0.5 * state["h"] + jnp.tanh(state["u"])
        u = x @ params["w"]
        return {"h": h, "u": u}, (h + 0.1 * u) @ params["w_out"]

    params = {"w": weight(rng, INPUT, HIDDEN), "w_out": weight(rng, HIDDEN, OUT)}
    return step, params, {"h": weight(rng, BATCH, HIDDEN), "u": weight(rng, BATCH, HIDDEN)}


@bare_states.function("LIF that keeps its current", ["i v"], {"w": "all -> i v", "w_out": "none-needed"})
def lif_with_current(rng):
    def step(params, state, x):
        current = x @ params["w"]
        v = 0.9 * state["v"] + current - 0.1 * state["i"]
        return {"v": v, "i": current}, spike(v - 1.0) @ params["w_out"]

    params = {"w": weight(rng, INPUT, HIDDEN, gain=2.0), "w_out": weight(rng, HIDDEN, OUT)}
    return step, params, {"v": weight(rng, BATCH, HIDDEN), "i": weight(rng, BATCH, HIDDEN)}


@bare_states.function("projected LSTM", ["c", "h"], {"w": "direct -> c", "w_p": "direct -> h"})
def projected_lstm(rng):
    def step(params, state, x):
        i, f, g, o = jnp.split(jnp.concatenate([x, state["h"]], -1) @ params["w"], 4, -1)
        c = sigmoid(f) * state["c"] + sigmoid(i) * jnp.tanh(g)
        h = (sigmoid(o) * jnp.tanh(c)) @ params["w_p"]
        return {"c": c, "h": h}, h

    params = {"w": weight(rng, INPUT + HIDDEN, 4 * WIDE), "w_p": weight(rng, WIDE, HIDDEN)}
    return step, params, {"c": weight(rng, BATCH, WIDE), "h": weight(rng, BATCH, HIDDEN)}


@bare_states.function(
    "marked linear layer whose outputs are states",
    ["h", "u"],
    {"w": "direct -> u", "w_rec": "direct -> h"},
    marked=True,
)
def marked_products(rng):
    def step(params, state, x):
        u = ft.matmul(x, params["w"])
        h = ft.matmul(jnp.tanh(u + 0.5 * state["h"]), params["w_rec"])
        return {"u": u, "h": h}, h * u

    params = {"w": weight(rng, INPUT, HIDDEN), "w_rec": weight(rng, HIDDEN, HIDDEN)}
    return step, params, {"u": weight(rng, BATCH, HIDDEN), "h": weight(rng, BATCH, HIDDEN)}


@bare_states.function(
    "states that are an input and an old state", ["h old seen"], {"w": "all -> h"}, draw=normal(HIDDEN)
)
def bare_values(rng):
    def step(params, state, x):
        h = jnp.tanh(0.5 * state["h"] + 0.3 * state["old"] + state["seen"] * (x @ params["w"]))
        return {"h": h, "old": state["h"], "seen": x}, h + 0.1 * state["old"]

    return step, {"w": weight(rng, HIDDEN, HIDDEN)}, {name: weight(rng, HIDDEN) for name in ("h", "old", "seen")}


@bare_states.function("one product that is two states and the output", ["a b"], {"w": "direct -> a b"})
def twins(rng):
    def step(params, state, x):
        h = jnp.concatenate([x, 0.5 * state["a"] + jnp.sin(state["b"])], -1) @ params["w"]
        return {"a": h, "b": h}, h

    params = {"w": weight(rng, INPUT + HIDDEN, HIDDEN)}
    return step, params, {"a": weight(rng, BATCH, HIDDEN), "b": weight(rng, BATCH, HIDDEN)}
