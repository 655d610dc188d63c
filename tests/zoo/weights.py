"""What may stand between a parameter and the place where it meets data: masks, signs, norms, products, sharing."""

import jax.numpy as jnp
import numpy as np
from jax.experimental import sparse

from .records import BATCH, HIDDEN, INPUT, OUT, WIDE, Table, normal, spike, spikes, tokens, weight

weights = Table()


def _leaky(current):
    """A leaky layer whose input is `current(params, x)`."""

    def step(params, state, x):
        v = 0.85 * state["v"] + jnp.tanh(current(params, x))
        return {"v": v}, v

    return step


def _state(rng, *shape):
    return {"v": weight(rng, *(shape or (BATCH, HIDDEN)))}


@weights.function("masked weights", ["v"], {"w": "all -> v"})
def masked(rng):
    mask = rng.random((INPUT, HIDDEN)) < 0.7
    return _leaky(lambda params, x: x @ (params["w"] * mask)), {"w": weight(rng, INPUT, HIDDEN)}, _state(rng)


@weights.function(
    "Dale's law: absolute values times a sign",
    ["v"],
    {"w_in": "direct -> v", "w_rec": "direct -> v"},
    draw=spikes(BATCH, INPUT),
)
def dale(rng):
    sign = np.where(np.arange(HIDDEN) < 3, 1.0, -1.0)[:, None]

    def step(params, state, x):
        fired = spike(state["v"] - 1.0)
        v = 0.9 * state["v"] - fired + x @ jnp.abs(params["w_in"]) + fired @ (jnp.abs(params["w_rec"]) * sign)
        return {"v": v}, spike(v - 1.0)

    params = {"w_in": weight(rng, INPUT, HIDDEN), "w_rec": weight(rng, HIDDEN, HIDDEN)}
    return step, params, {"v": jnp.asarray(rng.uniform(0.2, 1.4, size=(BATCH, HIDDEN)))}


@weights.function("weight normalisation", ["v"], {"direction": "all -> v", "length": "all -> v"})
def normalised(rng):
    def current(params, x):
        norm = jnp.sqrt(jnp.sum(params["direction"] ** 2, axis=0, keepdims=True))
        return x @ (params["length"] * params["direction"] / norm)

    params = {"direction": weight(rng, INPUT, HIDDEN), "length": 1.0 + weight(rng, HIDDEN, gain=0.2)}
    return _leaky(current), params, _state(rng)


@weights.function("LoRA, the product of two factors", ["v"], {"a": "all -> v", "b": "all -> v"})
def lora_product(rng):
    frozen = weight(rng, INPUT, HIDDEN)
    params = {"a": weight(rng, INPUT, 1), "b": weight(rng, 1, HIDDEN)}
    return _leaky(lambda params, x: x @ (frozen + 0.5 * params["a"] @ params["b"])), params, _state(rng)


@weights.function("LoRA, one factor after the other", ["v"], {"a": "in-step", "b": "all -> v"})
def lora_chain(rng):
    frozen = weight(rng, INPUT, HIDDEN)
    params = {"a": weight(rng, INPUT, 2), "b": weight(rng, 2, HIDDEN)}
    return _leaky(lambda params, x: x @ frozen + (x @ params["a"]) @ params["b"]), params, _state(rng)


@weights.function("a weight behind a weight", ["v"], {"w1": "in-step", "b1": "in-step", "w2": "all -> v"})
def hidden_layer(rng):
    def current(params, x):
        return jnp.tanh(x @ params["w1"] + params["b1"]) @ params["w2"]

    params = {"w1": weight(rng, INPUT, WIDE), "b1": weight(rng, WIDE), "w2": weight(rng, WIDE, HIDDEN)}
    return _leaky(current), params, _state(rng)


@weights.function("reshaped and transposed weights", ["v"], {"flat": "all -> v", "turned": "all -> v"})
def reshaped(rng):
    def current(params, x):
        return x @ params["flat"].reshape(INPUT, HIDDEN) + jnp.sin(x) @ params["turned"].T

    params = {"flat": weight(rng, INPUT * HIDDEN, gain=0.5), "turned": weight(rng, HIDDEN, INPUT)}
    return _leaky(current), params, _state(rng)


@weights.function("tied recurrent and readout weights", ["h"], {"w_in": "direct -> h", "w": "direct -> h"})
def tied_recurrent(rng):
    def step(params, state, x):
        h = jnp.tanh(x @ params["w_in"] + state["h"] @ params["w"])
        return {"h": h}, h @ params["w"]

    params = {"w_in": weight(rng, INPUT, HIDDEN), "w": weight(rng, HIDDEN, HIDDEN)}
    return step, params, {"h": weight(rng, BATCH, HIDDEN)}


