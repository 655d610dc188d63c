"""Copy and adding, as published."""

import jax
import numpy as np

from foretrace import tasks

COPY, ADDING = tasks.Copy(), tasks.Adding()


def test_copy_layout() -> None:
    trial = COPY.sample(jax.random.key(0), 50)
    inputs, targets, mask = (np.asarray(leaf) for leaf in (trial.inputs, trial.targets, trial.mask))
    assert inputs.shape == (48, 50, 8)
    np.testing.assert_array_equal(targets[28:], inputs[:20, :, :7])
    assert inputs[20:, :, :7].sum() == targets[:28].sum() == 0
    np.testing.assert_array_equal(np.argwhere(inputs[:, 0, 7]), [[27]])
    np.testing.assert_array_equal(inputs[:, :, 7].sum(axis=0), 1)
    np.testing.assert_allclose(mask[28:], 1 / 20)
    assert mask[:28].sum() == 0


def test_copy_bits_are_even() -> None:
    bits = np.asarray(COPY.sample(jax.random.key(1), 50).inputs[:20, :, :7])
    assert abs(bits.mean() - 0.5) < 4 * 0.5 / np.sqrt(bits.size)


def test_copy_measures_bits_and_whole_sequences() -> None:
    trial = COPY.sample(jax.random.key(0), 50)
    outputs = 2.0 * np.asarray(trial.targets) - 1
    outputs[[30, 31], 0, [0, 3]] *= -1
    found = jax.jit(COPY.measure)(outputs, trial)
    np.testing.assert_allclose(found["error"], 2 / (20 * 7 * 50), rtol=1e-12)
    np.testing.assert_allclose(found["sequence_accuracy"], 49 / 50, rtol=1e-12)


def test_copy_loss_of_no_opinion_is_one_bit() -> None:
    bits = np.random.default_rng(0).integers(2, size=(3, 7))
    np.testing.assert_allclose(jax.jit(COPY.loss)(np.zeros((3, 7)), bits, np.ones(3)), np.log(2), rtol=1e-12)


def test_adding_layout() -> None:
    trial = ADDING.sample(jax.random.key(0), 50)
    numbers, marker = np.moveaxis(np.asarray(trial.inputs), -1, 0)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    np.testing.assert_array_equal(marker[:100].sum(axis=0), 1)
    np.testing.assert_array_equal(marker[100:].sum(axis=0), 1)
    np.testing.assert_allclose(trial.targets[-1, :, 0], (numbers * marker).sum(axis=0), rtol=1e-12)
    np.testing.assert_array_equal(trial.mask[:-1], 0)
    np.testing.assert_array_equal(trial.mask[-1], 1)


def test_adding_constant_predictor_has_an_error_of_a_sixth() -> None:
    task = tasks.Adding(n_steps=4)
    trial = task.sample(jax.random.key(0), 4000)
    found = jax.jit(task.measure)(np.ones_like(trial.targets), trial)["mse"]
    # The square of a difference of two uniform numbers has mean 1/6 and variance 1/15 - 1/36.
    assert abs(found - 1 / 6) < 4 * np.sqrt((1 / 15 - 1 / 36) / 4000)
