"""The three-factor rule against itself by hand in NumPy, with and without a loss, and the shapes of its modulator."""

from typing import Any

import brainstate
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
import lif_networks as nets
from foretrace.errors import NotSupportedError
from foretrace.rules.three_factor import ThreeFactor

RNG = np.random.default_rng(8)
EACH_STEP = RNG.normal(size=nets.STEPS)
EACH_ELEMENT = RNG.normal(size=(nets.STEPS, nets.BATCH))
EACH_UNIT = RNG.normal(size=(nets.STEPS, nets.HIDDEN))
EVERYWHERE = RNG.normal(size=(nets.STEPS, nets.BATCH, nets.HIDDEN))


def agree(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert set(found) == set(wanted)
    for name in wanted:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-10, atol=1e-10, err_msg=name)


@pytest.mark.parametrize(
    ("given", "placed"),
    [
        (EACH_STEP, EACH_STEP[:, None, None]),
        (EACH_ELEMENT, EACH_ELEMENT[:, :, None]),
        (EACH_UNIT, EACH_UNIT[:, None, :]),
        (EVERYWHERE, EVERYWHERE),
    ],
    ids=["each step", "each element", "each unit", "everywhere"],
)
def test_it_equals_the_hand_written_one(given: np.ndarray, placed: np.ndarray) -> None:
    network = nets.recurrent_lif()
    wanted = nets.numpy_gradient(network, lambda t, asked: placed[t])
    agree(nets.outer_gradient(network, ThreeFactor(), jnp.asarray(given), block=4), wanted)


def test_blocks_change_nothing() -> None:
    network = nets.recurrent_lif()
    by_steps, *others = (
        nets.outer_gradient(network, ThreeFactor(), EACH_ELEMENT, block, steps=7) for block in (1, 3, 7)
    )
    for other in others:
        agree(other, by_steps)


def test_without_a_loss_the_traced_parameters_learn_and_the_readout_rests() -> None:
    network = nets.recurrent_lif()
    with_loss, without = (
        nets.outer_gradient(network, ThreeFactor(), EACH_STEP, block=4, with_loss=given) for given in (True, False)
    )
    agree(without, with_loss | {"w_out": np.zeros_like(with_loss["w_out"])})


def test_a_modulator_in_the_options_serves_steps_that_bring_none() -> None:
    network = nets.recurrent_lif()
    agree(
        nets.outer_gradient(network, ThreeFactor(modulator=0.3), None, block=4),
        nets.outer_gradient(network, ThreeFactor(), jnp.full(nets.STEPS, 0.3), block=4),
    )


def test_a_modulator_that_does_not_fit_is_refused_by_name() -> None:
    network = nets.recurrent_lif()
    with pytest.raises(ValueError, match=r"`modulator` has shape \(3,\).*\(2, 4\).*`v`"):
        nets.outer_gradient(network, ThreeFactor(), jnp.ones((nets.STEPS, 3)), block=4)
    with pytest.raises(ValueError, match="learns from `modulator` and got none"):
        nets.outer_gradient(network, ThreeFactor(), None, block=4)


def test_windows_of_exact_credit_are_refused() -> None:
    step = lambda params, state, x: (0.9 * state + x @ params, state)
    given = dict(params=jnp.ones((3, 3)), state=jnp.zeros(3))
    with pytest.raises(NotSupportedError, match="learns from `modulator`"):
        ft.compile(step, "three_factor", jnp.ones(3), window=2, **given)
    with pytest.raises(NotSupportedError, match="learns from `modulator`"):
        ft.compile(brainstate.nn.GRUCell(3, 4), "three_factor", jnp.ones(3), vjp_method="multi-step")
