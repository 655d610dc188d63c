"""The first step of a sequence by every rule: there the past is empty, and the gradient is BPTT's, or the rule refuses.

Nothing is compiled: the gradient is traced to a jaxpr and run in NumPy, as is `jax.grad` of the user's own step.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import foretrace as ft
from dense_structure import run
from foretrace import rules
from foretrace._jax import is_float
from foretrace.compiler.graph import ETraceGraph
from foretrace.engine.linearise import Cotangents
from foretrace.engine.plan import Plan, make_plan
from foretrace.engine.sequence import States, run_steps
from foretrace.errors import CompilationError
from foretrace.rules.rule import Block, Rule
from random_programs import Program

# Every rule that learns from the loss, by symmetric feedback where it has a choice.
RULES: dict[str, Rule] = {
    "D_RTRL": rules.D_RTRL(),
    "pp_prop": rules.pp_prop((0.5, 0.9)),
    "EProp": rules.EProp(kappa_filter_decay=0.6),
    "OSTLRecurrent": rules.OSTLRecurrent(),
    "OSTLFeedforward": rules.OSTLFeedforward(),
    "OTTT": rules.OTTT(leak=0.8),
    "OTTT, O": rules.OTTT(leak=0.8, mode="O"),
    "OTPE": rules.OTPE(leak=0.8),
    "OTPE, approximate": rules.OTPE(leak=0.8, mode="approx"),
    "SnAp": rules.SnAp(n=2),
    "RTRL": rules.RTRL(),
    "UORO": rules.UORO(),
    "DNI": rules.DNI(rules.SyntheticGradient(hidden_width=3)),
    "Hybrid": rules.Hybrid(0.9),
    "LowRank": rules.LowRank(rank=2, every=1),
}
TOLERANCE = 1e-8
ROUNDED = 1e-5  # `reduce_precision` to 20 bits rounds cotangents too: the last bit of a sum may decide which way
# Some operations lower the precision, whoever differentiates.
COARSE = {"float32": 1e-4, "complex64": 1e-4, "float16": 2e-2, "bfloat16": 2e-2}


def loss(outputs: Sequence[Any], hidden: Sequence[Any]) -> Any:
    """Every floating output enters, and every new state a little."""
    terms = [jnp.sum(_weights(out) * out + 0.5 * out**2) for out in outputs if is_float(out)]
    return sum(terms) + sum(0.3 * jnp.sum(_weights(h) * h) for h in hidden)


def _weights(value: Any) -> Any:
    return jnp.cos(jnp.arange(value.size)).reshape(value.shape)


def exact(program: Program) -> dict[str, np.ndarray]:
    """`jax.grad` of one step's loss, which knows nothing of Foretrace."""

    def total(params: Any, state: Any, x: Any) -> Any:
        state, outputs = program.step(params, state, x)
        return loss(outputs, list(state.values()))

    values = (program.params, program.state, program.x)
    found = run(jax.make_jaxpr(jax.grad(total))(*values), jax.tree.leaves(values))
    return dict(zip(program.params, found, strict=True))


def first_gradient(plan: Plan, rule: Rule, params: Any, hidden: Any, other: Any, inputs: Any) -> list[np.ndarray]:
    """A rule's gradient of one step's loss, from an empty trace."""

    trace = jax.tree.map(np.asarray, rule.init(plan))

    def gradient(params: Any, hidden: Any, other: Any, inputs: Any, trace: Any) -> Any:
        states, steps, outputs = run_steps(plan, params, States(hidden, other), inputs)
        by_outputs, by_hidden = jax.grad(loss, argnums=(0, 1), allow_int=True)([o[0] for o in outputs], states.hidden)
        cotangents = Cotangents([c[None] for c in by_outputs], [c[None] for c in by_hidden])
        return rule.advance(plan, params, Block(steps, cotangents), trace)[0]

    values = (params, hidden, other, [x[None] for x in inputs], trace)
    return run(jax.make_jaxpr(gradient)(*values), jax.tree.leaves(values))


def flat_values(graph: ETraceGraph, program: Program) -> tuple[Any, Any, Any, Any]:
    info = graph.module_info
    hidden, other = info.flatten_state(program.state)
    values = (info.flatten_params(program.params), hidden, other, info.flatten_inputs(program.x))
    return tuple([np.asarray(value) for value in part] for part in values)


def tolerance(graph: ETraceGraph) -> float:
    dtypes = {str(var.aval.dtype) for eqn in graph.program.jaxpr.eqns for var in eqn.outvars}
    rounds = any(eqn.primitive.name == "reduce_precision" for eqn in graph.program.jaxpr.eqns)
    return max([ROUNDED if rounds else TOLERANCE, *(COARSE.get(dtype, TOLERANCE) for dtype in dtypes)])


def differences(
    program: Program, rules: Iterable[str], refused: Callable[[str, str], None] = lambda rule, reason: None
) -> list[str]:
    """Where a rule's first gradient is another than BPTT's, without a word.

    Args:
        program: The program.
        rules: Names of rules.
        refused: Told of every refusal by type: the rule, and why.
    """
    try:
        graph = ft.compile_etrace_graph(program.step, program.x, params=program.params, state=program.state)
    except CompilationError as error:
        refused("compiler", str(error))
        return []
    plan, values, expected = make_plan(graph), flat_values(graph, program), exact(program)
    said = []
    for name in rules:
        try:
            found = first_gradient(plan, RULES[name], *values)
        except CompilationError as error:
            refused(name, str(error))
            continue
        said += _compare(program, graph, name, found, list(expected.values()))
    return said


def _compare(program: Program, graph: ETraceGraph, rule: str, found: Any, expected: Any) -> list[str]:
    said = []
    for leaf, one, other in zip(graph.program.params, found, expected, strict=True):
        scale = max(1.0, float(np.max(np.abs(other), initial=0.0)))
        error = float(np.max(np.abs(np.asarray(one) - other), initial=0.0)) / scale
        if not error <= tolerance(graph):
            zero = ", a silent zero" if not np.any(one) else ""
            said.append(f"seed {program.seed}, {rule}: {leaf.name} differs by {error:.1e}{zero}; {program.operations}")
    return said
