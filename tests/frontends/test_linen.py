"""Linen modules with their variables: what learns, what is carried, what stays, and what is refused."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import foretrace as ft
from foretrace.errors import NoRecurrentStateError, StateNotInitializedError
from foretrace.frontends import trace_model
from frameworks.records import BATCH, HIDDEN, INPUT, drawn, to_double

XS = drawn(7, 6, BATCH, INPUT)
H = drawn(1, BATCH, HIDDEN)


def squared(out, y=0.5):
    return jnp.sum((out - y) ** 2)


def names(leaves):
    return [leaf.name for leaf in leaves]


class Layer(nn.Module):
    """A cell with dropout in front and a normalisation behind."""

    @nn.compact
    def __call__(self, carry, x, train=False):
        carry, out = nn.SimpleCell(HIDDEN)(carry, nn.Dropout(0.5)(x, deterministic=not train))
        return carry, nn.BatchNorm(use_running_average=not train)(out)


def layer():
    return Layer(), to_double(Layer().init(jax.random.key(0), H, XS[0]))


def gru():
    return nn.GRUCell(HIDDEN), to_double(nn.GRUCell(HIDDEN).init(jax.random.key(0), H, XS[0]))


def test_names_are_paths_in_the_collection():
    module, variables = layer()
    program = trace_model(module, XS[0], params=variables, state=H).program
    assert names(program.params)[:2] == ["BatchNorm_0.bias", "BatchNorm_0.scale"]
    assert names(program.params)[-1] == "SimpleCell_0.i.kernel"
    assert (names(program.hidden), names(program.other)) == (["state"], [])  # statistics are only read


def test_written_statistics_and_keys_are_carried_without_credit():
    module, variables = layer()
    options = {"kwargs": {"train": True}, "rngs": {"dropout": jax.random.key(1)}}
    program = trace_model(module, XS[0], params=variables, state=H, **options).program
    assert names(program.other) == ["batch_stats.BatchNorm_0.mean", "batch_stats.BatchNorm_0.var", "rngs.dropout"]


def test_step_is_that_of_the_module():
    module, variables = layer()
    key = jax.random.key(1)
    options = {"kwargs": {"train": True}, "rngs": {"dropout": key}}
    learner = ft.compile(module, "D_RTRL", XS[0], params=variables, state=H, **options)
    carry, found = jax.jit(lambda: learner.evolve(variables, learner.init(), XS))()
    h, wanted = H, []
    for x in XS:
        key, now = jax.random.split(key)
        (h, out), written = module.apply(variables, h, x, True, rngs={"dropout": now}, mutable=["batch_stats"])
        variables = {**variables, **written}
        wanted.append(out)
    np.testing.assert_allclose(found, jnp.stack(wanted), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(carry.state.carry, h, rtol=1e-12)
    stats = carry.state.others["batch_stats"]["BatchNorm_0"]["mean"]
    np.testing.assert_allclose(stats, variables["batch_stats"]["BatchNorm_0"]["mean"], rtol=1e-12)


@pytest.mark.parametrize("given", ["variables", "params", "bound"])
def test_parameters_in_any_form(given):
    module, variables = gru()
    model, params = (module.bind(variables), None) if given == "bound" else (module, variables)
    if given == "params":
        params = variables["params"]
    traced = trace_model(model, XS[0], params=params)
    back = traced.unflatten_params(traced.flatten_params(model if given == "bound" else params))
    assert jax.tree.structure(back) == jax.tree.structure(variables["params"])


def test_filter_chooses_what_learns():
    module, variables = gru()
    traced = trace_model(module, XS[0], params=variables, wrt=lambda path, _: path.startswith("/in/"))
    assert names(traced.program.params) == ["in.bias", "in.kernel"]
    back = traced.unflatten_params(traced.flatten_params(variables))
    assert jax.tree.structure(back) == jax.tree.structure({"in": variables["params"]["in"]})


def test_integers_do_not_learn():
    class Masked(nn.Module):
        @nn.compact
        def __call__(self, h, x):
            mask = self.param("mask", lambda _: jnp.arange(HIDDEN) % 2)
            return 0.5 * h + mask * nn.Dense(HIDDEN)(x), h

    variables = to_double(Masked().init(jax.random.key(0), H, XS[0]))
    program = trace_model(Masked(), XS[0], params=variables, state=H).program
    assert names(program.params) == ["Dense_0.bias", "Dense_0.kernel"]


def test_optax_takes_the_gradient_and_the_loss_falls():
    module, variables = layer()
    learner = ft.compile(module, "D_RTRL", XS[0], params=variables, state=H)
    optimizer = optax.adam(3e-2)

    @jax.jit
    def update(params, opt_state):
        grads, _, losses = learner.grad(params, learner.init(), XS, loss=squared)
        updates, opt_state = optimizer.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, losses.sum()

    params, losses = variables["params"], []
    opt_state = optimizer.init(params)
    for _ in range(15):
        params, opt_state, loss = update(params, opt_state)
        losses.append(float(loss))
    assert losses[-1] < losses[0] / 2


def test_sown_values_are_left_out():
    class Sowing(nn.Module):
        @nn.compact
        def __call__(self, h, x):
            h, out = nn.SimpleCell(HIDDEN)(h, x)
            self.sow("intermediates", "h", h)
            return h, out

    variables = to_double(Sowing().init(jax.random.key(0), H, XS[0]))
    assert names(trace_model(Sowing(), XS[0], params=variables, state=H).program.other) == []


def test_variables_are_asked_for():
    with pytest.raises(TypeError, match="`variables = "):
        trace_model(nn.GRUCell(HIDDEN), XS[0])


def test_module_holds_no_parameters():
    module, variables = gru()
    with pytest.raises(TypeError, match="pass its variables"):
        trace_model(module, XS[0], params=variables).flatten_params(module)


def test_missing_state_is_asked_for():
    module, variables = layer()
    with pytest.raises(StateNotInitializedError, match="`state=`"):
        trace_model(module, XS[0], params=variables)


def test_module_without_a_state():
    variables = nn.Dense(2).init(jax.random.key(0), XS[0])
    with pytest.raises(NoRecurrentStateError, match="Dense takes no state and writes none"):
        trace_model(nn.Dense(2), XS[0], params=variables)
