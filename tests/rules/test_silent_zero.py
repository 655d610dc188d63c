"""No silent zero: at the first step every rule gives BPTT's gradient of a random program, or refuses by type.

D-RTRL meets every program. The other rules take turns, one for each program: each of them meets two of the few here,
and more than two hundred of the many among the slow tests.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from first_step import RULES, differences, first_gradient, flat_values
from foretrace.engine.plan import make_plan
from random_programs import Program, generate_wide

OTHERS = [name for name in RULES if name != "D_RTRL"]
QUICK, MANY, CHUNK = 26, 3000, 50
UNDEFINED = {"reduce"}  # starts from a number that is not neutral: its value depends on how XLA groups the terms
# A rule may refuse, and the compiler, too; but not so often that nothing is tested.
MOST_REFUSED = 0.15


def check(seeds: Sequence[int]) -> None:
    """Fails with every difference of D-RTRL and of one other rule on each of the programs of these seeds."""
    said: list[str] = []
    refused: list[str] = []
    for seed in seeds:
        program = generate_wide(seed)
        if not UNDEFINED & set(program.operations):
            rules = ["D_RTRL", OTHERS[seed % len(OTHERS)]]
            said += differences(program, rules, lambda rule, why: refused.append(f"{rule}: {why}"))
    jax.clear_caches()
    if said:
        pytest.fail("\n".join(said), pytrace=False)
    assert len(refused) <= MOST_REFUSED * 2 * len(seeds), "\n".join(refused)


@pytest.mark.parametrize("first", range(0, QUICK, 13))
def test_first_step_equals_bptt(first: int) -> None:
    check(range(first, first + 13))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, MANY, CHUNK))
def test_first_step_of_many_equals_bptt(first: int) -> None:
    check(range(first, first + CHUNK))


def test_programs_have_what_faults_were_found_with() -> None:
    names = {name for seed in range(80) for name in generate_wide(seed).operations}
    kinds = ("state_product", "state_projection", "state_skip", "state_copied", "output_old", "output_read_old")
    assert {*kinds, "state_product_marked", "state_coupled"} <= names
    for family, least in {"lookup": 8, "mark": 8, "backward": 6, "fan": 5, "nonlinear": 1}.items():
        assert len([name for name in names if name.startswith(f"{family}_")]) >= least, family


def of_parameters(params: Any, state: Any, x: Any) -> Any:
    """The new state is a marked product of two parameters, none of them data."""
    h = ft.matmul(params["a"], params["b"])
    return {"h": h}, (jnp.tanh(h),)


@pytest.mark.parametrize("rule", RULES)
def test_a_product_of_parameters_alone_is_the_state(rule: str) -> None:
    rng = np.random.default_rng(0)
    params = {"a": rng.normal(size=(2, 3)), "b": rng.normal(size=(3, 4))}
    program = Program(0, of_parameters, params, {"h": rng.normal(size=(2, 4))}, rng.normal(size=2), False, ())
    assert not differences(program, [rule])
    graph = ft.compile_etrace_graph(of_parameters, program.x, params=params, state=program.state)
    assert all(np.any(g) for g in first_gradient(make_plan(graph), RULES[rule], *flat_values(graph, program)))
