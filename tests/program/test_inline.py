"""Inlining keeps values and derivatives, and leaves no nested call."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from foretrace._jax import held_jaxprs, jaxpr_as_fun
from foretrace.program import inline_calls, inline_jaxpr

X = jnp.linspace(0.1, 0.9, 3)
MATRIX = np.arange(9.0).reshape(3, 3) / 9


@jax.jit
def inner(x):
    return jnp.sin(x) * jnp.asarray(MATRIX).sum(0)


def nested(x):
    return jax.jit(lambda y: inner(inner(y)) + 1.0)(x)


def rematerialised(x):
    return jax.checkpoint(lambda y: jnp.exp(jnp.sin(y)))(x)


def in_scan(x):
    return jax.lax.scan(lambda c, s: (inner(c) + s, inner(c)), x, jnp.arange(4.0))


def in_cond(x):
    return jax.lax.cond(x.sum() > 0, lambda y: inner(y), lambda y: y @ MATRIX, x)


def in_while(x):
    return jax.lax.while_loop(lambda c: inner(c).sum() < 0.3, lambda c: inner(c) + c, x)


def called_twice(x):
    return inner(x) + inner(2.0 * x)


def several_constants(x):
    return jax.jit(lambda y: y @ MATRIX + inner(y))(x) @ jnp.asarray(MATRIX.T + 1.0)


def literal_argument(x):
    return x * jax.jit(jnp.tanh)(0.5)


FUNCTIONS = [nested, rematerialised, in_scan, in_cond, called_twice, several_constants, literal_argument]


def all_eqns(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for value in eqn.params.values():
            for held in held_jaxprs(value):
                yield from all_eqns(held.jaxpr)


@pytest.mark.parametrize("function", [*FUNCTIONS, in_while])
def test_no_calls_are_left(function):
    inlined = inline_calls(jax.make_jaxpr(function)(X))
    assert not {"jit", "remat2", "closed_call"} & {eqn.primitive.name for eqn in all_eqns(inlined.jaxpr)}


@pytest.mark.parametrize("function", [*FUNCTIONS, in_while])
def test_values_are_kept(function):
    run = jaxpr_as_fun(inline_calls(jax.make_jaxpr(function)(X)))
    for got, want in zip(jax.jit(run)(X), jax.tree.leaves(jax.jit(function)(X)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-14)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_derivatives_are_kept(function):
    run = jaxpr_as_fun(inline_calls(jax.make_jaxpr(function)(X)))
    got = jax.jit(jax.jacrev(lambda x: run(x)))(X)
    want = jax.tree.leaves(jax.jit(jax.jacrev(function))(X))
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-13)


def test_variables_are_defined_once():
    inlined = inline_calls(jax.make_jaxpr(called_twice)(X)).jaxpr
    defined = [v for eqn in inlined.eqns for v in eqn.outvars]
    assert len(defined) == len(set(defined))


def test_a_constant_is_held_once():
    inlined = inline_calls(jax.make_jaxpr(lambda x: jax.jit(lambda y: y @ MATRIX)(jax.jit(lambda y: y @ MATRIX)(x)))(X))
    assert len(inlined.consts) == 1


def test_bodies_hold_no_constants():
    for eqn in all_eqns(inline_calls(jax.make_jaxpr(in_scan)(X)).jaxpr):
        if eqn.primitive.name == "scan":
            assert not eqn.params["jaxpr"].consts


def test_custom_derivatives_stay_whole():
    @jax.custom_jvp
    def spike(x):
        return jnp.where(x > 0, 1.0, 0.0)

    spike.defjvp(lambda primals, tangents: (spike(*primals), tangents[0] / (1 + primals[0] ** 2)))

    @jax.custom_vjp
    def twice(x):
        return 2 * x

    twice.defvjp(lambda x: (2 * x, None), lambda _, g: (3 * g,))
    inlined = inline_calls(jax.make_jaxpr(jax.jit(lambda x: twice(spike(x))))(X))
    assert [eqn.primitive.name for eqn in inlined.eqns] == ["custom_jvp_call", "custom_vjp_call"]
    grad = jax.grad(lambda x: jaxpr_as_fun(inlined)(x)[0].sum())(X)
    np.testing.assert_allclose(grad, 3 / (1 + X**2), rtol=1e-14)


def test_inline_jaxpr_takes_literals_and_renames():
    jaxpr = jax.make_jaxpr(lambda x, y: x * y + 1.0)(1.0, 2.0).jaxpr
    first, (out,) = inline_jaxpr(jaxpr, [], jaxpr.invars)
    second, _ = inline_jaxpr(jaxpr, [], [jaxpr.invars[0], first[-1].invars[1]])
    assert not {v for eqn in first for v in eqn.outvars} & {v for eqn in second for v in eqn.outvars}
    assert out is first[-1].outvars[0]
