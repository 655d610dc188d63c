"""A task made of one's own arrays: `from_arrays(X, y)`.

Trials come first in the arrays, as in most of Python: `X` is (trials, steps, inputs), `y` a class or a target for each
trial or for each step. Trials of different lengths are given as lists; they are followed by zeros, and steps after
their end do not count.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from foretrace.tasks import scores
from foretrace.tasks.task import Split, Task, Trial, even_mask

Loss = Callable[[jax.Array, jax.Array], jax.Array]


class Trials(NamedTuple):
    """Trials of one length, the shorter ones filled up with zeros.

    Attributes:
        inputs: (trials, steps, inputs).
        targets: (trials, steps) for classes, (trials, steps, outputs) for numbers.
        lengths: How many steps of each trial are its own.
        weights: How much each step counts, (trials, steps); 1 for all without weights of classes.
    """

    inputs: np.ndarray
    targets: np.ndarray
    lengths: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False)
class ArrayTask(Task):
    """A task made of arrays; `from_arrays` makes it.

    Attributes:
        data: The trials to train on, and those held out.
        classes: The labels, in the order of the outputs; none where targets are numbers.
        counted: How many of the last steps of a trial count; all of them for None.
        own_loss: `loss(output, target)` of one step, a number for each trial of the batch; None for cross-entropy of
            classes, and for the squared error of numbers.
        dt: Milliseconds per step.
    """

    name = "arrays"
    timed = False

    data: dict[Split, Trials]
    classes: tuple[Any, ...] = ()
    counted: int | None = None
    own_loss: Loss | None = None

    # By identity: a task is a static argument of compiled functions, and its arrays are in them.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        sizes = f"{len(self.data['train'].inputs)} trials, {self.n_test} held out, {self.n_steps} steps"
        return f"from_arrays({sizes}, {self.n_inputs} inputs, {self.n_outputs} outputs)"

    @property
    def kind(self) -> Literal["classification", "regression"]:  # type: ignore[override]
        """Whether targets are classes."""
        return "classification" if self.classes else "regression"

    @property
    def drawn_as(self) -> Literal["spikes", "lines"]:  # type: ignore[override]
        """As spikes, where all inputs are 0 or 1; else as lines."""
        inputs = self.data["train"].inputs
        return "spikes" if bool(np.all((inputs == 0) | (inputs == 1))) else "lines"

    @property
    def n_steps(self) -> int:
        return int(self.data["train"].inputs.shape[1])

    @property
    def n_inputs(self) -> int:
        return int(self.data["train"].inputs.shape[2])

    @property
    def n_outputs(self) -> int:
        return len(self.classes) or int(self.data["train"].targets.shape[2])

    @property
    def n_test(self) -> int:
        return len(self.data["test"].inputs)

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(map(str, self.classes or range(self.n_outputs)))

    def trial(self, key: jax.Array) -> Trial:
        return self._trial("train", jax.random.randint(key, (), 0, len(self.data["train"].inputs), jnp.int32))

    def test_trial(self, index: jax.Array) -> Trial:
        return self._trial("test", index)

    def _trial(self, split: Split, index: jax.Array) -> Trial:
        inputs, targets, length, weights = (jnp.asarray(part)[index] for part in self.data[split])
        time = jnp.arange(self.n_steps)
        first = 0 if self.counted is None else length - self.counted
        return Trial(
            inputs=jnp.asarray(inputs, float),
            targets=jnp.asarray(targets, jnp.int32 if self.classes else float),
            mask=even_mask((time >= first) & (time < length)) * weights,
        )

    def loss(self, output: jax.Array, target: jax.Array, mask: jax.Array) -> jax.Array:
        usual = scores.cross_entropy if self.classes else scores.squared_error
        return scores.weighted((self.own_loss or usual)(output, target), mask)

    def measure(self, outputs: jax.Array, trial: Trial) -> dict[str, jax.Array]:
        """Accuracy and error of classes, one decision per trial or per step; mean squared errors of numbers.

        Args:
            outputs: The network's outputs, (T, B, n_outputs).
            trial: The batch.

        Returns:
            Numbers by name.
        """
        if not self.classes:
            errors = scores.squared_errors(outputs, trial.targets, trial.mask)
            return {"mse": errors["mse"]} if self._decides_once else errors
        if self._decides_once:
            return scores.decisions(outputs, trial.targets, trial.mask)
        return scores.accuracy_and_error(jnp.argmax(outputs, axis=-1) == trial.targets, trial.mask > 0)

    @property
    def _decides_once(self) -> bool:
        """Whether the target of a trial is the same at all of its steps."""
        return all(bool(np.all(part.targets == part.targets[:, :1])) for part in self.data.values())


def from_arrays(
    X: Any,
    y: Any,
    *,
    test: Any = 0.2,
    lengths: Any = None,
    class_weight: str | Mapping[Any, float] | Sequence[float] | None = None,
    counted: int | None = None,
    loss: Loss | None = None,
    seed: int = 0,
    dt: float = 1.0,
) -> ArrayTask:
    """A task made of one's own data.

    Args:
        X: Inputs, (trials, steps, inputs), or (trials, steps) for one input; or a list of (steps, inputs) for trials of
            different lengths.
        y: Whole numbers, booleans or words are classes: one for each trial (trials,) or for each step (trials, steps).
            Floating numbers are targets: (trials,) or (trials, outputs) for a whole trial, (trials, steps) or
            (trials, steps, outputs) for each step. For trials of different lengths, a list for targets of steps.
        test: What is held out: a share of the trials (of each class), or a pair `(X_test, y_test)`.
        lengths: How many steps of each trial of `X` are its own, where it was filled up already.
        class_weight: How much a step of each class counts in training: `"balanced"`, a dictionary by label, or a
            sequence in the order of the sorted labels. The held-out loss is not weighted.
        counted: How many of the last steps of a trial count; None for all.
        loss: The loss of one step, `loss(output, target)` with a number for each trial of the batch. By default
            cross-entropy for classes, and the squared error for numbers.
        seed: Of the choice of held-out trials.
        dt: Milliseconds per step, for rates and pictures.

    Returns:
        The task, for `train.fit` and everything else that takes one.

    Raises:
        TypeError: Arrays of another kind than numbers or labels.
        ValueError: Arrays whose forms do not go together, or numbers that are not finite.

    Examples:
        >>> import numpy as np
        >>> from foretrace.tasks import from_arrays
        >>> X = np.random.default_rng(0).normal(size=(50, 20, 3))
        >>> from_arrays(X, X.sum((1, 2)) > 0)
        from_arrays(40 trials, 10 held out, 20 steps, 3 inputs, 2 outputs)
    """
    inputs, own = read_inputs("X", X, lengths)
    labels, classes = read_targets("y", y, inputs.shape[:2])
    whole = Trials(inputs, labels, own, np.ones(inputs.shape[:2]))
    if isinstance(test, tuple | list):
        if len(test) != 2:
            raise ValueError(f"`test` is a share of the trials, or a pair (X_test, y_test); got {len(test)} values.")
        inputs_test, own_test = read_inputs("X_test", test[0], None, inputs.shape[1:])
        labels_test, _ = read_targets("y_test", test[1], inputs_test.shape[:2], classes)
        train, held = whole, Trials(inputs_test, labels_test, own_test, np.ones(inputs_test.shape[:2]))
    else:
        chosen = _held_out(test, labels if classes else None, len(inputs), seed)
        train, held = (Trials(*(array[part] for array in whole)) for part in (~chosen, chosen))
    train = train._replace(weights=_weights(class_weight, train.targets, classes))
    return ArrayTask(data={"train": train, "test": held}, classes=classes, counted=counted, own_loss=loss, dt=dt)


def read_inputs(name: str, X: Any, lengths: Any, like: tuple[int, ...] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (trials, steps, inputs) and the lengths of the trials, from what a user gives under a name."""
    ragged = isinstance(X, list | tuple) and len({np.shape(one)[:1] for one in X}) > 1
    if ragged:
        if lengths is not None:
            raise ValueError(f"`{name}` is a list of trials of different lengths: leave out `lengths`.")
        X, lengths = _filled(name, X)
    array = np.asarray(X)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"`{name}` is made of numbers; got {array.dtype}.")
    array = array[..., None] if array.ndim == 2 else array
    if array.ndim != 3 or not array.size:
        raise ValueError(f"`{name}` is (trials, steps, inputs) or (trials, steps); got the shape {np.shape(X)}.")
    if like is not None and array.shape[1] < like[0]:
        array = np.pad(array, [(0, 0), (0, like[0] - array.shape[1]), (0, 0)])
        lengths = np.full(len(array), np.shape(X)[1]) if lengths is None else lengths
    if like is not None and array.shape[1:] != like:
        raise ValueError(f"`{name}` has {array.shape[1:]} steps and inputs, where X has {like}.")
    if not np.isfinite(array).all():
        raise ValueError(f"`{name}` has numbers that are not finite: fill or leave out what is missing.")
    own = np.full(len(array), array.shape[1]) if lengths is None else np.asarray(lengths)
    if own.shape != (len(array),) or own.dtype.kind not in "iu" or own.min() < 1 or own.max() > array.shape[1]:
        raise ValueError(f"`lengths` is a number of steps from 1 to {array.shape[1]} for each of {len(array)} trials.")
    return array, own.astype(np.int32)


