"""A task made of batches that come one after another: a list of them, a data loader, a generator.

Each batch is a pair `(X, y)`, trials first, as `from_arrays` takes whole data: `X` is (trials, steps, inputs). A third
value, if there is one, says how many steps of each trial are its own.

What can be iterated anew (a list, a data loader) is begun again whenever it ends: one pass is an epoch. An iterator (a
generator, an open file) gives every batch once, and the run ends with it. Nothing is remembered of a source beside how
many batches were taken: a run that is resumed takes that many, unused, from the beginning.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from foretrace.tasks.arrays import ArrayTask, Loss, Trials, read_inputs, read_targets
from foretrace.tasks.task import Trial, even_mask


@dataclass
class Source:
    """Where batches come from, and the first of them, which was looked at.

    Attributes:
        batches: What the user gave.
        first: The first batch.
        rest: The iterator that it was taken from, until a run takes it over.
        once: Whether it gives every batch once: it is an iterator.
    """

    batches: Iterable[Any]
    first: Any
    rest: Iterator[Any] | None
    once: bool

    def taken(self) -> Iterator[Any]:
        """The batches, pass after pass.

        Raises:
            ValueError: An iterator that another run has taken, or a pass without a batch.
        """
        rest, self.rest = self.rest, None
        if rest is None and self.once:
            raise ValueError(
                f"The {type(self.batches).__name__} of batches was used by another run, and gives each of them once. "
                "Give something that can be iterated anew, such as a list or a data loader, or a new one."
            )
        if rest is not None:
            yield self.first
            yield from rest
        while not self.once:
            count = 0
            for batch in self.batches:
                yield batch
                count += 1
            if not count:
                raise ValueError(f"The {type(self.batches).__name__} of batches gave none when it was begun anew.")


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchTask(ArrayTask):
    """A task made of batches; `from_batches` makes it.

    Attributes:
        data: The first batch, as what to train on, and what is held out.
        classes: As in `ArrayTask`, and so the next three.
        counted: The steps that count.
        own_loss: The loss of one step.
        dt: Milliseconds per step.
        source: Where the batches come from.
        labels_known: Whether it was said which classes there are.
        held: What is held out, as it was given.
    """

    name = "batches"
    source: Source = field(repr=False)
    labels_known: bool = False
    held: Any = field(default=None, repr=False)

    def __repr__(self) -> str:
        held = f"{self.n_test} trials held out" if self.n_test else "nothing held out"
        sizes = f"batches of {self.batch_size} trials, {held}, {self.n_steps} steps"
        return f"from_batches({sizes}, {self.n_inputs} inputs, {self.n_outputs} outputs)"

    @property
    def batch_size(self) -> int:
        """Trials of the first batch."""
        return len(self.data["train"].inputs)

    def for_outputs(self, outputs: int | None) -> "BatchTask":
        """The task of a network with so many outputs: where nobody said how many classes there are, as many."""
        if self.labels_known or not self.classes or outputs is None:
            return self
        classes = tuple(range(outputs))
        return dataclasses.replace(self, classes=classes, data=_data(self.source.first, self.held, classes))

    def sample(self, key: jax.Array, batch_size: int) -> Trial:
        """The first batch, whatever the key: what a batch is like. A run takes its batches by `feed`."""
        return self._batch(self.data["train"], batch_size)

    def feed(self, batch_size: int, skip: int = 0) -> Iterator[Trial]:
        """The batches of a run, in order.

        Args:
            batch_size: Trials of a batch. A smaller one is filled up with trials whose mask is zero.
            skip: How many are taken and not used, because a run goes on after them.

        Raises:
            ValueError: A batch that is no pair `(X, y)`, is too large, or does not fit the first one.
        """
        for number, batch in enumerate(self.source.taken()):
            if number < skip:
                continue
            trials = _trials(batch, self.classes, f"of batch {number + 1}")
            if len(trials.inputs) > batch_size:
                raise ValueError(
                    f"Batch {number + 1} has {len(trials.inputs)} trials, more than `batch_size={batch_size}`."
                )
            own, first = (part.inputs.shape[2:] + part.targets.shape[2:] for part in (trials, self.data["train"]))
            if own != first:
                raise ValueError(f"Batch {number + 1} has {own} inputs and targets, where the first has {first}.")
            yield self._batch(trials, batch_size)

    def _batch(self, trials: Trials, batch_size: int) -> Trial:
        """Trials as a batch, time first; those that are missing have a mask of zero, and the others count for them."""
        count = min(len(trials.inputs), batch_size)
        fill = lambda a: np.concatenate([a[:count], np.zeros((batch_size - count, *a.shape[1:]), a.dtype)])
        inputs, targets, lengths, _ = map(fill, trials)
        time = np.arange(inputs.shape[1])[:, None]
        first = 0 if self.counted is None else lengths - self.counted
        mask = even_mask(jnp.asarray((time >= first) & (time < lengths))) * (batch_size / count)
        return Trial(
            jnp.asarray(inputs.swapaxes(0, 1), float),
            jnp.asarray(targets.swapaxes(0, 1), jnp.int32 if self.classes else float),
            mask,
        )


def from_batches(
    batches: Iterable[Any],
    *,
    test: Any = None,
    classes: Any = None,
    counted: int | None = None,
    loss: Loss | None = None,
    dt: float = 1.0,
) -> BatchTask:
    """A task made of batches that come one after another. Its first batch is looked at when it is made.

    Args:
        batches: An iterable of pairs `(X, y)`, or of `(X, y, lengths)`: a list, a data loader, a generator. Trials come
            first in `X` and `y`, which are as for `from_arrays`.
        test: What is held out: a pair `(X_test, y_test)`, or a finite iterable of batches; None for nothing.
        classes: How many classes there are, or their labels in the order of the outputs. Without it, whole numbers in
            `y` are classes from 0 on, and `train.fit` takes as many as the network has outputs.
        counted: How many of the last steps of a trial count; None for all.
        loss: The loss of one step, as for `from_arrays`.
        dt: Milliseconds per step.

    Returns:
        The task, for `train.fit`. Something that can be iterated anew is begun again when it ends; an iterator gives
        every batch once, and a run ends with it.

    Raises:
        TypeError: Not an iterable.
        ValueError: No batch, or one that is no pair of arrays that go together.

    Examples:
        >>> import numpy as np
        >>> from foretrace.tasks import from_batches
        >>> random = np.random.default_rng(0)
        >>> batches = [(random.normal(size=(8, 20, 3)), random.integers(0, 2, 8)) for _ in range(5)]
        >>> from_batches(batches)
        from_batches(batches of 8 trials, nothing held out, 20 steps, 3 inputs, 2 outputs)
    """
    if not isinstance(batches, Iterable):
        raise TypeError(f"`batches` is an iterable of pairs (X, y); got {type(batches).__name__}.")
    rest = iter(batches)
    try:
        first = next(rest)
    except StopIteration:
        raise ValueError(f"The {type(batches).__name__} of batches is empty: give at least one pair (X, y).") from None
    held = _held(test)
    labels = _classes(classes, *(batch for batch in (first, held) if batch is not None))
    return BatchTask(
        data=_data(first, held, labels),
        classes=labels,
        counted=counted,
        own_loss=loss,
        dt=dt,
        source=Source(batches, first, rest, once=rest is batches),
        labels_known=classes is not None,
        held=held,
    )


def _data(first: Any, held: Any, classes: tuple[Any, ...]) -> dict[Any, Trials]:
    """The first batch, and what is held out: no trials, if nothing is."""
    train = _trials(first, classes, "of the first batch")
    if held is None:
        return {"train": train, "test": Trials(*(array[:0] for array in train))}
    return {"train": train, "test": _trials(held, classes, "of `test`", train.inputs.shape[1:])}


def _trials(batch: Any, classes: tuple[Any, ...], whose: str, like: tuple[int, ...] | None = None) -> Trials:
    """The trials of a batch as it was given."""
    if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
        found = f"{len(batch)} values" if isinstance(batch, tuple | list) else type(batch).__name__
        raise ValueError(f"A batch is a pair (X, y), or (X, y, lengths); that {whose} is {found}.")
    inputs, lengths = read_inputs(f"X {whose}", batch[0], batch[2] if len(batch) == 3 else None, like)
    targets, _ = read_targets(f"y {whose}", batch[1], inputs.shape[:2], classes)
    return Trials(inputs, targets, lengths, np.ones(inputs.shape[:2]))


def _held(test: Any) -> Any:
    """What is held out as one batch; the batches of an iterable side by side."""
    if test is None or (isinstance(test, tuple) and len(test) == 2):
        return test
    parts = list(test)
    return tuple(np.concatenate([np.asarray(part[k]) for part in parts]) for k in range(len(parts[0])))


def _classes(classes: Any, *batches: Any) -> tuple[Any, ...]:
    """The labels in the order of the outputs: those that were given, or 0 to the largest in the batches; or none."""
    if classes is not None:
        return tuple(range(classes)) if isinstance(classes, int) else tuple(classes)
    labels = np.concatenate([np.asarray(batch[1]).ravel() for batch in batches])
    if labels.dtype.kind == "U":
        raise ValueError("The labels are words: say which there are, in the order of the outputs, with `classes=`.")
    return tuple(range(int(labels.max()) + 1)) if labels.dtype.kind in "iub" and labels.size else ()
