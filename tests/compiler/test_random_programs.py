"""The dependency patterns of random programs against their dense Jacobians."""

from collections.abc import Sequence

import jax
import numpy as np
import pytest

from dense_structure import dense_jacobian_structure, run
from foretrace.compiler.patterns import analyse
from foretrace.frontends import trace_model
from random_programs import Program, generate

CHUNK = 10
# The first programs, and some more for the operations that those do not have: all that occur in the first two hundred.
QUICK = [*range(62), 65, 71, 81, 87, 92, 93, 99, 100, 101, 103, 118, 121, 139, 141, 142, 154, 161, 185]
SLOW = 3200


def found_structure(program: Program) -> list[list[np.ndarray]]:
    """The patterns of each new state and output by each parameter and state."""
    model = trace_model(program.step, program.x, params=program.params, state=program.state)
    step = model.program
    sources = [*step.param_invars, *step.hidden_invars]
    patterns = analyse(step.jaxpr, sources, cut=False, consts=step.consts)
    results = [*step.hidden_outvars, *step.output_outvars]
    return [[patterns.of(result, source).matrix.toarray().astype(bool) for source in sources] for result in results]


def problems(program: Program) -> list[str]:
    """Where the pattern misses a derivative or, in an exact program, has one that does not exist."""
    arguments = program.arguments
    found = found_structure(program)
    truth = dense_jacobian_structure(program.flat_step, arguments, range(len(arguments) - 1))
    names = [*program.params, *program.state]
    said = []
    for i, (row, true_row) in enumerate(zip(found, truth, strict=True)):
        for name, pattern, nonzero in zip(names, row, true_row, strict=True):
            missing, extra = int((nonzero & ~pattern).sum()), int((pattern & ~nonzero).sum())
            if missing:
                said.append(f"seed {program.seed}: result {i} by {name}: {missing} missing; {program.operations}")
            elif extra and program.exact:
                said.append(f"seed {program.seed}: result {i} by {name}: {extra} too many; {program.operations}")
    return said


def check(seeds: Sequence[int]) -> None:
    """Fails with every problem of the programs of these seeds."""
    said = [problem for seed in seeds for problem in problems(generate(seed))]
    if said:
        pytest.fail("\n".join(said), pytrace=False)


@pytest.mark.parametrize("first", range(0, len(QUICK), CHUNK))
def test_patterns_contain_the_jacobian_and_equal_it_where_exact(first: int) -> None:
    check(QUICK[first : first + CHUNK])


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SLOW, 5 * CHUNK))
def test_patterns_of_many_programs(first: int) -> None:
    check(range(first, first + 5 * CHUNK))


def test_quick_programs_are_made_of_many_operations() -> None:
    assert len({name for seed in QUICK for name in generate(seed).operations}) >= 212


def test_many_programs_are_exact() -> None:
    exact = [generate(seed).exact for seed in range(40)]
    assert 10 <= sum(exact) <= 35


def test_a_seed_gives_one_program() -> None:
    first, second = generate(7), generate(7)
    assert first.operations == second.operations
    assert str(jax.make_jaxpr(first.flat_step)(*first.arguments)) == str(
        jax.make_jaxpr(second.flat_step)(*second.arguments)
    )


@pytest.mark.parametrize("seed", [3, 14, 15, 92])
def test_running_with_numpy_agrees_with_jax(seed: int) -> None:
    program = generate(seed)
    derivative = jax.jacrev(program.flat_step, argnums=tuple(range(len(program.arguments) - 1)))
    ours = run(jax.make_jaxpr(derivative)(*program.arguments), program.arguments)
    theirs = jax.tree.leaves(jax.jit(derivative)(*program.arguments))
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-6, atol=1e-6)  # some operations compute in float32
