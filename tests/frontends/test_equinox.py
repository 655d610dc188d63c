"""Equinox modules as their users have them: what learns, what is carried, what stays, and what is refused."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import foretrace as ft
from foretrace.errors import ExampleInputError, StateNotInitializedError
from foretrace.frontends import trace_model
from frameworks.records import BATCH, HIDDEN, INPUT, drawn

XS = drawn(7, 6, INPUT)
H = drawn(1, HIDDEN)


def squared(out, y=0.5):
    return jnp.sum((out - y) ** 2)


def names(leaves):
    return [leaf.name for leaf in leaves]


def gru():
    return eqx.nn.GRUCell(INPUT, HIDDEN, key=jax.random.key(0))


class Layer(eqx.Module):
    """Layers in a list, an activation, an integer, a setting, and dropout that needs a key."""

    cells: list
    dropout: eqx.nn.Dropout
    activation: object
    table: jax.Array
    scale: float = eqx.field(static=True)

    def __init__(self):
        self.cells = [gru()]
        self.dropout = eqx.nn.Dropout(0.5)
        self.activation = jax.nn.tanh
        self.table = jnp.arange(3)
        self.scale = 2.0

    def __call__(self, x, state, *, key=None):
        state = self.cells[0](self.dropout(x, key=key), state)
        return self.scale * self.activation(state), state


def test_names_are_paths_in_the_module():
    program = trace_model(Layer(), XS[0], state=H, key=jax.random.key(0)).program
    assert names(program.params) == [f"cells[0].{name}" for name in ("weight_ih", "weight_hh", "bias", "bias_n")]
    assert (names(program.hidden), names(program.other)) == (["state"], ["key"])


def test_step_is_that_of_the_module_with_a_fresh_key_in_every_step():
    module, key, h, wanted = Layer(), jax.random.key(3), H, []
    learner = ft.compile(module, "D_RTRL", XS[0], state=H, key=key)
    _, found = jax.jit(lambda: learner.evolve(module, learner.init(), XS))()
    for x in XS:
        key, now = jax.random.split(key)
        out, h = module(x, h, key=now)
        wanted.append(out)
    np.testing.assert_allclose(found, jnp.stack(wanted), rtol=1e-12, atol=1e-12)


def test_missing_key_is_what_equinox_says():
    with pytest.raises(ExampleInputError, match="requires a key"):
        trace_model(Layer(), XS[0], state=H)


def test_inference_mode_needs_no_key():
    program = trace_model(eqx.nn.inference_mode(Layer()), XS[0], state=H).program
    assert names(program.other) == []


def test_bare_state_goes_with_the_key_of_the_beginning():
    split = trace_model(Layer(), XS[0], state=H, key=jax.random.key(3)).split
    assert split.state_of(2 * H).others is split.state.others


@pytest.mark.parametrize(
    "given", [lambda cell: cell, lambda cell: eqx.filter(cell, eqx.is_inexact_array), lambda cell: eqx.filter_jit(cell)]
)
def test_parameters_in_any_form(given):
    cell = Layer()
    traced = trace_model(cell, XS[0], state=H, key=jax.random.key(3))
    back = traced.unflatten_params(traced.flatten_params(given(cell)))
    assert jax.tree.structure(back) == jax.tree.structure(eqx.filter(cell, eqx.is_inexact_array))


def test_filter_by_pytree_chooses_what_learns():
    cell = gru()
    chosen = eqx.tree_at(lambda c: c.weight_hh, jax.tree.map(lambda _: False, cell), True)
    traced = trace_model(cell, XS[0], state=H, wrt=chosen)
    assert names(traced.program.params) == ["weight_hh"]
    for given in (cell, eqx.filter(cell, chosen)):
        back = traced.unflatten_params(traced.flatten_params(given))
        assert back.weight_ih is None
        np.testing.assert_array_equal(back.weight_hh, cell.weight_hh)


def test_apply_updates_takes_the_gradient_and_the_loss_falls():
    cell = eqx.filter_vmap(gru())
    xs, h = drawn(2, 6, BATCH, INPUT), jnp.zeros((BATCH, HIDDEN))
    learner = ft.compile(cell, "D_RTRL", xs[0], state=h)
    cell, optimizer, losses = gru(), optax.adam(5e-2), []
    opt_state = optimizer.init(eqx.filter(cell, eqx.is_inexact_array))

    @eqx.filter_jit
    def update(cell, opt_state):
        grads, _, losses = learner.grad(cell, learner.init(), xs, loss=squared)
        updates, opt_state = optimizer.update(grads, opt_state)
        return eqx.apply_updates(cell, updates), opt_state, losses.sum()

    for _ in range(15):
        cell, opt_state, loss = update(cell, opt_state)
        losses.append(float(loss))
    assert losses[-1] < losses[0] / 2


def test_batch_by_filter_vmap_is_a_batch_of_samples():
    cell, xs, h = gru(), drawn(2, 6, BATCH, INPUT), drawn(3, BATCH, HIDDEN)
    whole = ft.compile(eqx.filter_vmap(cell), "D_RTRL", xs[0], state=h)
    one = ft.compile(cell, "D_RTRL", xs[0, 0], state=h[0])
    found = jax.jit(lambda: whole.grad(cell, whole.init(), xs, loss=squared)[0])()
    each = jax.jit(jax.vmap(lambda h, xs: one.grad(cell, one.init(h), xs, loss=squared)[0], (0, 1)))(h, xs)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(each), strict=True):
        np.testing.assert_allclose(a, b.sum(0), rtol=1e-10, atol=1e-12)


def test_gradient_is_compared_with_bptt_by_the_module():
    module = eqx.nn.inference_mode(Layer())
    learner = ft.compile(module, "D_RTRL", XS[0], state=H)
    found = ft.compare_gradients(learner, XS, loss=squared, params=module, state=H)
    assert 0.5 < found.overall.cosine < 1


def test_shared_layer_learns_once():
    class Tied(eqx.Module):
        shared: eqx.nn.Shared

        def __init__(self):
            layers = [eqx.nn.Linear(HIDDEN, HIDDEN, key=jax.random.key(n)) for n in range(2)]
            self.shared = eqx.nn.Shared(layers, lambda layers: layers[1].weight, lambda layers: layers[0].weight)

        def __call__(self, state, x):
            one, two = self.shared()
            return 0.5 * state + jnp.tanh(one(two(x))), state

    program = trace_model(Tied(), jnp.ones(HIDDEN), state=H).program
    assert len(program.params) == 3


def test_batch_statistics_are_carried_without_credit():
    class Normalised(eqx.Module):
        cell: eqx.nn.GRUCell
        norm: eqx.nn.BatchNorm

        def __init__(self):
            self.cell = gru()
            self.norm = eqx.nn.BatchNorm(HIDDEN, axis_name="batch", mode="ema")

        def __call__(self, x, state):
            h, stats = state
            h = jax.vmap(self.cell)(x, h)
            out, stats = jax.vmap(self.norm, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(h, stats)
            return out, (h, stats)

    module, stats = eqx.nn.make_with_state(Normalised)()
    x, h = drawn(2, BATCH, INPUT), drawn(1, BATCH, HIDDEN)
    program = trace_model(module, x, state=(h, stats)).program
    assert names(program.hidden) == ["state[0]"]
    assert len(program.other) == len(jax.tree.leaves(stats))


def test_recurrent_state_in_an_equinox_state_is_credited():
    class Leaky(eqx.Module):
        linear: eqx.nn.Linear
        v: eqx.nn.StateIndex

        def __init__(self):
            self.linear = eqx.nn.Linear(INPUT, HIDDEN, key=jax.random.key(0))
            self.v = eqx.nn.StateIndex(jnp.zeros(HIDDEN))

        def __call__(self, x, state):
            v = 0.9 * state.get(self.v) + self.linear(x)
            return jnp.tanh(v), state.set(self.v, v)

    module, state = eqx.nn.make_with_state(Leaky)()
    learner = ft.compile(module, "D_RTRL", XS[0], state=state)
    assert [parameter.history.value for parameter in learner.graph.parameters] == ["all", "all"]
    grads, carry, _ = jax.jit(lambda: learner.grad(module, learner.init(), XS, loss=squared))()
    assert isinstance(carry.state, eqx.nn.State)
    assert float(jnp.abs(grads.linear.weight).sum()) > 0


def test_jit_inside_of_the_module():
    class Compiled(Layer):
        @eqx.filter_jit
        def __call__(self, x, state):
            return super().__call__(x, state)

    learner = trace_model(eqx.nn.inference_mode(Compiled()), XS[0], state=H)
    assert names(learner.program.hidden) == ["state"]


def test_state_is_asked_for():
    with pytest.raises(StateNotInitializedError, match="hidden_size"):
        trace_model(gru(), XS[0])


def test_batch_without_vmap_says_how_a_batch_is_passed():
    with pytest.raises(ExampleInputError, match=r"a batch of 4, pass `eqx.filter_vmap\(module\)`"):
        trace_model(gru(), jnp.ones((4, INPUT)), state=jnp.ones((4, HIDDEN)))
    with pytest.raises(ExampleInputError) as raised:
        trace_model(gru(), jnp.ones(INPUT + 1), state=H)
    assert "filter_vmap" not in str(raised.value)


def test_module_that_is_a_step_function_itself():
    class Step(eqx.Module):
        decay: float = 0.5

        def __call__(self, params, state, x):
            state = self.decay * state + x @ params
            return state, state

    program = trace_model(Step(), XS[0], params=jnp.ones((INPUT, HIDDEN)), state=H).program
    assert names(program.params) == ["params"]
