"""Building a program: the function is kept, and each wrong model has its own error."""

import braintools
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from foretrace.errors import (
    CompilationError,
    EmptyModelError,
    NoRecurrentStateError,
    StateMismatchError,
)
from foretrace.program import build_program
from program.steps import kinds, leaves, make_program, primitives_of, simple

W = jnp.linspace(-1.0, 1.0, 4)
H = jnp.linspace(0.1, 0.8, 8).reshape(2, 4)
X = jnp.linspace(-0.5, 0.9, 8).reshape(2, 4)

BODIES = {
    "roll": lambda w, h, x: jnp.roll(h, 1, axis=1) * w + x,
    "variance": lambda w, h, x: (h - h.mean(1, keepdims=True)) / jnp.sqrt(jnp.var(h, 1, keepdims=True) + 1e-5) * w,
    "softmax": lambda w, h, x: jax.nn.softmax(h * w + x),
    "norm": lambda w, h, x: h * w / jnp.linalg.norm(w) + x / jnp.linalg.norm(x, axis=1, keepdims=True),
    "relu, silu and gelu": lambda w, h, x: jax.nn.relu(h) * w + jax.nn.silu(x) * jax.nn.gelu(h),
    "layer norm": lambda w, h, x: jax.nn.standardize(h) * w,
    "indexing": lambda w, h, x: h[:, jnp.array([2, 0, 1, 3])] * w + x.at[:, 0].set(h[:, 1]),
    "einsum": lambda w, h, x: jnp.einsum("bi,ij,bj->bj", h, jnp.outer(w, w), x),
    "cumulative sum": lambda w, h, x: jnp.cumsum(h * w, axis=1) + jnp.sort(x, axis=1),
    "vmap": lambda w, h, x: jax.vmap(lambda a, b: jnp.convolve(a, w, mode="same") + b)(h, x),
    "clip": lambda w, h, x: jnp.clip(h * w, -0.2, 0.2) + jnp.maximum(x, 0),
    "surrogate spike": lambda w, h, x: braintools.surrogate.relu_grad(h - w) + x,
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_programs_compute_the_step(body):
    program = make_program(simple(body), [W], [H], [X])
    (new_h,), _, _ = jax.jit(program)([W], [H], [], [X])
    np.testing.assert_allclose(new_h, jax.jit(body)(W, H, X), rtol=1e-12, atol=1e-14)
    got = jax.jit(jax.grad(lambda w, h: (program([w], [h], [], [X])[0][0] * X).sum(), (0, 1)))(W, H)
    want = jax.jit(jax.grad(lambda w, h: (body(w, h, X) * X).sum(), (0, 1)))(W, H)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-13)
    assert "jit" not in primitives_of(program)


def test_random_keys_are_carried():
    def step(params, hidden, other, inputs):
        key, use = jax.random.split(other[0])
        dropped = jax.random.bernoulli(use, 0.7, H.shape) * hidden[0]
        return [params[0] * dropped + jax.random.normal(use, (4,))], [key], []

    key = jax.random.key(1)
    program = make_program(step, [W], [H], other=[key])
    (h,), (new_key,), _ = jax.jit(program)([W], [H], [key], [])
    (want,), (want_key,), _ = jax.jit(step)([W], [H], [key], [])
    np.testing.assert_allclose(h, want, rtol=1e-14)
    assert (jax.random.key_data(new_key) == jax.random.key_data(want_key)).all()


def test_an_untouched_state_is_recorded():
    step = lambda params, hidden, other, inputs: ([params[0] * hidden[0], hidden[1]], [], [])
    program = make_program(step, [W], [H, X])
    (record,) = program.diagnostics
    assert (record.kind, record.hidden_paths) == ("state_untouched", (("h1",),))


def test_an_unused_parameter_is_no_error():
    step = lambda params, hidden, other, inputs: ([params[0] * hidden[0]], [], [])
    program = make_program(step, [W, W], [H])
    assert kinds(program) == []
    assert len(program.param_invars) == 2


def test_all_mismatched_states_are_named_at_once():
    step = lambda params, hidden, other, inputs: (
        [hidden[0][:1] * params[0], hidden[1].astype(jnp.float32)],
        [other[0][None]],
        [],
    )
    with pytest.raises(StateMismatchError) as caught:
        make_program(step, [W], [H, X], other=[jnp.ones(3)])
    assert all(name in str(caught.value) for name in ("`h0`", "`h1`", "`k0`"))


def test_each_wrong_model_has_its_error():
    step = lambda params, hidden, other, inputs: ([h * 2 for h in hidden], [], [x * 2 for x in inputs])
    with pytest.raises(EmptyModelError):
        make_program(step, [], [H], [X])
    with pytest.raises(NoRecurrentStateError):
        make_program(step, [W], [], [X])


def test_leaves_must_describe_the_step():
    closed = jax.make_jaxpr(lambda w, h, x: (w * h, x))(W, H, X)
    w, h, x = leaves("v", closed.jaxpr.invars)
    with pytest.raises(CompilationError, match="takes 3"):
        build_program(closed, params=[w], hidden=[h], other=[], inputs=[], outputs=[x])
    with pytest.raises(CompilationError, match="returns 2"):
        build_program(closed, params=[w], hidden=[h], other=[], inputs=[x], outputs=[])
    with pytest.raises(CompilationError, match="`v1`"):
        build_program(closed, params=[h], hidden=[w], other=[], inputs=[x], outputs=[x])
