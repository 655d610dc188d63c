"""The learner for step functions: gradients against the oracle, and everything that drives it against plain loops."""

import functools
from typing import Any

import brainunit as u
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from oracle import Oracle
from zoo import MODELS, inputs

STEPS, BATCH, INPUT, HIDDEN, OUT = 7, 2, 3, 4, 2
_random = np.random.default_rng(0)
XS = jnp.asarray(_random.normal(size=(STEPS, BATCH, INPUT)))
YS = jnp.asarray(_random.normal(size=(STEPS, BATCH, OUT)))
MASK = jnp.asarray([0.0, 1.0, 0.0, 2.0, 1.0, 0.0, 1.0])
PARAMS = {
    "w": jnp.asarray(_random.normal(size=(INPUT, HIDDEN))),
    "u": jnp.asarray(0.4 * _random.normal(size=(HIDDEN, HIDDEN))),
    "read": jnp.asarray(_random.normal(size=(HIDDEN, OUT))),
}
STATE = jnp.asarray(_random.normal(size=(BATCH, HIDDEN)))


def step(params: Any, h: Any, x: Any) -> Any:
    h = 0.6 * h + jnp.tanh(x @ params["w"] + h @ params["u"])
    return h, h @ params["read"]


def squared(out: Any, y: Any) -> Any:
    return jnp.sum((out - y) ** 2)


@functools.cache
def learner(**options: Any) -> ft.Learner:
    return ft.compile(step, "D_RTRL", XS[0], params=PARAMS, state=STATE, **options)


@functools.cache
def gradient() -> Any:
    """The gradient of the whole sequence, which the oracle confirms."""
    one = learner()
    return jax.jit(lambda p, c: one.grad(p, c, XS, YS, loss=squared))(PARAMS, one.init(STATE))


def run(one: ft.Learner, params: Any, carry: Any, xs: Any, ys: Any = None, **options: Any) -> Any:
    """`grad`, compiled as one program."""
    return jax.jit(lambda *given: one.grad(*given, **options))(params, carry, xs, ys)


def assert_close(found: Any, wanted: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), found, wanted)


@jax.jit
def backpropagated(params: Any, h: Any, xs: Any, ys: Any) -> Any:
    """By parameters and by the first state, `jax.grad` through a plain loop over the step."""

    def total(params: Any, h: Any) -> Any:
        return jnp.sum(jax.lax.scan(lambda h, item: _loss_of(params, h, item), h, (xs, ys))[1])

    return jax.grad(total, argnums=(0, 1))(params, h)


def _loss_of(params: Any, h: Any, item: Any) -> Any:
    h, out = step(params, h, item[0])
    return h, squared(out, item[1])


@pytest.mark.parametrize("name", ["vanilla RNN with a leaky readout", "LSTM, fused gates and a tuple of states"])
def test_gradient_is_the_oracles(name: str) -> None:
    model = next(model for model in MODELS if model.name == name)
    built, xs = model.build(), inputs(model, 5)
    one = ft.compile(built["step"], "d_rtrl", built["x"], params=built["params"], state=built["state"])
    loss = lambda out: sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(out))
    found, _, _ = run(one, built["params"], one.init(built["state"]), xs, loss=loss)
    hidden, other = one.model.flatten_state(built["state"])
    flat = [one.model.flatten_inputs(x) for x in xs]
    wanted = Oracle(one.graph, loss).gradient(one.model.flatten_params(built["params"]), hidden, other, flat)
    assert_close(one.model.flatten_params(found), wanted)


def test_losses_and_states_are_those_of_a_plain_loop() -> None:
    _, carry, losses = gradient()
    h, wanted = jax.lax.scan(lambda h, item: _loss_of(PARAMS, h, item), STATE, (XS, YS))
    assert_close((carry.state, losses), (h, wanted))


@pytest.mark.parametrize("cut", [1, 4])
def test_a_sequence_in_two_pieces_is_the_same(cut: int) -> None:
    one = learner()
    first, carry, some = run(one, PARAMS, one.init(STATE), XS[:cut], YS[:cut], loss=squared)
    second, carry, more = run(one, PARAMS, carry, XS[cut:], YS[cut:], loss=squared)
    whole, end, losses = gradient()
    assert_close(jax.tree.map(jnp.add, first, second), whole)
    assert_close((carry.state, carry.trace), (end.state, end.trace))
    assert_close(jnp.concatenate([some, more]), losses)


