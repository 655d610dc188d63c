"""Loops split into sub-steps compute what they did, and stand in the open."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from foretrace.compiler.substeps import split_loops
from foretrace.frontends import trace_model

BATCH, INPUT, HIDDEN, LENGTH = 2, 3, 4, 20


def weights(*shape, seed=0):
    return jnp.asarray(np.random.default_rng([seed, *shape]).normal(size=shape) * 0.4)


PARAMS = {"w": weights(INPUT, HIDDEN), "r": weights(HIDDEN, HIDDEN), "b": weights(HIDDEN)}
STATE = {"v": weights(BATCH, HIDDEN, seed=1)}
X = weights(BATCH, INPUT, seed=2)


def loop(body, state, xs=None, reverse=False):
    return jax.lax.scan(body, state["v"], xs, length=LENGTH if xs is None else None, reverse=reverse)


def direct(params, state, x):
    v, trace = loop(lambda v, _: (0.9 * jnp.tanh(v) + x @ params["w"] + params["b"], v[:, 0]), state)
    return {"v": v}, trace


def mixing(params, state, x):
    def body(v, _):
        return 0.9 * v + 0.1 * (jnp.tanh(v) @ params["r"] + x @ params["w"] + params["b"]), jnp.mean(v, axis=1)

    v, trace = loop(body, state)
    return {"v": v}, trace + jnp.sum(params["r"])


def marked(params, state, x):
    def body(v, _):
        return 0.9 * v + 0.1 * (ft.matmul(jnp.tanh(v), params["r"], params["b"]) + ft.matmul(x, params["w"])), None

    v, _ = loop(body, state)
    return {"v": v}, v


def sliced_backwards(params, state, x):
    drive = jnp.cumsum(jnp.ones((LENGTH, *x.shape)), axis=0) * 0.01 * x

    def body(v, now):
        return 0.8 * v + jnp.tanh(now @ params["w"]) + jnp.sin(v) @ params["r"] * params["b"], v

    v, trace = loop(body, state, drive, reverse=True)
    return {"v": v}, trace[3]


def nested(params, state, x):
    def inner(v, _):
        return v + 0.02 * (jnp.tanh(v) @ params["r"]), None

    def body(v, _):
        return 0.9 * jax.lax.scan(inner, v, None, length=LENGTH)[0] + x @ params["w"] + params["b"], None

    v, _ = loop(body, state)
    return {"v": v}, v


def own_weights(params, state, x):
    """Every sub-step has a weight of its own, as a stack of layers has."""
    scales = jnp.linspace(0.1, 0.3, LENGTH)[:, None, None]

    def body(v, weight):
        return 0.9 * v + jnp.tanh(v) @ jnp.abs(weight) + x @ params["w"] + params["b"], v

    v, trace = loop(body, state, scales * params["r"])
    return {"v": v}, trace


def looked_up(params, state, x):
    """A row of a table at a position that the loop counts; the constant of the remainder is made within its body."""

    def body(i, v):
        row = jax.lax.dynamic_slice(params["r"], (i % jnp.int32(HIDDEN), jnp.zeros((), jnp.int32)), (1, HIDDEN))
        return 0.9 * v + 0.1 * row * jnp.tanh(v) + x @ params["w"] + params["b"]

    v = jax.lax.fori_loop(0, LENGTH, body, state["v"])
    return {"v": v}, v


STEPS = [direct, mixing, marked, sliced_backwards, nested, own_weights]


def flat_function(program):
    sizes = len(program.params), len(program.hidden)

    def function(flat):
        first, second = sizes[0], sum(sizes)
        hidden, _, outputs = program(flat[:first], flat[first:second], [], flat[second:])
        return [*hidden, *outputs]

    return function


@pytest.mark.parametrize("step", [*STEPS, looked_up], ids=lambda step: step.__name__)
def test_split_program_has_the_same_values_and_derivatives(step):
    model = trace_model(step, X, params=PARAMS, state=STATE)
    split = split_loops(model.program)
    hidden, _ = model.flatten_state(STATE)
    flat = [*model.flatten_params(PARAMS), *hidden, *model.flatten_inputs(X)]

    def loss(program):
        return lambda flat: sum(jnp.sum(jnp.sin(out)) for out in flat_function(program)(flat))

    before, after = (jax.jit(jax.value_and_grad(loss(program)))(flat) for program in (model.program, split))
    for expected, found in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_every_parameter_in_a_loop_has_a_relation(step):
    graph = ft.compile_etrace_graph(step, X, params=PARAMS, state=STATE)
    used = {"direct": {"w", "b"}}.get(step.__name__, {"w", "r", "b"})
    assert {parameter.name for parameter in graph.parameters if parameter.relations} == used


def test_operator_in_a_loop_has_an_axis_of_substeps():
    graph = ft.compile_etrace_graph(marked, X, params=PARAMS, state=STATE)
    shapes = {relation.path: relation.y_var.aval.shape for relation in graph.hidden_param_op_relations}
    assert shapes[("r",)] == (LENGTH, BATCH, HIDDEN)
    assert shapes[("w",)] == (BATCH, HIDDEN)


def test_loops_stay_closed_by_policy():
    policy = ft.ControlFlowPolicy(scan_descent="never")
    graph = ft.compile_etrace_graph(marked, X, params=PARAMS, state=STATE, control_flow=policy)
    assert {p.name: p.history.value for p in graph.parameters} == {"w": "in-step", "r": "in-step", "b": "in-step"}
    assert ft.DiagnosticKind.SCAN_KEPT in {record.kind for record in graph.diagnostics}


def test_direct_loop_keeps_all_history():
    graph = ft.compile_etrace_graph(direct, X, params=PARAMS, state=STATE)
    assert {p.name: p.history.value for p in graph.parameters} == {"w": "all", "b": "all", "r": "none-needed"}
