"""Flax linen: its own cells, stacks of them, and modules as users write them; variables come from `init`."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from .records import BATCH, HIDDEN, INPUT, Entry, drawn, to_double

X = jnp.zeros((BATCH, INPUT))


def cell(module: Any, shape: tuple[int, ...] = (BATCH, INPUT)) -> Any:
    carry = to_double(module.initialize_carry(jax.random.key(0), shape))
    variables = to_double(module.init(jax.random.key(1), carry, jnp.zeros(shape)))
    return module, {"params": variables}


class Stack(nn.Module):
    """Two cells and a readout in one compact module."""

    @nn.compact
    def __call__(self, carry: Any, x: jax.Array) -> Any:
        first, y = nn.GRUCell(HIDDEN)(carry["first"], x)
        second, y = nn.SimpleCell(5)(carry["second"], y)
        return {"first": first, "second": second}, nn.Dense(2)(y)


def stack() -> Any:
    carry = {"first": drawn(1, BATCH, HIDDEN), "second": drawn(2, BATCH, 5)}
    variables = to_double(Stack().init(jax.random.key(0), carry, X))
    return Stack(), {"params": variables, "state": carry}


class Held(nn.Module):
    """A leaky layer that holds its state in a collection, called as `out = module(x)`."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        h = self.variable("memory", "h", lambda: jnp.zeros((*x.shape[:-1], HIDDEN)))
        decay = self.param("decay", nn.initializers.constant(1.0), (HIDDEN,))
        h.value = jnp.tanh(jax.nn.sigmoid(decay) * h.value + nn.Dense(HIDDEN)(x))
        return h.value


def held() -> Any:
    return Held(), {"params": to_double(Held().init(jax.random.key(0), X))}


class RetNet(nn.Module):
    """Retention: S' = gamma S + k v^T with a fixed decay, y = q S."""

    keys: int = 3
    values: int = 2

    @nn.compact
    def __call__(self, state: jax.Array, x: jax.Array) -> Any:
        q, k, v = (nn.Dense(n, use_bias=False)(x) for n in (self.keys, self.keys, self.values))
        state = 0.9 * state + k[..., :, None] * v[..., None, :]
        return state, jnp.einsum("...k,...kv->...v", q, state)


class GLA(nn.Module):
    """Gated linear attention: S' = diag(alpha) S + k v^T with alpha a gate of the input, y = q S."""

    keys: int = 3
    values: int = 2

    @nn.compact
    def __call__(self, state: jax.Array, x: jax.Array) -> Any:
        q, k, v = (nn.Dense(n, use_bias=False)(x) for n in (self.keys, self.keys, self.values))
        alpha = jax.nn.sigmoid(nn.Dense(self.keys)(x))
        state = alpha[..., :, None] * state + k[..., :, None] * v[..., None, :]
        return state, jnp.einsum("...k,...kv->...v", q, state)


def attention(module: Any) -> Any:
    state = drawn(1, BATCH, 3, 2)
    return module, {"params": to_double(module.init(jax.random.key(0), state, X)), "state": state}


linen_models = [
    Entry("linen.SimpleCell", lambda: cell(nn.SimpleCell(HIDDEN)), exact=False),
    Entry("linen.GRUCell", lambda: cell(nn.GRUCell(HIDDEN)), exact=False),
    Entry("linen.MGUCell", lambda: cell(nn.MGUCell(HIDDEN)), exact=False),
    Entry("linen.LSTMCell", lambda: cell(nn.LSTMCell(HIDDEN)), exact=False),
    Entry("linen.OptimizedLSTMCell", lambda: cell(nn.OptimizedLSTMCell(HIDDEN)), exact=False),
    Entry(
        "linen.ConvLSTMCell",
        lambda: cell(nn.ConvLSTMCell(2, kernel_size=(3,)), (1, 4, 2)),
        exact=False,
        shape=(1, 4, 2),
    ),
    Entry("linen stack", stack, exact=False),
    Entry("linen held state", held, exact=True),
    Entry("linen RetNet", lambda: attention(RetNet()), exact=True),
    Entry("linen GLA", lambda: attention(GLA()), exact=True),
]
