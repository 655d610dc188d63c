"""Evidence accumulation: on which side were more cues? (Bellec et al., Nature Communications 2020, Fig. 3).

A mouse runs along a track and sees cues to the left and to the right; after a delay it must turn to the side that had
more of them. Each cue is a burst of spikes of one population of inputs. The question comes more than a second after the
last cue, as a burst of a third population; a fourth fires throughout and says nothing.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from foretrace.tasks.spikes import toss
from foretrace.tasks.spiking import Spiking
from foretrace.tasks.task import Goal, Span, Trial, even_mask

SIDES = ("left", "right")


@dataclass(frozen=True, kw_only=True)
class EvidenceAccumulation(Spiking):
    """Left or right: where were more cues?

    Attributes:
        n_cues: Cues of a trial, an odd number.
        cue: Duration of a cue, in ms.
        gap: Silence before each cue, in ms.
        delay: From the last cue to the recall, in ms.
        recall: Duration of the recall, in ms: the steps that count.
        n_channels: Inputs, a fourth for each of left, right, recall and noise.
        rate: Of an active population, in Hz.
        noise_rate: Of the noise, in Hz.
        minority: Probability that a cue is on the side that is less likely in a trial.
        dt: Milliseconds per step.
        n_test: Held-out trials.

    Examples:
        >>> import jax
        >>> task = EvidenceAccumulation()
        >>> task.n_steps, task.n_inputs, task.n_outputs, task.goal
        (2250, 40, 2, ('error', '<', 0.07))
        >>> EvidenceAccumulation(n_cues=3, delay=100.0).sample(jax.random.key(0), 8).inputs.shape
        (700, 8, 40)
    """

    name = "evidence"
    population_names = (*SIDES, "recall", "noise")

    n_cues: int = 7
    cue: float = 100.0
    gap: float = 50.0
    delay: float = 1050.0
    recall: float = 150.0
    n_channels: int = 40
    rate: float = 40.0
    noise_rate: float = 10.0
    minority: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_above(0, "n_cues")
        self.require_above(0, "gap", "delay", inclusive=True)
        self.require_duration("cue", "recall")
        self.require_rate("rate", "noise_rate")
        if self.n_cues % 2 == 0:
            raise ValueError(f"`EvidenceAccumulation` has n_cues={self.n_cues}; give an odd number, so one side wins.")
        if not 0 <= self.minority <= 1:
            raise ValueError(f"`EvidenceAccumulation` has minority={self.minority}; give a probability, 0 to 1.")

    @property
    def n_steps(self) -> int:
        return self.phases[-1][2]

    @property
    def n_outputs(self) -> int:
        return len(SIDES)

    @property
    def goal(self) -> Goal:
        return ("error", "<", 0.07)

    @property
    def class_names(self) -> tuple[str, ...]:
        return SIDES

    @property
    def phases(self) -> tuple[Span, ...]:
        one_cue = (self.steps(self.gap) + self.steps(self.cue)) * self.dt  # each is a whole number of steps
        return self.in_turn({"cues": self.n_cues * one_cue, "delay": self.delay, "recall": self.recall})

    def trial(self, key: jax.Array) -> Trial:
        for_side, for_cues, for_spikes = jax.random.split(key, 3)
        side = toss(for_side)
        likely = toss(for_cues, 1 - self.minority, (self.n_cues,))
        right = jnp.where(side, likely, ~likely)
        label = jnp.asarray(2 * jnp.sum(right) > self.n_cues, jnp.int32)
        return Trial(
            inputs=self.spikes(for_spikes, self._rates(right)),
            targets=jnp.full(self.n_steps, label),
            mask=even_mask(jnp.arange(self.n_steps) >= self.phases[-1][1]),
        )

    def _rates(self, right: jax.Array) -> jax.Array:
        """The rate of each population at each step, for cues that are on the right or not."""
        shown = np.arange(self.steps(self.gap) + self.steps(self.cue)) >= self.steps(self.gap)
        cues = jnp.reshape(jnp.stack([~right, right], axis=-1)[:, None] & shown[:, None], (-1, len(SIDES)))
        time = jnp.arange(self.n_steps)
        return jnp.concatenate(
            [
                self.rate * jnp.pad(cues, ((0, self.n_steps - len(cues)), (0, 0))),
                jnp.where(time >= self.phases[-1][1], self.rate, 0)[:, None],
                jnp.full((self.n_steps, 1), self.noise_rate),
            ],
            axis=1,
        )