def _filled(name: str, rows: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Rows of different lengths as one array, filled up with zeros, and their lengths."""
    arrays = [np.asarray(row) for row in rows]
    if len({array.shape[1:] for array in arrays}) > 1 or min(array.ndim for array in arrays) < 1:
        raise ValueError(f"The trials of `{name}` differ in more than their number of steps.")
    longest = max(len(array) for array in arrays)
    filled = [np.concatenate([a, np.zeros((longest - len(a), *a.shape[1:]), a.dtype)]) for a in arrays]
    return np.stack(filled), np.array([len(array) for array in arrays])


def read_targets(
    name: str, y: Any, shape: tuple[int, ...], known: tuple[Any, ...] = ()
) -> tuple[np.ndarray, tuple[Any, ...]]:
    """Targets for each step, and the labels where they are classes."""
    if isinstance(y, list | tuple) and len({np.shape(row) for row in y}) > 1:
        y, _ = _filled(name, y)
    array, (trials, steps) = np.asarray(y), shape
    if array.ndim < 1 or len(array) != trials:
        raise ValueError(f"`{name}` has the shape {array.shape}, and there are {trials} trials: one row for each.")
    if array.dtype.kind in "iubU":
        if array.ndim > 1 and array.shape == (trials, 1):
            array = array[:, 0]
        if array.shape not in ((trials,), shape):
            raise ValueError(
                f"`{name}` has labels of the shape {array.shape}; give one for each trial, ({trials},), or for each "
                f"step, {shape}. Targets that are numbers are floating: `y.astype(float)`."
            )
        classes = known or tuple(np.unique(array).tolist())
        strange = set(np.unique(array).tolist()) - set(classes)
        if strange:
            raise ValueError(f"`{name}` has labels that y has not: {', '.join(map(repr, sorted(strange)))}.")
        places = np.searchsorted(np.array(classes), array).astype(np.int32)
        return (places if places.ndim == 2 else np.repeat(places[:, None], steps, axis=1)), classes
    if array.dtype.kind != "f":
        raise TypeError(f"`{name}` is made of labels or of floating numbers; got {array.dtype}.")
    if known:
        raise ValueError(f"`{name}` has numbers, and y has labels.")
    if array.ndim == 1 or (array.ndim == 2 and array.shape[1] != steps):
        array = np.repeat(array.reshape(trials, 1, -1), steps, axis=1)
    array = array[..., None] if array.ndim == 2 else array
    if array.ndim != 3 or array.shape[:2] != shape or not np.isfinite(array).all():
        raise ValueError(f"`{name}` is finite, and {(trials, steps, 'outputs')} or less; got the shape {np.shape(y)}.")
    return array, ()


def _held_out(test: Any, labels: np.ndarray | None, trials: int, seed: int) -> np.ndarray:
    """Which trials are held out: a share of each class, by the class of their last step."""
    if not isinstance(test, int | float) or isinstance(test, bool) or not 0 < test < 1:
        raise ValueError(f"`test` is a share of the trials between 0 and 1, or a pair (X_test, y_test); got {test!r}.")
    random, held = np.random.default_rng(seed), np.zeros(trials, bool)
    kinds = np.zeros(trials) if labels is None else labels[:, -1]
    for kind in np.unique(kinds):
        places = np.flatnonzero(kinds == kind)
        held[random.permutation(places)[: round(test * len(places))]] = True
    if held.all() or not held.any():
        raise ValueError(f"`test={test}` leaves no trial on one side, of {trials}: give more trials, or another share.")
    return held


def _weights(chosen: Any, targets: np.ndarray, classes: tuple[Any, ...]) -> np.ndarray:
    """How much each step counts by its class; 1 on average for `"balanced"`."""
    if chosen is None:
        return np.ones(targets.shape[:2])
    if not classes:
        raise ValueError("`class_weight` weighs classes, and y has numbers.")
    if isinstance(chosen, str):
        if chosen != "balanced":
            raise ValueError(f"`class_weight` is 'balanced', a dictionary by label or a sequence; got {chosen!r}.")
        counts = np.bincount(targets.ravel(), minlength=len(classes))
        by_class = targets.size / (len(classes) * np.maximum(counts, 1))
    else:
        given = chosen if isinstance(chosen, Mapping) else dict(zip(classes, chosen, strict=False))
        missing = [label for label in classes if label not in given]
        if missing or len(chosen) != len(classes):
            raise ValueError(
                f"`class_weight` has {len(chosen)} weights for the classes {', '.join(map(str, classes))}."
            )
        by_class = np.array([float(given[label]) for label in classes])
    if not all(math.isfinite(weight) and weight > 0 for weight in by_class):
        raise ValueError(f"`class_weight` has weights that are not above 0: {by_class.tolist()}.")
    return np.asarray(by_class)[targets]
