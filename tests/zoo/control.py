"""Control flow and randomness in a step: branches, selections, nested calls, inner loops, dropout, counters."""

import jax
import jax.numpy as jnp

from .records import BATCH, HIDDEN, INPUT, Table, spike, spikes, weight

control = Table()


def _simple(rng):
    return {"w": weight(rng, INPUT, HIDDEN)}, {"v": weight(rng, BATCH, HIDDEN)}


@control.function("cond on the input", ["v"], {"w": "all -> v", "decay": "all -> v"})
def cond(rng):
    def step(params, state, x):
        v = jax.lax.cond(
            jnp.sum(x) > 0.0,
            lambda v: jax.nn.sigmoid(params["decay"]) * v + jnp.tanh(x @ params["w"]),
            lambda v: 0.5 * v,
            state["v"],
        )
        return {"v": v}, v

    params, state = _simple(rng)
    return step, params | {"decay": 1.0 + weight(rng, HIDDEN)}, state


@control.function("cond on a counter", ["v"], {"w": "all -> v"})
def cond_on_counter(rng):
    def step(params, state, x):
        y = x @ params["w"]
        v = jax.lax.cond(state["count"] % 2 == 0, lambda v: 0.9 * v + y, lambda v: 0.7 * v + jnp.sin(y), state["v"])
        return {"v": v, "count": state["count"] + 1}, v

    params, state = _simple(rng)
    return step, params, state | {"count": jnp.asarray(0)}


@control.function("where on input and state", ["v"], {"w": "all -> v", "floor": "all -> v"})
def where(rng):
    def step(params, state, x):
        v = jnp.where(x[:, :1] > 0.0, 0.9 * state["v"] + x @ params["w"], 0.5 * state["v"])
        v = jnp.where(v > params["floor"], v, params["floor"])
        return {"v": v}, v

    params, state = _simple(rng)
    return step, params | {"floor": weight(rng, HIDDEN, gain=0.3)}, state


@control.function("recurrent network in nested jit", ["h"], {"w_in": "direct -> h", "w_rec": "direct -> h"})
def nested_jit(rng):
    @jax.jit
    def project(x, w):
        return x @ w

    @jax.jit
    def cell(params, h, x):
        return jnp.tanh(project(x, params["w_in"]) + project(h, params["w_rec"]))

    def step(params, state, x):
        h = cell(params, state["h"], x)
        return {"h": h}, h

    params = {"w_in": weight(rng, INPUT, HIDDEN), "w_rec": weight(rng, HIDDEN, HIDDEN)}
    return step, params, {"h": weight(rng, BATCH, HIDDEN)}


@control.function("rematerialised step", ["v"], {"w": "all -> v"})
def remat(rng):
    @jax.checkpoint
    def cell(v, x, w):
        return 0.9 * v + jnp.tanh(x @ w)

    def step(params, state, x):
        v = cell(state["v"], x, params["w"])
        return {"v": v}, v

    return step, *_simple(rng)


@control.function("one neuron vmapped over the batch", ["v"], {"w": "all -> v"})
def vmapped(rng):
    def step(params, state, x):
        v = jax.vmap(lambda v, x: 0.9 * v - spike(v - 1.0) + jnp.tanh(params["w"].T @ x))(state["v"], x)
        return {"v": v}, v

    return step, *_simple(rng)


def _substeps(v, y, decay, length):
    """Small steps of a leaky neuron under a constant current."""

    def body(v, _):
        return v + 0.1 * (-decay * v + jnp.tanh(y)), None

    return jax.lax.scan(body, v, length=length)[0]


@control.function("inner scan of 4 sub-steps", ["v"], {"w": "all -> v", "decay": "all -> v"})
def scan_4(rng):
    def step(params, state, x):
        v = _substeps(state["v"], x @ params["w"], params["decay"], 4)
        return {"v": v}, v

    params, state = _simple(rng)
    return step, params | {"decay": 1.0 + weight(rng, HIDDEN, gain=0.2)}, state


@control.function("inner scan of 40 sub-steps", ["v"], {"w": "all -> v"})
def scan_40(rng):
    def step(params, state, x):
        v = _substeps(state["v"], x @ params["w"], 0.5, 40)
        return {"v": v}, v

    return step, *_simple(rng)


