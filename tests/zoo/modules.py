"""Brainstate modules, plain and marked: cells, stacks, packed states, dropout, layers of brainstate itself."""

import brainstate
import brainunit as u
import jax.numpy as jnp
from brainstate import HiddenGroupState, HiddenState, HiddenTreeState, ParamState
from jax.nn import sigmoid

import foretrace as ft

from .records import BATCH, HIDDEN, INPUT, OUT, WIDE, Table, normal, spike, spikes, weight

modules = Table()


def _start(batch_size, *shape, value=0.3):
    return jnp.full(shape if batch_size is None else (batch_size, *shape), value)


@modules.module(
    "module: plain RNN cell",
    ["h"],
    {"w_in": "direct -> h", "w_rec": "direct -> h", "b": "direct -> h", "w_out": "none-needed"},
)
class PlainRNN(brainstate.nn.Module):
    def __init__(self, rng):
        super().__init__()
        self.w_in = ParamState(weight(rng, INPUT, HIDDEN))
        self.w_rec = ParamState(weight(rng, HIDDEN, HIDDEN))
        self.b = ParamState(weight(rng, HIDDEN))
        self.w_out = ParamState(weight(rng, HIDDEN, OUT))

    def init_state(self, batch_size=None, **kwargs):
        self.h = HiddenState(_start(batch_size, HIDDEN))

    def update(self, x):
        self.h.value = jnp.tanh(x @ self.w_in.value + self.h.value @ self.w_rec.value + self.b.value)
        return self.h.value @ self.w_out.value


@modules.module(
    "module: marked RNN cell, unbatched",
    ["h"],
    {"w_in": "direct -> h", "w_rec": "direct -> h", "b": "direct -> h", "w_out": "none-needed"},
    draw=normal(INPUT),
    batch_size=None,
    marked=True,
)
class MarkedRNN(PlainRNN):
    def update(self, x):
        y = ft.matmul(x, self.w_in.value, self.b.value) + ft.matmul(self.h.value, self.w_rec.value)
        self.h.value = jnp.tanh(y)
        return self.h.value @ self.w_out.value


class _Gate(brainstate.nn.Module):
    """A marked projection of input and state, with its parameters in one pytree."""

    def __init__(self, rng):
        super().__init__()
        self.params = ParamState({"u": weight(rng, HIDDEN, HIDDEN), "w": weight(rng, INPUT, HIDDEN)})

    def update(self, x, h):
        return ft.matmul(x, self.params.value["w"]) + ft.matmul(h, self.params.value["u"])


def _gates(names, text):
    return {f"{name}.params.{leaf}": text for name in names for leaf in "uw"}


@modules.module(
    "module: marked LSTM, separate gates",
    ["c h"],
    _gates("ifg", "direct -> c h") | _gates("o", "direct -> h"),
    marked=True,
)
class MarkedLSTM(brainstate.nn.Module):
    def __init__(self, rng):
        super().__init__()
        self.i, self.f, self.g, self.o = (_Gate(rng) for _ in range(4))

    def init_state(self, batch_size=None, **kwargs):
        self.c = HiddenState(_start(batch_size, HIDDEN, value=0.2))
        self.h = HiddenState(_start(batch_size, HIDDEN))

    def update(self, x):
        h = self.h.value
        c = sigmoid(self.f(x, h)) * self.c.value + sigmoid(self.i(x, h)) * jnp.tanh(self.g(x, h))
        self.c.value = c
        self.h.value = sigmoid(self.o(x, h)) * jnp.tanh(c)
        return self.h.value


@modules.module(
    "module: marked GRU, reset after the matmul",
    ["h"],
    _gates("zr", "direct -> h") | _gates("n", "direct -> h"),
    marked=True,
)
class MarkedGRU(brainstate.nn.Module):
    def __init__(self, rng):
        super().__init__()
        self.z, self.r, self.n = (_Gate(rng) for _ in range(3))

    def init_state(self, batch_size=None, **kwargs):
        self.h = HiddenState(_start(batch_size, HIDDEN))

    def update(self, x):
        h = self.h.value
        z, r, n = sigmoid(self.z(x, h)), sigmoid(self.r(x, h)), self.n.params.value
        candidate = jnp.tanh(ft.matmul(x, n["w"]) + r * ft.matmul(h, n["u"]))
        self.h.value = (1.0 - z) * h + z * candidate
        return self.h.value


class _LIF(brainstate.nn.Module):
    """A layer of leaky integrate-and-fire neurons behind a weight, marked or plain."""

    def __init__(self, rng, size_in, size_out, product=ft.matmul, recurrent=False, mean=0.45):
        super().__init__()
        self.size, self.product = size_out, product
        self.w = ParamState(mean + weight(rng, size_in, size_out))
        self.u = ParamState(weight(rng, size_out, size_out)) if recurrent else None

    def init_state(self, batch_size=None, **kwargs):
        self.v = HiddenState(_start(batch_size, self.size, value=0.6))

    def update(self, x):
        fired = spike(self.v.value - 1.0)
        v = 0.9 * self.v.value - fired + self.product(x, self.w.value)
        self.v.value = v if self.u is None else v + self.product(fired, self.u.value)
        return spike(self.v.value - 1.0)


class _Stack(brainstate.nn.Module):
    """Layers one after another, then a plain readout that keeps nothing."""

    def __init__(self, rng, *layers):
        super().__init__()
        self.layers = list(layers)
        self.w_out = ParamState(weight(rng, layers[-1].size, OUT))

    def update(self, x):
        for layer in self.layers:
            x = layer(x)
        return x @ self.w_out.value