@pytest.mark.parametrize("block", [1, 3, STEPS])
def test_block_changes_nothing(block: int) -> None:
    one = learner(block=block)
    assert_close(run(one, PARAMS, one.init(STATE), XS, YS, loss=squared)[0], gradient()[0])


def test_evolve_runs_states_and_traces() -> None:
    one = learner()
    carry, outputs = jax.jit(one.evolve)(PARAMS, one.init(STATE), XS)
    _, end, losses = gradient()
    assert_close((carry.state, carry.trace), (end.state, end.trace))
    assert_close(jax.vmap(squared)(outputs, YS), losses)


def test_vmap_over_states_and_parameters() -> None:
    one = learner()
    states = jnp.stack([STATE, STATE + 1.0, -STATE])
    several = jax.tree.map(lambda p: jnp.stack([p, 0.5 * p, 1.5 * p]), PARAMS)
    online = lambda params, state: one.grad(params, one.init(state), XS, YS, loss=squared)[0]
    found = jax.jit(jax.vmap(online))(several, states)
    for k in range(3):
        wanted = jax.jit(online)(jax.tree.map(lambda p, k=k: p[k], several), states[k])
        assert_close(jax.tree.map(lambda g, k=k: g[k], found), wanted)


@pytest.mark.parametrize("update_every", [1, 3])
def test_train_is_a_loop_of_gradient_and_descent(update_every: int) -> None:
    optax = pytest.importorskip("optax")
    one, optimizer = learner(), optax.sgd(0.05, momentum=0.9)
    found = one.train(
        PARAMS, one.init(STATE), XS, YS, loss=squared, optimizer=optimizer, update_every=update_every, mask=MASK
    )
    gradient_of = jax.jit(lambda *given: one.grad(*given[:-1], loss=squared, mask=given[-1]))
    params, opt_state, carry, losses = PARAMS, optimizer.init(PARAMS), one.init(STATE), []
    for start in range(0, STEPS, update_every):
        part = slice(start, start + update_every)
        grads, carry, some = gradient_of(params, carry, XS[part], YS[part], MASK[part])
        updates, opt_state = optimizer.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        losses.append(some)
    assert_close(found[0], params)
    assert_close(found[1], opt_state)
    assert_close((found[2].state, found[2].trace), (carry.state, carry.trace))
    assert_close(found[3], jnp.concatenate(losses))


def test_a_window_of_the_whole_length_is_bptt() -> None:
    one = learner(window=STEPS)
    found = run(one, PARAMS, one.init(STATE), XS, YS, loss=squared)[0]
    assert_close(found, backpropagated(PARAMS, STATE, XS, YS)[0])
    assert float(jnp.max(jnp.abs(found["u"] - gradient()[0]["u"]))) > 0.1


def test_windows_are_exact_inside_and_online_beyond() -> None:
    """Each window by `jax.grad`, plus what its start asks of the states, credited by a last loss on them alone."""
    window = 3
    one = learner(window=window)
    found = run(one, PARAMS, one.init(STATE), XS, YS, loss=squared)[0]
    # The same step with its state as the output: a loss on the last output alone is `signal . trace`.
    states_out = lambda params, h, x: (step(params, h, x)[0],) * 2
    traced = ft.compile(states_out, "D_RTRL", XS[0], params=PARAMS, state=STATE)
    total, h = jax.tree.map(jnp.zeros_like, PARAMS), STATE
    for start in range(0, STEPS, window):
        part = slice(start, start + window)
        inside, signal = backpropagated(PARAMS, h, XS[part], YS[part])
        total = jax.tree.map(jnp.add, total, inside)
        if start:
            ends = jnp.zeros((start, *STATE.shape)).at[-1].set(signal)
            carry = traced.init(STATE)
            beyond = run(traced, PARAMS, carry, XS[:start], ends, loss=lambda out, y: jnp.sum(out * y))[0]
            total = jax.tree.map(jnp.add, total, beyond)
        h = jax.lax.scan(lambda h, x: step(PARAMS, h, x), h, XS[part])[0]
    assert_close(found, total)


def test_mask_weighs_losses_alone() -> None:
    one = learner()
    weighted = lambda out, item: item[1] * squared(out, item[0])
    found, carry, losses = run(one, PARAMS, one.init(STATE), XS, YS, loss=squared, mask=MASK)
    wanted, _, _ = run(one, PARAMS, one.init(STATE), XS, (YS, MASK), loss=weighted)
    assert_close(found, wanted)
    _, end, unweighted = gradient()
    assert_close((carry.trace, losses), (end.trace, unweighted))


