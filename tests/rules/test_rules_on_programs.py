"""Every rule on random programs: finite, and never another result for another way of running.

Gradients are traced and run in NumPy; nothing is compiled. Each rule meets one program here, and many among the slow
tests.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import first_step
import foretrace as ft
from dense_structure import in_numpy
from foretrace import rules
from foretrace._jax import is_float
from foretrace.compiler.values import Made
from foretrace.engine.plan import make_plan
from foretrace.errors import CompilationError
from foretrace.rules.rule import Rule
from random_programs import Program, generate_wide

STEPS, BATCH, TARGETS = 4, 2, 2
UNDEFINED = {"reduce"}  # starts from a number that is not neutral: its value depends on how XLA groups the terms


def projected(graph: Any) -> Rule:
    """OSTTP with a matrix for every group."""
    sizes = [int(np.prod(group.varshape[1:] or group.varshape)) for group in graph.hidden_groups]
    return rules.OSTTP([np.cos(np.arange(TARGETS * n)).reshape(TARGETS, n) for n in sizes])


RULES: dict[str, Callable[[Any], Rule]] = {
    **{name: lambda _, rule=rule: rule for name, rule in first_step.RULES.items() if name != "LowRank"},
    "EProp, random": lambda _: rules.EProp(feedback="random", kappa_filter_decay=0.5),
    "OSTTP": projected,
    "ThreeFactor": lambda _: rules.ThreeFactor(),
    "LowRank": lambda _: first_step.RULES["LowRank"],
}
EXTERNAL = {
    "y_target": np.cos(np.arange(STEPS * TARGETS)).reshape(STEPS, TARGETS),
    "modulator": np.cos(np.arange(STEPS)),
}


def loss(outputs: Any) -> Any:
    return sum(
        jnp.sum(jnp.cos(jnp.arange(out.size)).reshape(out.shape) * out + 0.5 * out**2)
        for out in outputs
        if is_float(out)
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A program with a learner, and values for a sequence."""

    program: Program
    learner: Any
    xs: np.ndarray
    tolerance: float
    loss: Callable[[Any], Any] = loss

    @property
    def external(self) -> Any:
        return EXTERNAL.get(self.learner.rule.external or "")

    def part(self, params: Any, carry: Any, first: int, last: int, block: int | None = None) -> tuple[Any, Any]:
        """The gradient of some steps, and the carry behind them."""
        learner = self.learner if block is None else dataclasses.replace(self.learner, block=block)
        external = None if self.external is None else self.external[first:last]

        def gradient(params: Any, carry: Any, xs: Any, external: Any) -> Any:
            return learner.grad(params, carry, xs, loss=self.loss, external=external)[:2]

        return in_numpy(gradient)(params, carry, self.xs[first:last], external)

    def whole(self, block: int | None = None) -> Any:
        return self.part(self.program.params, self.learner.init(self.program.state), 0, STEPS, block)[0]


@functools.lru_cache(maxsize=4)
def case(seed: int, rule: str, batch: int = 0) -> Case | None:
    """A program with a batch of one or two in front, or without; None where the rule refuses it."""
    program = generate_wide(seed)
    xs = 0.8 * np.random.default_rng(seed).normal(size=(STEPS, *np.shape(program.x)))
    if batch:
        xs = np.stack([xs, 0.7 * xs][:batch], axis=1)
        program = dataclasses.replace(
            program,
            step=jax.vmap(program.step, in_axes=(None, 0, 0)),
            state={name: np.stack([value, 0.6 * value][:batch]) for name, value in program.state.items()},
            x=xs[0],
        )
    try:
        options = dict(params=program.params, state=program.state)
        graph = ft.compile_etrace_graph(program.step, program.x, **options)
        made = RULES[rule](graph)
        made.init(make_plan(graph))
        learner = ft.compile(program.step, made, program.x, **options)
    except CompilationError:
        return None
    own = (lambda outputs: jnp.sum(jax.vmap(loss)(outputs))) if batch else loss
    return Case(program, learner, xs, max(1e-10, 0.1 * first_step.tolerance(graph)), own)


def agree(found: Any, expected: Any, tolerance: float, seed: int) -> None:
    for name, wanted in expected.items():
        assert np.isfinite(found[name]).all(), f"seed {seed}: {name}"
        scale = tolerance * max(1.0, float(np.max(np.abs(wanted), initial=0.0)))
        np.testing.assert_allclose(found[name], wanted, rtol=0, atol=scale, err_msg=f"seed {seed}: {name}")


def check_blocks(seed: int, rule: str) -> None:
    """Finite, and the same in blocks of any size."""
    given = case(seed, rule)
    if given is not None:
        by_steps = given.whole(1)
        for block in (3, STEPS):
            agree(given.whole(block), by_steps, given.tolerance, seed)


