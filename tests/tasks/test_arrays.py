"""Tasks made of arrays: forms of data, held-out trials, weights, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import foretrace as ft
from foretrace import tasks, train
from foretrace.tasks import as_task, from_arrays

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(40, 6, 3))
LABELS = (X.sum((1, 2)) > 0).astype(int)


def counted(task, key=0, batch=8):
    return np.asarray(task.sample(jax.random.key(key), batch).mask)


def test_trials_are_those_of_the_arrays():
    task = from_arrays(X, LABELS)
    batch = task.sample(jax.random.key(0), 16)
    rows = {X[i].tobytes(): LABELS[i] for i in range(len(X))}
    for k in range(16):
        assert rows[np.asarray(batch.inputs[:, k]).tobytes()] == np.asarray(batch.targets)[0, k]
    assert (task.n_steps, task.n_inputs, task.n_outputs, task.n_test) == (6, 3, 2, 8)
    assert np.allclose(batch.mask.sum(0), 1)


def test_held_out_trials_are_no_training_trials_and_stay_the_same():
    task, again = from_arrays(X, LABELS), from_arrays(X, LABELS)
    held = np.concatenate([np.asarray(t.inputs) for t in task.test_trials(8)], axis=1)
    drawn = np.asarray(task.sample(jax.random.key(1), 200).inputs)
    assert not {h.tobytes() for h in held.swapaxes(0, 1)} & {d.tobytes() for d in drawn.swapaxes(0, 1)}
    assert np.array_equal(held, np.concatenate([np.asarray(t.inputs) for t in again.test_trials(8)], axis=1))


def test_two_tasks_of_equal_form_are_two_tasks():
    one, other = from_arrays(X, LABELS), from_arrays(X + 1, LABELS)
    key = jax.random.key(0)
    assert one != other
    assert np.allclose(one.sample(key, 4).inputs + 1, other.sample(key, 4).inputs)


@pytest.mark.parametrize(
    ("y", "kind", "outputs", "shape"),
    [
        (np.array(["no", "yes"])[LABELS], "classification", 2, ()),
        (LABELS.astype(bool), "classification", 2, ()),
        (LABELS[:, None] + np.zeros((1, 6), int), "classification", 2, ()),
        (X[:, 0, 0], "regression", 1, (1,)),
        (X[:, :2, 0], "regression", 2, (2,)),
        (X[:, :, 0], "regression", 1, (1,)),
        (X[:, :, :2], "regression", 2, (2,)),
    ],
)
def test_forms_of_targets(y, kind, outputs, shape):
    task = from_arrays(X, y)
    assert (task.kind, task.n_outputs) == (kind, outputs)
    batch = task.sample(jax.random.key(0), 4)
    assert batch.targets.shape == (6, 4, *shape)
    assert np.isfinite(task.loss(jnp.zeros((4, outputs)), batch.targets[0], batch.mask[0]))


def test_words_name_the_classes():
    assert from_arrays(X, np.array(["left", "right"])[LABELS]).class_names == ("left", "right")


def test_trials_of_different_lengths_count_their_own_steps_alone():
    lengths = RANDOM.integers(2, 7, 40)
    task = from_arrays([x[:n] for x, n in zip(X, lengths, strict=True)], LABELS)
    same = from_arrays(np.where(np.arange(6)[:, None] < lengths[:, None, None], X, 0), LABELS, lengths=lengths)
    for one in (task, same):
        batch = one.sample(jax.random.key(0), 16)
        steps = (np.asarray(batch.mask) > 0).sum(0)
        assert np.array_equal(steps, (np.abs(batch.inputs).sum(-1) > 0).sum(0))
    assert (counted(from_arrays(X, LABELS, counted=2)) > 0).sum(0).tolist() == [2] * 8


def test_balanced_weights_make_classes_count_the_same():
    labels = (np.arange(40) < 8).astype(int)
    task = from_arrays(X, labels, class_weight="balanced")
    data = task.data["train"]
    by_class = [data.weights[data.targets == label].sum() for label in (0, 1)]
    assert by_class[0] == pytest.approx(by_class[1])
    assert data.weights.mean() == pytest.approx(1)
    assert np.all(task.data["test"].weights == 1)
    given = from_arrays(X, labels, class_weight={0: 1.0, 1: 3.0}).data["train"]
    assert np.array_equal(np.unique(given.weights[given.targets == 1]), [3.0])


def test_loss_of_ones_own():
    task = from_arrays(X, X[:, :, :1], loss=lambda out, y: jnp.abs(out - y)[:, 0])
    batch = task.sample(jax.random.key(0), 4)
    found = task.loss(jnp.zeros((4, 1)), batch.targets[0], batch.mask[0])
    assert found == pytest.approx(float(jnp.mean(jnp.abs(batch.targets[0, :, 0]) / 6)))


@pytest.mark.parametrize(
    ("X", "y", "options", "error", "word"),
    [
        (X, LABELS[:5], {}, ValueError, "40 trials"),
        (X[0, 0], LABELS, {}, ValueError, r"\(trials, steps, inputs\)"),
        (X.astype(str), LABELS, {}, TypeError, "numbers"),
        (np.where(X > 2, np.nan, X), LABELS, {}, ValueError, "finite"),
        (X, np.zeros((40, 2), int), {}, ValueError, "astype"),
        (X, LABELS + 1j, {}, TypeError, "labels or of floating"),
        (X, LABELS, {"test": 1.5}, ValueError, "share"),
        (X, LABELS, {"test": (X,)}, ValueError, "pair"),
        (X, LABELS, {"test": (X, LABELS + 5)}, ValueError, "labels that y has not"),
        (X, LABELS, {"test": (X[:, :, :2], LABELS)}, ValueError, "X_test"),
        (X, LABELS, {"lengths": np.full(40, 9)}, ValueError, "from 1 to 6"),
        (X, LABELS, {"class_weight": "even"}, ValueError, "balanced"),
        (X, LABELS, {"class_weight": [1.0]}, ValueError, "2|classes"),
        (X, X[:, 0, 0], {"class_weight": "balanced"}, ValueError, "weighs classes"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(X, y, options, error, word):
    with pytest.raises(error, match=word):
        from_arrays(X, y, **options)


def test_a_task_is_a_name_a_pair_or_a_task():
    assert isinstance(as_task("adding"), tasks.Adding)
    assert as_task((X, LABELS)).n_outputs == 2
    task = from_arrays(X, LABELS)
    assert as_task(task) is task
    for wrong in (3, tasks.Adding, (X,)):
        with pytest.raises(TypeError, match="pair of arrays"):
            as_task(wrong)


def test_fit_takes_the_arrays_and_learns():
    def step(params, h, x):
        h = 0.9 * h + x @ params["w"]
        return h, h @ params["out"]

    params = {"w": 0.3 * jnp.ones((3, 4)), "out": 0.1 * jax.random.normal(jax.random.key(0), (4, 2))}
    learner = ft.compile(step, "D_RTRL", jnp.zeros((8, 3)), params=params, state=jnp.zeros((8, 4)))
    options = dict(iterations=40, batch_size=8, validate_every=40, progress=False)
    result = train.fit(learner, (X, LABELS), optax.adam(3e-2), **options)
    assert result.validation["error"] < 0.3


def test_spikes_are_drawn_as_spikes() -> None:
    spikes = np.random.default_rng(0).random((10, 8, 3)) < 0.3
    assert from_arrays(spikes.astype(float), spikes.any((1, 2))).drawn_as == "spikes"
    assert from_arrays(0.5 * spikes, np.arange(10.0)).drawn_as == "lines"
