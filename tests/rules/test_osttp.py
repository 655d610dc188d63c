"""OSTTP against itself by hand in NumPy, and what it says of matrices that do not fit."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import lif_networks as nets
from foretrace.engine.plan import make_plan
from foretrace.rules.d_rtrl import D_RTRL
from foretrace.rules.helpers import FixedRandomFeedback
from foretrace.rules.osttp import OSTTP
from zoo import MODELS
from zoo.compiled import compiled

TARGETS = 5
MATRIX = np.random.default_rng(5).normal(size=(TARGETS, nets.HIDDEN))
TARGET = jnp.asarray(np.random.default_rng(6).normal(size=(nets.STEPS, nets.BATCH, TARGETS)))


def agree(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert set(found) == set(wanted)
    for name in wanted:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-10, atol=1e-10, err_msg=name)


def test_it_equals_the_hand_written_one() -> None:
    network = nets.recurrent_lif()
    wanted = nets.numpy_gradient(network, lambda t, asked: np.asarray(TARGET[t]) @ MATRIX)
    agree(nets.outer_gradient(network, OSTTP([MATRIX]), TARGET, block=4), wanted)


def test_blocks_change_nothing() -> None:
    network = nets.recurrent_lif()
    by_steps, *others = (nets.outer_gradient(network, OSTTP([MATRIX]), TARGET, block, steps=7) for block in (1, 3, 7))
    for other in others:
        agree(other, by_steps)


def test_a_group_without_a_matrix_keeps_the_exact_signal() -> None:
    network = nets.recurrent_lif()
    agree(
        nets.outer_gradient(network, OSTTP([None]), TARGET, block=4),
        nets.outer_gradient(network, D_RTRL(), None, block=4),
    )


def test_one_target_serves_a_whole_batch_and_a_matrix_may_be_a_feedback() -> None:
    network = nets.recurrent_lif()
    feedback = FixedRandomFeedback(TARGETS, nets.HIDDEN, key=1)
    same = jnp.broadcast_to(TARGET[:, :1], TARGET.shape)
    agree(
        nets.outer_gradient(network, OSTTP([feedback]), TARGET[:, 0], block=4),
        nets.outer_gradient(network, OSTTP([feedback.value]), same, block=4),
    )


def test_matrices_that_do_not_fit_are_refused_by_name() -> None:
    (model,) = (m for m in MODELS if m.name == "two layers of LIF")
    plan = make_plan(compiled(model)[0])
    with pytest.raises(ValueError, match=r"1 entries for 2 groups .*`v1`.*`v2`"):
        OSTTP([MATRIX]).init(plan)
    with pytest.raises(ValueError, match=r"`B_list\[1\]` has shape \(5, 4\).*`v2` has 5 units"):
        OSTTP([MATRIX, MATRIX]).init(plan)
    with pytest.raises(ValueError, match=r"`B_list\[0\]` is a matrix"):
        OSTTP([MATRIX[0]])
    with pytest.raises(ValueError, match="per-step"):
        OSTTP([MATRIX], target_timing="last")


def test_targets_that_do_not_fit_are_refused_by_name() -> None:
    network = nets.recurrent_lif()
    with pytest.raises(ValueError, match=r"`y_target` has shape \(2, 4\).*`B_list\[0\]`.*`v`.*5 elements"):
        nets.outer_gradient(network, OSTTP([MATRIX]), TARGET[..., :4], block=4)
    with pytest.raises(ValueError, match="fits neither one target nor one for each batch"):
        nets.outer_gradient(network, OSTTP([MATRIX]), jnp.ones((nets.STEPS, 3, TARGETS)), block=4)
    with pytest.raises(ValueError, match="learns from `y_target` and got none"):
        nets.outer_gradient(network, OSTTP([MATRIX]), None, block=4)
