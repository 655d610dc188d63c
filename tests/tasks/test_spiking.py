"""Spiking tasks as published: timing of a trial, rates of each population, labels."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from foretrace import tasks
from foretrace.tasks import Task, Trial
from foretrace.tasks.spikes import poisson_spikes

BATCH = 24


@functools.cache
def drawn(task: Task, batch: int = BATCH) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    trial = task.sample(jax.random.key(11), batch)
    return np.asarray(trial.inputs), np.asarray(trial.targets), np.asarray(trial.mask)


def population(task: Task, name: str) -> slice:
    (found,) = (slice(start, stop) for label, start, stop in task.populations if label == name)
    return found


def assert_rate(spikes: np.ndarray, rate: float, dt: float = 1.0) -> None:
    """Within four standard errors of a coin thrown as often."""
    chance = rate * dt / 1000
    error = np.sqrt(chance * (1 - chance) / spikes.size)
    assert abs(spikes.mean() - chance) < 4 * error


# Evidence accumulation

EVIDENCE = tasks.EvidenceAccumulation()


@functools.cache
def cue_spikes() -> tuple[np.ndarray, np.ndarray]:
    """Spikes of left and right by cue, side, step after the beginning of the gap, trial and channel."""
    inputs, labels, _ = drawn(EVIDENCE)
    sides = np.stack([inputs[:1050, :, population(EVIDENCE, side)] for side in ("left", "right")], axis=1)
    return sides.reshape(7, 150, 2, BATCH, 10).swapaxes(1, 2), labels[0]


def test_evidence_timing() -> None:
    assert EVIDENCE.n_steps == 7 * 150 + 1200 == 2250
    assert EVIDENCE.phases == (("cues", 0, 1050), ("delay", 1050, 2100), ("recall", 2100, 2250))
    assert [stop - start for _, start, stop in EVIDENCE.populations] == [10, 10, 10, 10]


def test_evidence_cue_is_on_one_side_after_50_ms_of_silence() -> None:
    spikes, _ = cue_spikes()
    assert spikes[:, :, :50].sum() == 0
    shown = spikes.any(axis=(2, 4))
    np.testing.assert_array_equal(shown.sum(axis=1), 1)


def test_evidence_rates() -> None:
    inputs, _, _ = drawn(EVIDENCE)
    spikes, _ = cue_spikes()
    active = spikes.any(axis=(2, 4))
    assert_rate(spikes[:, :, 50:].swapaxes(2, 3)[active], 40)
    assert_rate(inputs[2100:, :, population(EVIDENCE, "recall")], 40)
    assert_rate(inputs[:, :, population(EVIDENCE, "noise")], 10)
    assert inputs[:2100, :, population(EVIDENCE, "recall")].sum() == 0
    assert inputs[1050:, :, :20].sum() == 0


def test_evidence_label_is_the_side_of_most_cues() -> None:
    spikes, labels = cue_spikes()
    right = spikes[:, 1].any(axis=(1, 3)).sum(axis=0)
    np.testing.assert_array_equal(labels, right > 3)


def test_evidence_side_probability_and_balance() -> None:
    task = tasks.EvidenceAccumulation(cue=1.0, gap=0.0, delay=0.0, recall=1.0, n_channels=4, rate=1000.0)
    inputs, labels, _ = drawn(task, 2000)
    right = inputs[:7, :, 1].sum(axis=0)
    assert abs(labels[0].mean() - 0.5) < 4 * 0.5 / np.sqrt(2000)
    # Half of the trials draw each cue with 0.3, half with 0.7: the number of cues on the right is a mixture.
    counts = np.arange(8)
    choose = np.array([1, 7, 21, 35, 35, 21, 7, 1])
    expected = choose * (0.3**counts * 0.7 ** (7 - counts) + 0.7**counts * 0.3 ** (7 - counts)) / 2
    found = np.bincount(right.astype(int), minlength=8) / 2000
    assert np.all(abs(found - expected) < 4 * np.sqrt(expected / 2000))


def test_evidence_counts_the_recall_alone() -> None:
    _, _, mask = drawn(EVIDENCE)
    assert np.count_nonzero(mask[:2100]) == 0
    np.testing.assert_allclose(mask[2100:], 1 / 150)


def test_coarser_steps_keep_the_rate() -> None:
    assert tasks.EvidenceAccumulation(dt=5.0).n_steps == 450
    assert_rate(np.asarray(poisson_spikes(jax.random.key(0), jnp.full((400, 50), 40.0), 5.0)), 40, dt=5.0)


def test_decision_is_the_mean_over_the_recall() -> None:
    targets, mask = np.ones((5, 1), int), np.array([[0, 0, 1, 1, 1]]).T / 3
    # Of the steps that count two lean to the wrong side by little, one to the right side by much.
    lean = np.array([-9.0, -9.0, -0.2, -0.2, 3.0])[:, None]
    outputs = np.stack([-lean, lean], axis=-1)
    assert jax.jit(EVIDENCE.measure)(outputs, Trial(np.zeros((5, 1, 40)), targets, mask))["error"] == 0


# Delayed match to sample

MATCH = tasks.DelayedMatchToSample()


def directions(spikes: np.ndarray) -> np.ndarray:
    """The direction whose channels fired most, from spikes (steps, trials, channels)."""
    angle = 2 * np.pi * np.arange(100) / 100
    return np.rint(np.angle(spikes.sum(axis=0) @ np.exp(1j * angle)) / (2 * np.pi) * 8) % 8


def test_match_timing() -> None:
    assert MATCH.n_steps == 2010
    assert MATCH.phases[1:] == (("sample", 10, 510), ("delay", 510, 1510), ("test", 1510, 2010))
    mask = drawn(MATCH)[2]
    assert np.count_nonzero(mask[:1510]) == 0
    np.testing.assert_allclose(mask[1510:], 1 / 500)


def test_match_tuning_has_von_mises_form() -> None:
    rates = np.asarray(MATCH.tuning(2))
    assert np.argmax(rates) == 25  # a quarter of the circle
    np.testing.assert_allclose(rates[25], 100)
    np.testing.assert_allclose(rates[75], 1 + 99 * np.exp(-6))
    np.testing.assert_allclose(rates[50], 1 + 99 * np.exp(-3))


def test_match_rates() -> None:
    inputs, _, _ = drawn(MATCH)
    assert_rate(inputs[:10], 1)
    assert_rate(inputs[510:1510], 1)
    assert_rate(inputs[10:510], float(np.mean(MATCH.tuning(0))))


def test_match_label_says_whether_directions_are_the_same() -> None:
    inputs, labels, _ = drawn(MATCH)
    same = directions(inputs[10:510]) == directions(inputs[1510:])
    np.testing.assert_array_equal(same, labels[0])


def test_match_directions_and_labels_are_balanced() -> None:
    task = tasks.DelayedMatchToSample(
        fixation=0.0, sample_time=1.0, delay=0.0, test_time=1.0, n_channels=8, kappa=1e4, peak=1000.0, background=0.0
    )
    inputs, labels, _ = drawn(task, 2000)
    sample, test = np.argmax(inputs, axis=-1)
    assert abs(labels[0].mean() - 0.5) < 4 * 0.5 / np.sqrt(2000)
    for shown in (sample, test, (test - sample)[labels[0] == 0] % 8):
        kinds = len(np.unique(shown))
        share = 1 / kinds
        error = np.sqrt(share * (1 - share) / len(shown))
        assert np.all(abs(np.bincount(shown, minlength=8)[8 - kinds :] / len(shown) - share) < 4 * error)
    assert np.all((test == sample) == labels[0])


# Store and recall

STORE = tasks.StoreRecall()
# One step per symbol, each population sure to fire: a trial is its table of symbols.
SYMBOLS = tasks.StoreRecall(symbol=1.0, n_channels=4, rate=1000.0)


def delays(store: np.ndarray, recall: np.ndarray) -> list[int]:
    """Symbols from each store to its recall, all trials together."""
    found = []
    for trial in range(store.shape[1]):
        begins, ends = np.flatnonzero(store[:, trial]), np.flatnonzero(recall[:, trial])
        assert len(begins) == len(ends) >= 1
        assert np.all(ends - begins >= 2)
        assert np.all(begins[1:] > ends[:-1])
        found += list(ends - begins)
    return found


def commands_by_trial() -> Any:
    """Every series of stores and recalls that 12 symbols can have, with its probability."""
    for count in range(2, 13, 2):
        for places in itertools.combinations(range(12), count):
            waits = [second - first for first, second in zip(places[::2], places[1::2], strict=True)]
            if min(waits) >= 2:
                yield waits, (1 / 6) ** count * (5 / 6) ** (12 - count)


def test_store_recall_sizes() -> None:
    assert (STORE.n_steps, STORE.n_inputs) == (2400, 100)
    assert [stop - start for _, start, stop in STORE.populations] == [25, 25, 25, 25]


def test_store_recall_shows_one_bit_or_the_recall() -> None:
    inputs, _, mask = drawn(SYMBOLS, 2000)
    np.testing.assert_array_equal(inputs[..., 0] + inputs[..., 1] + inputs[..., 3], 1)
    np.testing.assert_array_equal(mask > 0, inputs[..., 3] > 0)


def test_store_recall_target_is_the_bit_stored_last() -> None:
    inputs, targets, mask = drawn(SYMBOLS, 2000)
    bits, store = inputs[..., 1], inputs[..., 2]
    for trial in range(2000):
        kept = None
        for step in range(12):
            kept = bits[step, trial] if store[step, trial] else kept
            assert mask[step, trial] == 0 or targets[step, trial] == kept


def test_store_recall_delay_is_that_of_geometric_waiting_in_a_whole_trial() -> None:
    table = list(commands_by_trial())
    total = sum(weight for _, weight in table)
    mean_recalls = sum(weight * len(waits) for waits, weight in table) / total
    mean_delay = sum(weight * sum(waits) for waits, weight in table) / total / mean_recalls
    inputs, _, _ = drawn(SYMBOLS, 2000)
    found = np.array(delays(inputs[..., 2], inputs[..., 3]))
    assert abs(found.mean() - mean_delay) < 4 * found.std() / np.sqrt(len(found))
    assert abs(len(found) / 2000 - mean_recalls) < 4 * np.sqrt(mean_recalls / 2000)


def test_store_recall_bits_are_even_and_rates_as_published() -> None:
    inputs, targets, mask = drawn(STORE)
    by_symbol = inputs.reshape(12, 200, BATCH, 4, 25)
    active = by_symbol.any(axis=(1, 4))
    assert_rate(np.moveaxis(by_symbol, 1, 3)[active], 50)
    labels = targets[mask > 0]
    assert 0.3 < labels.mean() < 0.7
    assert set(np.unique(np.count_nonzero(mask, axis=0)) % 200) == {0}


def test_store_recall_error_is_per_recall() -> None:
    trial = Trial(*drawn(SYMBOLS, 2000))
    first = np.argmax(trial.mask > 0, axis=0)
    right = 5.0 * (2.0 * trial.targets - 1)
    right[first, np.arange(2000)] *= -1  # the first recall of every trial is wrong
    outputs = np.stack([-right, right], axis=-1)
    recalls = np.count_nonzero(trial.mask)
    np.testing.assert_allclose(jax.jit(SYMBOLS.measure)(outputs, trial)["error"], 2000 / recalls, rtol=1e-12)


# Pattern generation

PATTERN = tasks.PatternGeneration()


def test_pattern_is_frozen_and_belongs_to_the_seed() -> None:
    inputs, targets, _ = drawn(PATTERN, 2)
    np.testing.assert_array_equal(inputs[:, 0], inputs[:, 1])
    np.testing.assert_array_equal(targets[:, 0], targets[:, 1])
    other = drawn(tasks.PatternGeneration(seed=1), 2)
    assert not np.array_equal(inputs, other[0])
    assert not np.allclose(targets, other[1])


def test_pattern_rate_and_steps() -> None:
    inputs, _, mask = drawn(PATTERN, 2)
    assert inputs.shape == (1000, 2, 100)
    assert_rate(inputs[:, 0], 50)
    np.testing.assert_allclose(mask, 1 / 1000)


def test_pattern_target_starts_at_zero_and_reaches_one() -> None:
    _, targets, _ = drawn(PATTERN, 2)
    assert targets[0, 0, 0] == 0
    np.testing.assert_allclose(np.abs(targets).max(), 1, rtol=1e-12)


def test_pattern_target_is_a_sum_of_four_sines() -> None:
    _, targets, _ = drawn(PATTERN, 2)
    turns = 2 * np.pi * np.arange(1000)[:, None] / np.array([1000, 500, 333, 200])
    waves = np.concatenate([np.sin(turns), np.cos(turns), np.ones((1000, 1))], axis=1)
    weights, left, *_ = np.linalg.lstsq(waves, targets[:, 0, 0], rcond=None)
    assert left[0] < 1e-20
    amplitudes = np.hypot(weights[:4], weights[4:8])
    assert amplitudes.max() / amplitudes.min() < 4  # drawn between 0.5 and 2


def test_pattern_error_is_normalised_by_the_variance() -> None:
    trial = Trial(*drawn(PATTERN, 2))
    mean = np.full_like(trial.targets, np.mean(trial.targets))
    found = jax.jit(PATTERN.measure)(mean, trial)
    np.testing.assert_allclose(found["nmse"], 1, rtol=1e-12)
    np.testing.assert_allclose(found["mse"], np.var(trial.targets), rtol=1e-12)


@pytest.mark.parametrize("task", [EVIDENCE, STORE, MATCH, PATTERN])
def test_inputs_are_spikes(task: Task) -> None:
    inputs = drawn(task, 2 if task is PATTERN else BATCH)[0]
    assert np.all((inputs == 0) | (inputs == 1))
