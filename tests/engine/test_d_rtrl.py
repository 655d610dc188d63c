"""D-RTRL against the dense oracle: every model of the table, in blocks of every size."""

from typing import Any

import jax
import numpy as np
import pytest

from foretrace.rules.d_rtrl import D_RTRL
from online import online_gradient, walked_gradient
from zoo.solved import BY_NAME, QUICK, STEPS, loss, solved, solved_names

RAGGED = 3  # two blocks of 3 and a shorter one
SOME = [
    "recurrent LIF",
    "marked LSTM, fused gates",
    "marked conv LIF layer",
    "marked sparse recurrent weights",
    "marked embedding",
    "delay line that feeds a neuron",
    "projection broadcast over a second axis",
    "LIF that keeps its current",
    "projected LSTM",
    "a residual stack of three, the last one recurrent",
    "inner scan of 40 recurrent sub-steps, the matmul inside",
]


def agree(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected, strict=True):
        scale = max(1.0, float(np.max(np.abs(other), initial=0.0)))
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-10, atol=1e-10 * scale)


def quick(name: str, block: int) -> bool:
    """Blocks with a shorter one at the end for every other model; single steps and one whole block for some."""
    return (block == RAGGED and name in QUICK) or name in SOME


@pytest.mark.parametrize(
    ("name", "block"),
    [
        pytest.param(
            name, block, marks=[pytest.mark.xdist_group(name), *([] if quick(name, block) else [pytest.mark.slow])]
        )
        for name in BY_NAME
        for block in (1, RAGGED, STEPS)
    ],
)
def test_equals_the_oracle_in_blocks_of_any_size(name: str, block: int) -> None:
    model = solved(name)
    agree(walked_gradient(model.graph, D_RTRL(), loss, *model.values, block=block), model.online)


@pytest.mark.parametrize("name", solved_names(SOME))
def test_no_gradient_is_zero_that_is_not_zero_in_bptt(name: str) -> None:
    model = solved(name)
    missing = [
        parameter.name
        for parameter in model.graph.parameters
        if not np.any(model.online[parameter.index]) and np.any(model.whole[parameter.index])
    ]
    assert not missing


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.xdist_group(name), *([] if name in SOME else [pytest.mark.slow])])
        for name in BY_NAME
    ],
)
def test_one_step_equals_bptt(name: str) -> None:
    model = solved(name)
    params, hidden, other, inputs = model.values
    agree(walked_gradient(model.graph, D_RTRL(), loss, params, hidden, other, inputs[:1], block=1), model.first)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in SOME[::2]])
def test_a_loop_over_blocks_gives_the_same(name: str) -> None:
    model = solved(name)
    agree(online_gradient(model.graph, D_RTRL(), loss, *model.values, block=3), model.online)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in SOME[1::2]])
def test_vmap_over_parameters_and_states(name: str) -> None:
    model = solved(name)
    params, hidden, other, inputs = model.values
    scaled = [jax.numpy.stack([p, 0.9 * p]) for p in params]

    def gradient(params: Any) -> Any:
        return online_gradient(model.graph, D_RTRL(), loss, params, hidden, other, inputs, block=4)

    found = jax.vmap(gradient)(scaled)
    agree([g[0] for g in found], model.online)
    alone = walked_gradient(model.graph, D_RTRL(), loss, [p[1] for p in scaled], hidden, other, inputs, block=RAGGED)
    agree([g[1] for g in found], alone)
