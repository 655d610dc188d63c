"""Low-rank RTRL: D-RTRL at rank 0, RTRL at full rank, and a bound on the error that holds in between."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from foretrace.rules.d_rtrl import D_RTRL
from foretrace.rules.low_rank import LowRank
from whole import (
    agree,
    block_gradients,
    case,
    credited,
    gradients_of_two,
    signalled,
    small_rnn,
    whole_gradient,
)

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
ALL = 10_000


@pytest.mark.parametrize("name", SOME)
def test_rank_zero_is_d_rtrl(name: str) -> None:
    agree(whole_gradient(case(name), LowRank(0)), whole_gradient(case(name), D_RTRL()))


@pytest.mark.parametrize("name", SOME)
def test_full_rank_equals_bptt(name: str) -> None:
    agree(whole_gradient(case(name), LowRank(ALL, every=2)), case(name).whole, 1e-8)
