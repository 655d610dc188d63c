"""Small models, each built by the same source for Foretrace and for braintrace.

A model is a function of the package: its layers and operators are taken from there, so nothing is described twice.
Parameters are filled with numbers that depend on their path and shape alone. Every model takes one input, of the form
that `input_sequence` gives, and returns values that a loss may be put on.
"""

import zlib
from collections.abc import Callable
from typing import Any

import brainevent
import brainpy
import brainstate
import braintools
import brainunit as u
import jax
import jax.numpy as jnp
import numpy as np

STEPS, WIDTH, BATCH, INPUTS, UNITS, OUTPUTS, WORDS = 6, 3, 2, 3, 4, 2, 5

# Single cells of `nn`, by the name of their class.
CELLS = {
    "gru": "GRUCell",
    "mgu": "MGUCell",
    "minimal_rnn": "MinimalRNNCell",
    "mini_gru": "MiniGRU",
    "cfn": "CFNCell",
    "lstm": "LSTMCell",
    "mini_lstm": "MiniLSTM",
    "lru": "LRUCell",
}

MODELS: dict[str, Callable[[Any], brainstate.nn.Module]] = {
    name: lambda ops, cell=cell: getattr(ops.nn, cell)(INPUTS, UNITS) for name, cell in CELLS.items()
}


def model(build: Callable[[Any], brainstate.nn.Module]) -> Callable[[Any], brainstate.nn.Module]:
    """Lists a model under the name of the function that builds it."""
    MODELS[build.__name__] = build
    return build


class Dynamics(brainstate.nn.Module):
    """Hidden states of one size, and a step of them in a function; `layers` hold the parameters."""

    def __init__(
        self, step: Callable[..., Any], layers: dict[str, Any], size: tuple[int, ...] = (UNITS,), states: int = 1
    ):
        super().__init__()
        self.step, self.size, self.count = step, size, states
        for name, layer in layers.items():
            setattr(self, name, layer)

    def init_state(self, batch_size: int, **_: Any) -> None:
        for index in range(self.count):
            setattr(self, f"h{index}", brainstate.HiddenState(jnp.zeros((batch_size, *self.size))))

    def update(self, x: Any) -> Any:
        states = [getattr(self, f"h{index}") for index in range(self.count)]
        new = self.step(self, x, *(state.value for state in states))
        for state, value in zip(states, new, strict=True):
            state.value = value
        return new[-1]


class Chain(brainstate.nn.Module):
    """Modules one after the other."""

    def __init__(self, *parts: Any) -> None:
        super().__init__()
        for index, part in enumerate(parts):
            setattr(self, f"part{index}", part)
        self.count = len(parts)

    def update(self, x: Any) -> Any:
        for index in range(self.count):
            x = getattr(self, f"part{index}")(x)
        return x


def parameter(*shape: int) -> brainstate.ParamState:
    return brainstate.ParamState(jnp.zeros(shape))


def joined(x: Any, h: Any) -> Any:
    return jnp.concatenate([x, h], axis=-1)


@model
def leaky_integrator(ops: Any) -> brainstate.nn.Module:
    return Dynamics(lambda m, x, h: (0.8 * h + jnp.tanh(m.layer(x)),), {"layer": ops.nn.Linear(INPUTS, UNITS)})


def recurrent(layer: Any) -> brainstate.nn.Module:
    return Dynamics(lambda m, x, h: (0.8 * h + 0.2 * jnp.tanh(m.layer(joined(x, h))),), {"layer": layer})


@model
def leaky_rnn(ops: Any) -> brainstate.nn.Module:
    return recurrent(ops.nn.Linear(INPUTS + UNITS, UNITS))


@model
def vanilla_rnn(ops: Any) -> brainstate.nn.Module:
    return ops.nn.ValinaRNNCell(INPUTS, UNITS, activation="tanh")


@model
def two_layers(ops: Any) -> brainstate.nn.Module:
    return Chain(leaky_integrator(ops), ops.nn.MiniGRU(UNITS, UNITS + 1))


@model
def two_equal_layers(ops: Any) -> brainstate.nn.Module:
    return Chain(leaky_integrator(ops), ops.nn.MiniGRU(UNITS, UNITS))


@model
def learned_decay(ops: Any) -> brainstate.nn.Module:
    def step(m: Any, x: Any, h: Any) -> Any:
        return (ops.element_wise(m.decay.value, weight_fn=jax.nn.sigmoid) * h + ops.matmul(x, m.weight.value),)

    return Dynamics(step, {"decay": parameter(UNITS), "weight": parameter(INPUTS, UNITS)})


@model
def signed_weights(ops: Any) -> brainstate.nn.Module:
    sign = jnp.asarray([[1.0], [-1.0]] * 4)[: INPUTS + UNITS]
    return recurrent(ops.nn.SignedWLinear(INPUTS + UNITS, UNITS, w_sign=sign))


@model
def convolution(ops: Any) -> brainstate.nn.Module:
    layer = ops.nn.Conv1d((UNITS, INPUTS), 2, kernel_size=3, b_init=braintools.init.ZeroInit())
    step = lambda m, x, h: (0.8 * h + jnp.tanh(m.layer(x)),)
    return Dynamics(step, {"layer": layer}, size=(UNITS, 2))


