"""What the tests of rules that follow the whole Jacobian share: models, their BPTT gradient, and small ways to run."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import foretrace as ft
from foretrace.engine.evaluate import Step
from foretrace.engine.linearise import Cotangents
from foretrace.engine.plan import Plan, make_plan
from foretrace.engine.sequence import States, run_steps
from foretrace.rules.rule import Block, Rule
from oracle import bptt
from zoo.compiled import compiled
from zoo.flat import flat_values
from zoo.solved import BY_NAME, loss

STEPS = 5


@dataclass(frozen=True, eq=False)
class Case:
    """A compiled model, the flat values of a sequence, and the gradient of `loss` by BPTT."""

    plan: Plan
    values: tuple[Any, Any, Any, Any]
    whole: list[Any]

    @property
    def stacked(self) -> list[jax.Array]:
        """The inputs of all steps."""
        return [jnp.stack(values) for values in zip(*self.values[3], strict=True)]


@functools.cache
def case(name: str) -> Case:
    """A model of the table."""
    graph, built = compiled(BY_NAME[name])
    values = flat_values(graph, BY_NAME[name], built, STEPS)
    return Case(make_plan(graph), values, bptt(graph, loss, *values))


def case_of(step: Callable[..., Any], params: Any, state: Any, xs: Any) -> Case:
    """A step function on a sequence of inputs, an array with a leading axis of steps."""
    graph = ft.compile_etrace_graph(step, xs[0], params=params, state=state)
    hidden, other = graph.module_info.flatten_state(state)
    flat = [graph.module_info.flatten_inputs(x) for x in xs]
    values = (graph.module_info.flatten_params(params), hidden, other, flat)
    return Case(make_plan(graph), values, bptt(graph, loss, *values))


def advance(case: Case, rule: Rule, trace: Any, params: Any, states: States, inputs: Any) -> tuple[Any, States, Any]:
    """One block with losses: the gradient, the states and the trace."""
    states, steps, outputs = run_steps(case.plan, params, states, inputs)
    by_outputs = jax.vmap(jax.grad(loss, allow_int=True))(outputs)
    cotangents = Cotangents(by_outputs, [jnp.zeros_like(value) for value in steps.hidden])
    found, trace = rule.advance(case.plan, params, Block(steps, cotangents), trace)
    return found, states, trace


def whole_gradient(case: Case, rule: Rule, params: Sequence[Any] | None = None) -> list[jax.Array]:
    """The gradient of all steps as one block."""
    return _in_one_block(case, rule)(list(case.values[0] if params is None else params))


@functools.cache
def _in_one_block(case: Case, rule: Rule) -> Callable[..., Any]:
    states = States(list(case.values[1]), list(case.values[2]))
    return jax.jit(lambda params: advance(case, rule, rule.init(case.plan), params, states, case.stacked)[0])


def gradients_of_two(case: Case, rule: Rule) -> tuple[list[jax.Array], list[jax.Array]]:
    """Gradients at two sets of parameters: mapped over both, and one after the other."""
    both = [jnp.stack([p, 0.5 * p]) for p in case.values[0]]
    mapped = jax.vmap(lambda params: whole_gradient(case, rule, params))(both)
    single = [whole_gradient(case, rule, [p[k] for p in both]) for k in range(2)]
    return mapped, [jnp.stack(pair) for pair in zip(*single, strict=True)]


def block_gradients(case: Case, rule: Rule, blocks: Sequence[int]) -> list[list[jax.Array]]:
    """The gradient by blocks of each of some sizes, one compiled call after the other."""
    run = jax.jit(lambda *args: advance(case, rule, *args))
    return [_walked(case, rule, run, block) for block in blocks]


def _walked(case: Case, rule: Rule, run: Callable[..., Any], block: int) -> list[jax.Array]:
    states, trace = States(list(case.values[1]), list(case.values[2])), rule.init(case.plan)
    total = [jnp.zeros_like(p) for p in case.values[0]]
    for first in range(0, len(case.values[3]), block):
        inputs = [x[first : first + block] for x in case.stacked]
        found, states, trace = run(trace, list(case.values[0]), states, inputs)
        total = [a + b for a, b in zip(total, found, strict=True)]
    return total


def signals(case: Case) -> list[jax.Array]:
    """Something asked of every hidden state after the sequence."""
    return [jnp.cos(1.0 + jnp.arange(h.size)).reshape(h.shape) for h in case.values[1]]


def credited(case: Case, rule: Rule) -> list[jax.Array]:
    """What `credit` gives for `signals` after a sequence without losses."""
    states = States(list(case.values[1]), list(case.values[2]))

    @jax.jit
    def run(params: Any) -> Any:
        steps = run_steps(case.plan, params, states, case.stacked)[1]
        found, trace = rule.advance(case.plan, params, Block(steps, None), rule.init(case.plan))
        assert found is None
        return rule.credit(case.plan, params, trace, signals(case))

    return run(list(case.values[0]))


def signalled(case: Case) -> list[jax.Array]:
    """The same by reverse mode through time."""
    states = States(list(case.values[1]), list(case.values[2]))

    def asked(params: Any) -> Any:
        after = run_steps(case.plan, params, states, case.stacked)[0].hidden
        return sum(jnp.sum(s * h) for s, h in zip(signals(case), after, strict=True))

    return jax.jit(jax.grad(asked))(list(case.values[0]))


def in_step_gradient(case: Case) -> list[jax.Array]:
    """The gradient without the past."""
    params, hidden, other, _ = case.values

    @jax.jit
    def run(params: Any) -> Any:
        steps = run_steps(case.plan, params, States(list(hidden), list(other)), case.stacked)[1]
        program = case.plan.program

        def total(params: Any) -> Any:
            fixed = jax.lax.stop_gradient(steps)
            return jnp.sum(jax.vmap(lambda s: loss(program(params, s.hidden, s.other, s.inputs)[2]))(_bare(fixed)))

        return jax.grad(total)(params)

    return run(list(params))


def _bare(steps: Step) -> Step:
    return Step(steps.hidden, steps.other, steps.inputs, [])


def agree(found: Sequence[Any], expected: Sequence[Any], tolerance: float = 1e-10) -> None:
    """Equal, relative to the largest value of each array."""
    for one, other in zip(found, expected, strict=True):
        scale = max(1.0, float(np.max(np.abs(np.asarray(other)), initial=0.0)))
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=0, atol=tolerance * scale)


def differ(found: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Whether some value is clearly another."""
    return any(np.max(np.abs(np.asarray(a) - np.asarray(b))) > 1e-3 for a, b in zip(found, expected, strict=True))


@functools.cache
def small_rnn(dtype: Any = jnp.float64, batch: tuple[int, ...] = (2,), steps: int = 4, size: int = 3) -> Case:
    """A vanilla RNN whose output is its state before and after the step."""

    def step(params: Any, h: Any, x: Any) -> Any:
        new = jnp.tanh(x @ params["u"] + h @ params["w"] + params["b"])
        return new, (new @ params["out"], h)

    rng = np.random.default_rng(0)
    shapes = {"b": (size,), "out": (size, 2), "u": (2, size), "w": (size, size)}
    params = {name: jnp.asarray(0.7 * rng.normal(size=shape), dtype) for name, shape in shapes.items()}
    h = jnp.asarray(rng.normal(size=(*batch, size)), dtype)
    return case_of(step, params, h, jnp.asarray(rng.normal(size=(steps, *batch, 2)), dtype))
