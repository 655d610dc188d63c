"""What holds for every task: shapes, seeds, batches, masks, losses, measures and pictures."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from foretrace import tasks
from foretrace.tasks import Task, Trial
from foretrace.tasks.picture import draw_trial
from tasks.short_tasks import SHORT

BATCH = 120
every_task = pytest.mark.parametrize("task", SHORT.values(), ids=SHORT)


def quick_for(names: str) -> pytest.MarkDecorator:
    """Every task, of which only some are tried in the quick tests: each draw in another form is a compilation."""
    quick = names.split()
    params = [pytest.param(task, marks=() if name in quick else pytest.mark.slow) for name, task in SHORT.items()]
    return pytest.mark.parametrize("task", params, ids=SHORT)


some_held_out = quick_for("pattern copy adding randman digits vowels")


@functools.cache
def drawn(task: Task, seed: int = 0, batch: int = BATCH) -> Trial:
    return task.sample(jax.random.key(seed), batch)


@functools.cache
def held_out(task: Task) -> list[Trial]:
    return list(task.test_trials(BATCH))


def equal(first: Trial, second: Trial) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True))


def perfect(task: Task, trial: Trial) -> Any:
    if task.kind == "regression":
        return trial.targets
    if trial.targets.ndim == 2:
        return 100.0 * jax.nn.one_hot(trial.targets, task.n_outputs)
    return 100.0 * (2 * trial.targets - 1)


@functools.partial(jax.jit, static_argnums=0)
def evaluated(task: Task, outputs: Any, trial: Trial) -> Any:
    return jax.vmap(task.loss)(outputs, trial.targets, trial.mask), task.measure(outputs, trial)


def step_losses(task: Task, outputs: Any, trial: Trial) -> np.ndarray:
    return np.asarray(evaluated(task, outputs, trial)[0])


def summed_loss(task: Task, outputs: Any, trial: Trial) -> float:
    return float(np.sum(step_losses(task, outputs, trial)))


def measured(task: Task, outputs: Any, trial: Trial) -> dict[str, float]:
    return {name: float(value) for name, value in evaluated(task, outputs, trial)[1].items()}


def random_outputs(task: Task, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(task.n_steps, BATCH, task.n_outputs))


@every_task
def test_shapes_and_dtypes(task: Task) -> None:
    trial = drawn(task)
    assert trial.inputs.shape == (task.n_steps, BATCH, task.n_inputs)
    assert trial.mask.shape == (task.n_steps, BATCH)
    assert trial.targets.shape[:2] == (task.n_steps, BATCH)
    assert trial.targets.shape[2:] in ((), (task.n_outputs,))
    integer = task.kind == "classification"
    assert jnp.issubdtype(trial.targets.dtype, jnp.integer if integer else jnp.floating)
    assert trial.inputs.dtype == trial.mask.dtype == jnp.float64


@every_task
def test_published_classes_are_within_the_outputs(task: Task) -> None:
    trial = drawn(task)
    if trial.targets.ndim == 2:
        assert set(np.unique(trial.targets)) == set(range(task.n_outputs))
        assert len(task.class_names) == task.n_outputs


@every_task
def test_one_key_gives_one_batch(task: Task) -> None:
    assert equal(drawn(task), dataclasses.replace(task).sample(jax.random.key(0), BATCH))
    if not isinstance(task, tasks.PatternGeneration):
        assert not equal(drawn(task), drawn(task, seed=1))


@quick_for("")
def test_jit_draws_what_is_drawn_without(task: Task) -> None:
    compiled = jax.jit(task.sample, static_argnums=1)(jax.random.key(0), 3)
    with jax.disable_jit():
        eager = task.sample(jax.random.key(0), 3)
    for a, b in zip(jax.tree.leaves(compiled), jax.tree.leaves(eager), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-14)


@quick_for("store-recall pattern vowels")
def test_trial_depends_neither_on_the_batch_nor_on_precision(task: Task) -> None:
    with jax.enable_x64(False):
        single = drawn(task, batch=3)
    assert single.inputs.dtype == jnp.float32
    for few, many in zip(jax.tree.leaves(single), jax.tree.leaves(drawn(task)), strict=True):
        np.testing.assert_allclose(few, many[:, :3], atol=1e-5)  # sines in single precision


@every_task
def test_mask_of_a_trial_is_even_and_adds_up_to_one(task: Task) -> None:
    mask = np.asarray(drawn(task).mask)
    np.testing.assert_allclose(np.sum(mask, axis=0), 1, rtol=1e-12)
    np.testing.assert_allclose(mask * np.sum(mask > 0, axis=0), mask > 0, atol=1e-12)


@every_task
def test_losses_add_up_to_the_mean_over_trials_of_the_mean_over_steps(task: Task) -> None:
    trial, outputs = drawn(task), random_outputs(task, 1)
    means = []
    for place in range(4):
        only = np.zeros_like(trial.mask)
        only[:, place] = BATCH * (trial.mask[:, place] > 0)
        losses = step_losses(task, outputs, dataclasses.replace(trial, mask=only))
        means.append(np.sum(losses) / np.count_nonzero(only))
    rest = dataclasses.replace(trial, mask=np.where(np.arange(BATCH) < 4, trial.mask, 0))
    np.testing.assert_allclose(summed_loss(task, outputs, rest), np.sum(means) / BATCH, rtol=1e-12)


@every_task
def test_loss_of_an_output_of_zero(task: Task) -> None:
    trial = drawn(task)
    found = summed_loss(task, np.zeros((task.n_steps, BATCH, task.n_outputs)), trial)
    if task.kind == "regression":
        expected = np.mean(np.asarray(trial.targets)[np.asarray(trial.mask) > 0] ** 2)
    else:
        expected = np.log(2 if trial.targets.ndim == 3 else task.n_outputs)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@every_task
def test_perfect_output_has_no_error(task: Task) -> None:
    trial = drawn(task)
    outputs = perfect(task, trial)
    for name, value in measured(task, outputs, trial).items():
        assert value == (1 if "accuracy" in name else 0), name
    assert summed_loss(task, outputs, trial) < 1e-12


@every_task
def test_error_outside_the_mask_is_not_seen(task: Task) -> None:
    trial = drawn(task)
    outputs = np.asarray(perfect(task, trial))
    spoilt = np.where(trial.mask[:, :, None] > 0, outputs, 7 - outputs)
    assert measured(task, spoilt, trial) == measured(task, outputs, trial)
    assert summed_loss(task, spoilt, trial) == summed_loss(task, outputs, trial)


@pytest.mark.parametrize("name", [name for name, task in SHORT.items() if task.kind == "classification"])
def test_random_output_is_right_by_chance(name: str) -> None:
    task = SHORT[name]
    trial = drawn(task)
    chance = 0.5 if trial.targets.ndim == 3 else 1 / task.n_outputs
    error = np.sqrt(chance * (1 - chance) / BATCH)
    found = measured(task, random_outputs(task, 5), trial)
    assert abs(found["accuracy"] - chance) < 4 * error
    np.testing.assert_allclose(found["error"], 1 - found["accuracy"], rtol=1e-12)


@every_task
def test_goal_names_a_measure(task: Task) -> None:
    if task.goal is not None:
        name, side, _ = task.goal
        assert name in measured(task, random_outputs(task, 0), drawn(task))
        assert side in "<>"


@some_held_out
def test_held_out_trials_come_in_whole_batches_and_count_once(task: Task) -> None:
    batches = held_out(task)
    assert {batch.inputs.shape for batch in batches} == {(task.n_steps, BATCH, task.n_inputs)}
    assert sum(int(batch.n_trials) for batch in batches) == task.n_test
    left = task.n_test - BATCH * (len(batches) - 1)
    np.testing.assert_array_equal(batches[-1].mask[:, left:], 0)


@some_held_out
def test_filled_up_trials_change_neither_loss_nor_measure(task: Task) -> None:
    last, outputs = held_out(task)[-1], random_outputs(task, 2)
    count = int(last.n_trials)
    assert count < BATCH
    np.testing.assert_allclose(np.sum(last.mask) / BATCH, 1, rtol=1e-12)  # the loss is the mean over those that count
    other = np.where(np.arange(BATCH)[:, None] < count, outputs, -outputs)
    assert summed_loss(task, outputs, last) == summed_loss(task, other, last)
    assert measured(task, outputs, last) == measured(task, other, last)


@pytest.mark.parametrize("name", ["adding", "digits"])
def test_held_out_trials_do_not_depend_on_the_batch(name: str) -> None:
    task = SHORT[name]
    np.testing.assert_array_equal(next(task.test_trials(2)).inputs, held_out(task)[0].inputs[:, :2])


@every_task
def test_picture_names_inputs_target_and_counted_steps(task: Task) -> None:
    above, beneath = draw_trial(task, drawn(task)).axes
    words = {text.get_text() for text in above.get_yticklabels()} | {above.get_ylabel()}
    assert {name for name, _, _ in task.populations} <= words
    assert beneath.get_ylabel() == "target"
    assert beneath.get_xlabel() == ("time (ms)" if task.timed else "step")
    assert [text.get_text() for text in beneath.get_legend().get_texts()] == ["steps that count"]
    assert {name for name, _, _ in task.phases} <= {text.get_text() for text in above.texts}


def test_picture_is_written(tmp_path: Path) -> None:
    SHORT["digits"].plot(3, tmp_path / "trial.png")
    assert (tmp_path / "trial.png").read_bytes().startswith(b"\x89PNG")


def test_training_keys_give_no_held_out_trial() -> None:
    task = SHORT["adding"]
    (held,) = held_out(task)
    rows = {row.tobytes() for row in np.asarray(held.inputs[:, : task.n_test, 0]).T}
    seen = {row.tobytes() for seed in range(20) for row in np.asarray(drawn(task, seed).inputs[:, :, 0]).T}
    assert len(rows) == task.n_test
    assert not rows & seen


@pytest.mark.parametrize("call", [lambda task: task.sample(jax.random.key(0), 0), lambda task: task.test_trials(0)])
def test_batch_of_none_is_refused(call: Any) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        call(SHORT["adding"])


def test_picture_without_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"foretrace\[viz\]"):
        SHORT["adding"].plot()