def check_halves(seed: int, rule: str) -> None:
    """A sequence is the sum of its halves, with the carry handed on."""
    given = case(seed, rule)
    if given is None:
        return
    params, half = given.program.params, STEPS // 2
    first, carry = given.part(params, given.learner.init(given.program.state), 0, half)
    second, _ = given.part(params, carry, half, STEPS)
    agree({name: first[name] + second[name] for name in first}, given.whole(), given.tolerance, seed)


def has_bare_state(graph: Any) -> bool:
    """Whether a new state is made of parameters alone. It counts as data there, and in a batch as a weight that reaches
    the states of all samples: both are D-RTRL, of other relations."""
    states = set(graph.program.hidden_outvars)
    makers = [eqn for eqn in graph.program.jaxpr.eqns if states & set(eqn.outvars)]
    return any(Made.DATA not in {graph.values.of(atom) for atom in eqn.invars} for eqn in makers)


def check_batch(seed: int, rule: str) -> None:
    """A batch is the sum of its samples."""
    # Random feedback takes units for samples where they are copies of one another, as it cannot tell them apart then. A
    # matrix that projects targets has a column for each unit of a sample.
    lead = 1 if rule in ("EProp, random", "OSTTP") else 0
    single, batched = case(seed, rule, lead), case(seed, rule, BATCH)
    if single is not None and has_bare_state(single.learner.plan.graph):
        return
    assert (single is None) == (batched is None), f"seed {seed}: {rule} refuses one of the single sample and the batch"
    if single is None or batched is None:
        return
    parts = []
    for k in range(BATCH):
        chosen = slice(k, k + 1) if lead else k
        state = {name: value[chosen] for name, value in batched.program.state.items()}
        own = dataclasses.replace(single, xs=batched.xs[:, chosen])
        parts.append(own.part(single.program.params, single.learner.init(state), 0, STEPS)[0])
    # A parameter that enters a backward pass of the user's own loses its history under `vmap`, and the report says so.
    kept = [{p.name: p.history for p in given.learner.plan.graph.parameters} for given in (single, batched)]
    names = [name for name in single.program.params if kept[0][name] is kept[1][name]]
    total = {name: sum(part[name] for part in parts) for name in names}
    agree(batched.whole(), total, single.tolerance, seed)


def check_vmap(seed: int, rule: str) -> None:
    """Mapped over sets of parameters, the same as one after the other."""
    given = case(seed, rule)
    if given is None:
        return
    params = given.program.params
    sets = [params, {name: 0.8 * value for name, value in params.items()}]
    carry = given.learner.init(given.program.state)

    def gradient(params: Any) -> Any:
        return given.learner.grad(params, carry, given.xs, loss=given.loss, external=given.external)[0]

    stacked = {name: np.stack([own[name] for own in sets]) for name in params}
    mapped = in_numpy(jax.vmap(gradient))(stacked)
    for k, own in enumerate(sets):
        alone = in_numpy(gradient)(own)
        agree({name: value[k] for name, value in mapped.items()}, alone, given.tolerance, seed)


CHECKS = {"blocks": check_blocks, "halves": check_halves, "batch": check_batch, "vmap": check_vmap}
# The estimate of UORO is another one for each number of states, and agrees in its mean alone.
PAIRS = [(check, rule) for rule in RULES for check in CHECKS if (check, rule) != ("batch", "UORO")]
EACH = 12


def seeds(number: int, first: int, last: int | None) -> Iterator[int]:
    """Some programs of one pair whose backward passes are linear: others are not the same in all ways of running."""
    found = (generate_wide(seed) for seed in range(1000 * number, 1000 * (number + 1)))
    fitting = (p.seed for p in found if p.is_linear_backward and not UNDEFINED & set(p.operations))
    return itertools.islice(fitting, first, last)


def short(number: int) -> int:
    """The first program of a pair with few operations and no loop."""
    found = (generate_wide(seed) for seed in seeds(number, 0, None))
    loops = ("loop", "scan", "fori")
    return next(p.seed for p in found if len(p.operations) < 8 and not any(n in " ".join(p.operations) for n in loops))


def quick(number: int) -> bool:
    """Each rule with one of the checks, in turn."""
    return number % len(CHECKS) == number // len(CHECKS) % len(CHECKS)


@pytest.mark.parametrize(
    ("number", "check", "rule"),
    [pytest.param(k, *pair, marks=() if quick(k) else pytest.mark.slow) for k, pair in enumerate(PAIRS)],
)
def test_one_program(number: int, check: str, rule: str) -> None:
    CHECKS[check](short(number), rule)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "check", "rule"), [(k, *pair) for k, pair in enumerate(PAIRS)])
def test_many_programs(number: int, check: str, rule: str) -> None:
    for seed in seeds(number, 0, EACH):
        CHECKS[check](seed, rule)
    jax.clear_caches()
