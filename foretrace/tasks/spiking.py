"""What tasks with spiking inputs share: channels in populations of one size, phases in milliseconds, Poisson spikes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from foretrace.tasks.spikes import poisson_spikes
from foretrace.tasks.task import Generated, Span


@dataclass(frozen=True, kw_only=True)
class Spiking(Generated):
    """A task whose inputs are spikes of populations of one size.

    Attributes:
        n_channels: Inputs, shared out evenly among the populations.
    """

    population_names: ClassVar[tuple[str, ...]] = ("inputs",)

    n_channels: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        populations = len(self.population_names)
        if self.n_channels < 1 or self.n_channels % populations:
            raise ValueError(
                f"`{type(self).__name__}` has n_channels={self.n_channels!r}; give a multiple of {populations}: "
                f"as many for each of {', '.join(self.population_names)}."
            )

    @property
    def n_inputs(self) -> int:
        return self.n_channels

    @property
    def populations(self) -> tuple[Span, ...]:
        size = self.n_channels // len(self.population_names)
        return tuple((name, place * size, (place + 1) * size) for place, name in enumerate(self.population_names))

    def spikes(self, key: jax.Array, rates: jax.Array) -> jax.Array:
        """Draws spikes (T, n_channels) from the rates of each population (T, populations), in Hz."""
        size = self.n_channels // len(self.population_names)
        return poisson_spikes(key, jnp.repeat(rates, size, axis=1), self.dt)

    def in_turn(self, durations: Mapping[str, float]) -> tuple[Span, ...]:
        """Phases one after the other, from their durations in ms."""
        spans: list[Span] = []
        for name, duration in durations.items():
            start = spans[-1][2] if spans else 0
            spans.append((name, start, start + self.steps(duration)))
        return tuple(spans)
