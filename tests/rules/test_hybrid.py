"""Hybrid: each parameter by the rule whose trace is smaller."""

from typing import Any

import jax.numpy as jnp
import pytest

import foretrace as ft
from foretrace.engine.plan import make_plan
from foretrace.rules.hybrid import Hybrid, choose
from recursions import NETWORKS, assert_same, blocks_of, in_factors, per_parameter

CASES = [*blocks_of("recurrent LIF"), pytest.param("vanilla RNN", 3, marks=pytest.mark.slow)]


@pytest.mark.parametrize(("name", "block"), CASES)
def test_a_bias_is_by_d_rtrl_and_a_matrix_by_pp_prop(name: str, block: int) -> None:
    network = NETWORKS[name]()
    wanted = in_factors(network, 0.5, 0.9) | per_parameter(network, lambda step: step.D, names=["b"])
    assert_same(network.gradient(Hybrid((0.5, 0.9)), block), wanted)


@pytest.mark.parametrize(("inputs", "kept"), [(1, "whole"), (3, "factors")])
def test_takes_the_smaller_trace(inputs: int, kept: str) -> None:
    """With one input a matrix has as many entries as outputs, and two factors would add to that."""

    def step(params: Any, state: Any, x: Any) -> Any:
        v = 0.9 * state["v"] + x @ params["w"]
        return {"v": v}, v

    params, state = {"w": jnp.ones((inputs, 4))}, {"v": jnp.ones((2, 4))}
    plan = make_plan(ft.compile_etrace_graph(step, jnp.ones((2, inputs)), params=params, state=state))
    whole, factored = choose(plan)
    assert (len(whole), len(factored)) == ((1, 0) if kept == "whole" else (0, 1))


def test_refuses_a_bad_decay() -> None:
    with pytest.raises(ValueError, match="decay_or_rank"):
        Hybrid(1.5)
