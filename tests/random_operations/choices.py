"""Operations whose derivative depends on data: selections, orders, and positions given by values."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from random_operations.draft import Draft, Operation, family, fit, to_index

# --- choices between values -------------------------------------------------------------------------------------------

CHOICES: dict[str, Callable[[Any, Any], Any]] = {
    "where": lambda a, b: jnp.where(a > b, 0.5 * a, jnp.sin(b)),
    "where_same": lambda a, b: jnp.where(b > 0.2, a, b),
    "maximum": jnp.maximum,
    "minimum": jnp.minimum,
    "clip": lambda a, b: jnp.clip(a, -0.5, 0.4 + b**2),
    "clamp": lambda a, b: jax.lax.clamp(-0.3, a + 0.4 * b, 0.6),
    "relu": lambda a, b: jax.nn.relu(a - b),
    "leaky_relu": lambda a, b: jax.nn.leaky_relu(a - b),
    "elu": lambda a, b: jax.nn.elu(a) * b,
    "select_n": lambda a, b: jax.lax.select_n(to_index(a, 3), a, b, a * b),
    "rem": lambda a, b: jnp.remainder(a, 1.3 + jnp.abs(b)),
    "where_constant": lambda a, b: jnp.where(np.arange(a.size).reshape(a.shape) % 2 == 0, a, b),
    "half_precision": lambda a, b: a.astype(jnp.bfloat16).astype(a.dtype) * b,
    "copysign": lambda a, b: jnp.copysign(a, b),
}


@family("choice", weight=8)
def choice(draft: Draft) -> Operation:
    name = draft.choose(CHOICES)
    first, second = draft.pick(), draft.pick()
    shape = draft.shapes[first]
    return Operation(name, lambda a, b: CHOICES[name](a, fit(b, shape)), (first, second), exact=False, growth="product")


@family("choice")
def masked(draft: Draft) -> Operation:
    """JAX takes triangles and diagonals by constant masks."""
    name, function = [("tril", jnp.tril), ("diagonal", jnp.diagonal)][draft.integer(0, 1)]
    return Operation(name, lambda v: function(fit(v, (3, 3))), (draft.pick(4),), exact=False)


ORDERED: dict[str, Callable[[Any], Any]] = {
    "max": lambda v: jnp.max(v, axis=-1),
    "min": lambda v: jnp.min(v, axis=0, keepdims=True),
    "sort": lambda v: jnp.sort(v, axis=-1),
    "median": lambda v: jnp.median(v),
    "cummax": lambda v: jax.lax.cummax(v, 0),
    "cummin": lambda v: jax.lax.cummin(v, v.ndim - 1, reverse=True),
    "top_k": lambda v: jax.lax.top_k(v.reshape(-1), min(2, v.size))[0],
    "max_pool": lambda v: jax.lax.reduce_window(fit(v, (2, 4)), -jnp.inf, jax.lax.max, (1, 2), (1, 2), "VALID"),
    "sort_pairs": lambda v: jax.lax.sort([v.reshape(-1), jnp.sin(v.reshape(-1))[::-1]], num_keys=1)[1],
    "max_norm": lambda v: v / (0.4 + jnp.max(jnp.abs(v))),
}


@family("order")
def ordered(draft: Draft) -> Operation:
    name = draft.choose(ORDERED)
    return Operation(name, lambda v: ORDERED[name](jnp.atleast_1d(v)), (draft.pick(3),), exact=False)


# --- positions that depend on data ------------------------------------------------------------------------------------

BY_DATA: dict[str, Callable[[Any, Any, Any], Any]] = {
    "gather": lambda v, u, i: fit(v, (4, 2))[to_index(fit(i, (3,)), 4)],
    "gather_pairs": lambda v, u, i: fit(v, (3, 3))[to_index(fit(i, (4,)), 3), to_index(fit(u, (4,)), 3)],
    "element": lambda v, u, i: fit(v, (4,))[to_index(fit(i, ()), 4)],
    "dynamic_slice": lambda v, u, i: jax.lax.dynamic_slice(
        fit(v, (3, 4)), (to_index(fit(i, ()), 3), jnp.int32(0)), (2, 4)
    ),
    "dynamic_update_slice": lambda v, u, i: jax.lax.dynamic_update_slice(
        fit(v, (6,)), fit(u, (2,)), (to_index(fit(i, ()), 5),)
    ),
    "scatter_set": lambda v, u, i: fit(v, (4, 2)).at[to_index(fit(i, ()), 4)].set(fit(u, (2,))),
    "scatter_add": lambda v, u, i: fit(v, (4,)).at[to_index(fit(i, (3,)), 4)].add(fit(u, (3,))),
    "scatter_multiply": lambda v, u, i: (
        fit(v, (4,)).at[to_index(fit(i, ()), 4)].multiply(fit(u, ()), unique_indices=True)
    ),
    "scatter_max": lambda v, u, i: jax.lax.stop_gradient(fit(v, (4,)).at[to_index(fit(i, (3,)), 4)].max(fit(u, (3,)))),
    "take_along_axis": lambda v, u, i: jnp.take_along_axis(fit(v, (3, 4)), to_index(fit(i, (3, 2)), 4), axis=1),
    "argsort_gather": lambda v, u, i: fit(v, (5,))[jnp.argsort(fit(i, (5,)))],
    "one_hot_product": lambda v, u, i: jax.nn.one_hot(to_index(fit(i, (2,)), 4), 4, dtype=v.dtype) @ fit(v, (4, 2)),
    "embedding": lambda v, u, i: jnp.take(fit(v, (4, 3)), to_index(fit(i, (2,)), 4), axis=0),
    "roll": lambda v, u, i: jnp.roll(fit(v, (5,)), to_index(fit(i, ()), 5)),
    "set_repeated": lambda v, u, i: fit(v, (4,)).at[np.array([1, 3, 1])].set(fit(u, (3,))),
    "segment_sum": lambda v, u, i: jax.ops.segment_sum(fit(v, (5,)), to_index(fit(i, (5,)), 3), 3),
}


@family("data")
def by_data(draft: Draft) -> Operation:
    name = draft.choose(BY_DATA)
    operands = (draft.pick(3), draft.pick(), draft.pick())
    return Operation(f"data_{name}", BY_DATA[name], operands, exact=False, growth="product")
