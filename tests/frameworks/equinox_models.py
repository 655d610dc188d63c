"""Equinox: its own cells, alone and over a batch, and modules as users write them."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from .records import BATCH, HIDDEN, INPUT, Entry, drawn


class Stack(eqx.Module):
    """Two cells and a readout, in the form of `jax.lax.scan`."""

    cells: list[eqx.nn.GRUCell]
    readout: eqx.nn.Linear
    activation: Any

    def __init__(self, key: Any):
        keys = jax.random.split(key, 3)
        self.cells = [eqx.nn.GRUCell(INPUT, HIDDEN, key=keys[0]), eqx.nn.GRUCell(HIDDEN, HIDDEN, key=keys[1])]
        self.readout = eqx.nn.Linear(HIDDEN, 2, key=keys[2])
        self.activation = jax.nn.tanh

    def __call__(self, carry: Any, x: jax.Array) -> Any:
        new = []
        for cell, h in zip(self.cells, carry, strict=True):
            x = cell(x, h)
            new.append(x)
        return new, self.readout(self.activation(x))


class LRU(eqx.Module):
    """The linear recurrent unit, its complex state as a pair of real arrays."""

    nu: jax.Array
    theta: jax.Array
    b: jax.Array
    c: jax.Array

    def __init__(self) -> None:
        self.nu, self.theta = -1.0 + 0.3 * drawn(1, HIDDEN), drawn(2, HIDDEN)
        self.b, self.c = drawn(3, 2, HIDDEN, INPUT), drawn(4, 2, 2, HIDDEN)

    def __call__(self, x: jax.Array, state: Any) -> Any:
        size = jnp.exp(-jnp.exp(self.nu))
        a, b = size * jnp.cos(self.theta), size * jnp.sin(self.theta)
        scale = jnp.sqrt(1 - size**2)
        re = a * state[0] - b * state[1] + scale * (self.b[0] @ x)
        im = b * state[0] + a * state[1] + scale * (self.b[1] @ x)
        return self.c[0] @ re - self.c[1] @ im, (re, im)


class ComplexLRU(eqx.Module):
    """The same with a complex state."""

    nu: jax.Array
    theta: jax.Array
    b: jax.Array
    c: jax.Array

    def __init__(self) -> None:
        self.nu, self.theta = -1.0 + 0.3 * drawn(1, HIDDEN), drawn(2, HIDDEN)
        self.b, self.c = drawn(3, 2, HIDDEN, INPUT), drawn(4, 2, 2, HIDDEN)

    def __call__(self, x: jax.Array, state: jax.Array) -> Any:
        decay = jnp.exp(-jnp.exp(self.nu) + 1j * self.theta)
        driven = (self.b[0] + 1j * self.b[1]) @ x
        state = decay * state + jnp.sqrt(1 - jnp.abs(decay) ** 2) * driven
        return jnp.real((self.c[0] + 1j * self.c[1]) @ state), state


class RTU(eqx.Module):
    """Recurrent trace units: pairs that rotate and decay, with a nonlinearity behind them; the pair is a tuple."""

    size: jax.Array
    angle: jax.Array
    w: jax.Array

    def __init__(self) -> None:
        self.size, self.angle, self.w = drawn(1, HIDDEN), drawn(2, HIDDEN), drawn(3, 2, HIDDEN, INPUT)

    def rotated(self, one: jax.Array, two: jax.Array, x: jax.Array) -> Any:
        r = jax.nn.sigmoid(self.size)
        g, k, scale = r * jnp.cos(self.angle), r * jnp.sin(self.angle), jnp.sqrt(1 - r**2)
        return g * one - k * two + scale * (self.w[0] @ x), g * two + k * one + scale * (self.w[1] @ x)

    def __call__(self, x: jax.Array, h: Any) -> Any:
        h = self.rotated(*h, x)
        return jnp.tanh(jnp.concatenate(h)), h


class PackedRTU(RTU):
    """The same with both halves in one array."""

    def __call__(self, x: jax.Array, h: jax.Array) -> Any:
        h = jnp.concatenate(self.rotated(*jnp.split(h, 2), x))
        return jnp.tanh(h[:2]), h


def state(*shape: int) -> dict[str, Any]:
    return {"state": drawn(5, *shape)}


def gru() -> Any:
    return eqx.nn.GRUCell(INPUT, HIDDEN, key=jax.random.key(0))


def lstm() -> Any:
    return eqx.nn.LSTMCell(INPUT, HIDDEN, key=jax.random.key(0))


def pair(*shape: int) -> dict[str, Any]:
    return {"state": (drawn(5, *shape), drawn(6, *shape))}


SAMPLE = (INPUT,)
equinox_models = [
    Entry("equinox.GRUCell", lambda: (gru(), state(HIDDEN)), exact=False, shape=SAMPLE),
    Entry("equinox.LSTMCell", lambda: (lstm(), pair(HIDDEN)), exact=False, shape=SAMPLE),
    Entry("equinox.GRUCell over a batch", lambda: (eqx.filter_vmap(gru()), state(BATCH, HIDDEN)), exact=False),
    Entry("equinox.LSTMCell over a batch", lambda: (eqx.filter_vmap(lstm()), pair(BATCH, HIDDEN)), exact=False),
    Entry(
        "equinox stack",
        lambda: (Stack(jax.random.key(0)), {"state": [drawn(1, HIDDEN), drawn(2, HIDDEN)]}),
        exact=False,
        shape=SAMPLE,
    ),
    Entry("equinox LRU", lambda: (LRU(), pair(HIDDEN)), exact=True, shape=SAMPLE),
    Entry("equinox LRU over a batch", lambda: (eqx.filter_vmap(LRU()), pair(BATCH, HIDDEN)), exact=True),
    Entry(
        "equinox complex LRU",
        lambda: (ComplexLRU(), {"state": drawn(5, HIDDEN) + 0j}),
        exact=True,
        shape=SAMPLE,
        real=False,
    ),
    Entry("equinox RTU", lambda: (RTU(), pair(HIDDEN)), exact=True, shape=SAMPLE),
    Entry("equinox packed RTU", lambda: (PackedRTU(), state(2 * HIDDEN)), exact=True, shape=SAMPLE),
]