@weights.function("tied input and readout weights", ["v"], {"w": "all -> v"})
def tied_readout(rng):
    # The readout's use of w influences no state, so there is nothing of it to keep.
    def step(params, state, x):
        v = 0.85 * state["v"] + x @ params["w"]
        return {"v": v}, jnp.tanh(v) @ params["w"].T

    return step, {"w": weight(rng, INPUT, HIDDEN)}, _state(rng)


@weights.function("weights shared by two layers", ["v1", "v2"], {"w": "direct -> v1 v2"}, draw=normal(BATCH, HIDDEN))
def shared_layers(rng):
    def step(params, state, x):
        v1 = 0.8 * state["v1"] + x @ params["w"]
        v2 = 0.7 * state["v2"] + jnp.tanh(v1) @ params["w"]
        return {"v1": v1, "v2": v2}, v2

    state = {"v1": weight(rng, BATCH, HIDDEN), "v2": weight(rng, BATCH, HIDDEN)}
    return step, {"w": weight(rng, HIDDEN, HIDDEN)}, state


@weights.function("a weight used directly and behind a weight", ["v"], {"w": "direct -> v", "w2": "all -> v"})
def partly_reached(rng):
    def current(params, x):
        return x @ params["w"] + jnp.tanh(jnp.sin(x) @ params["w"]) @ params["w2"]

    params = {"w": weight(rng, INPUT, HIDDEN), "w2": weight(rng, HIDDEN, HIDDEN)}
    return _leaky(current), params, _state(rng)


@weights.function("embedding input", ["v"], {"table": "all -> v", "w_out": "none-needed"}, draw=tokens(7, BATCH))
def embedding(rng):
    def step(params, state, x):
        v = 0.85 * state["v"] + params["table"][x]
        return {"v": v}, jnp.tanh(v) @ params["w_out"]

    params = {"table": weight(rng, 7, HIDDEN, gain=2.0), "w_out": weight(rng, HIDDEN, OUT)}
    return step, params, _state(rng)


@weights.function(
    "embedding before a recurrent layer",
    ["h"],
    {"table": "in-step", "w_in": "direct -> h", "w_rec": "direct -> h"},
    draw=tokens(7, BATCH),
)
def embedding_behind(rng):
    def step(params, state, x):
        h = jnp.tanh(jnp.take(params["table"], x, axis=0) @ params["w_in"] + state["h"] @ params["w_rec"])
        return {"h": h}, h

    params = {"table": weight(rng, 7, WIDE, gain=2.0), "w_in": weight(rng, WIDE, HIDDEN)}
    return step, params | {"w_rec": weight(rng, HIDDEN, HIDDEN)}, {"h": weight(rng, BATCH, HIDDEN)}


@weights.function(
    "one weight for each head",
    ["h"],
    {"w_in": "direct -> h", "w_rec": "direct -> h"},
    draw=normal(BATCH, HIDDEN, INPUT),
)
def heads(rng):
    def step(params, state, x):
        current = jnp.einsum("bgi,gij->bgj", x, params["w_in"])
        h = jnp.tanh(current + jnp.einsum("bgi,gij->bgj", state["h"], params["w_rec"]))
        return {"h": h}, h

    params = {"w_in": weight(rng, HIDDEN, INPUT, WIDE), "w_rec": weight(rng, HIDDEN, WIDE, WIDE, gain=0.7)}
    return step, params, {"h": weight(rng, BATCH, HIDDEN, WIDE)}


@weights.function(
    "plain sparse products", ["v"], {"w_in": "in-step", "w_rec": "in-step", "b": "direct -> v"}, draw=normal(INPUT)
)
def plain_sparse(rng):
    # JAX's own sparse product is linear, but nothing says which elements it joins: it counts as mixing everything.
    into, back = (np.argwhere(rng.random((HIDDEN, size)) < 0.6) for size in (INPUT, HIDDEN))

    def product(values, places, x):
        return sparse.BCOO((values, places), shape=(HIDDEN, len(x))) @ x

    def step(params, state, x):
        current = product(params["w_in"], into, x) + product(params["w_rec"], back, jnp.sin(state["v"]))
        v = 0.8 * state["v"] + jnp.tanh(current + params["b"])
        return {"v": v}, v

    params = {"w_in": weight(rng, len(into)), "w_rec": weight(rng, len(back)), "b": weight(rng, HIDDEN)}
    return step, params, _state(rng, HIDDEN)
