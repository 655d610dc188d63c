"""Batches from outside: lists, loaders and generators; epochs, the end of the data, and going on after a stop."""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import foretrace as ft
from foretrace import tasks, train

STEPS, TRIALS, UNITS = 5, 4, 3


def batch(seed: int, trials: int = TRIALS) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    X = random.normal(size=(trials, STEPS, 2))
    return X, (X[:, :, 0].sum(1) > 0).astype(int)


BATCHES = [batch(seed) for seed in range(3)]
TEST = batch(9)


@functools.cache
def learner(outputs: int = 2) -> Any:
    def step(params: Any, h: Any, x: Any) -> Any:
        h = 0.9 * h + jnp.tanh(x @ params["w"])
        return h, h @ params["out"]

    random = np.random.default_rng(0)
    params = {
        "w": jnp.asarray(random.normal(size=(2, UNITS))),
        "out": jnp.asarray(random.normal(size=(UNITS, outputs))),
    }
    return ft.compile(step, "D_RTRL", jnp.ones((TRIALS, 2)), params=params, state=jnp.zeros((TRIALS, UNITS)))


def fit(batches: Any, iterations: int = 4, **settings: Any) -> Any:
    own = settings.pop("learner", None) or learner()
    return train.fit(own, batches, optax.sgd(0.1), iterations=iterations, progress=False, **settings)


class Tensor:
    """An array of another library, which NumPy can read."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(self.values, dtype)


class Loader:
    """As data loaders are: each `iter` is a new pass, and the last batch is what is left."""

    def __init__(self) -> None:
        self.passes = 0

    def __iter__(self) -> Iterator[Any]:
        self.passes += 1
        return (tuple(map(Tensor, one)) for one in (*BATCHES[:2], batch(5, trials=2)))


def same(first: Any, second: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, first.params, second.params)


def test_what_can_be_iterated_anew_is_and_an_iterator_ends_the_run() -> None:
    again, once = fit(BATCHES[:2], 5), fit((one for one in (*BATCHES[:2], *BATCHES[:2], BATCHES[0])), 9)
    assert (again.iterations, again.stopped_because) == (5, "iterations")
    assert (once.iterations, once.stopped_because) == (5, "data")
    same(again, once)


def test_a_loader_is_passed_through_again_and_its_last_batch_filled_up() -> None:
    loader = Loader()
    found = fit(loader, 4)
    assert loader.passes == 2
    twice = tuple(np.concatenate([part, part]) for part in batch(5, trials=2))  # the mean is that of the two trials
    wanted = fit([*BATCHES[:2], twice], 4)
    np.testing.assert_allclose(found.metrics[2]["loss"], wanted.metrics[2]["loss"], rtol=1e-12)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-12), found.params, wanted.params)


def test_the_last_iteration_of_an_iterator_is_validated() -> None:
    found = fit(tasks.from_batches(iter(BATCHES), test=TEST), 9, validate_every=50)
    assert found.iterations == 3
    assert 0 <= found.validation["error"] <= 1


@pytest.mark.parametrize("make", [lambda: BATCHES, lambda: iter(BATCHES * 3)], ids=["list", "iterator"])
def test_a_resumed_run_takes_the_batches_that_follow(make: Any, tmp_path: Any) -> None:
    fit(make(), 2, folder=tmp_path)
    resumed, whole = fit(make(), 5, folder=tmp_path, resume=True), fit(make(), 5)
    assert [record["iteration"] for record in resumed.metrics] == [1, 2, 3, 4, 5]
    same(resumed, whole)


def test_a_run_is_not_resumed_with_other_batches(tmp_path: Any) -> None:
    fit(BATCHES, 1, folder=tmp_path)
    with pytest.raises(train.CheckpointError, match="another `task`"):
        fit(BATCHES[::-1], 2, folder=tmp_path, resume=True)


def test_a_run_that_had_all_data_is_over_when_resumed(tmp_path: Any) -> None:
    fit(iter(BATCHES), 9, folder=tmp_path)
    assert fit(iter(BATCHES), 9, folder=tmp_path, resume=True).stopped_because == "data"


def test_there_are_as_many_classes_as_outputs() -> None:
    found = fit([(BATCHES[0][0], np.zeros(TRIALS, int))], 1, learner=learner(3))
    assert found.iterations == 1
    with pytest.raises(ValueError, match="wants \\(4, 7\\)"):
        fit(tasks.from_batches(BATCHES, classes=7), 1)


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "no batch": (lambda: fit([]), ValueError, "empty: give at least one pair"),
    "no pair": (
        lambda: fit(iter([BATCHES[0], BATCHES[1][0]])),
        ValueError,
        "A batch is a pair \\(X, y\\).* of batch 2",
    ),
    "a larger one": (lambda: fit([BATCHES[0], batch(3, 6)]), ValueError, "Batch 2 has 6 trials, more than"),
    "other inputs": (
        lambda: fit([BATCHES[0], (np.ones((4, 5, 7)), BATCHES[1][1])]),
        ValueError,
        "Batch 2 has \\(7,\\)",
    ),
    "numbers among classes": (lambda: fit([BATCHES[0], (BATCHES[1][0], np.ones(4))]), ValueError, "y has labels"),
    "a label too many": (
        lambda: fit([BATCHES[0], (BATCHES[1][0], np.full(4, 2))]),
        ValueError,
        "labels that y has not",
    ),
    "nothing held out": (lambda: fit(BATCHES, validate_every=1), ValueError, "from_batches\\(batches, test="),
    "words": (lambda: fit([(BATCHES[0][0], ["a", "b", "a", "b"])]), ValueError, "`classes=`"),
    "an array alone": (lambda: fit(BATCHES[0][0]), TypeError, "a pair of arrays `\\(X, y\\)`"),
    "a dictionary": (lambda: fit({"X": BATCHES[0][0]}), TypeError, "iterable of batches"),
    "arrays without a size": (lambda: fit(BATCHES[0]), ValueError, "`batch_size="),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_batch_is_refused(name: str) -> None:
    use, error, says = BAD[name]
    with pytest.raises(error, match=says):
        use()


def test_an_iterator_serves_one_run() -> None:
    task = tasks.from_batches(iter(BATCHES))
    fit(task, 1)
    with pytest.raises(ValueError, match="used by another run"):
        fit(task, 1)


def test_batches_beside_classes_of_words_and_what_is_held_out_in_batches() -> None:
    words = [(X, np.where(y, "up", "down")) for X, y in BATCHES]
    task = tasks.from_batches(words, test=words[:2], classes=["down", "up"])
    assert task.class_names == ("down", "up")
    assert task.n_test == 2 * TRIALS
    assert repr(task) == "from_batches(batches of 4 trials, 8 trials held out, 5 steps, 2 inputs, 2 outputs)"
