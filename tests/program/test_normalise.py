"""Normal form: explicit broadcasts, no dead code, hidden outputs with variables of their own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from foretrace._jax import ClosedJaxpr, Literal, jaxpr_as_fun
from foretrace.program.elementwise import NARY
from foretrace.program.normalise import normalise
from program.steps import make_program, primitives_of

A = jnp.linspace(0.2, 0.9, 6).reshape(2, 3)
ROW = jnp.array([[0.5, 0.25, 2.0]])

STRETCHED = {
    "scalar": (lambda a, b: a * b[0, 0]),
    "axis of size one": (lambda a, b: a * b),
    "scalar first": (lambda a, b: b[0, 0] - a),
    "select": (lambda a, b: jax.lax.select_n(b[0, 0] > 1, a, 2 * a)),
    "clamp": (lambda a, b: jax.lax.clamp(0.3, a, jax.lax.stop_gradient(b[0, 0]))),
    "power": (lambda a, b: a ** b[0, 2]),
    "comparison": (lambda a, b: jnp.where(a > b, a, b)),
    "softmax": (lambda a, b: jax.nn.softmax(a * b)),
    "in a scan": (lambda a, b: jax.lax.scan(lambda c, x: (c * x, None), a, b[0])[0]),
    "an array constant": (lambda a, b: a * np.array([[2.0, 3.0, 4.0]])),
}


def all_eqns(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        if eqn.primitive.name == "scan":
            yield from all_eqns(eqn.params["jaxpr"].jaxpr)


@pytest.mark.parametrize("function", STRETCHED.values(), ids=STRETCHED.keys())
def test_operands_have_the_shape_of_their_output(function):
    closed = normalise(jax.make_jaxpr(function)(A, ROW), 1)
    for eqn in all_eqns(closed.jaxpr):
        if eqn.primitive.name in NARY:
            for v in eqn.invars:
                assert v.aval.shape == eqn.outvars[0].aval.shape or (isinstance(v, Literal) and v.aval.ndim == 0)


@pytest.mark.parametrize("function", STRETCHED.values(), ids=STRETCHED.keys())
def test_values_and_derivatives_are_kept(function):
    run = jaxpr_as_fun(normalise(jax.make_jaxpr(function)(A, ROW), 1))
    np.testing.assert_allclose(jax.jit(run)(A, ROW)[0], jax.jit(function)(A, ROW), rtol=1e-14)
    got = jax.jit(jax.grad(lambda a, b: run(a, b)[0].sum(), (0, 1)))(A, ROW)
    want = jax.jit(jax.grad(lambda a, b: function(a, b).sum(), (0, 1)))(A, ROW)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-13)


def test_dead_code_goes_and_inputs_stay():
    constant = np.arange(3.0)
    closed = jax.make_jaxpr(lambda h, unused: (h * 2, jnp.sin(unused) + constant)[0])(A, ROW)
    final = normalise(closed, 1)
    assert [eqn.primitive.name for eqn in final.eqns] == ["mul"]
    assert len(final.jaxpr.invars) == 2
    assert not final.consts


def test_a_value_of_parameters_or_of_data_alone_is_computed_once():
    def step(params, hidden, other, inputs):
        (w,), (h,) = params, hidden
        return [jnp.exp(w) * h + jnp.exp(w)], [], [jnp.exp(h), jnp.exp(h)]

    assert primitives_of(make_program(step, [jnp.ones(3)], [jnp.ones(3)])).count("exp") == 2  # of w, and of h


def test_a_value_of_parameters_and_data_is_computed_as_often_as_it_stands_there():
    def step(params, hidden, other, inputs):
        (w,), (h,) = params, hidden
        return [jnp.exp(w * h) + jnp.exp(w * h)], [], []

    assert primitives_of(make_program(step, [jnp.ones(3)], [jnp.ones(3)])).count("exp") == 2


def test_signs_of_zero_are_not_merged():
    def step(params, hidden, other, inputs):
        (w,), (h,) = params, hidden
        return [h + jnp.copysign(w, 0.0) + jnp.copysign(w, -0.0)], [], []

    program = make_program(step, [jnp.ones(3)], [jnp.ones(3)])
    np.testing.assert_array_equal(program([jnp.ones(3)], [jnp.ones(3)], [], [])[0][0], jnp.ones(3))


def test_effects_stay():
    def function(h):
        jax.debug.callback(lambda x: None, h)
        return h * 2

    assert "debug_callback" in [eqn.primitive.name for eqn in normalise(jax.make_jaxpr(function)(A), 1).eqns]


def test_hidden_outputs_are_distinct_variables_with_equations():
    def step(params, hidden, other, inputs):
        (w,), (a, _, c, *_) = params, hidden
        new = w * a
        return [new, new, c, jnp.zeros(3), a], [], [new, c]

    states = [jnp.arange(3.0) + i for i in range(5)]
    program = make_program(step, [jnp.ones(3)], states)
    outvars = program.hidden_outvars
    defined = {v for eqn in program.jaxpr.eqns for v in eqn.outvars}
    assert len(set(outvars)) == 5
    assert defined.issuperset(outvars)
    new_hidden, _, outputs = program([jnp.ones(3)], states, [], [])
    want_hidden, _, want_outputs = step([jnp.ones(3)], states, [], [])
    for got, want in zip([*new_hidden, *outputs], [*want_hidden, *want_outputs], strict=True):
        np.testing.assert_array_equal(got, want)


def test_an_output_reads_the_new_state_itself():
    step = lambda params, hidden, other, inputs: ([params[0] * hidden[0]], [], [params[0] * hidden[0], hidden[0]])

    def shared(params, hidden, other, inputs):
        new = params[0] * hidden[0]
        return [new], [], [new]

    program = make_program(shared, [jnp.ones(3)], [jnp.ones(3)])
    assert program.output_outvars[0] is program.hidden_outvars[0]
    assert primitives_of(program) == ["mul"]
    assert "copy" not in primitives_of(make_program(step, [jnp.ones(3)], [jnp.ones(3)]))


def test_normalise_accepts_closed_jaxprs_alone():
    closed = normalise(jax.make_jaxpr(lambda h: h)(A), 1)
    assert isinstance(closed, ClosedJaxpr)
    assert [eqn.primitive.name for eqn in closed.eqns] == ["copy"]
