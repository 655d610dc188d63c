"""Pattern generation: turn frozen noise into a given signal (Bellec et al., Nature Communications 2020, Fig. S7).

Input and target are the same in every trial, for training and for test: the network learns one movement. They belong to
the task, by its `seed`. The input is Poisson noise; the target is a sum of sines that starts at zero and whose largest
absolute value is one.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from foretrace.tasks import scores
from foretrace.tasks.spiking import Spiking
from foretrace.tasks.task import Goal, Trial, even_mask


@dataclass(frozen=True, kw_only=True)
class PatternGeneration(Spiking):
    """Turn frozen noise into a given signal.

    Attributes:
        duration: Of a trial, in ms.
        n_channels: Inputs.
        rate: Of the inputs, in Hz.
        periods: Of the sines, in ms.
        amplitudes: Between which values their amplitudes lie.
        n_signals: Target signals, each with its own amplitudes and phases.
        seed: Of input and target.
        dt: Milliseconds per step.
        n_test: Held-out trials; one, because they are all the same.

    Examples:
        >>> import jax
        >>> task = PatternGeneration()
        >>> task.n_steps, task.n_inputs, task.n_outputs, task.goal
        (1000, 100, 1, ('nmse', '<', 0.05))
        >>> first, second = (task.sample(jax.random.key(seed), 1) for seed in (0, 1))
        >>> bool((first.inputs == second.inputs).all())
        True
    """

    name = "pattern"
    kind = "regression"

    duration: float = 1000.0
    rate: float = 50.0
    periods: tuple[float, ...] = (1000.0, 500.0, 333.0, 200.0)
    amplitudes: tuple[float, float] = (0.5, 2.0)
    n_signals: int = 1
    seed: int = 0
    n_test: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_above(0, "n_signals")
        self.require_duration("duration")
        self.require_rate("rate")
        if not self.periods or min(self.periods) <= 0:
            raise ValueError(f"`PatternGeneration` has periods={self.periods}; give at least one, all above 0.")

    @property
    def n_steps(self) -> int:
        return self.steps(self.duration)

    @property
    def n_outputs(self) -> int:
        return self.n_signals

    @property
    def goal(self) -> Goal:
        return ("nmse", "<", 0.05)

    def trial(self, key: jax.Array) -> Trial:
        for_spikes, for_target = jax.random.split(jax.random.key(self.seed))
        return Trial(
            inputs=self.spikes(for_spikes, jnp.full((self.n_steps, 1), self.rate)),
            targets=self._target(for_target),
            mask=even_mask(jnp.ones(self.n_steps)),
        )

    def _target(self, key: jax.Array) -> jax.Array:
        for_amplitude, for_phase = jax.random.split(key)
        shape = (len(self.periods), self.n_signals)
        low, high = self.amplitudes
        amplitude = jnp.asarray(jax.random.uniform(for_amplitude, shape, jnp.float32, low, high), float)
        phase = jnp.asarray(jax.random.uniform(for_phase, shape, jnp.float32), float)
        turns = jnp.arange(self.n_steps)[:, None] * self.dt / jnp.array(self.periods)
        total = jnp.sum(amplitude * jnp.sin(2 * jnp.pi * (turns[:, :, None] + phase)), axis=1)
        total = total - total[0]
        return total / jnp.max(jnp.abs(total), axis=0)

    def loss(self, output: jax.Array, target: jax.Array, mask: jax.Array) -> jax.Array:
        return scores.weighted(scores.squared_error(output, target), mask)

    def measure(self, outputs: jax.Array, trial: Trial) -> dict[str, jax.Array]:
        """The mean squared error, and that over the variance of the target.

        Args:
            outputs: The network's outputs, (T, B, n_signals).
            trial: The batch.

        Returns:
            `nmse` and `mse`.
        """
        return scores.squared_errors(outputs, trial.targets, trial.mask)
