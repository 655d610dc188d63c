"""RTRL against BPTT: the whole gradient, whatever the model."""

import brainunit
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from foretrace.errors import NotSupportedError
from foretrace.rules import whole_step
from foretrace.rules.rtrl import RTRL
from whole import (
    Case,
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
    assert [v.shape for v in RTRL().init(small_rnn().plan).values] == [(1, 2, 3, 3 + 2 * 3 + 3 * 3)]


def test_units_that_never_meet_keep_their_own_parameters_alone() -> None:
    def step(params, h, x):
        h = jnp.tanh(params["leak"] * h + x @ params["w"])
        return h, h

    params = {"leak": jnp.array([0.5, -0.3, 0.8]), "w": jnp.ones((2, 3))}
    model = case_of(step, params, jnp.ones((4, 3)), jnp.ones((5, 4, 2)))
    assert RTRL().kept(model.plan) == 4 * 3 * (1 + 2)
    agree(whole_gradient(model, RTRL()), model.whole)


def test_a_sparse_recurrence_takes_sparse_products_alone() -> None:
    model = sparse_rnn(60, 4)
    (shelf,) = RTRL().init(model.plan).tables.shelves
    assert shelf.shape == (1, 1, 60, 60 * 4 + 60)
    assert shelf.sources.shape[-1] < 60 // 2
    agree(whole_gradient(model, RTRL()), model.whole)


@pytest.mark.slow
def test_a_sparse_recurrence_of_a_thousand_units_equals_bptt() -> None:
    model = sparse_rnn(1000, 10)
    agree(whole_gradient(model, RTRL()), model.whole, 1e-8)


def sparse_rnn(size: int, degree: int) -> Case:
    """Units of which each is driven by a few others, drawn at random, and by an input of its own."""
    rng = np.random.default_rng(3)
    sources = np.concatenate([rng.choice(size, degree, replace=False) for _ in range(size)])
    targets = np.repeat(np.arange(size), degree)
    matrix = brainunit.sparse.COO((jnp.ones(len(sources)), sources, targets), shape=(size, size))

    def step(params, h, x):
        h = jnp.tanh(params["gain"] * x + ft.sparse_matmul(h, params["w"], sparse_mat=matrix))
        return h, h

    scale = 1 / np.sqrt(degree)
    params = {"gain": jnp.asarray(rng.normal(size=size)), "w": jnp.asarray(scale * rng.normal(size=len(sources)))}
    return case_of(step, params, jnp.asarray(rng.normal(size=size)), jnp.asarray(rng.normal(size=(4, size))))


def test_single_precision_stays_single() -> None:
    model = small_rnn(jnp.float32)
    found = whole_gradient(model, RTRL())
    assert {g.dtype for g in found} == {np.dtype(np.float32)}
    agree(found, model.whole, 1e-5)


def test_refuses_past_the_limit_with_the_numbers() -> None:
    plan = small_rnn().plan
    assert [v.nbytes for v in RTRL(memory_limit=18 * 6 * 8).init(plan).values] == [864]
    with pytest.raises(NotSupportedError, match=r"108 derivatives.* 6 hidden.*864 bytes.*863 bytes.*SnAp"):
        RTRL(memory_limit=863).init(plan)
