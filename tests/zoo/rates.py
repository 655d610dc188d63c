"""Rate networks as plain functions: from a leaky integrator to a linear recurrent unit, and stacks of them."""

import jax
import jax.numpy as jnp
from jax.nn import sigmoid

from .records import BATCH, HIDDEN, INPUT, OUT, WIDE, Table, normal, weight

rates = Table()


@rates.function("leaky integrator", ["v"], {"w": "all -> v"})
def leaky_integrator(rng):
    def step(params, state, x):
        v = 0.9 * state["v"] + x @ params["w"]
        return {"v": v}, v

    return step, {"w": weight(rng, INPUT, HIDDEN)}, {"v": weight(rng, BATCH, HIDDEN)}


@rates.function(
    "leaky integrator, learned decay, bias and readout",
    ["v"],
    {"decay": "all -> v", "w": "all -> v", "b": "all -> v", "w_out": "none-needed", "b_out": "none-needed"},
)
def learned_decay(rng):
    def step(params, state, x):
        v = sigmoid(params["decay"]) * state["v"] + x @ params["w"] + params["b"]
        return {"v": v}, jnp.tanh(v) @ params["w_out"] + params["b_out"]

    params = {
        "decay": weight(rng, HIDDEN) + 1.0,
        "w": weight(rng, INPUT, HIDDEN),
        "b": weight(rng, HIDDEN),
        "w_out": weight(rng, HIDDEN, OUT),
        "b_out": weight(rng, OUT),
    }
    return step, params, {"v": weight(rng, BATCH, HIDDEN)}


@rates.function(
    "leaky integrator, scalar gain and decay", ["v"], {"gain": "all -> v", "decay": "all -> v", "w": "all -> v"}
)
def scalar_parameters(rng):
    def step(params, state, x):
        v = jnp.exp(-params["decay"]) * state["v"] + params["gain"] * jnp.tanh(x @ params["w"])
        return {"v": v}, v

    params = {"gain": jnp.asarray(1.3), "decay": jnp.asarray(0.2), "w": weight(rng, INPUT, HIDDEN)}
    return step, params, {"v": weight(rng, BATCH, HIDDEN)}


@rates.function(
    "vanilla RNN",
    ["h"],
    {"w_in": "direct -> h", "w_rec": "direct -> h", "b": "direct -> h", "w_out": "none-needed"},
)
def vanilla_rnn(rng):
    params = {"w_in": weight(rng, INPUT, HIDDEN), "w_rec": weight(rng, HIDDEN, HIDDEN)}
    params |= {"b": weight(rng, HIDDEN), "w_out": weight(rng, HIDDEN, OUT)}
    return _rnn_step, params, {"h": weight(rng, BATCH, HIDDEN)}


def _rnn_step(params, state, x):
    h = jnp.tanh(x @ params["w_in"] + state["h"] @ params["w_rec"] + params["b"])
    return {"h": h}, h @ params["w_out"]


@rates.function(
    "vanilla RNN, every size 4",
    ["h"],
    {"w_in": "direct -> h", "w_rec": "direct -> h", "b": "direct -> h", "w_out": "none-needed"},
    draw=normal(4, 4),
)
def square_rnn(rng):
    params = {"w_in": weight(rng, 4, 4), "w_rec": weight(rng, 4, 4), "b": weight(rng, 4), "w_out": weight(rng, 4, 4)}
    return _rnn_step, params, {"h": weight(rng, 4, 4)}


@rates.function(
    "vanilla RNN, unbatched",
    ["h"],
    {"w_in": "direct -> h", "w_rec": "direct -> h", "b": "direct -> h", "w_out": "none-needed"},
    draw=normal(INPUT),
)
def unbatched_rnn(rng):
    params = {"w_in": weight(rng, INPUT, HIDDEN), "w_rec": weight(rng, HIDDEN, HIDDEN)}
    params |= {"b": weight(rng, HIDDEN), "w_out": weight(rng, HIDDEN, OUT)}
    return _rnn_step, params, {"h": weight(rng, HIDDEN)}


def _gates(rng, gates, hidden=HIDDEN):
    """Input weights, recurrent weights and a bias for each gate."""
    params = {}
    for gate in gates:
        params |= {f"w_{gate}": weight(rng, INPUT, hidden), f"u_{gate}": weight(rng, hidden, hidden)}
        params |= {f"b_{gate}": weight(rng, hidden)}
    return params


