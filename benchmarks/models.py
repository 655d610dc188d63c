"""The models that benchmarks run, written once for every package that marks operators.

A cell is a pure function of its gates, its states and an input. `Network` makes of it a step function
`step(params, state, x) -> (state, out)`, and `Recurrent` a brainstate module that runs the same step. Both take the
module `ops` whose `matmul` marks a traced product, so all sides of a comparison run the same source: a recurrent layer
with a dense weight over `[input, hidden]` and a bias for each gate, and a linear readout where one is asked for.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import brainstate
import jax
import jax.numpy as jnp
import numpy as np

Values = dict[str, jax.Array]
Gate = Callable[[str, jax.Array, jax.Array], jax.Array]


@jax.custom_jvp
def spike(potential: jax.Array) -> jax.Array:
    """Heaviside step forward, with the derivative of a fast sigmoid."""
    return (potential >= 0.0).astype(potential.dtype)


@spike.defjvp
def _spike_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    (potential,), (tangent,) = primals, tangents
    return spike(potential), tangent / (1.0 + 10.0 * jnp.abs(potential)) ** 2


def plain_lif(gate: Gate, state: Values, x: jax.Array) -> tuple[Values, jax.Array]:
    """Leaky integrate-and-fire neurons with a soft reset: the potential is the one state."""
    fired = spike(state["v"] - 1.0)
    v = 0.9 * state["v"] + gate("in", x, fired) - fired
    return {"v": v}, spike(v - 1.0)


def lif(gate: Gate, state: Values, x: jax.Array) -> tuple[Values, jax.Array]:
    """Leaky integrate-and-fire neurons with an exponential synapse and a soft reset."""
    fired = spike(state["v"] - 1.0)
    current = 0.8 * state["current"] + gate("in", x, fired)
    v = 0.9 * state["v"] + 0.1 * current - fired
    return {"v": v, "current": current}, spike(v - 1.0)


def alif(gate: Gate, state: Values, x: jax.Array) -> tuple[Values, jax.Array]:
    """Leaky integrate-and-fire neurons whose threshold rises with each spike and comes back slowly."""
    fired = spike(state["v"] - 1.0 - state["a"])
    v = 0.9 * state["v"] + gate("in", x, fired) - fired
    a = 0.99 * state["a"] + 0.05 * fired
    return {"v": v, "a": a}, spike(v - 1.0 - a)


def gru(gate: Gate, state: Values, x: jax.Array) -> tuple[Values, jax.Array]:
    """A gated recurrent unit, its reset applied before the product."""
    h = state["h"]
    reset = jax.nn.sigmoid(gate("reset", x, h))
    keep = jax.nn.sigmoid(gate("update", x, h))
    candidate = jnp.tanh(gate("candidate", x, reset * h))
    h = keep * h + (1.0 - keep) * candidate
    return {"h": h}, h


def lstm(gate: Gate, state: Values, x: jax.Array) -> tuple[Values, jax.Array]:
    """A long short-term memory, one product per gate."""
    h = state["h"]
    enter = jax.nn.sigmoid(gate("input", x, h))
    keep = jax.nn.sigmoid(gate("forget", x, h) + 1.0)
    candidate = jnp.tanh(gate("cell", x, h))
    leave = jax.nn.sigmoid(gate("output", x, h))
    c = keep * state["c"] + enter * candidate
    h = leave * jnp.tanh(c)
    return {"h": h, "c": c}, h


@dataclass(frozen=True)
class Cell:
    """A cell with the names of its gates and states."""

    step: Callable[[Gate, Values, jax.Array], tuple[Values, jax.Array]]
    gates: tuple[str, ...]
    states: tuple[str, ...]


MODELS: dict[str, Cell] = {
    "PlainLIF": Cell(plain_lif, ("in",), ("v",)),
    "LIF": Cell(lif, ("in",), ("v", "current")),
    "ALIF": Cell(alif, ("in",), ("v", "a")),
    "GRU": Cell(gru, ("reset", "update", "candidate"), ("h",)),
    "LSTM": Cell(lstm, ("input", "forget", "cell", "output"), ("h", "c")),
}

plain = SimpleNamespace(matmul=lambda x, weight, bias: x @ weight + bias)
"""Unmarked operators: the same model without any package."""


@dataclass(frozen=True)
class Network:
    """A cell of a size, with a linear readout where `outputs` is not 0, as a step function."""

    ops: Any
    cell: Cell
    inputs: int
    units: int
    outputs: int = 0

    def params(self, seed: int = 0) -> Values:
        rng, values = np.random.default_rng(seed), {}
        shapes = dict.fromkeys(self.cell.gates, (self.inputs + self.units, self.units))
        if self.outputs:
            shapes["readout"] = (self.units, self.outputs)
        for name, (rows, columns) in shapes.items():
            weight = rng.normal(size=(rows, columns)) / np.sqrt(rows)
            values[f"w_{name}"] = jnp.asarray(weight, jnp.float32)
            values[f"b_{name}"] = jnp.zeros(columns, jnp.float32)
        return values

    def state(self, batch: int) -> Values:
        return {name: jnp.zeros((batch, self.units), jnp.float32) for name in self.cell.states}

    def step(self, params: Values, state: Values, x: jax.Array) -> tuple[Values, jax.Array]:
        def product(name: str, value: jax.Array) -> jax.Array:
            return self.ops.matmul(value, params[f"w_{name}"], params[f"b_{name}"])

        def gate(name: str, x: jax.Array, hidden: jax.Array) -> jax.Array:
            return product(name, jnp.concatenate([x, hidden], axis=-1))

        state, out = self.cell.step(gate, state, x)
        return state, product("readout", out) if self.outputs else out


class Recurrent(brainstate.nn.Module):
    """A network whose parameters and states are those of brainstate."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network
        values = network.params()
        self.param_names = tuple(values)
        for name, value in values.items():
            setattr(self, name, brainstate.ParamState(value))

    def init_state(self, batch_size: int, **_: object) -> None:
        for name, value in self.network.state(batch_size).items():
            setattr(self, name, brainstate.HiddenState(value))

    def update(self, x: jax.Array) -> jax.Array:
        params = {name: getattr(self, name).value for name in self.param_names}
        state = {name: getattr(self, name).value for name in self.network.cell.states}
        state, out = self.network.step(params, state, x)
        for name, value in state.items():
            getattr(self, name).value = value
        return out


def build(
    ops: Any, name: str, inputs: int, units: int, batch: int, outputs: int = 0
) -> tuple[brainstate.nn.Module, jax.Array]:
    """The named model with its states initialised, and an input that fits it."""
    model = Recurrent(Network(ops, MODELS[name], inputs, units, outputs))
    brainstate.nn.init_all_states(model, batch_size=batch)
    return model, jnp.ones((batch, inputs), jnp.float32)
