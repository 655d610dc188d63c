"""Two classic tests of memory, in steps and not in time: copy a pattern, and add two marked numbers."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from foretrace.tasks import scores
from foretrace.tasks.spikes import toss
from foretrace.tasks.task import Generated, Span, Trial, even_mask


@dataclass(frozen=True, kw_only=True)
class Copy(Generated):
    """Repeat a pattern of random bits after a marker (settings of Zucchet et al. 2023).

    The pattern comes first, then silence, then the marker on a channel of its own, then silence while the network must
    give the pattern again, bit by bit. Each output is the logit of one bit.

    Attributes:
        n_bits: Bits of a step of the pattern.
        pattern: Steps of the pattern.
        delay: Silent steps between pattern and marker; the default makes up the published 48 steps.
        dt: Milliseconds per step.
        n_test: Held-out trials.

    Examples:
        >>> task = Copy()
        >>> task.n_steps, task.n_inputs, task.n_outputs
        (48, 8, 7)
    """

    name = "copy"
    drawn_as = "image"
    timed = False

    n_bits: int = 7
    pattern: int = 20
    delay: int = 7
    n_test: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_above(0, "n_bits", "pattern")
        self.require_above(0, "delay", inclusive=True)

    @property
    def n_steps(self) -> int:
        return 2 * self.pattern + self.delay + 1

    @property
    def n_inputs(self) -> int:
        return self.n_bits + 1

    @property
    def n_outputs(self) -> int:
        return self.n_bits

    @property
    def populations(self) -> tuple[Span, ...]:
        return (("bits", 0, self.n_bits), ("marker", self.n_bits, self.n_bits + 1))

    def trial(self, key: jax.Array) -> Trial:
        bits = toss(key, shape=(self.pattern, self.n_bits))
        inputs = jnp.zeros((self.n_steps, self.n_inputs)).at[: self.pattern, :-1].set(bits)
        return Trial(
            inputs=inputs.at[self.pattern + self.delay, -1].set(1),
            targets=jnp.zeros((self.n_steps, self.n_bits), jnp.int32).at[-self.pattern :].set(bits),
            mask=even_mask(jnp.arange(self.n_steps) >= self.n_steps - self.pattern),
        )

    def loss(self, output: jax.Array, target: jax.Array, mask: jax.Array) -> jax.Array:
        return scores.weighted(scores.bit_cross_entropy(output, target), mask)

    def measure(self, outputs: jax.Array, trial: Trial) -> dict[str, jax.Array]:
        """Accuracy and error per bit, and the part of the sequences without a wrong bit.

        Args:
            outputs: The network's outputs, (T, B, n_bits).
            trial: The batch.

        Returns:
            `accuracy`, `error` and `sequence_accuracy`.
        """
        hits, counted = (outputs > 0) == (trial.targets > 0), (trial.mask > 0)[:, :, None]
        whole = jnp.all(hits | ~counted, axis=(0, 2))
        return {
            **scores.accuracy_and_error(hits, jnp.broadcast_to(counted, hits.shape)),
            "sequence_accuracy": scores.fraction(whole, scores.counted_trials(trial.mask)),
        }


@dataclass(frozen=True, kw_only=True)
class Adding(Generated):
    """Add the two marked ones of many random numbers (Hochreiter & Schmidhuber 1997).

    One channel has random numbers between 0 and 1; the other marks one of them in the first half and one in the second.
    Their sum is asked for at the last step. Whoever always says 1 has a mean squared error of 1/6.

    Attributes:
        n_steps: Steps of a trial.
        dt: Milliseconds per step.
        n_test: Held-out trials.

    Examples:
        >>> task = Adding()
        >>> task.n_steps, task.n_inputs, task.n_outputs
        (200, 2, 1)
    """

    name = "adding"
    kind = "regression"
    drawn_as = "lines"
    timed = False

    n_steps: int = 200
    n_test: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_above(2, "n_steps", inclusive=True)

    @property
    def n_inputs(self) -> int:
        return 2

    @property
    def n_outputs(self) -> int:
        return 1

    @property
    def populations(self) -> tuple[Span, ...]:
        return (("number", 0, 1), ("marker", 1, 2))

    def trial(self, key: jax.Array) -> Trial:
        for_numbers, for_first, for_second = jax.random.split(key, 3)
        numbers = jnp.asarray(jax.random.uniform(for_numbers, (self.n_steps,), jnp.float32), float)
        half = self.n_steps // 2
        first = jax.random.randint(for_first, (), 0, half, jnp.int32)
        second = jax.random.randint(for_second, (), half, self.n_steps, jnp.int32)
        time = jnp.arange(self.n_steps)
        marker = jnp.asarray((time == first) | (time == second), float)
        return Trial(
            inputs=jnp.stack([numbers, marker], axis=-1),
            targets=jnp.full((self.n_steps, 1), numbers @ marker),
            mask=even_mask(time == self.n_steps - 1),
        )

    def loss(self, output: jax.Array, target: jax.Array, mask: jax.Array) -> jax.Array:
        return scores.weighted(scores.squared_error(output, target), mask)

    def measure(self, outputs: jax.Array, trial: Trial) -> dict[str, jax.Array]:
        """The mean squared error of the sum.

        Args:
            outputs: The network's outputs, (T, B, 1).
            trial: The batch.

        Returns:
            `mse`.
        """
        return {"mse": scores.squared_errors(outputs, trial.targets, trial.mask)["mse"]}
