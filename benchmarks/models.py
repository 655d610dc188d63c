"""The models that benchmarks compile, written once for every package that marks operators.

Each builder takes the module `ops` whose `matmul` marks a traced product, so both sides of a comparison run the
same source: a recurrent layer of brainstate states and parameters with a dense input and a dense recurrence.
"""

from collections.abc import Callable
from types import ModuleType

import brainstate
import jax
import jax.numpy as jnp
import numpy as np


@jax.custom_jvp
def spike(potential: jax.Array) -> jax.Array:
    """Heaviside step forward, with the derivative of a fast sigmoid."""
    return (potential >= 0.0).astype(potential.dtype)


@spike.defjvp
def _spike_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    (potential,), (tangent,) = primals, tangents
    return spike(potential), tangent / (1.0 + 10.0 * jnp.abs(potential)) ** 2


def _weight(rng: np.random.Generator, rows: int, columns: int) -> brainstate.ParamState:
    values = rng.normal(size=(rows, columns)) / np.sqrt(rows)
    return brainstate.ParamState(jnp.asarray(values, jnp.float32))


class _Recurrent(brainstate.nn.Module):
    """Weights over `[input, hidden]`, one matrix and one bias per gate, and zero states."""

    gate_names: tuple[str, ...] = ()
    state_names: tuple[str, ...] = ()

    def __init__(self, ops: ModuleType, inputs: int, units: int, seed: int = 0) -> None:
        super().__init__()
        self.ops, self.units = ops, units
        rng = np.random.default_rng(seed)
        for gate in self.gate_names:
            setattr(self, f"w_{gate}", _weight(rng, inputs + units, units))
            setattr(self, f"b_{gate}", brainstate.ParamState(jnp.zeros(units, jnp.float32)))

    def init_state(self, batch_size: int, **_: object) -> None:
        for name in self.state_names:
            setattr(self, name, brainstate.HiddenState(jnp.zeros((batch_size, self.units), jnp.float32)))

    def gate(self, name: str, x: jax.Array, hidden: jax.Array) -> jax.Array:
        joined = jnp.concatenate([x, hidden], axis=-1)
        return self.ops.matmul(joined, getattr(self, f"w_{name}").value, getattr(self, f"b_{name}").value)


class LIF(_Recurrent):
    """Leaky integrate-and-fire neurons with an exponential synapse and a soft reset."""

    gate_names = ("in",)
    state_names = ("v", "current")

    def update(self, x: jax.Array) -> jax.Array:
        fired = spike(self.v.value - 1.0)
        self.current.value = 0.8 * self.current.value + self.gate("in", x, fired)
        self.v.value = 0.9 * self.v.value + 0.1 * self.current.value - fired
        return spike(self.v.value - 1.0)


class GRU(_Recurrent):
    """A gated recurrent unit, its reset applied before the product."""

    gate_names = ("reset", "update", "candidate")
    state_names = ("h",)

    def update(self, x: jax.Array) -> jax.Array:
        h = self.h.value
        reset = jax.nn.sigmoid(self.gate("reset", x, h))
        keep = jax.nn.sigmoid(self.gate("update", x, h))
        candidate = jnp.tanh(self.gate("candidate", x, reset * h))
        self.h.value = keep * h + (1.0 - keep) * candidate
        return self.h.value


class LSTM(_Recurrent):
    """A long short-term memory, one product per gate."""

    gate_names = ("input", "forget", "cell", "output")
    state_names = ("h", "c")

    def update(self, x: jax.Array) -> jax.Array:
        h = self.h.value
        enter = jax.nn.sigmoid(self.gate("input", x, h))
        keep = jax.nn.sigmoid(self.gate("forget", x, h) + 1.0)
        candidate = jnp.tanh(self.gate("cell", x, h))
        leave = jax.nn.sigmoid(self.gate("output", x, h))
        self.c.value = keep * self.c.value + enter * candidate
        self.h.value = leave * jnp.tanh(self.c.value)
        return self.h.value


MODELS: dict[str, Callable[..., brainstate.nn.Module]] = {"LIF": LIF, "GRU": GRU, "LSTM": LSTM}


def build(ops: ModuleType, name: str, inputs: int, units: int, batch: int) -> tuple[brainstate.nn.Module, jax.Array]:
    """The named model with its states initialised, and an input that fits it."""
    model = MODELS[name](ops, inputs, units)
    brainstate.nn.init_all_states(model, batch_size=batch)
    return model, jnp.ones((batch, inputs), jnp.float32)
