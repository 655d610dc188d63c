"""The benchmarks time what they say: every form of a rule gives the same gradient of the same model."""

import jax
import numpy as np
import pytest

import cases
import models


@pytest.fixture(scope="module")
def setting():
    return cases.Setting("GRU", units=4, batch=2, steps=3)


@pytest.fixture(scope="module")
def by_sequence(setting):
    grads, losses = cases.make("foretrace", "D_RTRL/sequence", setting)()
    return grads, losses


def test_plain_scan_has_the_losses_of_the_learner(setting, by_sequence):
    _, (losses, _) = cases.make("foretrace", "forward", setting)()
    np.testing.assert_allclose(losses, by_sequence[1], rtol=1e-5)


def test_step_form_gives_the_gradient_of_the_sequence_form(setting, by_sequence):
    grads, _, _ = cases.make("foretrace", "D_RTRL/step", setting)()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), grads, by_sequence[0])


def test_module_gives_the_gradient_of_the_function(setting, by_sequence):
    grads, _ = cases.make("foretrace", "D_RTRL/module", setting)()
    for name, expected in by_sequence[0].items():
        np.testing.assert_allclose(grads[(name,)], expected, rtol=1e-4, atol=1e-5)


def test_bptt_has_the_exact_readout_gradient_of_the_rule(setting, by_sequence):
    _, grads = cases.make("foretrace", "BPTT", setting)()
    np.testing.assert_allclose(grads["w_readout"], by_sequence[0]["w_readout"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", models.MODELS)
def test_steps_keep_the_form_of_the_state(name):
    network = models.Network(models.plain, models.MODELS[name], inputs=3, units=4, outputs=2)
    state = network.state(5)
    after, out = jax.eval_shape(network.step, network.params(), state, np.ones((5, 3), np.float32))
    assert jax.tree.map(np.shape, after) == jax.tree.map(np.shape, state)
    assert out.shape == (5, 2)
