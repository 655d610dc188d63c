"""Where D-RTRL is exact: one group, no recurrent mixing, any number of values at a position."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from foretrace.engine.plan import make_plan
from foretrace.learners.blocks import default_block, even_block, step_bytes, steps_in_block
from foretrace.rules.d_rtrl import D_RTRL
from online import online_gradient
from oracle import bptt
from zoo.solved import loss

STEPS, BATCH, INPUTS, UNITS = 50, 2, 3, 4


def chain(count: int) -> Any:
    """A neuron with `count` states, each driven by the one before, the first by the last as well."""

    def step(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
        drive = x @ params["w"] + params["b"]
        new = []
        for k in range(count):
            before = drive if k == 0 else new[-1]
            new.append(jnp.tanh(jax.nn.sigmoid(params["decay"]) * state[k] + 0.3 * before + 0.1 * jnp.sin(state[-1])))
        return new, new[-1] @ params["readout"] + jnp.sum(state[0])

    generator = np.random.default_rng(count)
    shapes = {"w": (INPUTS, UNITS), "b": (UNITS,), "decay": (UNITS,), "readout": (UNITS, 2)}
    params = {name: jnp.asarray(generator.normal(size=shape)) for name, shape in shapes.items()}
    state = [jnp.asarray(generator.normal(size=(BATCH, UNITS))) for _ in range(count)]
    return step, params, state, jnp.asarray(generator.normal(size=(STEPS, BATCH, INPUTS)))


@pytest.mark.parametrize("count", [1, 2, pytest.param(3, marks=pytest.mark.slow), 4])
def test_equals_bptt_over_fifty_steps(count: int) -> None:
    step, params, state, xs = chain(count)
    graph = ft.compile_etrace_graph(step, xs[0], params=params, state=state)
    assert [group.num_state for group in graph.hidden_groups] == [count]
    info = graph.module_info
    values = (info.flatten_params(params), *info.flatten_state(state), [info.flatten_inputs(x) for x in xs])
    found = online_gradient(graph, D_RTRL(), loss, *values, block=16)
    for one, other in zip(found, bptt(graph, loss, *values), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10 * float(jnp.max(jnp.abs(other))))


def test_finite_differences_agree() -> None:
    step, params, state, xs = chain(2)
    learner = ft.compile(step, "D_RTRL", xs[0], params=params, state=state)
    grads = jax.jit(lambda: learner.grad(params, learner.init(state), xs[:9], loss=lambda out: jnp.sum(out**2))[0])()

    @jax.jit
    def total(params: Any) -> Any:
        return jnp.sum(learner.evolve(params, learner.init(state), xs[:9])[1] ** 2)

    for name, direction in (("w", np.eye(INPUTS, UNITS)), ("decay", np.ones(UNITS)), ("b", np.arange(UNITS))):
        up, down = ({**params, name: params[name] + sign * 1e-5 * direction} for sign in (1, -1))
        numeric = (total(up) - total(down)) / 2e-5
        np.testing.assert_allclose(np.sum(np.asarray(grads[name]) * direction), numeric, rtol=1e-7)


def test_traces_in_half_precision_stay_close() -> None:
    step, params, state, xs = chain(2)
    half = ft.compile(step, "D_RTRL", xs[0], params=params, state=state, trace_dtype=jnp.bfloat16, block=5)
    full = ft.compile(step, "D_RTRL", xs[0], params=params, state=state)
    carry = half.init(state)
    assert {leaf.dtype for leaf in jax.tree.leaves(carry.trace)} == {jnp.bfloat16.dtype}
    found, carry, _ = jax.jit(lambda carry: half.grad(params, carry, xs[:12], loss=jnp.sum))(carry)
    wanted = jax.jit(lambda: full.grad(params, full.init(state), xs[:12], loss=jnp.sum)[0])()
    assert {leaf.dtype for leaf in jax.tree.leaves(carry.trace)} == {jnp.bfloat16.dtype}
    np.testing.assert_allclose(found["w"], wanted["w"], rtol=0.05, atol=0.05 * float(jnp.max(jnp.abs(wanted["w"]))))


def test_a_block_fits_its_budget() -> None:
    step, params, state, xs = chain(3)
    plan = make_plan(ft.compile_etrace_graph(step, xs[0], params=params, state=state))
    budget = 10 * step_bytes(plan, D_RTRL())
    assert default_block(plan, D_RTRL(), budget) == 10
    assert default_block(plan, D_RTRL(), 0) == 1
    assert default_block(plan, D_RTRL()) == 400  # so small a model could have more


def test_a_block_is_given_by_steps_or_by_memory() -> None:
    step, params, state, xs = chain(3)
    whole = ft.compile(step, "D_RTRL", xs[0], params=params, state=state, block=len(xs))
    assert steps_in_block(whole.plan, whole.rule, whole.block, 40) == len(xs)
    five = f"{5 * step_bytes(whole.plan, whole.rule)}B"
    learner = ft.compile(step, "D_RTRL", xs[0], params=params, state=state, block=five)
    assert steps_in_block(learner.plan, learner.rule, learner.block, 40) == 5
    gradient = lambda learner: jax.jit(lambda: learner.grad(params, learner.init(state), xs, loss=jnp.sum)[0]["w"])()
    np.testing.assert_allclose(gradient(learner), gradient(whole), rtol=1e-12)


@pytest.mark.parametrize(("length", "largest", "expected"), [(400, 128, 100), (400, 400, 400), (7, 3, 3), (1, 50, 1)])
def test_blocks_are_about_equally_long(length: int, largest: int, expected: int) -> None:
    assert even_block(length, largest) == expected
