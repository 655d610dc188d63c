"""What a task is: trials to draw, a loss for each step, a measure of success, and a picture.

A `Task` is a frozen record of settings whose defaults are those of its publication, so that `Task()` is the published
task and `Task(delay=100.0)` a shorter one. It writes one trial, `trial(key)`; batches, held-out trials and pictures
follow from that. Every trial of a batch has a key of its own, so a trial does not depend on how many others are drawn
with it, and random numbers are drawn in single precision, so it does not depend on JAX's precision either.

**Time comes first, then the batch.** A batch is a `Trial` of `inputs` (T, B, n_in), `targets` (T, B, ...) and `mask`
(T, B). The mask holds, where a step counts, one over the number of counted steps of that trial, and zero elsewhere;
`loss` multiplies by it and divides by the batch. So the *sum* of the losses of all steps is the mean over the batch of
the mean over each trial's counted steps, whatever the lengths.

**Held-out trials** come from `test_trials(batch_size)`, always in whole batches: the last one is filled up with trials
whose mask is zero, and the mask of the others is raised so that the sum of the losses stays their mean. `n_trials` of a
`Trial` says how many count; a mean over batches is weighted with it.
"""

import abc
import dataclasses
import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import jax
import jax.numpy as jnp

from foretrace._records import require_declared
from foretrace._repr import one_line, shape_text
from foretrace.tasks import scores

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Goal = tuple[str, Literal["<", ">"], float]
"""A stop criterion: the name of a measure, on which side of the value it must lie, and the value."""

Span = tuple[str, int, int]
"""A named range: of input channels for a population, of steps for a phase."""

Split = Literal["train", "test"]

# `jax.random.key(seed)` has a first word of zero for every 32-bit seed, so this key is no user's.
HELD_OUT = (0x68656C64, 0x6F757400)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Trial:
    """A batch of trials; time is the first axis, the batch the second.

    Attributes:
        inputs: What enters the network, (T, B, n_in).
        targets: What it should give: class indices (T, B), bits or floats (T, B, n_out).
        mask: Weights of the loss, (T, B): one over the number of counted steps where a step counts, zero elsewhere.

    Examples:
        >>> import jax
        >>> from foretrace.tasks import Adding
        >>> trial = Adding(n_steps=20).sample(jax.random.key(0), 4)
        >>> trial.inputs.shape, trial.targets.shape, trial.mask.shape
        ((20, 4, 2), (20, 4, 1), (20, 4))
    """

    inputs: jax.Array
    targets: jax.Array
    mask: jax.Array

    @one_line
    def __repr__(self) -> Iterator[str]:
        yield f"inputs {shape_text(self.inputs.shape)}"
        yield f"targets {shape_text(self.targets.shape)}"
        yield f"mask {shape_text(self.mask.shape)}"

    @property
    def n_trials(self) -> jax.Array:
        """How many trials of the batch count: those with at least one counted step."""
        return jnp.sum(scores.counted_trials(self.mask))


