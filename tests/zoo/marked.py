"""Plain functions whose traced occurrences are marked with Foretrace's operators; what is not marked stays in-step."""

import brainevent
import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import sigmoid

import foretrace as ft

from .records import BATCH, HIDDEN, INPUT, OUT, WIDE, Table, normal, spike, spikes, tokens, weight

marked = Table()


def _potential(rng, *shape):
    return jnp.asarray(rng.uniform(0.2, 1.4, size=shape))


@marked.function(
    "marked RNN with a plain readout",
    ["h"],
    {"w_in": "direct -> h", "w_rec": "direct -> h", "b": "direct -> h", "w_out": "none-needed"},
    marked=True,
)
def rnn(rng):
    def step(params, state, x):
        h = jnp.tanh(ft.matmul(x, params["w_in"], params["b"]) + ft.matmul(state["h"], params["w_rec"]))
        return {"h": h}, h @ params["w_out"]

    params = {"w_in": weight(rng, INPUT, HIDDEN), "w_rec": weight(rng, HIDDEN, HIDDEN)}
    params |= {"b": weight(rng, HIDDEN), "w_out": weight(rng, HIDDEN, OUT)}
    return step, params, {"h": weight(rng, BATCH, HIDDEN)}


@marked.function(
    "marked input, plain recurrence and bias",
    ["h"],
    {"w_in": "direct -> h", "w_rec": "in-step", "b": "in-step", "w_out": "none-needed"},
    marked=True,
)
def partly_marked(rng):
    def step(params, state, x):
        h = jnp.tanh(ft.matmul(x, params["w_in"]) + state["h"] @ params["w_rec"] + params["b"])
        return {"h": h}, ft.matmul(h, params["w_out"])

    return step, *rnn(rng)[1:]


@marked.function(
    "marked GRU, reset before the matmul",
    ["h"],
    {"w_z": "direct -> h", "u_z": "direct -> h", "w_n": "direct -> h", "u_n": "direct -> h"}
    | {"w_r": "in-step", "u_r": "in-step"},
    marked=True,
)
def gru(rng):
    def step(params, state, x):
        def gate(name, h):
            return ft.matmul(x, params[f"w_{name}"]) + ft.matmul(h, params[f"u_{name}"])

        h = state["h"]
        z, r = sigmoid(gate("z", h)), sigmoid(gate("r", h))
        h = (1.0 - z) * h + z * jnp.tanh(gate("n", r * h))
        return {"h": h}, h

    params = {f"w_{gate}": weight(rng, INPUT, HIDDEN) for gate in "zrn"}
    params |= {f"u_{gate}": weight(rng, HIDDEN, HIDDEN) for gate in "zrn"}
    return step, params, {"h": weight(rng, BATCH, HIDDEN)}


@marked.function("marked LSTM, fused gates", ["c h"], {"w": "direct -> c h", "b": "direct -> c h"}, marked=True)
def lstm(rng):
    def step(params, state, x):
        y = ft.matmul(jnp.concatenate([x, state["h"]], axis=-1), params["w"], params["b"])
        i, f, g, o = jnp.split(y, 4, axis=-1)
        c = sigmoid(f) * state["c"] + sigmoid(i) * jnp.tanh(g)
        h = sigmoid(o) * jnp.tanh(c)
        return {"c": c, "h": h}, h

    params = {"w": weight(rng, INPUT + HIDDEN, 4 * HIDDEN), "b": weight(rng, 4 * HIDDEN)}
    return step, params, {"c": weight(rng, BATCH, HIDDEN), "h": weight(rng, BATCH, HIDDEN)}


def _absolute(values):
    return jnp.abs(values)