@model
def sparse(ops: Any) -> brainstate.nn.Module:
    dense = (np.arange(UNITS * UNITS).reshape(UNITS, UNITS) % 3 == 0).astype(float)
    layers = {
        "layer": ops.nn.Linear(INPUTS, UNITS),
        "recurrent": ops.nn.SparseLinear(brainevent.CSR.fromdense(jnp.asarray(dense))),
    }
    return Dynamics(lambda m, x, h: (0.8 * h + 0.2 * jnp.tanh(m.layer(x) + m.recurrent(h)),), layers)


@model
def lora(ops: Any) -> brainstate.nn.Module:
    """By the operator: `nn.LoRA` of 0.2.6 divides by the rank, which is another model."""

    def step(m: Any, x: Any, h: Any) -> Any:
        return (0.8 * h + 0.2 * jnp.tanh(ops.lora_matmul(joined(x, h), m.first.value, m.second.value)),)

    return Dynamics(step, {"first": parameter(INPUTS + UNITS, 2), "second": parameter(2, UNITS)})


@model
def embedded_words(ops: Any) -> brainstate.nn.Module:
    return Dynamics(lambda m, x, h: (0.8 * h + m.layer(x),), {"layer": ops.nn.Embedding(WORDS, UNITS)})


@model
def einsum(ops: Any) -> brainstate.nn.Module:
    step = lambda m, x, h: (0.8 * h + jnp.tanh(ops.einsum("bi,io->bo", x, m.weight.value)),)
    return Dynamics(step, {"weight": parameter(INPUTS, UNITS)})


@model
def grouped(ops: Any) -> brainstate.nn.Module:
    layer = ops.nn.GroupedLinear(2, INPUTS, UNITS)
    step = lambda m, x, h: (0.8 * h + jnp.tanh(m.layer(jnp.stack([x, -x], axis=-2))),)
    return Dynamics(step, {"layer": layer}, size=(2, UNITS))


@model
def rnn_with_readout(ops: Any) -> brainstate.nn.Module:
    return Chain(ops.nn.MinimalRNNCell(INPUTS, UNITS), ops.nn.Linear(UNITS, OUTPUTS))


@model
def leaky_readout(ops: Any) -> brainstate.nn.Module:
    return Chain(leaky_rnn(ops), ops.nn.LeakyRateReadout(UNITS, OUTPUTS, tau=5.0 * u.ms))


@model
def lif_with_synapse(ops: Any) -> brainstate.nn.Module:
    def step(m: Any, x: Any, current: Any, v: Any) -> Any:
        fired = braintools.surrogate.sigmoid(v - 1.0)
        current = 0.8 * current + m.layer(joined(x, fired))
        return current, 0.9 * v + 0.1 * current - fired

    return Dynamics(step, {"layer": ops.nn.Linear(INPUTS + UNITS, UNITS)}, states=2)


class Spiking(brainstate.nn.Module):
    """LIF neurons of brainpy with an exponential synapse, in mV, mA and ms."""

    def __init__(self, ops: Any) -> None:
        super().__init__()
        zero = braintools.init.ZeroInit(unit=u.mA)
        self.neurons = brainpy.state.LIF(UNITS, tau=5.0 * u.ms, spk_fun=braintools.surrogate.Sigmoid())
        self.synapses = brainpy.state.AlignPostProj(
            comm=ops.nn.Linear(INPUTS + UNITS, UNITS, w_init=zero, b_init=zero),
            syn=brainpy.state.Expon(UNITS, tau=4.0 * u.ms, g_initializer=zero),
            out=brainpy.state.CUBA(scale=1.0),
            post=self.neurons,
        )

    def update(self, x: Any) -> Any:
        self.synapses(joined(x, self.neurons.get_spike()))
        self.neurons(0.0 * u.mA)
        return self.neurons.get_spike()


@model
def brainpy_lif(ops: Any) -> brainstate.nn.Module:
    return Spiking(ops)


def input_sequence(name: str) -> jax.Array:
    """What a model is driven with: numbers, or words where it looks them up."""
    rng = np.random.default_rng(1)
    if name == "embedded_words":
        return jnp.asarray(rng.integers(0, WORDS, (STEPS, BATCH)))
    shape = (UNITS, INPUTS) if name == "convolution" else (INPUTS,)
    return jnp.asarray(1.0 + rng.normal(size=(STEPS, BATCH, *shape)))


def filled(name: str, ops: Any) -> brainstate.nn.Module:
    """A model with its parameters drawn by path, and its states at their beginning."""
    net = MODELS[name](ops)
    for path, state in net.states(brainstate.ParamState).items():
        state.value = drawn(path, state.value)
    brainstate.nn.init_all_states(net, batch_size=BATCH)
    return net


def drawn(path: tuple[Any, ...], value: Any) -> Any:
    """Numbers in the form and the units of a parameter."""

    def one(place: Any, leaf: Any) -> Any:
        key = ".".join(map(str, path)) + jax.tree_util.keystr(place)
        rng = np.random.default_rng(zlib.crc32(key.encode()))
        numbers = jnp.asarray(rng.normal(size=jnp.shape(leaf)) * 0.7, u.get_mantissa(leaf).dtype)
        return numbers * u.get_unit(leaf) if not u.get_unit(leaf).is_unitless else numbers

    return jax.tree_util.tree_map_with_path(one, value, is_leaf=u.math.is_quantity)