@dataclass(frozen=True, kw_only=True)
class Task(abc.ABC):
    """The base of all tasks.

    A new task names its sizes and writes `trial`; `loss` and `measure` are those of a decision per trial unless it
    says otherwise.

    Attributes:
        dt: Milliseconds per step.
    """

    name: ClassVar[str]
    kind: ClassVar[Literal["classification", "regression"]] = "classification"
    drawn_as: ClassVar[Literal["spikes", "lines", "image"]] = "spikes"
    timed: ClassVar[bool] = True
    """Whether settings are in milliseconds, and pictures with them."""

    dt: float = 1.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, list):  # a task is a static argument of compiled functions, so it must have a hash
                object.__setattr__(self, field.name, tuple(value))
        require_declared(self, f"`{type(self).__name__}`")
        self.require_above(0, "dt")

    @property
    @abc.abstractmethod
    def n_steps(self) -> int:
        """Steps of a trial."""

    @property
    @abc.abstractmethod
    def n_inputs(self) -> int:
        """Input channels."""

    @property
    @abc.abstractmethod
    def n_outputs(self) -> int:
        """Outputs that the network must have: one per class, bit or target signal."""

    @property
    @abc.abstractmethod
    def n_test(self) -> int:
        """Held-out trials."""

    @property
    def goal(self) -> Goal | None:
        """The published stop criterion, or None where there is none."""
        return None

    @property
    def class_names(self) -> tuple[str, ...]:
        """A word for each class."""
        return tuple(str(index) for index in range(self.n_outputs))

    @property
    def populations(self) -> tuple[Span, ...]:
        """The groups of input channels, in order."""
        return (("inputs", 0, self.n_inputs),)

    @property
    def phases(self) -> tuple[Span, ...]:
        """The parts of a trial that are at the same place in every trial."""
        return ()

    @abc.abstractmethod
    def trial(self, key: jax.Array) -> Trial:
        """One trial for training, without the axis of the batch."""

    @abc.abstractmethod
    def test_trial(self, index: jax.Array) -> Trial:
        """One held-out trial, without the axis of the batch."""

    def sample(self, key: jax.Array, batch_size: int) -> Trial:
        """Draws trials for training.

        Args:
            key: A key of `jax.random`; the same key gives the same trials.
            batch_size: How many; static under `jit`.

        Returns:
            The batch.

        Raises:
            ValueError: A batch of no trials.
        """
        _check_batch(batch_size)
        return _sample(self, key, batch_size)

    def test_trials(self, batch_size: int) -> Iterator[Trial]:
        """Goes through the held-out trials, which are the same for any batch size and in every run.

        Args:
            batch_size: Trials of each batch; the last is filled up with trials whose mask is zero.

        Yields:
            The batches, in order.

        Raises:
            ValueError: A batch of no trials.
        """
        _check_batch(batch_size)
        return (_test_batch(self, start, batch_size, self.n_test) for start in range(0, self.n_test, batch_size))

    def loss(self, output: jax.Array, target: jax.Array, mask: jax.Array) -> jax.Array:
        """The loss of one step of a batch; see the module for how the mask weighs it.

        Args:
            output: The network's outputs, (B, n_outputs).
            target: The step's targets, (B, ...).
            mask: The step's weights, (B,).

        Returns:
            A number.
        """
        return scores.weighted(scores.cross_entropy(output, target), mask)

    def measure(self, outputs: jax.Array, trial: Trial) -> dict[str, jax.Array]:
        """How well a network did on a batch.

        The decision on a trial is the class with the highest softmax, averaged over the steps that count.

        Args:
            outputs: The network's outputs, (T, B, n_outputs).
            trial: The batch.

        Returns:
            Numbers by name, over the trials that count.
        """
        return scores.decisions(outputs, trial.targets, trial.mask)

    def plot(self, key: jax.Array | int = 0, path: str | os.PathLike[str] | None = None) -> "Figure":
        """Draws one trial: the input above, the target and the steps that count beneath. No screen is needed.

        Args:
            key: Which trial: a key of `jax.random`, or a seed.
            path: A file to write, whose ending says the format; None to write none.

        Returns:
            The matplotlib figure.

        Raises:
            ImportError: matplotlib is not installed.
        """
        from foretrace.tasks.picture import draw_trial

        key = jax.random.key(key) if isinstance(key, int) else key
        return draw_trial(self, self.sample(key, 1), path)

    def steps(self, duration: float) -> int:
        """The number of steps of a duration in milliseconds."""
        return round(duration / self.dt)

    def require_above(self, lowest: float, *names: str, inclusive: bool = False) -> None:
        """Refuses settings that are not above a value.

        Raises:
            ValueError: A setting that is not.
        """
        for name in names:
            value = getattr(self, name)
            if not (value >= lowest if inclusive else value > lowest):
                raise ValueError(
                    f"`{type(self).__name__}` has {name}={value!r}; give {'at least' if inclusive else 'more than'} "
                    f"{lowest}."
                )

    def require_duration(self, *names: str) -> None:
        """Refuses durations in milliseconds that are shorter than a step.

        Raises:
            ValueError: A duration that is.
        """
        for name in names:
            value = getattr(self, name)
            if self.steps(value) < 1:
                raise ValueError(
                    f"`{type(self).__name__}` has {name}={value!r} ms, less than a step of {self.dt} ms; give more."
                )

    def require_rate(self, *names: str) -> None:
        """Refuses rates that are negative, or too high for one spike per step.

        Raises:
            ValueError: A rate that is.
        """
        for name in names:
            value, most = getattr(self, name), 1000 / self.dt
            if not 0 <= value <= most:
                raise ValueError(
                    f"`{type(self).__name__}` has {name}={value!r} Hz; give 0 to {most:g}, a spike at every step."
                )


@dataclass(frozen=True, kw_only=True)
class Generated(Task):
    """A task whose trials are made, not stored: there is no end of them.

    Attributes:
        n_test: Held-out trials, made from keys that no training uses.
        dt: As in `Task`.
    """

    n_test: int = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_above(0, "n_test")

    def test_trial(self, index: jax.Array) -> Trial:
        root = jax.random.wrap_key_data(jnp.array(HELD_OUT, jnp.uint32), impl="threefry2x32")
        return self.trial(jax.random.fold_in(root, index))


def even_mask(counted: jax.Array) -> jax.Array:
    """Turns steps that count into weights that add up to one; none where no step counts.

    Args:
        counted: Which steps count, `(T,)`.
    """
    counted = jnp.asarray(counted, float)
    return counted / jnp.maximum(jnp.sum(counted, axis=0), 1)


@functools.partial(jax.jit, static_argnums=(0, 2))
def _sample(task: Task, key: jax.Array, batch_size: int) -> Trial:
    return jax.vmap(task.trial, out_axes=1)(jax.random.split(key, batch_size))


@functools.partial(jax.jit, static_argnums=(0, 2, 3))
def _test_batch(task: Task, start: int, batch_size: int, n_test: int) -> Trial:
    index = start + jnp.arange(batch_size)
    batch = jax.vmap(task.test_trial, out_axes=1)(jnp.minimum(index, n_test - 1))
    real = index < n_test
    return dataclasses.replace(batch, mask=batch.mask * (real * (batch_size / jnp.sum(real))))


def _check_batch(batch_size: int) -> None:
    if batch_size < 1:
        raise ValueError(f"A batch of {batch_size} trials was asked for; give at least 1.")
