"""Walks over the equations of a jaxpr."""

import jax
import jax.numpy as jnp
import pytest

from foretrace.program.walks import needed_eqns, reached, users, variables


def step(x, y):
    doubled = 2.0 * x
    joined = doubled + y
    held = jnp.exp(jax.lax.stop_gradient(joined))
    return jnp.sin(joined), held * 3.0, jnp.floor(y).astype(int)


@pytest.fixture
def jaxpr():
    return jax.make_jaxpr(step)(1.0, 1.0).jaxpr


def out_of(jaxpr, name):
    (var,) = (out for eqn in jaxpr.eqns if eqn.primitive.name == name for out in eqn.outvars)
    return var


def names(eqns):
    return [eqn.primitive.name for eqn in eqns]


def test_users_are_the_equations_that_read_a_variable(jaxpr):
    found = users(jaxpr.eqns)
    assert names(found[jaxpr.invars[1]]) == ["add", "floor"]
    assert out_of(jaxpr, "sin") not in found


def test_what_a_variable_leads_to(jaxpr):
    x, _ = jaxpr.invars
    assert reached(jaxpr.eqns, [x]) == {x} | {
        out for eqn in jaxpr.eqns if eqn.primitive.name not in ("floor", "convert_element_type") for out in eqn.outvars
    }


def test_a_barrier_is_not_entered(jaxpr):
    x, y = jaxpr.invars
    joined = out_of(jaxpr, "add")
    assert joined not in reached(jaxpr.eqns, [x], [joined])
    assert out_of(jaxpr, "sin") not in reached(jaxpr.eqns, [x], [joined])
    assert out_of(jaxpr, "floor") in reached(jaxpr.eqns, [y], [joined])
    assert joined in reached(jaxpr.eqns, [joined], [joined])


def test_a_derivative_ends_at_stopped_gradients_and_at_integers(jaxpr):
    x, y = jaxpr.invars
    sine, scaled, number = jaxpr.outvars
    assert variables(jaxpr.outvars) & reached(jaxpr.eqns, [x, y], by_derivative=True) == {sine}
    assert variables(jaxpr.outvars) <= reached(jaxpr.eqns, [x, y])
    assert scaled not in reached(jaxpr.eqns, [out_of(jaxpr, "add")], by_derivative=True)
    assert number in reached(jaxpr.eqns, [y])


def test_needed_equations_are_in_order(jaxpr):
    assert names(needed_eqns(jaxpr.eqns, jaxpr.outvars[:1])) == ["mul", "add", "sin"]
    assert needed_eqns(jaxpr.eqns, jaxpr.invars) == []


def test_equations_with_effects_stay_where_they_are_wanted():
    def talking(x):
        jax.debug.print("{}", x)
        return x + 1.0

    eqns = jax.make_jaxpr(talking)(1.0).jaxpr.eqns
    out = eqns[-1].outvars
    assert names(needed_eqns(eqns, out)) == ["add"]
    assert len(needed_eqns(eqns, out, effects=True)) == 2