def _gate(params, gate, x, h):
    return x @ params[f"w_{gate}"] + h @ params[f"u_{gate}"] + params[f"b_{gate}"]


def _every(gates, text):
    """The same expectation for all parameters of some gates."""
    return {f"{kind}_{gate}": text for gate in gates for kind in "wub"}


@rates.function("GRU, reset before the matmul", ["h"], _every("zn", "direct -> h") | _every("r", "in-step"))
def gru_before(rng):
    def step(params, state, x):
        h = state["h"]
        z, r = sigmoid(_gate(params, "z", x, h)), sigmoid(_gate(params, "r", x, h))
        h = (1.0 - z) * h + z * jnp.tanh(_gate(params, "n", x, r * h))
        return {"h": h}, h

    return step, _gates(rng, "zrn"), {"h": weight(rng, BATCH, HIDDEN)}


@rates.function("GRU, reset after the matmul", ["h"], _every("zrn", "direct -> h") | {"b_h": "direct -> h"})
def gru_after(rng):
    def step(params, state, x):
        h = state["h"]
        z, r = sigmoid(_gate(params, "z", x, h)), sigmoid(_gate(params, "r", x, h))
        candidate = jnp.tanh(x @ params["w_n"] + params["b_n"] + r * (h @ params["u_n"] + params["b_h"]))
        h = (1.0 - z) * candidate + z * h
        return {"h": h}, h

    return step, _gates(rng, "zrn") | {"b_h": weight(rng, HIDDEN)}, {"h": weight(rng, BATCH, HIDDEN)}


@rates.function("MGU", ["h"], _every("fn", "direct -> h"))
def mgu(rng):
    def step(params, state, x):
        h = state["h"]
        f = sigmoid(_gate(params, "f", x, h))
        h = (1.0 - f) * h + f * jnp.tanh(_gate(params, "n", x, f * h))
        return {"h": h}, h

    return step, _gates(rng, "fn"), {"h": weight(rng, BATCH, HIDDEN)}


@rates.function("minimal GRU, gates from the input alone", ["h"], {"w_z": "all -> h", "w_n": "all -> h"})
def minimal_gru(rng):
    def step(params, state, x):
        z = sigmoid(x @ params["w_z"])
        h = (1.0 - z) * state["h"] + z * (x @ params["w_n"])
        return {"h": h}, h

    params = {"w_z": weight(rng, INPUT, HIDDEN), "w_n": weight(rng, INPUT, HIDDEN)}
    return step, params, {"h": weight(rng, BATCH, HIDDEN)}


@rates.function("LSTM, separate gates", ["c h"], _every("ifg", "direct -> c h") | _every("o", "direct -> h"))
def lstm_separate(rng):
    def step(params, state, x):
        i, f, o = (sigmoid(_gate(params, gate, x, state["h"])) for gate in "ifo")
        c = f * state["c"] + i * jnp.tanh(_gate(params, "g", x, state["h"]))
        h = o * jnp.tanh(c)
        return {"c": c, "h": h}, h

    return step, _gates(rng, "ifgo"), {"c": weight(rng, BATCH, HIDDEN), "h": weight(rng, BATCH, HIDDEN)}


@rates.function(
    "LSTM, fused gates and a tuple of states",
    ["lstm[0] lstm[1]"],
    {"w": "direct -> lstm[0] lstm[1]", "b": "direct -> lstm[0] lstm[1]", "w_out": "none-needed"},
)
def lstm_fused(rng):
    def step(params, state, x):
        c, h = state["lstm"]
        i, f, g, o = jnp.split(jnp.concatenate([x, h], axis=-1) @ params["w"] + params["b"], 4, axis=-1)
        c = sigmoid(f) * c + sigmoid(i) * jnp.tanh(g)
        h = sigmoid(o) * jnp.tanh(c)
        return {"lstm": (c, h)}, h @ params["w_out"]

    params = {"w": weight(rng, INPUT + WIDE, 4 * WIDE), "b": weight(rng, 4 * WIDE), "w_out": weight(rng, WIDE, OUT)}
    return step, params, {"lstm": (weight(rng, BATCH, WIDE), weight(rng, BATCH, WIDE))}