@modules.module(
    "module: marked LIF",
    ["layers[0].v"],
    {"layers[0].w": "all -> layers[0].v", "w_out": "none-needed"},
    draw=spikes(BATCH, INPUT),
    marked=True,
)
def one_layer(rng):
    return _Stack(rng, _LIF(rng, INPUT, HIDDEN))


@modules.module(
    "module: two layers of marked LIF, the first recurrent",
    ["layers[0].v", "layers[1].v"],
    {
        "layers[0].w": "direct -> layers[0].v",
        "layers[0].u": "direct -> layers[0].v",
        "layers[1].w": "all -> layers[1].v",
        "w_out": "none-needed",
    },
    draw=spikes(BATCH, INPUT),
    marked=True,
)
def two_layers(rng):
    return _Stack(rng, _LIF(rng, INPUT, HIDDEN, recurrent=True), _LIF(rng, HIDDEN, WIDE))


@modules.module(
    "module: three plain layers of LIF of one size",
    ["layers[0].v", "layers[1].v", "layers[2].v"],
    {
        "layers[0].w": "direct -> layers[0].v",
        "layers[1].w": "direct -> layers[1].v",
        "layers[2].w": "all -> layers[2].v",
        "w_out": "none-needed",
    },
    draw=spikes(BATCH, INPUT),
)
def three_layers(rng):
    sizes = ((INPUT, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, HIDDEN))
    return _Stack(rng, *(_LIF(rng, *pair, product=jnp.matmul, mean=0.2) for pair in sizes))


@modules.module("module: marked ALIF in one packed state", [("h", 2)], {"w": "all -> h"}, marked=True)
class PackedALIF(brainstate.nn.Module):
    def __init__(self, rng):
        super().__init__()
        self.w = ParamState(weight(rng, INPUT, HIDDEN, gain=1.5))

    def init_state(self, batch_size=None, **kwargs):
        self.h = HiddenGroupState(_start(batch_size, HIDDEN, 2, value=0.6))

    def update(self, x):
        v, a = self.h.value[..., 0], self.h.value[..., 1]
        fired = spike(v - 1.0 - 0.3 * a)
        v, a = 0.9 * v - fired + ft.matmul(x, self.w.value), 0.95 * a + fired
        self.h.value = jnp.stack([v, a], axis=-1)
        return spike(v - 1.0 - 0.3 * a)


@modules.module("module: plain GIF in a packed state of 3, set by name", [("h", 3)], {"w": "all -> h"})
class PackedGIF(brainstate.nn.Module):
    def __init__(self, rng):
        super().__init__()
        self.w = ParamState(weight(rng, INPUT, HIDDEN, gain=1.5))

    def init_state(self, batch_size=None, **kwargs):
        self.h = HiddenGroupState(_start(batch_size, HIDDEN, 3, value=0.6))

    def update(self, x):
        v, i, theta = (self.h.get_value(name) for name in "012")
        fired = spike(v - theta - 0.5)
        v = 0.9 * v - fired + 0.3 * i + x @ self.w.value
        self.h.set_value({"0": v, "1": 0.8 * i - 0.4 * fired, "2": 0.95 * theta + 0.2 * fired})
        return spike(v - theta - 0.5)


@modules.module("module: a tree of two states with units", [("h", 2)], {"w": "all -> h"})
class TreeALIF(brainstate.nn.Module):
    def __init__(self, rng):
        super().__init__()
        self.w = ParamState(weight(rng, INPUT, HIDDEN, gain=1.5) * u.mV)

    def init_state(self, batch_size=None, **kwargs):
        self.h = HiddenTreeState({"v": _start(batch_size, HIDDEN) * u.mV, "a": _start(batch_size, HIDDEN)})

    def update(self, x):
        v, a = self.h.get_value("v"), self.h.get_value("a")
        fired = spike(v / u.mV - 1.0 - 0.3 * a)
        v, a = 0.9 * v - fired * u.mV + x @ self.w.value, 0.95 * a + fired
        self.h.set_value({"v": v, "a": a})
        return spike(v / u.mV - 1.0 - 0.3 * a)


@modules.module("module: marked LIF with dropout", ["lif.v"], {"lif.w": "all -> lif.v"}, marked=True)
class DropoutLIF(brainstate.nn.Module):
    def __init__(self, rng):
        super().__init__()
        self.dropout = brainstate.nn.Dropout(0.7)
        self.lif = _LIF(rng, INPUT, HIDDEN, product=self._product)

    def _product(self, x, w):
        with brainstate.environ.context(fit=True):
            return self.dropout(ft.matmul(x, w))

    def update(self, x):
        return self.lif(x)


@modules.module(
    "module: brainstate's own linear layers",
    ["h"],
    {
        "project.weight.weight": "direct -> h",
        "project.weight.bias": "direct -> h",
        "recur.weight.weight": "direct -> h",
        "read.weight.weight": "none-needed",
        "read.weight.bias": "none-needed",
    },
)
class LinearLayers(brainstate.nn.Module):
    def __init__(self, rng):
        super().__init__()
        self.project = brainstate.nn.Linear(
            INPUT, HIDDEN, w_init=weight(rng, INPUT, HIDDEN), b_init=weight(rng, HIDDEN)
        )
        self.recur = brainstate.nn.Linear(HIDDEN, HIDDEN, w_init=weight(rng, HIDDEN, HIDDEN), b_init=None)
        self.read = brainstate.nn.Linear(HIDDEN, OUT, w_init=weight(rng, HIDDEN, OUT), b_init=weight(rng, OUT))

    def init_state(self, batch_size=None, **kwargs):
        self.h = HiddenState(_start(batch_size, HIDDEN))

    def update(self, x):
        self.h.value = 0.5 * self.h.value + jnp.tanh(self.project(x) + self.recur(self.h.value))
        return self.read(self.h.value)