@marked.function(
    "marked LIF with learned decay and absolute weights",
    ["v"],
    {"w": "all -> v", "decay": "all -> v", "b": "in-step"},
    draw=spikes(BATCH, INPUT),
    marked=True,
)
def lif(rng):
    def step(params, state, x):
        decay = ft.element_wise(params["decay"], weight_fn=sigmoid)
        v = decay * state["v"] - spike(state["v"] - 1.0) + params["b"]
        v = v + ft.matmul(x, params["w"], weight_fn=_absolute)
        return {"v": v}, spike(v - 1.0)

    params = {"w": weight(rng, INPUT, HIDDEN), "decay": 2.0 + weight(rng, HIDDEN), "b": weight(rng, HIDDEN, gain=0.1)}
    return step, params, {"v": _potential(rng, BATCH, HIDDEN)}


@marked.function(
    "marked Dale's law, the sign outside of the operator",
    ["v"],
    {"w_in": "direct -> v", "w_rec": "direct -> v"},
    draw=spikes(BATCH, INPUT),
    marked=True,
)
def dale(rng):
    sign = np.where(np.arange(HIDDEN) < 3, 1.0, -1.0)[:, None]

    def step(params, state, x):
        fired = spike(state["v"] - 1.0)
        v = 0.9 * state["v"] - fired + ft.matmul(x, params["w_in"])
        v = v + ft.matmul(fired, jnp.abs(params["w_rec"]) * sign)
        return {"v": v}, spike(v - 1.0)

    params = {"w_in": weight(rng, INPUT, HIDDEN, gain=1.5), "w_rec": weight(rng, HIDDEN, HIDDEN)}
    return step, params, {"v": _potential(rng, BATCH, HIDDEN)}


@marked.function(
    "marked tied recurrent and readout weights",
    ["h"],
    {"w_in": "direct -> h", "w": "direct -> h"},
    marked=True,
)
def tied(rng):
    def step(params, state, x):
        h = jnp.tanh(ft.matmul(x, params["w_in"]) + ft.matmul(state["h"], params["w"]))
        return {"h": h}, ft.matmul(h, params["w"])

    params = {"w_in": weight(rng, INPUT, HIDDEN), "w": weight(rng, HIDDEN, HIDDEN)}
    return step, params, {"h": weight(rng, BATCH, HIDDEN)}


@marked.function(
    "marked conv LIF layer",
    ["v"],
    {"kernel": "all -> v", "b": "all -> v"},
    draw=spikes(BATCH, 7, INPUT),
    marked=True,
)
def conv(rng):
    def step(params, state, x):
        layout = ("NHC", "HIO", "NHC")
        y = ft.conv(x, params["kernel"], params["b"], strides=(1,), padding="VALID", dimension_numbers=layout)
        v = 0.9 * state["v"] - spike(state["v"] - 1.0) + y
        return {"v": v}, spike(v - 1.0)

    params = {"kernel": weight(rng, 3, INPUT, HIDDEN), "b": weight(rng, HIDDEN)}
    return step, params, {"v": _potential(rng, BATCH, 5, HIDDEN)}


def sparse_structure(rng, rows, columns):
    """A CSR matrix with about half of its entries, at least one in each row."""
    present = rng.random((rows, columns)) < 0.5
    present[:, 0] |= ~present.any(axis=1)
    indices = np.nonzero(present)[1]
    pointers = np.concatenate([[0], np.cumsum(present.sum(axis=1))])
    data = jnp.asarray(rng.normal(size=indices.size))
    structure = (data, jnp.asarray(indices, np.int32), jnp.asarray(pointers, np.int32))
    return brainevent.CSR(structure, shape=(rows, columns))


@marked.function(
    "marked sparse recurrent weights",
    ["v"],
    {"w_in": "direct -> v", "w_rec": "direct -> v"},
    draw=spikes(BATCH, INPUT),
    marked=True,
)
def sparse_recurrent(rng):
    matrix = sparse_structure(rng, HIDDEN, HIDDEN)

    def step(params, state, x):
        fired = spike(state["v"] - 1.0)
        v = 0.9 * state["v"] - fired + ft.matmul(x, params["w_in"])
        v = v + ft.sparse_matmul(fired, params["w_rec"], sparse_mat=matrix)
        return {"v": v}, spike(v - 1.0)

    params = {"w_in": weight(rng, INPUT, HIDDEN, gain=1.5), "w_rec": matrix.data}
    return step, params, {"v": _potential(rng, BATCH, HIDDEN)}


