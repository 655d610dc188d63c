"""What the cells of `foretrace.train.networks` share: records, checked settings, weights and surrogate spikes."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from foretrace._records import require_declared

Params = dict[str, jax.Array]


class Output(NamedTuple):
    """What a step returns beside the state.

    Attributes:
        out: The readout, `(batch, outputs)`.
        spikes: The spikes, `(batch, neurons)`, in a list for several layers; None for cells without spikes.
    """

    out: Any
    spikes: Any = None


class Built(NamedTuple):
    """A cell made for given sizes.

    Attributes:
        step: Its step.
        params: Its first parameters.
        rest: From a batch size to the state at rest.
    """

    step: Callable[..., Any]
    params: Params
    rest: Callable[[int], Any]


def checked(kind: type[Any], cell: str, settings: Mapping[str, Any], **fixed: Any) -> Any:
    """The record of a cell's settings.

    Raises:
        TypeError: No such setting; the message lists those that there are.
        ValueError: A setting of another type, a time constant or a threshold that is not positive.
    """
    known = [f.name for f in dataclasses.fields(kind) if f.name not in fixed]
    strange = [name for name in settings if name not in known]
    if strange:
        raise TypeError(f"A network of {cell} has no setting `{strange[0]}`. It has {', '.join(known)}.")
    record = kind(**settings, **fixed)
    require_declared(record, f"A network of {cell}")
    for name in known:
        value = getattr(record, name)
        if name == "refractory" and not value >= 0:
            raise ValueError(f"`{name}` is not negative; got {value!r}.")
        if (name.startswith("tau") or name == "threshold") and not value > 0:
            raise ValueError(f"`{name}` is above 0; got {value!r}.")
        if name in ("layers", "d_model") and value is not None and value < 1:
            raise ValueError(f"`{name}` is a whole number from 1 on; got {value!r}.")
    return record


def normal(key: Any, fan_in: int, fan_out: int, scale: float = 1.0) -> jax.Array:
    """Weights of variance `scale**2 / fan_in`."""
    return scale * jax.random.normal(key, (fan_in, fan_out), jnp.result_type(float)) / math.sqrt(fan_in)


def zeros(*shape: int) -> jax.Array:
    """Zeros of the precision in use."""
    return jnp.zeros(shape, jnp.result_type(float))


def decay_of(tau: Any, dt: float) -> Any:
    """What is left after one step."""
    return jnp.exp(-dt / tau) if isinstance(tau, jax.Array) else math.exp(-dt / tau)


def surrogate_spike(surrogate: str, damping: float, slope: float) -> Callable[[jax.Array], jax.Array]:
    """A spike where its argument is above zero, with the derivative that learning uses in its place.

    Args:
        surrogate: `'triangle'`: `damping * max(0, 1 - |u|)`; `'fast_sigmoid'`: `1 / (1 + slope |u|)^2`.
        damping: The height of the triangle.
        slope: The slope of the fast sigmoid.

    Raises:
        ValueError: No such surrogate.
    """
    derivatives: dict[str, Callable[[jax.Array], jax.Array]] = {
        "triangle": lambda u: damping * jnp.maximum(0.0, 1.0 - jnp.abs(u)),
        "fast_sigmoid": lambda u: 1.0 / (1.0 + slope * jnp.abs(u)) ** 2,
    }
    if surrogate not in derivatives:
        raise ValueError(f"`surrogate` is one of {', '.join(derivatives)}; got {surrogate!r}.")

    @jax.custom_jvp
    def spike(u: jax.Array) -> jax.Array:
        return (u > 0).astype(u.dtype)

    @spike.defjvp
    def _(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
        return spike(primals[0]), derivatives[surrogate](primals[0]) * tangents[0]

    return spike


def suffixes(layers: int) -> list[str]:
    """What stands behind the names of each layer's parameters: nothing for a single layer."""
    return [""] if layers == 1 else [f"_{number}" for number in range(1, layers + 1)]


def one_or_many(layers: list[Any]) -> Any:
    """What all layers have: a list, or for a single layer its own."""
    return layers[0] if len(layers) == 1 else layers


def many(layers: Any) -> list[Any]:
    """The list that `one_or_many` was given."""
    return layers if isinstance(layers, list) else [layers]
