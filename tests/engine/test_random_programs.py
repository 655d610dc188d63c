"""D-RTRL of random programs against the dense oracle.

A few programs are compiled. Many more, among the slow tests, are traced and run in NumPy: to compile each of them would
take most of the time.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from dense_structure import in_numpy
from foretrace.engine.plan import make_plan
from foretrace.rules.d_rtrl import D_RTRL
from online import walked_gradient
from oracle import Oracle
from random_programs import Program, generate, generate_wide
from zoo.solved import loss

# Few programs that have, together, every operation of the first sixty; those before `RAGGED` run in ragged blocks too.
QUICK = [1, 6, 11, 12, 21, 22, 23, 24, 27, 30, 33, 34, 37, 41, 45, 53, 54]
QUICK += [62, 63, 117, 122, 140, 147, 150, 187, 191, 222, 260, 266, 275, 278, 323, 395]
RAGGED, SLOW, CHUNK = 23, 2060, 20
WIDE, WIDE_SLOW = [0, 1, 3, 6], 400
STEPS = 4
TOLERANCES = {
    "float32": 1e-4,
    "complex64": 1e-4,
    "float16": 2e-2,
    "bfloat16": 2e-2,
}  # some operations lower the precision
ROUNDED = {"reduce_precision": 1e-5}  # to 20 bits: where a value lies half between, the last bit of a sum decides
UNDEFINED = {"reduce"}  # starts from a number that is not neutral: its value depends on how XLA groups the terms


def values(graph: ft.ETraceGraph, program: Program) -> tuple[Any, Any, Any, Any]:
    info = graph.module_info
    hidden, other = info.flatten_state(program.state)
    drawn = np.random.default_rng(program.seed).normal(size=(STEPS, *np.shape(program.x)))
    inputs = [info.flatten_inputs(jnp.asarray(x, jnp.asarray(program.x).dtype)) for x in drawn]
    return info.flatten_params(program.params), hidden, other, inputs


def dtypes(graph: ft.ETraceGraph) -> set[str]:
    return {str(var.aval.dtype) for eqn in graph.program.jaxpr.eqns for var in eqn.outvars}


def problems(program: Program, blocks: tuple[int, ...], jit: Callable[..., Any] = jax.jit) -> list[str]:
    """Where the engine and the oracle differ."""
    seed = program.seed
    if UNDEFINED & set(program.operations):
        return []
    try:
        graph = ft.compile_etrace_graph(program.step, program.x, params=program.params, state=program.state)
    except ft.CompilationError as error:
        return [] if "no parameters" in str(error) else [f"seed {seed}: {error}"]
    flat = values(graph, program)
    tolerance = max(TOLERANCES.get(dtype, 1e-10) for dtype in dtypes(graph))
    tolerance = max([tolerance, *(ROUNDED.get(name, 0.0) for name in program.operations)])
    expected = Oracle(graph, loss, jit).gradient(*flat)
    said = []
    for block in (1,) if make_plan(graph).pulls_each_step else blocks:
        found = walked_gradient(graph, D_RTRL(), loss, *flat, block=block, jit=jit)
        for leaf, one, other in zip(graph.program.params, found, expected, strict=True):
            scale = max(1.0, float(np.max(np.abs(other), initial=0.0)))
            error = float(np.max(np.abs(np.asarray(one) - other), initial=0.0)) / scale
            if not error <= tolerance:
                said.append(f"seed {seed}, blocks of {block}: {leaf.name} differs by {error:.1e}; {program.operations}")
    return said


def test_quick_programs_are_made_of_many_operations() -> None:
    assert len({name for seed in QUICK for name in generate(seed).operations}) >= 170


@pytest.mark.parametrize("seed", QUICK)
def test_equals_the_oracle(seed: int) -> None:
    # Single steps, and a block of 3 with one more step; from some seed on, all steps at once.
    assert not problems(generate(seed), (1, 3) if seed < RAGGED else (STEPS,))


@pytest.mark.parametrize("seed", WIDE)
def test_a_wide_program_equals_the_oracle(seed: int) -> None:
    assert not problems(generate_wide(seed), (1, 3))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SLOW, CHUNK))
def test_many_equal_the_oracle(first: int) -> None:
    programs = map(generate, range(first, first + CHUNK))
    said = [problem for program in programs for problem in problems(program, (1, 2), in_numpy)]
    jax.clear_caches()
    assert not said


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, WIDE_SLOW, CHUNK))
def test_many_wide_programs_equal_the_oracle(first: int) -> None:
    programs = map(generate_wide, range(first, first + CHUNK))
    said = [problem for program in programs for problem in problems(program, (1, 2), in_numpy)]
    jax.clear_caches()
    assert not said


@pytest.mark.parametrize("seed", [5, pytest.param(21, marks=pytest.mark.slow)])
def test_vmap_gives_the_same(seed: int) -> None:
    program = generate(seed)
    graph = ft.compile_etrace_graph(program.step, program.x, params=program.params, state=program.state)
    params, hidden, other, inputs = values(graph, program)
    stacked = [jnp.stack([p, 0.8 * p]) for p in params]

    def gradient(params: Any) -> Any:
        return walked_gradient(graph, D_RTRL(), loss, params, hidden, other, inputs, block=STEPS)

    for found, *alone in zip(
        jax.vmap(gradient)(stacked), *(gradient([p[k] for p in stacked]) for k in (0, 1)), strict=True
    ):
        np.testing.assert_allclose(found, jnp.stack(alone), rtol=1e-10, atol=1e-10)