@control.function(
    "inner scan of 40 recurrent sub-steps, the matmul inside",
    ["v"],
    {"w": "direct -> v", "w_rec": "direct -> v", "b": "direct -> v"},
)
def scan_40_inside(rng):
    def step(params, state, x):
        def body(v, _):
            drive = x @ params["w"] + jnp.tanh(v) @ params["w_rec"] + params["b"]
            return v + 0.05 * (jnp.tanh(drive) - v), jnp.mean(v)

        v, trace = jax.lax.scan(body, state["v"], length=40)
        return {"v": v}, v * jnp.mean(trace)

    params, state = _simple(rng)
    more = {"w_rec": weight(rng, HIDDEN, HIDDEN), "b": weight(rng, HIDDEN)}
    return step, params | more, state


@control.function("inner scan of 20 sub-steps, each with a weight of its own", ["v"], {"w": "all -> v"})
def scan_20_own_weights(rng):
    def step(params, state, x):
        def body(v, pair):
            weight, scale = pair
            return 0.9 * v + scale * (x @ jnp.abs(weight)), None

        v, _ = jax.lax.scan(body, state["v"], (params["w"], jnp.linspace(0.1, 0.4, 20)))
        return {"v": v}, jnp.tanh(v)

    return step, {"w": weight(rng, 20, INPUT, HIDDEN)}, _simple(rng)[1]


@control.function("inner scan of 4 sub-steps, the matmul inside", ["v"], {"w": "all -> v"})
def scan_4_inside(rng):
    def step(params, state, x):
        def body(v, scale):
            return 0.9 * v + scale * jnp.tanh(x @ params["w"]), None

        v, _ = jax.lax.scan(body, state["v"], jnp.linspace(0.1, 0.4, 4))
        return {"v": v}, v

    return step, *_simple(rng)


@control.function("inner fori_loop of 3 recurrent sub-steps", ["h"], {"w_in": "direct -> h", "w_rec": "direct -> h"})
def scan_recurrent(rng):
    # Each of the three uses of w_rec reaches the new state through the leak, and the earlier ones through w_rec too.
    def step(params, state, x):
        y = x @ params["w_in"]
        h = jax.lax.fori_loop(0, 3, lambda _, h: 0.6 * h + 0.4 * jnp.tanh(y + h @ params["w_rec"]), state["h"])
        return {"h": h}, h

    params = {"w_in": weight(rng, INPUT, HIDDEN), "w_rec": weight(rng, HIDDEN, HIDDEN)}
    return step, params, {"h": weight(rng, BATCH, HIDDEN)}


@control.function(
    "Newton's method for an implicit leaky neuron", ["v"], {"w": "all -> v", "rate": "all -> v"}, forward=True
)
def newton(rng):
    def step(params, state, x):
        drive, rate = x @ params["w"], jax.nn.softplus(params["rate"])

        def body(carry):
            v, _, rounds = carry
            change = (v - state["v"] - rate * (drive - v - v**3)) / (1.0 + rate * (1.0 + 3.0 * v**2))
            return v - change, jnp.max(jnp.abs(change)), rounds + 1

        going = lambda carry: (carry[1] > 1e-9) & (carry[2] < 30)
        v, _, _ = jax.lax.while_loop(going, body, (state["v"], jnp.inf, 0))
        return {"v": v}, v

    params, state = _simple(rng)
    return step, params | {"rate": weight(rng, HIDDEN, gain=0.3)}, state


@control.function("dropout with a key in the state", ["v"], {"w": "all -> v"}, draw=spikes(BATCH, INPUT))
def dropout(rng):
    def step(params, state, x):
        key, now = jax.random.split(state["key"])
        kept = jax.random.bernoulli(now, 0.7, (BATCH, HIDDEN))
        v = 0.9 * state["v"] + jnp.where(kept, x @ params["w"] / 0.7, 0.0)
        return {"v": v, "key": key}, v

    params, state = _simple(rng)
    return step, params, state | {"key": jax.random.PRNGKey(0)}


@control.function("gamma noise by the state", ["v"], {"w": "all -> v"})
def gamma_noise(rng):
    # A sample has a derivative by the shape parameter, so the noise is a path from state to state.
    def step(params, state, x):
        key, now = jax.random.split(state["key"])
        noise = jax.random.gamma(now, jax.nn.softplus(state["v"]) + 0.5)
        v = 0.5 * state["v"] + x @ params["w"] + 0.3 * noise
        return {"v": v, "key": key}, v

    params, state = _simple(rng)
    return step, params, state | {"key": jax.random.PRNGKey(0)}