@rates.function(
    "peephole LSTM",
    ["c h"],
    _every("ifg", "direct -> c h")
    | _every("o", "direct -> h")
    | {"p_i": "direct -> c h", "p_f": "direct -> c h", "p_o": "direct -> h"},
)
def peephole_lstm(rng):
    def step(params, state, x):
        c, h = state["c"], state["h"]
        i = sigmoid(_gate(params, "i", x, h) + params["p_i"] * c)
        f = sigmoid(_gate(params, "f", x, h) + params["p_f"] * c)
        c = f * c + i * jnp.tanh(_gate(params, "g", x, h))
        h = sigmoid(_gate(params, "o", x, h) + params["p_o"] * c) * jnp.tanh(c)
        return {"c": c, "h": h}, h

    params = _gates(rng, "ifgo") | {f"p_{gate}": weight(rng, HIDDEN) for gate in "ifo"}
    return step, params, {"c": weight(rng, BATCH, HIDDEN), "h": weight(rng, BATCH, HIDDEN)}


@rates.function(
    "LRU, complex as two reals",
    ["re im"],
    dict.fromkeys(("nu", "theta"), "all -> re im")
    | {"gamma": "all -> re im", "b_re": "all -> re", "b_im": "all -> im"}
    | dict.fromkeys(("c_re", "c_im", "d"), "none-needed"),
)
def lru(rng):
    def step(params, state, x):
        radius, angle = jnp.exp(-jnp.exp(params["nu"])), jnp.exp(params["theta"])
        a_re, a_im, gamma = radius * jnp.cos(angle), radius * jnp.sin(angle), jnp.exp(params["gamma"])
        re = a_re * state["re"] - a_im * state["im"] + gamma * (x @ params["b_re"])
        im = a_re * state["im"] + a_im * state["re"] + gamma * (x @ params["b_im"])
        return {"re": re, "im": im}, re @ params["c_re"] - im @ params["c_im"] + x @ params["d"]

    params = {"nu": weight(rng, WIDE) - 1.0, "theta": weight(rng, WIDE), "gamma": weight(rng, WIDE)}
    params |= {"b_re": weight(rng, INPUT, WIDE), "b_im": weight(rng, INPUT, WIDE)}
    params |= {"c_re": weight(rng, WIDE, OUT), "c_im": weight(rng, WIDE, OUT), "d": weight(rng, INPUT, OUT)}
    return step, params, {"re": weight(rng, BATCH, WIDE), "im": weight(rng, BATCH, WIDE)}


def _layer_norm(values, gain, bias):
    centred = values - jnp.mean(values, axis=-1, keepdims=True)
    return gain * centred / jnp.sqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-5) + bias


@rates.function(
    "layer norm before the nonlinearity",
    ["h"],
    {"w": "direct -> h", "gain": "all -> h", "bias": "all -> h"},
)
def layer_norm_of_the_input(rng):
    def step(params, state, x):
        h = 0.8 * state["h"] + jnp.tanh(_layer_norm(x @ params["w"], params["gain"], params["bias"]))
        return {"h": h}, h

    params = {"w": weight(rng, INPUT, HIDDEN), "gain": weight(rng, HIDDEN) + 1.0, "bias": weight(rng, HIDDEN)}
    return step, params, {"h": weight(rng, BATCH, HIDDEN)}


@rates.function(
    "layer norm of the state",
    ["h"],
    {"w": "direct -> h", "gain": "direct -> h", "bias": "direct -> h"},
)
def layer_norm_of_the_state(rng):
    def step(params, state, x):
        h = jnp.tanh(_layer_norm(0.8 * state["h"] + x @ params["w"], params["gain"], params["bias"]))
        return {"h": h}, h

    params = {"w": weight(rng, INPUT, HIDDEN), "gain": weight(rng, HIDDEN) + 1.0, "bias": weight(rng, HIDDEN)}
    return step, params, {"h": weight(rng, BATCH, HIDDEN)}


@rates.function(
    "vanilla RNN with a leaky readout",
    ["h", "r"],
    {"w_in": "direct -> h", "w_rec": "direct -> h", "w_out": "all -> r"},
)
def leaky_readout(rng):
    def step(params, state, x):
        h = jnp.tanh(x @ params["w_in"] + state["h"] @ params["w_rec"])
        r = 0.7 * state["r"] + h @ params["w_out"]
        return {"h": h, "r": r}, r

    params = {
        "w_in": weight(rng, INPUT, HIDDEN),
        "w_rec": weight(rng, HIDDEN, HIDDEN),
        "w_out": weight(rng, HIDDEN, OUT),
    }
    return step, params, {"h": weight(rng, BATCH, HIDDEN), "r": weight(rng, BATCH, OUT)}


