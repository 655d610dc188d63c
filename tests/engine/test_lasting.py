"""Which traces later steps read, and that nobody pays for the others where only a gradient is asked for."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from foretrace.rules.d_rtrl import D_RTRL
from foretrace.rules.ostl import OSTLRecurrent
from foretrace.rules.rule import Rule

UNITS, BATCH, INPUTS = 64, 8, 8


def gates(params: Any, state: Any, x: jax.Array) -> tuple[Any, jax.Array]:
    """Three gates and the value `c`, which stays, and `h`, which is read through weights alone."""
    gate = lambda name: jnp.concatenate([x, state["h"]], axis=-1) @ params[name]
    c = jax.nn.sigmoid(gate("keep")) * state["c"] + jnp.tanh(gate("enter"))
    h = jax.nn.sigmoid(gate("leave")) * jnp.tanh(c)
    return {"c": c, "h": h}, h


def late(params: Any, state: Any, x: jax.Array) -> tuple[Any, jax.Array]:
    """The same, with what it gives read from the step before."""
    return gates(params, state, x)[0], 2.0 * state["h"]


Step = Callable[[Any, Any, jax.Array], tuple[Any, jax.Array]]


def learner_of(step: Step, rule: Rule, **options: Any) -> tuple[Any, Any, Any]:
    keys = jax.random.split(jax.random.key(0), 3)
    names = ("keep", "enter", "leave")
    params = {
        name: 0.1 * jax.random.normal(key, (INPUTS + UNITS, UNITS)) for name, key in zip(names, keys, strict=True)
    }
    state = {"c": jnp.zeros((BATCH, UNITS)), "h": jnp.zeros((BATCH, UNITS))}
    return ft.compile(step, rule, jnp.zeros((BATCH, INPUTS)), params=params, state=state, **options), params, state


def lasting(step: Step, rule: Rule) -> dict[str, set[str]]:
    """For each weight the states whose trace later steps read."""
    plan = learner_of(step, rule)[0].plan
    kept = jax.eval_shape(lambda: rule.lasting(plan, rule.init(plan))).e
    names = lambda link, slots: {link.group.hidden_paths[link.group.slots[slot].state][-1] for slot in slots}
    return {link.relation.path[-1]: names(link, slots) for link, slots in zip(plan.links, kept, strict=True)}


def test_a_state_that_is_read_through_weights_alone_has_no_lasting_trace() -> None:
    assert lasting(gates, D_RTRL()) == {"keep": {"c"}, "enter": {"c"}, "leave": set()}


def test_traces_of_states_that_a_later_output_reads_last() -> None:
    assert lasting(late, D_RTRL()) == {"keep": {"c", "h"}, "enter": {"c", "h"}, "leave": {"h"}}


def test_by_the_whole_step_every_trace_lasts() -> None:
    assert lasting(gates, OSTLRecurrent()) == {name: {"c", "h"} for name in ("keep", "enter", "leave")}


@pytest.mark.parametrize("step", [gates, late])
def test_blocks_that_read_lasting_traces_alone_give_the_gradient_of_one_block(step: Step) -> None:
    xs = jax.random.normal(jax.random.key(1), (12, BATCH, INPUTS))
    found = []
    for block in (12, 4, 1):
        learner, params, state = learner_of(step, D_RTRL(), block=block)
        found.append(learner.grad(params, learner.init(state), xs, None, loss=lambda out: jnp.sum(out**2))[0])
    for other in found[1:]:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5), found[0], other)


def test_a_gradient_alone_takes_the_memory_of_lasting_traces() -> None:
    learner, params, state = learner_of(gates, D_RTRL(), block=2)
    xs = jnp.zeros((20, BATCH, INPUTS))

    def gradient(params: Any) -> Any:
        return learner.grad(params, learner.init(state), xs, None, loss=lambda out: jnp.sum(out**2))[0]

    memory = jax.jit(gradient).lower(params).compile().memory_analysis().temp_size_in_bytes
    traces = sum(leaf.nbytes for leaf in jax.tree.leaves(D_RTRL().init(learner.plan)))  # five of one size; two last
    assert memory < 4 * traces / 5
