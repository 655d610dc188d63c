"""Delayed match to sample: was the second direction the first one? (Settings of Wang et al. 2026.)

Inputs are tuned to directions of movement. A sample direction is shown, then nothing for a second, then a test
direction, which in half of the trials is the sample again and in the others any of the rest. While the test is shown
the network says whether they match.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from foretrace.tasks.spikes import poisson_spikes, toss
from foretrace.tasks.spiking import Spiking
from foretrace.tasks.task import Goal, Span, Trial, even_mask


@dataclass(frozen=True, kw_only=True)
class DelayedMatchToSample(Spiking):
    """Match or not, over a delay.

    Attributes:
        fixation: Before the sample, in ms.
        sample_time: Duration of the sample, in ms.
        delay: From sample to test, in ms.
        test_time: Duration of the test, in ms: the steps that count.
        n_directions: Directions, evenly around the circle.
        n_channels: Inputs; their preferred directions are even around the circle too.
        kappa: Sharpness of the tuning, of von Mises' form.
        peak: Rate at the preferred direction, in Hz.
        background: Rate far from it and while nothing is shown, in Hz.
        dt: Milliseconds per step.
        n_test: Held-out trials.

    Examples:
        >>> task = DelayedMatchToSample()
        >>> task.n_steps, task.n_inputs, task.n_outputs, task.goal
        (2010, 100, 2, ('accuracy', '>', 0.95))
    """

    name = "dms"
    population_names = ("preferred direction, 0–360°",)

    fixation: float = 10.0
    sample_time: float = 500.0
    delay: float = 1000.0
    test_time: float = 500.0
    n_directions: int = 8
    kappa: float = 3.0
    peak: float = 100.0
    background: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_above(0, "kappa")
        self.require_above(0, "fixation", "delay", inclusive=True)
        self.require_duration("sample_time", "test_time")
        self.require_rate("peak", "background")
        self.require_above(2, "n_directions", inclusive=True)

    @property
    def n_steps(self) -> int:
        return self.phases[-1][2]

    @property
    def n_outputs(self) -> int:
        return len(self.class_names)

    @property
    def goal(self) -> Goal:
        return ("accuracy", ">", 0.95)

    @property
    def class_names(self) -> tuple[str, ...]:
        return ("no match", "match")

    @property
    def phases(self) -> tuple[Span, ...]:
        return self.in_turn(
            {"": self.fixation, "sample": self.sample_time, "delay": self.delay, "test": self.test_time}
        )

    def tuning(self, direction: jax.Array | int) -> jax.Array:
        """The rate of each channel while a direction (0 to `n_directions` - 1) is shown, in Hz."""
        away = 2 * jnp.pi * (direction / self.n_directions - jnp.arange(self.n_channels) / self.n_channels)
        return self.background + (self.peak - self.background) * jnp.exp(self.kappa * (jnp.cos(away) - 1))

    def trial(self, key: jax.Array) -> Trial:
        for_match, for_sample, for_test, for_spikes = jax.random.split(key, 4)
        match = toss(for_match)
        sample = jax.random.randint(for_sample, (), 0, self.n_directions, jnp.int32)
        other = sample + jax.random.randint(for_test, (), 1, self.n_directions, jnp.int32)
        test = jnp.where(match, sample, other % self.n_directions)
        rates = jnp.full((self.n_steps, self.n_channels), self.background)
        _, shown, _, asked = (slice(start, stop) for _, start, stop in self.phases)
        rates = rates.at[shown].set(self.tuning(sample)).at[asked].set(self.tuning(test))
        return Trial(
            inputs=poisson_spikes(for_spikes, rates, self.dt),
            targets=jnp.full(self.n_steps, jnp.asarray(match, jnp.int32)),
            mask=even_mask(jnp.arange(self.n_steps) >= asked.start),
        )
