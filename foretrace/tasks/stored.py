"""Tasks made of a finite set of examples, in two parts: one to train on, one held out.

`sample` draws from the training part, with replacement; `test_trials` goes through the held-out part in order. Where a
publication has parts of its own they are kept; elsewhere a fifth of each class is held out, the same in every run. The
examples are held as they were stored and become inputs one batch at a time. Lengths may differ: a short example is
followed by zeros, and steps after its end do not count.
"""

import abc
import functools
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from foretrace.tasks.task import Split, Task, Trial, even_mask

HELD_OUT_PART = 0.2


class Examples(NamedTuple):
    """Examples as they were stored.

    Attributes:
        values: One row of numbers per example, of any form.
        labels: Its class.
        lengths: Its number of steps.
    """

    values: np.ndarray
    labels: np.ndarray
    lengths: np.ndarray


Parts = dict[Split, Examples]


@dataclass(frozen=True, kw_only=True)
class Stored(Task):
    """A classification task made of a finite set of examples.

    Attributes:
        counted: How many of the last steps of an example count; all of them for None.
        dt: Milliseconds per step.
    """

    timed = False

    counted: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.counted is not None:
            self.require_above(0, "counted")

    @property
    def n_test(self) -> int:
        return len(self.load()["test"].labels)

    @property
    def n_train(self) -> int:
        """Examples to train on."""
        return len(self.load()["train"].labels)

    @abc.abstractmethod
    def load(self) -> Parts:
        """Both parts of the data."""

    @abc.abstractmethod
    def encode(self, values: jax.Array) -> jax.Array:
        """Turns the stored numbers of one example into inputs, (T, n_in)."""

    def trial(self, key: jax.Array) -> Trial:
        return self._example("train", jax.random.randint(key, (), 0, self.n_train, jnp.int32))

    def test_trial(self, index: jax.Array) -> Trial:
        return self._example("test", index)

    def examples(self, split: Split = "train") -> Trial:
        """All examples of a part, in their order, as one batch.

        Args:
            split: `train` or `test`.

        Returns:
            The batch.

        Raises:
            ValueError: Another word.

        Examples:
            >>> from foretrace.tasks import Randman
            >>> task = Randman(n_classes=2, n_units=3, n_samples=10, n_frequencies=5)
            >>> task.examples("train").inputs.shape, task.examples("test").inputs.shape
            ((50, 16, 3), (50, 4, 3))
        """
        parts = self.load()
        if split not in parts:
            raise ValueError(f"`{type(self).__name__}` has no part {split!r}; there are {', '.join(parts)}.")
        return _all_examples(self, split)

    def _example(self, split: Split, index: jax.Array) -> Trial:
        values, labels, lengths = (jnp.asarray(item)[index] for item in self.load()[split])
        time = jnp.arange(self.n_steps)
        first = 0 if self.counted is None else lengths - self.counted
        return Trial(
            inputs=self.encode(values),
            targets=jnp.full(self.n_steps, jnp.asarray(labels, jnp.int32)),
            mask=even_mask((time >= first) & (time < lengths)),
        )


@functools.partial(jax.jit, static_argnums=(0, 1))
def _all_examples(task: Stored, split: Split) -> Trial:
    count = len(task.load()[split].labels)
    return jax.vmap(functools.partial(task._example, split), out_axes=1)(jnp.arange(count))


def hold_out(values: np.ndarray, labels: np.ndarray, n_steps: int) -> Parts:
    """Splits examples of one length into parts, a fifth of each class held out: always the same ones.

    Args:
        values: One row per example.
        labels: Its class.
        n_steps: The length of all of them.

    Returns:
        The parts, with the examples in their order.
    """
    random = np.random.default_rng(0)
    held = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        places = np.flatnonzero(labels == label)
        held[random.permutation(places)[: round(HELD_OUT_PART * len(places))]] = True
    lengths = np.full(len(labels), n_steps, np.int32)
    return {
        "train": Examples(values[~held], labels[~held], lengths[~held]),
        "test": Examples(values[held], labels[held], lengths[held]),
    }
