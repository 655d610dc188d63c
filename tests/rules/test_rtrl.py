"""RTRL against BPTT: the whole gradient, whatever the model."""

import jax.numpy as jnp
import numpy as np
import pytest

from foretrace.errors import NotSupportedError
from foretrace.rules import whole_step
from foretrace.rules.rtrl import RTRL
from whole import (
    agree,
    block_gradients,
    case,
    case_of,
    credited,
    gradients_of_two,
    signalled,
    small_rnn,
    whole_gradient,
)
from zoo.solved import BY_NAME

SOME = [
    "vanilla RNN",
    "GRU, reset before the matmul",
    "LSTM, fused gates and a tuple of states",
    "two leaky layers",
    "recurrent ALIF, adapting within the step",
    "recurrent LIF with delayed spikes",
    "conv LIF layer, strided in two dimensions, with a recurrent kernel",
    "permuted state of a recurrent network",
    "weight normalisation",
    "dropout with a key in the state",
]


@pytest.mark.parametrize("name", SOME)
def test_equals_bptt(name: str) -> None:
    agree(whole_gradient(case(name), RTRL()), case(name).whole, 1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_NAME)
def test_equals_bptt_on_every_model(name: str) -> None:
    agree(whole_gradient(case(name), RTRL()), case(name).whole, 1e-8)


def test_blocks_change_nothing() -> None:
    model = small_rnn()
    for found in block_gradients(model, RTRL(), [1, 3]):
        agree(found, model.whole)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_step, "CHUNK_VALUES", 40)
    model = small_rnn(steps=3)  # another one than elsewhere, so that it is compiled here
    agree(whole_gradient(model, RTRL()), model.whole)


def test_credit_is_what_later_losses_ask_of_the_past() -> None:
    model = small_rnn()
    agree(credited(model, RTRL()), signalled(model))


def test_maps_over_parameter_sets() -> None:
    agree(*gradients_of_two(small_rnn(), RTRL()))


def test_complex_parameters_have_the_gradient_of_bptt() -> None:
    def step(params, h, x):
        rotated = jnp.exp(1j * params["w"]) * (h[0] + 1j * h[1]) + x
        new = jnp.stack([rotated.real, rotated.imag])
        return new, jnp.tanh(new)

    w = jnp.array([0.3 + 0.2j, -0.5 + 0.1j])
    model = case_of(step, {"w": w}, jnp.ones((2, 2)), jnp.ones((3, 2)))
    agree(whole_gradient(model, RTRL()), model.whole)


def test_a_readout_takes_no_memory() -> None:
    assert RTRL().init(small_rnn().plan).jacobian.shape == (3 + 2 * 3 + 3 * 3, 2 * 3)


def test_single_precision_stays_single() -> None:
    model = small_rnn(jnp.float32)
    found = whole_gradient(model, RTRL())
    assert {g.dtype for g in found} == {np.dtype(np.float32)}
    agree(found, model.whole, 1e-5)


def test_refuses_past_the_limit_with_the_numbers() -> None:
    plan = small_rnn().plan
    assert RTRL(memory_limit=18 * 6 * 8).init(plan).jacobian.nbytes == 864
    with pytest.raises(NotSupportedError, match=r"6 hidden.* 18 parameter.*864 bytes.*863 bytes.*SnAp"):
        RTRL(memory_limit=863).init(plan)
