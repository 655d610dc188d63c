"""The readable print: valid Python that, where it uses jax.numpy alone, computes the step."""

import ast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from foretrace.frontends import trace_model
from foretrace.program import Leaf, build_program, to_code
from program.steps import leaves, make_program, simple

W = jnp.linspace(-1.0, 1.0, 16).reshape(4, 4)
H = jnp.linspace(0.1, 0.8, 8).reshape(2, 4)
X = jnp.linspace(-0.5, 0.9, 8).reshape(2, 4)


@jax.custom_jvp
def spike(x):
    return jnp.where(x > 0, 1.0, 0.0)


spike.defjvp(lambda primals, tangents: (spike(*primals), tangents[0] / (1 + primals[0] ** 2)))

RUNNABLE = {
    "rnn": lambda w, h, x: jnp.tanh(h @ w + x),
    "gates": lambda w, h, x: jnp.concatenate([(h @ w)[:, 0:2], x[:, ::2]], axis=1) * jax.nn.sigmoid(x),
    "norm": lambda w, h, x: (h - h.mean(1, keepdims=True)) / jnp.sqrt(jnp.var(h, 1, keepdims=True) + 1e-5) * w[0],
    "where": lambda w, h, x: jnp.where(x > 0, h @ w.T, -h) ** 2 + jnp.where(x[0, 0] > 0, 1.0, h),
    "einsum": lambda w, h, x: jnp.einsum("bi,bij->bj", h, w[None] * x[:, :, None]),
    "spike": lambda w, h, x: spike(h - 0.3) + jax.nn.relu(x) * w[0, 0],
    "cond": lambda w, h, x: jax.lax.cond(x[0, 0] > 0, lambda: h @ w, lambda: h * jnp.sqrt(w[0])),
    "shapes": lambda w, h, x: jnp.roll(h, 1, 1).reshape(4, 2).T * w[:2] + jnp.flip(x, 0) + jnp.stack([w[0], w[1]]),
    "limits": lambda w, h, x: jnp.clip(h, -1.0, 1.0) + jnp.maximum(x, -jnp.inf) - jnp.arange(4) * w[0],
}
OPAQUE = {
    "scan": lambda w, h, x: jax.lax.scan(lambda c, s: (c @ w + s, None), h, jnp.ones((40, 4)))[0],
    "while": lambda w, h, x: h @ w + jax.lax.while_loop(lambda c: c[0, 0] < 3, lambda c: c + 1, x),
    "convolution": lambda w, h, x: jax.vmap(lambda a: jnp.convolve(a, w[0], mode="same"))(h),
    "gather": lambda w, h, x: h[:, jnp.array([0, 2, 1, 3])] + w[jnp.argmax(x, 1)],
    "kept cond": lambda w, h, x: h @ w + jax.lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x),
    "random": lambda w, h, x: h @ w + jax.random.uniform(jax.random.key(0), (4,)),
    "fft": lambda w, h, x: h @ w + jnp.abs(jnp.fft.fft(x)),
}


@pytest.mark.parametrize("body", [*RUNNABLE.values(), *OPAQUE.values()], ids=[*RUNNABLE, *OPAQUE])
def test_the_print_is_python(body):
    module = ast.parse(to_code(make_program(simple(body), [W], [H], [X])))
    assert module.body[-1].name == "step"


@pytest.mark.parametrize("body", RUNNABLE.values(), ids=RUNNABLE.keys())
def test_the_print_computes_the_step(body):
    program = make_program(simple(body), [W], [H], [X])
    scope = {"jax": jax, "jnp": jnp, **{f"const_{i}": value for i, value in enumerate(program.consts)}}
    exec(to_code(program), scope)
    (new_h,), _, _ = scope["step"]([W], [H], [], [X])
    np.testing.assert_allclose(new_h, body(W, H, X), rtol=1e-12)


def test_names_come_from_paths():
    closed = jax.make_jaxpr(lambda w, h, x: (jnp.tanh(h @ w + x), h))(W, H, X)
    w, h, x = closed.jaxpr.invars
    program = build_program(
        closed,
        params=[Leaf(("cell", "w", 0), w.aval)],
        hidden=[Leaf(("cell", "lambda"), h.aval)],
        other=[],
        inputs=[Leaf((0,), x.aval)],
        outputs=leaves("out", [h]),
    )
    code = to_code(program)
    assert "(cell_w_0,) = params" in code
    assert "cell_lambda @ cell_w_0" in code
    assert "cell_lambda_new = jnp.tanh(" in code
    assert "return (cell_lambda_new,), (), (cell_lambda,)" in code


def test_clashing_names_are_told_apart():
    closed = jax.make_jaxpr(lambda w, h, x: w * h + x)(1.0, 2.0, 3.0)
    same = [Leaf(("a",), v.aval) for v in closed.jaxpr.invars]
    program = build_program(
        closed, params=same[:1], hidden=same[1:2], other=[], inputs=[Leaf(("class",), same[2].aval)], outputs=[]
    )
    scope = {"jax": jax, "jnp": jnp}
    exec(to_code(program), scope)
    assert scope["step"]([2.0], [3.0], [], [4.0]) == ((10.0,), (), ())


def test_functions_with_their_own_derivative_stand_in_front():
    code = to_code(make_program(simple(lambda w, h, x: spike(h @ w) + spike(x)), [W], [H], [X]))
    assert code.startswith("def spike(")
    assert code.count("def ") == 2


def test_whole_numbers_of_numpy_are_written_as_numbers():
    code = to_code(make_program(simple(lambda w, h, x: sum(jnp.split(h @ w, [2], axis=1)).repeat(2, 1)), [W], [H], [X]))
    assert "split(a, sizes=(2, 2), axis=1)" in code


def test_an_effect_without_a_result_is_a_line_of_its_own():
    def step(params, state, x):
        jax.debug.callback(lambda value: None, x[0])
        return {"h": params["w"] * state["h"] + x}, x

    ones = jnp.ones(3)
    program = trace_model(step, ones, params={"w": ones}, state={"h": ones}).program
    assert any(not eqn.outvars for eqn in program.jaxpr.eqns)
    ast.parse(to_code(program))
