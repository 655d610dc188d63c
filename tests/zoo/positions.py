"""Relabelled and displaced positions: rolls, permutations, slices, delay lines, and couplings that are left out."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import sigmoid

from .records import BATCH, HIDDEN, INPUT, OUT, WIDE, Table, normal, spike, spikes, weight

positions = Table()


@positions.function("rolled state", ["v"], {"w": "all -> v"})
def rolled(rng):
    def step(params, state, x):
        v = 0.9 * jnp.roll(state["v"], 1, axis=-1) + x @ params["w"]
        return {"v": v}, jnp.tanh(v)

    return step, {"w": weight(rng, INPUT, HIDDEN)}, {"v": weight(rng, BATCH, HIDDEN)}


@positions.function("permuted state of a recurrent network", ["h"], {"w_in": "direct -> h", "w_rec": "direct -> h"})
def permuted_state(rng):
    order = np.asarray([2, 0, 3, 1])

    def step(params, state, x):
        h = 0.5 * state["h"][:, order] + jnp.tanh(x @ params["w_in"] + state["h"] @ params["w_rec"])
        return {"h": h}, h

    params = {"w_in": weight(rng, INPUT, HIDDEN), "w_rec": weight(rng, HIDDEN, HIDDEN)}
    return step, params, {"h": weight(rng, BATCH, HIDDEN)}


@positions.function("complex state as a last axis of two", [("z", 2)], {"w": "all -> z", "turn": "all -> z"})
def packed_plain(rng):
    def step(params, state, x):
        real, imaginary = state["z"][..., 0], state["z"][..., 1]
        cos, sin = jnp.cos(params["turn"]), jnp.sin(params["turn"])
        new = [0.9 * (cos * real - sin * imaginary) + x @ params["w"], 0.9 * (sin * real + cos * imaginary)]
        return {"z": jnp.stack(new, axis=-1)}, new[0] * imaginary

    params = {"w": weight(rng, INPUT, WIDE), "turn": weight(rng, WIDE)}
    return step, params, {"z": weight(rng, BATCH, WIDE, 2)}


@positions.function("lateral coupling by a roll", ["v"], {"w": "direct -> v"})
def lateral(rng):
    return _lateral_step, {"w": weight(rng, INPUT, WIDE)}, {"v": weight(rng, BATCH, WIDE)}


def _lateral_step(params, state, x):
    v = 0.6 * state["v"] + 0.3 * jnp.roll(state["v"], 1, axis=-1) + x @ params["w"]
    return {"v": v}, jnp.tanh(v)


@positions.function("lateral coupling by a roll, unbatched", ["v"], {"w": "direct -> v"}, draw=normal(INPUT))
def lateral_unbatched(rng):
    return _lateral_step, {"w": weight(rng, INPUT, WIDE)}, {"v": weight(rng, WIDE)}


@positions.function("lateral coupling across the rows of a sheet", ["v"], {"w": "direct -> v"})
def lateral_sheet(rng):
    def step(params, state, x):
        y = (x @ params["w"]).reshape(BATCH, WIDE, HIDDEN)
        v = 0.6 * state["v"] + 0.3 * jnp.roll(state["v"], 1, axis=1) + y
        return {"v": v}, jnp.tanh(v)

    return step, {"w": weight(rng, INPUT, WIDE * HIDDEN)}, {"v": weight(rng, BATCH, WIDE, HIDDEN)}


@positions.function("inhibition by the mean of the population", ["v"], {"w": "direct -> v", "strength": "direct -> v"})
def global_inhibition(rng):
    def step(params, state, x):
        mean = jnp.mean(state["v"], axis=-1, keepdims=True)
        v = 0.8 * state["v"] - params["strength"] * mean + x @ params["w"]
        return {"v": v}, jnp.tanh(v)

    params = {"w": weight(rng, INPUT, HIDDEN), "strength": 0.5 + weight(rng, HIDDEN, gain=0.1)}
    return step, params, {"v": weight(rng, BATCH, HIDDEN)}


@positions.function("permuted projection", ["v"], {"w": "all -> v"})
def permuted_projection(rng):
    order = np.asarray([3, 1, 4, 0, 2])

    def step(params, state, x):
        v = 0.9 * state["v"] + jnp.tanh(x @ params["w"])[:, order]
        return {"v": v}, v

    return step, {"w": weight(rng, INPUT, WIDE)}, {"v": weight(rng, BATCH, WIDE)}


@positions.function("sliced projection, the rest unused by the state", ["v"], {"w": "all -> v"})
def sliced_projection(rng):
    def step(params, state, x):
        y = x @ params["w"]
        v = 0.9 * state["v"] + y[:, :HIDDEN]
        return {"v": v}, jnp.concatenate([v, y[:, HIDDEN:]], axis=-1)

    return step, {"w": weight(rng, INPUT, HIDDEN + 2)}, {"v": weight(rng, BATCH, HIDDEN)}


@positions.function("projection split into value and gate", ["v"], {"w": "all -> v", "b": "all -> v"})
def split_projection(rng):
    def step(params, state, x):
        value, gate = jnp.split(x @ params["w"] + params["b"], 2, axis=-1)
        v = 0.9 * state["v"] + value * sigmoid(gate)
        return {"v": v}, v

    params = {"w": weight(rng, INPUT, 2 * HIDDEN), "b": weight(rng, 2 * HIDDEN)}
    return step, params, {"v": weight(rng, BATCH, HIDDEN)}


@positions.function("one projection shared out to two states", ["v", "u"], {"w": "all -> v u"})
def shared_projection(rng):
    def step(params, state, x):
        y = x @ params["w"]
        v = 0.9 * state["v"] + y[:, :HIDDEN]
        u = 0.7 * state["u"] + jnp.flip(y[:, HIDDEN:], axis=-1)
        return {"v": v, "u": u}, jnp.concatenate([v, jnp.tanh(u)], axis=-1)

    state = {"v": weight(rng, BATCH, HIDDEN), "u": weight(rng, BATCH, WIDE)}
    return step, {"w": weight(rng, INPUT, HIDDEN + WIDE)}, state


@positions.function("concatenated projections", ["v"], {"w1": "all -> v", "w2": "all -> v"})
def concatenated_projections(rng):
    def step(params, state, x):
        v = 0.9 * state["v"] + jnp.concatenate([x @ params["w1"], jnp.sin(x) @ params["w2"]], axis=-1)
        return {"v": v}, v

    params = {"w1": weight(rng, INPUT, HIDDEN), "w2": weight(rng, INPUT, WIDE)}
    return step, params, {"v": weight(rng, BATCH, HIDDEN + WIDE)}


@positions.function("transposed state in two axes", ["v"], {"w": "all -> v"})
def transposed_state(rng):
    def step(params, state, x):
        y = (x @ params["w"]).reshape(BATCH, HIDDEN, WIDE)
        v = 0.9 * state["v"] + jnp.transpose(y, (2, 0, 1))
        return {"v": v}, v

    return step, {"w": weight(rng, INPUT, HIDDEN * WIDE)}, {"v": weight(rng, WIDE, BATCH, HIDDEN)}


@positions.function("projection broadcast over a second axis", ["v"], {"w": "all -> v", "b": "all -> v"})
def broadcast_projection(rng):
    # One element of x @ w reaches five positions of the state, each of them directly.
    def step(params, state, x):
        v = 0.9 * state["v"] + jnp.tanh((x @ params["w"])[:, :, None] + params["b"])
        return {"v": v}, v

    params = {"w": weight(rng, INPUT, HIDDEN), "b": weight(rng, HIDDEN, WIDE)}
    return step, params, {"v": weight(rng, BATCH, HIDDEN, WIDE)}


@positions.function("delay line of the input current", ["line"], {"w": "all -> line", "w_out": "none-needed"})
def delay_line(rng):
    def step(params, state, x):
        line = jnp.concatenate([(x @ params["w"])[None], state["line"][:-1]], axis=0)
        return {"line": line}, jnp.tanh(line[0] * line[-1]) @ params["w_out"]

    params = {"w": weight(rng, INPUT, WIDE), "w_out": weight(rng, WIDE, OUT)}
    return step, params, {"line": weight(rng, HIDDEN, BATCH, WIDE)}


@positions.function("delay line that feeds a neuron", [("line v", 5)], {"w": "all -> line"})
def delayed_current(rng):
    def step(params, state, x):
        line = jnp.roll(state["line"], 1, axis=0).at[0].set(x @ params["w"])
        v = 0.9 * state["v"] + jnp.tanh(state["line"][-1])
        return {"line": line, "v": v}, v

    state = {"line": weight(rng, HIDDEN, BATCH, WIDE), "v": weight(rng, BATCH, WIDE)}
    return step, {"w": weight(rng, INPUT, WIDE)}, state


@positions.function(
    "recurrent LIF with delayed spikes",
    [("v line", 5)],
    {"w_in": "direct -> v", "w_rec": "direct -> v"},
    draw=spikes(BATCH, INPUT),
)
def delayed_spikes(rng):
    # The places of the line are further values at the position of their neuron.
    def step(params, state, x):
        fired = spike(state["v"] - 1.0)
        v = 0.9 * state["v"] - fired + x @ params["w_in"] + state["line"][-1] @ params["w_rec"]
        return {"v": v, "line": jnp.concatenate([fired[None], state["line"][:-1]], axis=0)}, spike(v - 1.0)

    params = {"w_in": weight(rng, INPUT, WIDE, gain=1.5), "w_rec": weight(rng, WIDE, WIDE)}
    state = {"v": jnp.asarray(rng.uniform(0.2, 1.4, size=(BATCH, WIDE)))}
    return step, params, state | {"line": jnp.asarray(rng.integers(2, size=(HIDDEN, BATCH, WIDE)).astype(float))}


CHANNELS = 66
SELECTIVE = {"w_in": "all -> h", "w_b": "all -> h", "w_dt": "all -> h", "a": "all -> h"}


@positions.function("selective state space of many channels", ["h"], SELECTIVE, draw=normal(1, INPUT))
def selective(rng):
    # An element of x @ w_b acts on as many positions as there are channels.
    def step(params, state, x):
        u, dt = x @ params["w_in"], jax.nn.softplus(x @ params["w_dt"])
        decay = jnp.exp(-dt[..., None] * jnp.exp(params["a"]))
        h = decay * state["h"] + dt[..., None] * (x @ params["w_b"])[:, None, :] * u[..., None]
        return {"h": h}, jnp.sum(h, axis=-1)

    params = {"w_in": weight(rng, INPUT, CHANNELS), "a": weight(rng, CHANNELS, 2)}
    params |= {"w_b": weight(rng, INPUT, 2), "w_dt": weight(rng, INPUT, CHANNELS)}
    return step, params, {"h": weight(rng, 1, CHANNELS, 2)}


MEMORY = {"w_gate": "all -> m", "w_key": "all -> m", "w_value": "all -> m"}


@positions.function("matrix memory with one gate", ["m"], MEMORY)
def matrix_memory(rng):
    def step(params, state, x):
        gate = sigmoid(x @ params["w_gate"])[:, :, None]
        outer = jnp.einsum("bi,bj->bij", x @ params["w_key"], jnp.tanh(x @ params["w_value"]))
        m = gate * state["m"] + (1.0 - gate) * outer
        return {"m": m}, jnp.sin(m)

    params = {"w_gate": weight(rng, INPUT, 1), "w_key": weight(rng, INPUT, HIDDEN), "w_value": weight(rng, INPUT, WIDE)}
    return step, params, {"m": weight(rng, BATCH, HIDDEN, WIDE)}


@positions.function("rows and columns of one projection", ["m"], {"w": "all -> m"})
def rows_and_columns(rng):
    # Every position has two elements of x @ w: one that it shares with its row, one that it shares with its column.
    def step(params, state, x):
        y = x @ params["w"]
        m = 0.8 * state["m"] + jnp.tanh(y[:, :HIDDEN, None] * y[:, None, HIDDEN:])
        return {"m": m}, m

    return step, {"w": weight(rng, INPUT, HIDDEN + WIDE)}, {"m": weight(rng, BATCH, HIDDEN, WIDE)}


@jax.custom_vjp
def _halved_backward(values):
    return jnp.tanh(values)


_halved_backward.defvjp(lambda v: (jnp.tanh(v), v), lambda v, c: (0.5 * c * (1.0 - jnp.tanh(v) ** 2),))


@positions.function("one gate with a backward pass of its own", ["m"], {"w_gate": "all -> m", "b": "all -> m"})
def gate_with_own_backward(rng):
    def step(params, state, x):
        gate = (x @ params["w_gate"])[:, :, None]
        m = 0.7 * state["m"] + _halved_backward(gate + params["b"])
        return {"m": m}, m

    params = {"w_gate": weight(rng, INPUT, 1), "b": weight(rng, HIDDEN, WIDE)}
    return step, params, {"m": weight(rng, BATCH, HIDDEN, WIDE)}
