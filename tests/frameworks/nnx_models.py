"""Flax NNX: its own cells, stacks of them, and modules as users write them."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from .records import BATCH, HIDDEN, INPUT, Entry, double, drawn, plain


def cell(kind: Any) -> Any:
    return kind(INPUT, HIDDEN, dtype=jnp.float64, param_dtype=jnp.float64, rngs=nnx.Rngs(0))


class Stack(nnx.Module):
    """Two cells of Flax and a readout; the carry is a tuple."""

    def __init__(self, rngs: nnx.Rngs):
        self.first = nnx.GRUCell(INPUT, HIDDEN, rngs=rngs)
        self.second = nnx.OptimizedLSTMCell(HIDDEN, 5, rngs=rngs)
        self.readout = nnx.Linear(5, 2, rngs=rngs)

    def initialize_carry(self, shape: tuple[int, ...], rngs: nnx.Rngs) -> Any:
        first = self.first.initialize_carry(shape, rngs)
        return first, self.second.initialize_carry(first.shape, rngs)

    def __call__(self, carry: Any, x: jax.Array) -> Any:
        first, y = self.first(carry[0], x)
        second, y = self.second(carry[1], y)
        return (first, second), self.readout(y)


class HeldLIF(nnx.Module):
    """Leaky neurons that hold membrane and current in Variables, called as `out = module(x)`."""

    def __init__(self, rngs: nnx.Rngs):
        self.inputs = nnx.Linear(INPUT, HIDDEN, rngs=rngs)
        self.leak = nnx.Param(jnp.full(HIDDEN, 2.0))
        self.v = nnx.Variable(jnp.zeros((BATCH, HIDDEN)))
        self.i = nnx.Variable(jnp.zeros((BATCH, HIDDEN)))

    def __call__(self, x: jax.Array) -> jax.Array:
        self.i[...] = 0.8 * self.i[...] + self.inputs(x)
        self.v[...] = jax.nn.sigmoid(self.leak[...]) * self.v[...] + self.i[...]
        return jnp.tanh(self.v[...])


class MinGRU(nnx.Module):
    """h' = (1 - z) h + z n, gates of the input alone."""

    def __init__(self, rngs: nnx.Rngs):
        self.gate = nnx.Linear(INPUT, HIDDEN, rngs=rngs)
        self.candidate = nnx.Linear(INPUT, HIDDEN, rngs=rngs)

    def __call__(self, h: jax.Array, x: jax.Array) -> Any:
        z = jax.nn.sigmoid(self.gate(x))
        h = (1 - z) * h + z * self.candidate(x)
        return h, h


class RGLRU(nnx.Module):
    """Griffin's unit: a = exp(-8 softplus(lambda) r), h' = a h + sqrt(1 - a^2) (i x), r and i gates of the input."""

    def __init__(self, rngs: nnx.Rngs):
        self.inputs = nnx.Linear(INPUT, HIDDEN, rngs=rngs)
        self.recurrence_gate = nnx.Linear(INPUT, HIDDEN, rngs=rngs)
        self.input_gate = nnx.Linear(INPUT, HIDDEN, rngs=rngs)
        self.log_decay = nnx.Param(jnp.linspace(-3.0, -1.0, HIDDEN))

    def __call__(self, x: jax.Array, h: jax.Array) -> jax.Array:
        log_a = -8.0 * jax.nn.softplus(self.log_decay[...]) * jax.nn.sigmoid(self.recurrence_gate(x))
        driven = jax.nn.sigmoid(self.input_gate(x)) * self.inputs(x)
        return jnp.exp(log_a) * h + jnp.sqrt(1.0 - jnp.exp(2.0 * log_a)) * driven


class SelectiveSSM(nnx.Module):
    """Mamba's recurrence: h' = exp(dt A) h + dt B x for N states of each channel, y = C h; dt, B, C made of x."""

    def __init__(self, rngs: nnx.Rngs, states: int = 3):
        self.log_a = nnx.Param(jnp.log(jnp.tile(jnp.arange(1.0, states + 1), (INPUT, 1))))
        self.step = nnx.Linear(INPUT, INPUT, rngs=rngs)
        self.b = nnx.Linear(INPUT, states, use_bias=False, rngs=rngs)
        self.c = nnx.Linear(INPUT, states, use_bias=False, rngs=rngs)
        self.skip = nnx.Param(jnp.ones(INPUT))

    def __call__(self, h: jax.Array, x: jax.Array) -> Any:
        dt = jax.nn.softplus(self.step(x))[..., None]
        h = jnp.exp(-dt * jnp.exp(self.log_a[...])) * h + dt * self.b(x)[..., None, :] * x[..., None]
        return h, jnp.sum(h * self.c(x)[..., None, :], axis=-1) + self.skip[...] * x


class S4D(nnx.Module):
    """A diagonal state space with real and imaginary parts beside one another, N of them for each channel."""

    def __init__(self, rngs: nnx.Rngs, states: int = 3):
        self.log_step = nnx.Param(jnp.full((INPUT, 1), -1.0))
        self.log_re = nnx.Param(jnp.log(0.5 * jnp.ones((INPUT, states))))
        self.im = nnx.Param(jnp.tile(jnp.pi * jnp.arange(states), (INPUT, 1)))
        self.c = nnx.Param(drawn(3, 2, INPUT, states))
        self.d = nnx.Param(jnp.ones(INPUT))

    def __call__(self, state: Any, x: jax.Array) -> Any:
        dt = jnp.exp(self.log_step[...])
        size, angle = jnp.exp(-jnp.exp(self.log_re[...]) * dt), self.im[...] * dt
        re, im = state["re"], state["im"]
        new = {
            "re": size * (jnp.cos(angle) * re - jnp.sin(angle) * im) + dt * x[..., None],
            "im": size * (jnp.sin(angle) * re + jnp.cos(angle) * im),
        }
        y = 2 * jnp.sum(self.c[...][0] * new["re"] - self.c[...][1] * new["im"], axis=-1)
        return new, y + self.d[...] * x


def with_state(kind: Any, *shape: int) -> Any:
    return lambda: (double(kind(nnx.Rngs(0))), {"state": drawn(2, *shape)})


nnx_models = [
    Entry("nnx.SimpleCell", plain(lambda: cell(nnx.SimpleCell)), exact=False),
    Entry("nnx.GRUCell", plain(lambda: cell(nnx.GRUCell)), exact=False),
    Entry("nnx.LSTMCell", plain(lambda: cell(nnx.LSTMCell)), exact=False),
    Entry("nnx.OptimizedLSTMCell", plain(lambda: cell(nnx.OptimizedLSTMCell)), exact=False),
    Entry("nnx stack", plain(lambda: double(Stack(nnx.Rngs(0)))), exact=False),
    Entry("nnx held state", plain(lambda: double(HeldLIF(nnx.Rngs(0)))), exact=True),
    Entry("nnx minGRU", with_state(MinGRU, BATCH, HIDDEN), exact=True),
    Entry("nnx RG-LRU", with_state(RGLRU, BATCH, HIDDEN), exact=True),
    Entry("nnx selective SSM", with_state(SelectiveSSM, BATCH, INPUT, 3), exact=True),
    Entry(
        "nnx S4D",
        lambda: (double(S4D(nnx.Rngs(0))), {"state": {n: drawn(4, BATCH, INPUT, 3) for n in ("re", "im")}}),
        exact=True,
    ),
]