@marked.function("marked sparse input weights, unbatched", ["v"], {"w": "all -> v"}, draw=normal(INPUT), marked=True)
def sparse_input(rng):
    matrix = sparse_structure(rng, INPUT, WIDE)

    def step(params, state, x):
        v = 0.9 * state["v"] + ft.sparse_matmul(x, params["w"], sparse_mat=matrix)
        return {"v": v}, jnp.tanh(v)

    return step, {"w": matrix.data}, {"v": weight(rng, WIDE)}


@marked.function("marked LoRA", ["v"], {"a": "all -> v", "b": "all -> v"}, marked=True)
def lora(rng):
    frozen = weight(rng, INPUT, HIDDEN)

    def step(params, state, x):
        v = 0.9 * state["v"] + jnp.tanh(x @ frozen + ft.lora_matmul(x, params["b"], params["a"], alpha=0.5))
        return {"v": v}, v

    params = {"a": weight(rng, 2, HIDDEN), "b": weight(rng, INPUT, 2)}
    return step, params, {"v": weight(rng, BATCH, HIDDEN)}


@marked.function(
    "marked embedding", ["v"], {"table": "all -> v", "w_out": "none-needed"}, draw=tokens(7, BATCH), marked=True
)
def embedding(rng):
    def step(params, state, x):
        v = 0.9 * state["v"] + ft.embedding(x, params["table"])
        return {"v": v}, jnp.tanh(v) @ params["w_out"]

    params = {"table": weight(rng, 7, HIDDEN, gain=2.0), "w_out": weight(rng, HIDDEN, OUT)}
    return step, params, {"v": weight(rng, BATCH, HIDDEN)}


@marked.function("marked einsum", ["v"], {"w": "all -> v"}, draw=normal(BATCH, INPUT, WIDE), marked=True)
def einsum(rng):
    def step(params, state, x):
        v = 0.9 * state["v"] + ft.einsum("bij,ijk->bk", x, params["w"])
        return {"v": v}, jnp.tanh(v)

    return step, {"w": weight(rng, INPUT, WIDE, HIDDEN)}, {"v": weight(rng, BATCH, HIDDEN)}


@marked.function(
    "marked weight for each group",
    ["h"],
    {"w_in": "direct -> h", "w_rec": "direct -> h"},
    draw=normal(BATCH, OUT, INPUT),
    marked=True,
)
def grouped(rng):
    def step(params, state, x):
        h = jnp.tanh(ft.grouped_matmul(x, params["w_in"]) + ft.grouped_matmul(state["h"], params["w_rec"]))
        return {"h": h}, h

    params = {"w_in": weight(rng, OUT, INPUT, HIDDEN), "w_rec": weight(rng, OUT, HIDDEN, HIDDEN)}
    return step, params, {"h": weight(rng, BATCH, OUT, HIDDEN)}


@marked.function(
    "marked, two layers under jit",
    ["v1", "v2"],
    {"w1": "direct -> v1", "w2": "all -> v2"},
    draw=spikes(BATCH, INPUT),
    marked=True,
)
def two_layers(rng):
    @jax.jit
    def layer(v, x, w):
        v = 0.9 * v - spike(v - 1.0) + ft.matmul(x, w)
        return v, spike(v - 1.0)

    def step(params, state, x):
        v1, fired = layer(state["v1"], x, params["w1"])
        v2, fired = layer(state["v2"], fired, params["w2"])
        return {"v1": v1, "v2": v2}, fired

    params = {"w1": weight(rng, INPUT, HIDDEN, gain=1.5), "w2": weight(rng, HIDDEN, WIDE, gain=1.5)}
    return step, params, {"v1": _potential(rng, BATCH, HIDDEN), "v2": _potential(rng, BATCH, WIDE)}
