"""Parameters that data chooses from: rows, columns, elements and windows of a table, for one sample and for many."""

import jax
import jax.numpy as jnp
import numpy as np

from .records import BATCH, HIDDEN, WIDE, Table, tokens, weight

lookups = Table()
ROWS = 7


def _leaky(current):
    """A leaky layer whose input is `current(table, token)`."""

    def step(params, state, x):
        v = jax.nn.sigmoid(params["decay"]) * state["v"] + jnp.tanh(current(params["table"], x))
        return {"v": v}, v

    return step


def _parts(rng, current, table, state):
    params = {"table": weight(rng, *table, gain=2.0), "decay": 1.0 + weight(rng, state[-1])}
    return _leaky(current), params, {"v": weight(rng, *state)}


KEPT = {"table": "all -> v", "decay": "all -> v"}


@lookups.function("row of a table by a scalar index", ["v"], KEPT, draw=tokens(ROWS))
def row(rng):
    return _parts(rng, lambda table, x: table[x], (ROWS, HIDDEN), (HIDDEN,))


@lookups.function("row of a table by a scalar index, mapped over samples", ["v"], KEPT, draw=tokens(ROWS, BATCH))
def mapped_row(rng):
    step, params, state = _parts(rng, lambda table, x: table[x], (ROWS, HIDDEN), (BATCH, HIDDEN))
    return jax.vmap(step, in_axes=(None, 0, 0)), params, state


@lookups.function("column of a table by a scalar index", ["v"], KEPT, draw=tokens(ROWS))
def column(rng):
    def current(table, x):
        return jax.lax.dynamic_index_in_dim(table, x, axis=1, keepdims=False)

    return _parts(rng, current, (HIDDEN, ROWS), (HIDDEN,))


@lookups.function("line of a table by two scalar indices", ["v"], KEPT, draw=tokens(HIDDEN, 2))
def two_indices(rng):
    return _parts(rng, lambda table, x: table[x[0], x[1]], (HIDDEN, ROWS, WIDE), (WIDE,))


@lookups.function("window of a line at a place by data", ["v"], KEPT, draw=tokens(ROWS - HIDDEN + 1))
def window(rng):
    return _parts(rng, lambda line, x: jax.lax.dynamic_slice(line, (x,), (HIDDEN,)), (ROWS,), (HIDDEN,))


@lookups.function("windows of a line, mapped over samples", ["v"], KEPT, draw=tokens(ROWS - HIDDEN + 1, BATCH))
def mapped_window(rng):
    def current(line, x):
        return jax.lax.dynamic_slice(line, (x,), (HIDDEN,))

    step, params, state = _parts(rng, current, (ROWS,), (BATCH, HIDDEN))
    return jax.vmap(step, in_axes=(None, 0, 0)), params, state


@lookups.function("one element of each row", ["v"], KEPT, draw=tokens(ROWS, BATCH))
def element_of_each_row(rng):
    def current(table, x):
        return table[np.arange(WIDE), x[:, None]]

    return _parts(rng, current, (WIDE, ROWS), (BATCH, WIDE))


@lookups.function("one element of each row, the rows in another order", ["v"], KEPT, draw=tokens(ROWS, BATCH))
def element_of_permuted_rows(rng):
    def current(table, x):
        return table[np.asarray([2, 0, 4, 1, 3]), x[:, None]]

    return _parts(rng, current, (WIDE, ROWS), (BATCH, WIDE))


@lookups.function("elements taken along an axis", ["v"], KEPT, draw=tokens(ROWS, BATCH, WIDE))
def taken_along_axis(rng):
    def current(table, x):
        return jax.vmap(lambda one: jnp.take_along_axis(table, one[:, None], axis=1)[:, 0])(x)

    return _parts(rng, current, (WIDE, ROWS), (BATCH, WIDE))


@lookups.function("a bias by a counter in the state", ["v"], {"b": "all -> v", "w": "all -> v"})
def bias_by_counter(rng):
    # The chosen element is one number for all positions.
    def step(params, state, x):
        v = 0.8 * state["v"] + jnp.tanh(x @ params["w"] + params["b"][state["count"] % HIDDEN])
        return {"v": v, "count": state["count"] + 1}, v

    params = {"b": weight(rng, HIDDEN), "w": weight(rng, 3, WIDE)}
    return step, params, {"v": weight(rng, BATCH, WIDE), "count": jnp.asarray(0)}


@lookups.function(
    "buffer written at a pointer in the state", ["buffer"], {"w": "all -> buffer", "decay": "all -> buffer"}
)
def written_buffer(rng):
    # The pointer may mean any row, but it means one: what is written goes there, and the rest only decays.
    def step(params, state, x):
        kept = jax.nn.sigmoid(params["decay"]) * state["buffer"]
        buffer = kept.at[state["place"]].set(x @ params["w"])
        return {"buffer": buffer, "place": (state["place"] + 1) % HIDDEN}, jnp.sin(buffer)

    params = {"w": weight(rng, 3, WIDE), "decay": weight(rng, WIDE)}
    return step, params, {"buffer": weight(rng, HIDDEN, BATCH, WIDE), "place": jnp.asarray(0)}
