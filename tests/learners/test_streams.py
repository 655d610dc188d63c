"""A stream in pieces, as docs/learning.md takes it: compiled for the first piece, and no more memory for any other."""

import gc
from collections.abc import Callable
from typing import Any

import brainstate
import jax
import jax.numpy as jnp
import optax

import foretrace as ft

PIECES, STEPS = 6, 4
XS = jax.random.normal(jax.random.key(0), (PIECES, STEPS, 2, 3))
PARAMS, STATE = {"w": 0.3 * jnp.ones((3, 4))}, jnp.zeros((2, 4))


def step(params: Any, state: Any, x: Any) -> Any:
    state = 0.5 * state + jnp.tanh(x @ params["w"])
    return state, state


class Counted:
    """A loss that counts how often it is traced: whatever is compiled is traced before."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, out: Any) -> Any:
        self.count += 1
        return jnp.mean(out**2)


def assert_flat(piece: Callable[[Any], Any], loss: Counted) -> None:
    """Runs a stream; after two pieces nothing is traced any more, and as many arrays live as before."""
    counts, living = [], []
    for xs in XS:
        piece(xs)
        gc.collect()
        counts.append(loss.count)
        living.append(len(jax.live_arrays()))
    assert counts[0] > 0
    assert len(set(counts[1:])) == 1, counts
    assert len(set(living[1:])) == 1, living


def test_gradients_of_a_function() -> None:
    loss = Counted()
    learner = ft.compile(step, "D_RTRL", XS[0, 0], params=PARAMS, state=STATE)

    @jax.jit
    def learn_from(carry: Any, total: Any, xs: Any) -> Any:
        part, carry, _ = learner.grad(PARAMS, carry, xs, loss=loss)
        return carry, jax.tree.map(jnp.add, total, part)

    held = [learner.init(STATE), jax.tree.map(jnp.zeros_like, PARAMS)]

    def piece(xs: Any) -> None:
        held[:] = learn_from(*held, xs)

    assert_flat(piece, loss)


def test_updates_of_a_function() -> None:
    loss, optimizer = Counted(), optax.adam(1e-2)
    learner = ft.compile(step, "pp_prop", XS[0, 0], params=PARAMS, state=STATE, decay_or_rank=0.9)

    @jax.jit
    def learn_from(params: Any, opt_state: Any, carry: Any, xs: Any) -> Any:
        given = dict(loss=loss, optimizer=optimizer, opt_state=opt_state, update_every=2)
        return learner.train(params, carry, xs, **given)[:3]

    held = [PARAMS, optimizer.init(PARAMS), learner.init(STATE)]

    def piece(xs: Any) -> None:
        held[:] = learn_from(*held, xs)

    assert_flat(piece, loss)


def test_gradients_of_a_module() -> None:
    loss = Counted()
    learner = ft.compile(brainstate.nn.GRUCell(3, 4), "D_RTRL", XS[0, 0], batch_size=2)
    gradient = brainstate.transform.jit(lambda xs: learner.etrace_grad(xs, step_fn=lambda x: loss(learner(x))))
    assert_flat(gradient, loss)


def test_calls_of_a_module_one_step_at_a_time() -> None:
    """The learner's own call is compiled once, also outside of `jit`."""
    learner = ft.compile(brainstate.nn.GRUCell(3, 4), "D_RTRL", XS[0, 0], batch_size=2)
    counted = Counted()
    counted.count = 1

    def piece(xs: Any) -> None:
        for x in xs:
            learner(x)

    assert_flat(piece, counted)
