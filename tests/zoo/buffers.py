"""Ring buffers with a whole number as their pointer: delays of currents, of potentials, of spikes."""

import jax
import jax.numpy as jnp

from .records import BATCH, HIDDEN, INPUT, WIDE, Table, spike, spikes, weight

buffers = Table()


def _start(rng, *shape):
    return {"ring": weight(rng, *shape), "p": jnp.asarray(1)}


@buffers.function("ring buffer of currents, read by the output", ["ring"], {"w": "all -> ring"})
def read_out(rng):
    def step(params, state, x):
        ring = state["ring"].at[state["p"]].set(x @ params["w"])
        p = (state["p"] + 1) % HIDDEN
        return {"ring": ring, "p": p}, ring[p]

    return step, {"w": weight(rng, INPUT, WIDE)}, _start(rng, HIDDEN, BATCH, WIDE)


@buffers.function("ring buffer of currents that feeds a neuron", [("ring v", 7)], {"w": "all -> ring", "b": "all -> v"})
def feeding(rng):
    def step(params, state, x):
        delayed = jax.lax.dynamic_index_in_dim(state["ring"], (state["p"] + 1) % 6, keepdims=False)
        v = 0.9 * state["v"] + jnp.tanh(delayed) + params["b"]
        ring = jax.lax.dynamic_update_index_in_dim(state["ring"], x @ params["w"], state["p"], 0)
        return {"ring": ring, "p": (state["p"] + 1) % 6, "v": v}, v

    params = {"w": weight(rng, INPUT, WIDE), "b": weight(rng, WIDE)}
    return step, params, _start(rng, 6, BATCH, WIDE) | {"v": weight(rng, BATCH, WIDE)}


@buffers.function("neuron with its own delayed potential", [("ring v", 4)], {"w": "all -> ring v"})
def delayed_potential(rng):
    def step(params, state, x):
        v = 0.7 * state["v"] + 0.5 * state["ring"][state["p"]] + x @ params["w"]
        ring = state["ring"].at[state["p"]].set(jnp.tanh(v))
        return {"ring": ring, "p": (state["p"] + 1) % 3, "v": v}, v

    return step, {"w": weight(rng, INPUT, WIDE)}, _start(rng, 3, BATCH, WIDE) | {"v": weight(rng, BATCH, WIDE)}


@buffers.function("a pointer of its own for each sample", [("ring v", 4)], {"w": "all -> ring v"})
def pointer_for_each_sample(rng):
    def one(params, ring, p, v, x):
        v = 0.7 * v + 0.5 * ring[p] + x @ params["w"]
        return ring.at[p].add(jnp.tanh(v)), (p + 1) % 3, v

    def step(params, state, x):
        parts = state["ring"], state["p"], state["v"]
        ring, p, v = jax.vmap(one, (None, 0, 0, 0, 0))(params, *parts, x)
        return {"ring": ring, "p": p, "v": v}, v

    state = {"ring": weight(rng, BATCH, 3, WIDE), "p": jnp.arange(BATCH), "v": weight(rng, BATCH, WIDE)}
    return step, {"w": weight(rng, INPUT, WIDE)}, state


@buffers.function("line that is rolled by a pointer", [("line", 5)], {"w": "all -> line"})
def rolled_by_pointer(rng):
    def step(params, state, x):
        line = jnp.roll(0.9 * state["line"], state["p"], axis=0).at[0].add(x @ params["w"])
        return {"line": line, "p": (state["p"] + 1) % 3}, line

    return step, {"w": weight(rng, INPUT, WIDE)}, {"line": weight(rng, 5, BATCH, WIDE), "p": jnp.asarray(1)}


@buffers.function(
    "recurrent LIF with a ring buffer of spikes",
    [("v ring", 5)],
    {"w_in": "direct -> v", "w_rec": "direct -> v"},
    draw=spikes(BATCH, INPUT),
)
def delayed_spikes(rng):
    def step(params, state, x):
        fired, p = spike(state["v"] - 1.0), state["p"]
        v = 0.9 * state["v"] - fired + x @ params["w_in"] + state["ring"][p] @ params["w_rec"]
        return {"v": v, "ring": state["ring"].at[p].set(fired), "p": (p + 1) % HIDDEN}, spike(v - 1.0)

    params = {"w_in": weight(rng, INPUT, WIDE, gain=1.5), "w_rec": weight(rng, WIDE, WIDE)}
    return step, params, _start(rng, HIDDEN, BATCH, WIDE) | {"v": jnp.asarray(rng.uniform(0.2, 1.4, (BATCH, WIDE)))}


@buffers.function("ring buffer whose pointer is a floating value", ["ring"], {"w": "in-step"})
def floating_pointer(rng):
    def step(params, state, x):
        place = jnp.argmax(jnp.abs(state["ring"][:, 0, 0]))
        ring = (0.9 * state["ring"]).at[place].set(x @ params["w"])
        return {"ring": ring}, ring

    return step, {"w": weight(rng, INPUT, WIDE)}, {"ring": weight(rng, HIDDEN, BATCH, WIDE)}
