"""Every rule on models of every kind: a finite gradient for each parameter, the same in blocks of any size."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from foretrace import rules
from foretrace.engine.linearise import Cotangents
from foretrace.engine.plan import Plan, make_plan
from foretrace.engine.sequence import States, run_steps
from foretrace.errors import NotSupportedError
from foretrace.rules.rule import Block, Rule
from zoo import MODELS as TABLE
from zoo.compiled import compiled
from zoo.flat import flat_values

STEPS, TARGETS = 6, 2

MODELS = {
    "vanilla RNN": "vanilla RNN",
    "LSTM": "LSTM, fused gates and a tuple of states",
    "conv LIF": "conv LIF layer",
    "sparse": "marked sparse recurrent weights",
    "embedding": "marked embedding",
    "delay line": "delay line that feeds a neuron",
    "two layers": "two layers of LIF",
    "plain sparse": "plain sparse products",
    "one gate": "matrix memory with one gate",
    "scalar lookup": "row of a table by a scalar index",
}


def matrices(plan: Plan) -> list[jax.Array]:
    """A projection of targets to the units of each group."""
    shapes = [group.varshape for group in plan.graph.hidden_groups]
    units = [int(np.prod(shape[1:])) if len(shape) > 1 else shape[0] for shape in shapes]
    return [jnp.asarray(np.random.default_rng(k).normal(size=(TARGETS, n))) for k, n in enumerate(units)]


RULES: dict[str, Callable[[Plan], Rule]] = {
    "D_RTRL": lambda _: rules.D_RTRL(),
    "pp_prop": lambda _: rules.pp_prop((0.5, 0.9)),
    "EProp": lambda _: rules.EProp(kappa_filter_decay=0.6),
    "EProp, random": lambda _: rules.EProp(feedback="random"),
    "OSTLRecurrent": lambda _: rules.OSTLRecurrent(),
    "OSTLFeedforward": lambda _: rules.OSTLFeedforward(),
    "OTTT": lambda _: rules.OTTT(leak=0.8),
    "OTPE": lambda _: rules.OTPE(leak=0.8),
    "OTPE, approximate": lambda _: rules.OTPE(leak=0.8, mode="approx"),
    "OSTTP": lambda plan: rules.OSTTP(matrices(plan)),
    "SnAp": lambda _: rules.SnAp(n=2),
    "RTRL": lambda _: rules.RTRL(),
    "UORO": lambda _: rules.UORO(),
    "ThreeFactor": lambda _: rules.ThreeFactor(),
    "DNI": lambda _: rules.DNI(rules.SyntheticGradient(hidden_width=3)),
    "Hybrid": lambda _: rules.Hybrid(0.9),
    "LowRank": lambda _: rules.LowRank(rank=2, every=1),
}
EXTERNAL = {
    "y_target": jnp.asarray(np.random.default_rng(1).normal(size=(STEPS, TARGETS))),
    "modulator": jnp.asarray(np.random.default_rng(2).normal(size=STEPS)),
}
REFUSED = {("delay line", rule) for rule in ("OTTT", "OTPE", "OTPE, approximate")}
# Each rule meets one model here and all others among the slow tests: a pair costs a second, nearly all to compile.
PAIRS = [
    pytest.param(model, rule, marks=() if (place + 3 * number) % 7 == 0 else pytest.mark.slow)
    for number, rule in enumerate(RULES)
    for place, model in enumerate(MODELS)
]


def loss(outputs: list[Any]) -> Any:
    return sum(jnp.sum(jnp.cos(jnp.arange(out.size)).reshape(out.shape) * out + 0.5 * out**2) for out in outputs)


@functools.cache
def case(name: str) -> tuple[Plan, Any, Any, Any, list[jax.Array]]:
    model = next(model for model in TABLE if model.name == MODELS[name])
    graph, built = compiled(model)
    params, hidden, other, inputs = flat_values(graph, model, built, STEPS)
    return make_plan(graph), params, hidden, other, [jnp.stack(values) for values in zip(*inputs, strict=True)]


def gradient(name: str, rule: Rule, block: int) -> list[np.ndarray]:
    """The gradient of the summed losses, with one program for all blocks."""
    plan, params, hidden, other, inputs = case(name)

    @jax.jit
    def advance(states: Any, trace: Any, inputs: Any, external: Any) -> Any:
        states, steps, outputs = run_steps(plan, params, States(*states), inputs)
        by_outputs = jax.vmap(jax.grad(loss, allow_int=True))(outputs)
        cotangents = Cotangents(by_outputs, [jnp.zeros_like(value) for value in steps.hidden])
        found, trace = rule.advance(plan, params, Block(steps, cotangents, external), trace)
        return found, (states.hidden, states.other), trace

    states, trace, total = (hidden, other), rule.init(plan), [np.zeros(p.shape) for p in params]
    for start in range(0, STEPS, block):
        part = jax.tree.map(lambda a, s=start: a[s : s + block], (inputs, EXTERNAL.get(rule.external or "")))
        found, states, trace = advance(states, trace, *part)
        total = [a + np.asarray(b) for a, b in zip(total, found, strict=True)]
    return total


@pytest.mark.parametrize(("model", "rule"), PAIRS)
def test_gradient_is_finite_and_the_same_in_any_block(model: str, rule: str) -> None:
    plan, params, *_ = case(model)
    made = RULES[rule](plan)
    if (model, rule) in REFUSED:
        with pytest.raises(NotSupportedError, match="cannot follow w -> line"):
            made.init(plan)
        return
    by_steps, by_blocks = (gradient(model, made, block) for block in (1, 3))
    names = [leaf.name for leaf in plan.program.params]
    for name, param, one, other in zip(names, params, by_steps, by_blocks, strict=True):
        assert one.shape == param.shape
        assert np.isfinite(one).all(), name
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-11, err_msg=name)
    # A rule that sees fewer steps than the delay lasts gives zero there, and rightly.
    assert model == "delay line" or any(np.abs(one).max() > 0 for one in by_steps)