@pytest.mark.parametrize("window", [None, 4])
def test_aux_is_stacked(window: int | None) -> None:
    one = learner(window=window)
    loss = lambda out, y: (squared(out, y), {"first": out[0], "sum": jnp.sum(out)})
    found, _, (losses, aux) = run(one, PARAMS, one.init(STATE), XS, YS, loss=loss, has_aux=True)
    plain, _, wanted = run(one, PARAMS, one.init(STATE), XS, YS, loss=squared)
    outputs = jax.lax.scan(lambda h, x: step(PARAMS, h, x), STATE, XS)[1]
    assert_close((found, losses), (plain, wanted))
    assert_close(aux, {"first": outputs[:, 0], "sum": jnp.sum(outputs, axis=(1, 2))})


def test_units_are_carried() -> None:
    def with_units(params: Any, state: Any, x: Any) -> Any:
        v = 0.9 * state["v"] + x @ params["w"]
        return {"v": v}, v

    def without(params: Any, v: Any, x: Any) -> Any:
        return (0.9 * v + x @ params,) * 2

    w, xs = PARAMS["w"], XS[:, 0]
    params, state = {"w": w * u.mV / u.mA}, {"v": jnp.zeros(HIDDEN) * u.mV}
    one = ft.compile(with_units, "D_RTRL", xs[0] * u.mA, params=params, state=state)
    found, carry, _ = one.grad(params, one.init(state), xs * u.mA, loss=lambda v: jnp.sum(v.to_decimal(u.mV) ** 2))
    plain = ft.compile(without, "D_RTRL", xs[0], params=w, state=jnp.zeros(HIDDEN))
    wanted, end, _ = plain.grad(w, plain.init(jnp.zeros(HIDDEN)), xs, loss=lambda v: jnp.sum(v**2))
    assert u.get_unit(carry.state["v"]) == u.mV
    assert_close((u.get_mantissa(found["w"]), u.get_mantissa(carry.state["v"])), (wanted, end.state))


def test_several_inputs_come_as_a_tuple() -> None:
    both = lambda params, h, x, gain: step(params, h, gain * x)
    gains = jnp.linspace(0.5, 1.5, STEPS)
    one = ft.compile(both, "D_RTRL", XS[0], gains[0], params=PARAMS, state=STATE)
    found = run(one, PARAMS, one.init(STATE), (XS, gains), YS, loss=squared)[0]
    wanted = run(learner(), PARAMS, learner().init(STATE), XS * gains[:, None, None], YS, loss=squared)[0]
    assert_close(found, wanted)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(xs=XS[:, :, :2]), "shape|float64"),
        (dict(xs=XS[:0]), r"\[0\] steps"),
        (dict(ys=YS[:3]), "`ys` has an array of shape .* 7 steps"),
        (dict(mask=MASK[:3]), r"`mask` has the shape \(3,\).* 7 steps"),
        (dict(mask=1.0), "`mask`"),
        (
            dict(loss=lambda out, y: (out - y) ** 2),
            r"\[2, 2\] as the loss of a step, and should return one real floating number",
        ),
        (dict(loss=lambda out, y: jnp.argmax(out)), "should return one real floating number"),
        (dict(params={"w": PARAMS["w"]}), "u|read"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], message: str) -> None:
    given = dict(params=PARAMS, xs=XS, ys=YS, loss=squared, mask=None) | change
    one = learner()
    with pytest.raises(ValueError, match=message):
        one.grad(given["params"], one.init(STATE), given["xs"], given["ys"], loss=given["loss"], mask=given["mask"])


def test_a_state_of_another_form_is_refused() -> None:
    with pytest.raises(ft.StateMismatchError):
        learner().init(STATE[:1])


@pytest.mark.parametrize("option", ["block", "window"])
@pytest.mark.parametrize("value", [0, -1, 2.0, True])
def test_bad_block_and_window_are_refused(option: str, value: Any) -> None:
    with pytest.raises(ValueError if value in (0, -1) else TypeError, match=f"`{option}` is a number of steps"):
        ft.Learner(learner().graph, learner().rule, **{option: value})


def test_bad_update_every_is_refused() -> None:
    with pytest.raises(ValueError, match="`update_every`"):
        learner().train(PARAMS, learner().init(STATE), XS, YS, loss=squared, optimizer=None, update_every=0)