@rates.function(
    "two leaky layers",
    ["layers[0].v", "layers[1].v"],
    {"layers[0].w": "direct -> layers[0].v", "layers[1].w": "all -> layers[1].v", "out.w": "none-needed"},
)
def two_leaky_layers(rng):
    def step(params, state, x):
        layers = []
        for layer, old in zip(params["layers"], state["layers"], strict=True):
            layers.append({"v": 0.8 * old["v"] + x @ layer["w"]})
            x = jnp.tanh(layers[-1]["v"])
        return {"layers": layers}, x @ params["out"]["w"]

    params = {"layers": [{"w": weight(rng, INPUT, HIDDEN)}, {"w": weight(rng, HIDDEN, HIDDEN)}]}
    params["out"] = {"w": weight(rng, HIDDEN, OUT)}
    return step, params, {"layers": [{"v": weight(rng, BATCH, HIDDEN)}, {"v": weight(rng, BATCH, HIDDEN)}]}


@rates.function("a layer added to the next", ["v u"], {"w": "all -> v u"})
def direct_stack(rng):
    def step(params, state, x):
        v = 0.8 * state["v"] + x @ params["w"]
        u = 0.6 * state["u"] + jnp.tanh(v)
        return {"v": v, "u": u}, u

    return step, {"w": weight(rng, INPUT, HIDDEN)}, {"v": weight(rng, BATCH, HIDDEN), "u": weight(rng, BATCH, HIDDEN)}


@rates.function("a residual stack", ["v u"], {"w_1": "direct -> v u", "w_2": "all -> u"})
def residual_stack(rng):
    # One group, and a mixing path inside it from v to u; nothing leads back from u, so w_2 loses nothing.
    def step(params, state, x):
        v = 0.8 * state["v"] + x @ params["w_1"]
        u = 0.6 * state["u"] + v + jnp.tanh(v) @ params["w_2"]
        return {"v": v, "u": u}, u

    params = {"w_1": weight(rng, INPUT, HIDDEN), "w_2": weight(rng, HIDDEN, HIDDEN)}
    return step, params, {"v": weight(rng, BATCH, HIDDEN), "u": weight(rng, BATCH, HIDDEN)}


@rates.function(
    "a residual stack of three, the last one recurrent",
    ["v u z"],
    {
        "w": "direct -> v u z",
        "w_u": "direct -> u z",
        "w_z": "direct -> z",
        "w_rec": "direct -> z",
        "w_out": "none-needed",
    },
)
def deep_residual_stack(rng):
    # From v to z lead direct paths, mixing alone, mixing before a direct path and behind one.
    def step(params, state, x):
        v = 0.8 * state["v"] + x @ params["w"]
        u = 0.6 * state["u"] + 0.3 * v + jnp.tanh(v) @ params["w_u"]
        z = jnp.tanh(0.5 * state["z"] + 0.2 * u + u @ params["w_z"] + state["z"] @ params["w_rec"])
        return {"v": v, "u": u, "z": z}, (z + 0.1 * v) @ params["w_out"]

    params = {"w": weight(rng, INPUT, HIDDEN)} | {w: weight(rng, HIDDEN, HIDDEN) for w in ("w_u", "w_z", "w_rec")}
    params |= {"w_out": weight(rng, HIDDEN, OUT)}
    return step, params, {name: weight(rng, BATCH, HIDDEN) for name in "vuz"}


@rates.function("two independent populations of one shape", ["v", "u"], {"w_v": "all -> v", "w_u": "all -> u"})
def independent_populations(rng):
    def step(params, state, x):
        v = 0.8 * state["v"] + x @ params["w_v"]
        u = 0.6 * state["u"] + jnp.tanh(x @ params["w_u"])
        return {"v": v, "u": u}, v * jax.nn.softplus(u)

    params = {"w_v": weight(rng, INPUT, HIDDEN), "w_u": weight(rng, INPUT, HIDDEN)}
    return step, params, {"v": weight(rng, BATCH, HIDDEN), "u": weight(rng, BATCH, HIDDEN)}
