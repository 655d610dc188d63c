"""What an entry of the table holds."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import foretrace as ft

BATCH, INPUT, HIDDEN = 2, 3, 4


@dataclass(frozen=True)
class Entry:
    """One model.

    Attributes:
        name: What it is called in test reports.
        build: Gives the model and the options of the natural call.
        exact: Whether the report says that D-RTRL is exact for every parameter.
        shape: The shape of one step's input.
        spikes: Whether inputs are large and positive, so that neurons spike.
        real: Whether its states are real; the oracle takes real Jacobians alone.
    """

    name: str
    build: Callable[[], tuple[Any, dict[str, Any]]] = field(repr=False)
    exact: bool
    shape: tuple[int, ...] = (BATCH, INPUT)
    spikes: bool = False
    real: bool = True

    def inputs(self, steps: int) -> jax.Array:
        """A sequence of inputs, time first."""
        drawn = np.random.default_rng(1).normal(size=(steps, *self.shape))
        return jnp.asarray(np.abs(drawn) if self.spikes else drawn)


def natural(entry: Entry, steps: int) -> tuple[Any, Any, jax.Array]:
    """What holds the parameters of an entry, its learner by D-RTRL and a sequence of inputs."""
    model, options = entry.build()
    xs = entry.inputs(steps)
    return options.get("params", model), ft.compile(model, "D_RTRL", xs[0], **options), xs


def double(module: Any) -> Any:
    """The same NNX module in float64."""
    nnx.update(module, jax.tree.map(to_double, nnx.state(module, nnx.Param)))
    return module


def to_double(value: Any) -> Any:
    """The same tree in float64."""
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float64) if leaf.dtype == jnp.float32 else leaf, value)


def drawn(seed: int, *shape: int) -> jax.Array:
    """Normal numbers."""
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def plain(build: Callable[[], Any]) -> Callable[[], tuple[Any, dict[str, Any]]]:
    """A model that is compiled without options."""
    return lambda: (build(), {})
