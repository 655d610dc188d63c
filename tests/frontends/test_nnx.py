"""NNX modules as their users have them: what learns, what is carried, what stays, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import foretrace as ft
from foretrace.errors import (
    ExampleInputError,
    NoRecurrentStateError,
    NotSupportedError,
    StateMismatchError,
    StateNotInitializedError,
)
from foretrace.frontends import trace_model
from frameworks.records import BATCH, HIDDEN, INPUT, drawn

XS = drawn(7, 6, BATCH, INPUT)


def squared(out, y=0.5):
    return jnp.sum((out - y) ** 2)


def names(leaves):
    return [leaf.name for leaf in leaves]


class Layer(nnx.Module):
    """A cell between an input layer with dropout and a normalised readout; it holds its own state."""

    def __init__(self, rngs, h=None):
        self.cell = nnx.SimpleCell(INPUT, HIDDEN, dtype=jnp.float64, param_dtype=jnp.float64, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.norm = nnx.BatchNorm(HIDDEN, param_dtype=jnp.float64, rngs=rngs)
        self.steps = nnx.Variable(jnp.int32(0))
        self.h = nnx.Variable(jnp.zeros((BATCH, HIDDEN)) if h is None else h)

    def __call__(self, x):
        self.h[...], out = self.cell(self.h[...], x)
        self.steps[...] += 1
        return self.norm(self.dropout(out))


def layer():
    module = Layer(nnx.Rngs(0))
    nnx.update(module, jax.tree.map(lambda a: a.astype(jnp.float64), nnx.state(module, nnx.BatchStat)))
    return module


def gru():
    return nnx.GRUCell(INPUT, HIDDEN, param_dtype=jnp.float64, rngs=nnx.Rngs(0))


def test_names_are_dotted_paths_without_the_variable():
    program = trace_model(layer(), XS[0]).program
    assert names(program.params) == [
        "cell.dense_h.kernel",
        "cell.dense_i.bias",
        "cell.dense_i.kernel",
        "norm.bias",
        "norm.scale",
    ]
    assert names(program.hidden) == ["h"]
    assert names(program.other) == ["dropout.rngs.count", "norm.mean", "norm.var", "steps"]


def test_names_of_lists_and_of_a_variable_that_holds_a_tree():
    class Tree(nnx.Module):
        def __init__(self):
            self.layers = nnx.List([nnx.Linear(HIDDEN, HIDDEN, rngs=nnx.Rngs(0))])
            self.state = nnx.Variable({"v": jnp.zeros(HIDDEN, jnp.float32), "i": jnp.zeros(HIDDEN, jnp.float32)})

        def __call__(self, x):
            old = self.state.get_value()
            new = {"v": 0.5 * old["v"] + old["i"], "i": 0.9 * old["i"] + self.layers[0](x)}
            self.state.set_value(new)
            return new["v"]

    program = trace_model(Tree(), jnp.ones(HIDDEN, jnp.float32)).program
    assert names(program.params) == ["layers[0].bias", "layers[0].kernel"]
    assert names(program.hidden) == ["state.i", "state.v"]


def test_step_is_that_of_the_module():
    module = layer()
    learner = ft.compile(module, "D_RTRL", XS[0])
    carry, found = jax.jit(lambda: learner.evolve(module, learner.init(), XS))()
    wanted = [module(x) for x in XS]
    np.testing.assert_allclose(found, jnp.stack(wanted), rtol=1e-12, atol=1e-12)
    for one, other in zip(
        jax.tree.leaves(carry.state), jax.tree.leaves(learner.model.split.state_of(module)), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_compiling_leaves_the_module_as_it_is():
    module = layer()
    trace_model(module, XS[0])
    assert int(module.steps[...]) == 0
    assert int(module.dropout.rngs.count[...]) == 0


def test_what_the_model_was_compiled_with_does_not_change_with_the_module():
    module = layer()
    learner = ft.compile(module, "D_RTRL", XS[0])
    before = [jnp.copy(leaf) for leaf in jax.tree.leaves((learner.params, learner.init()))]
    for variable in jax.tree.leaves(nnx.state(module), is_leaf=lambda v: isinstance(v, nnx.Variable)):
        if jnp.issubdtype(variable.dtype, jnp.floating):
            variable[...] = variable[...] + 1
    after = jax.tree.leaves((learner.params, learner.init()))
    assert all(map(jnp.array_equal, before, after))


def test_state_goes_back_into_the_module():
    module = layer()
    learner = ft.compile(module, "D_RTRL", XS[0])
    carry, _ = jax.jit(lambda: learner.evolve(learner.params, learner.init(), XS))()
    nnx.update(module, carry.state)
    assert int(module.steps[...]) == len(XS)
    assert jax.tree.leaves(learner.init(module).state)[-1] == len(XS)  # a sequence may begin where the module stands


@pytest.mark.parametrize("transformation", [nnx.jit, nnx.remat])
def test_transformation_inside_of_the_call_writes_nothing_by_itself(transformation):
    class Transformed(Layer):
        def __call__(self, x):
            return transformation(Layer.__call__)(self, x)

    module = Transformed(nnx.Rngs(0))
    module.eval()
    program = trace_model(module, XS[0]).program
    assert (names(program.hidden), names(program.other)) == (["h"], ["steps"])


def test_evaluation_mode_is_that_of_the_module():
    module = layer()
    module.eval()
    program = trace_model(module, XS[0]).program
    assert names(program.other) == ["steps"]


def test_frozen_parameters_and_integers_do_not_learn():
    class Frozen(nnx.Param):
        pass

    module = layer()
    module.cell.dense_h.kernel = Frozen(module.cell.dense_h.kernel[...])
    module.cell.table = nnx.Param(jnp.arange(3))
    program = trace_model(module, XS[0], wrt=nnx.All(nnx.Param, nnx.Not(Frozen))).program
    assert "cell.dense_h.kernel" not in names(program.params + program.hidden + program.other)
    assert "cell.table" not in names(program.params)


def test_carry_that_is_made_of_the_shape_alone():
    class Simple(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(jnp.ones((INPUT, HIDDEN)))

        def initialize_carry(self, shape):
            return jnp.zeros((*shape[:-1], HIDDEN), jnp.float32)

        def __call__(self, carry, x):
            carry = 0.5 * carry + x @ self.w[...]
            return carry, jnp.sum(carry)

    (state,) = trace_model(Simple(), XS[0]).program.hidden
    assert (state.aval.shape, state.aval.dtype) == ((BATCH, HIDDEN), jnp.float64)


def test_names_belong_to_their_arrays():
    class Deep(nnx.Module):
        def __init__(self):
            self.layers = nnx.List([nnx.Param(jnp.ones(n + 1)) for n in range(12)])
            self.a_b, self.a = nnx.Param(jnp.ones((1, 2))), nnx.Param(jnp.ones((1, 3)))

        def __call__(self, h, x):
            return h + x * sum(jnp.sum(p[...]) for p in (*self.layers, self.a, self.a_b)), x

    program = trace_model(Deep(), jnp.ones(()), state=jnp.ones(2)).program
    shapes = {leaf.name: leaf.aval.shape for leaf in program.params}
    assert shapes == {"a": (1, 3), "a_b": (1, 2), **{f"layers[{n}]": (n + 1,) for n in range(12)}}


def test_filter_by_path_chooses_what_learns():
    program = trace_model(gru(), XS[0], wrt=nnx.PathContains("dense_i")).program
    assert names(program.params) == ["dense_i.bias", "dense_i.kernel"]


def test_shared_module_learns_once():
    class Tied(nnx.Module):
        def __init__(self):
            self.one = nnx.Linear(HIDDEN, HIDDEN, rngs=nnx.Rngs(0))
            self.two = self.one

        def __call__(self, h, x):
            return jnp.tanh(self.one(x) + self.two(x) + 0.5 * h), h

    program = trace_model(Tied(), jnp.ones(HIDDEN), state=jnp.zeros(HIDDEN)).program
    assert names(program.params) == ["one.bias", "one.kernel"]


def test_carry_beside_variables():
    class Noisy(nnx.Module):
        def __init__(self):
            self.cell = gru()
            self.dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(1))

        def __call__(self, carry, x):
            return self.cell(carry, self.dropout(x))

    module, h = Noisy(), drawn(1, BATCH, HIDDEN)
    learner = ft.compile(module, "D_RTRL", XS[0], state=h)
    assert (names(learner.graph.program.hidden), names(learner.graph.program.other)) == (
        ["state"],
        ["dropout.rngs.count"],
    )
    carry = learner.init(h + 1)  # a bare carry: the variables begin as they were
    assert carry.state.carry is not h
    carry, outs = jax.jit(lambda carry: learner.evolve(learner.params, carry, XS))(carry)
    assert jax.tree.leaves(carry.state.others) == [len(XS)]
    assert not np.allclose(outs[0], outs[1])


@pytest.mark.parametrize("given", ["module", "parameters", "state"])
def test_parameters_in_any_form(given):
    cell = gru()
    traced = trace_model(cell, XS[0])
    params = {"module": cell, "parameters": traced.split.params, "state": nnx.state(cell)}[given]
    back = traced.unflatten_params(traced.flatten_params(params))
    assert jax.tree.structure(back) == jax.tree.structure(nnx.state(cell, nnx.Param))


def test_optimizer_of_nnx_takes_the_gradient_and_the_loss_falls():
    module = layer()
    module.dropout.rate = 0.0
    learner = ft.compile(module, "D_RTRL", XS[0])
    optimizer = nnx.Optimizer(module, optax.adam(3e-2), wrt=nnx.Param)

    @nnx.jit
    def update(module, optimizer):
        grads, carry, losses = learner.grad(module, learner.init(), XS, loss=squared)
        optimizer.update(module, grads)
        nnx.update(module, carry.state)
        return losses.sum()

    losses = [float(update(module, optimizer)) for _ in range(15)]
    assert losses[-1] < losses[0] / 2
    assert int(module.steps[...]) == len(XS)


def test_online_training_returns_parameters_that_go_back():
    cell = gru()
    learner = ft.compile(cell, "D_RTRL", XS[0])
    params, _, _, losses = jax.jit(
        lambda cell: learner.train(
            cell, learner.init(), jnp.tile(XS, (9, 1, 1)), loss=squared, optimizer=optax.sgd(0.05)
        )
    )(nnx.state(cell, nnx.Param))
    nnx.update(cell, params)
    assert losses[-6:].sum() < losses[:6].sum()
    np.testing.assert_array_equal(cell.dense_i.bias[...], params["dense_i"]["bias"][...])


def test_several_inputs():
    class Gated(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(jnp.ones((INPUT, HIDDEN)))

        def __call__(self, state, x, gate):
            state = gate * state + x @ self.w[...]
            return state, jnp.sum(state)

    program = trace_model(Gated(), XS[0], jnp.float64(0.5), state=jnp.zeros((BATCH, HIDDEN))).program
    assert names(program.inputs) == ["input[0]", "input[1]"]


def test_keyword_arguments_of_the_call():
    class Switched(nnx.Module):
        def __init__(self):
            self.cell = gru()

        def __call__(self, carry, x, *, double=False):
            carry, out = self.cell(carry, x)
            return carry, jnp.stack([out, out]) if double else out

    program = trace_model(Switched(), XS[0], state=jnp.zeros((BATCH, HIDDEN)), kwargs={"double": True}).program
    assert program.outputs[0].aval.shape == (2, BATCH, HIDDEN)


def test_shapes_of_the_example_input_are_enough():
    program = trace_model(gru(), jax.ShapeDtypeStruct((BATCH, INPUT), jnp.float64)).program
    assert program.hidden[0].aval.shape == (BATCH, HIDDEN)


def test_written_parameter_is_refused_by_name():
    class Plastic(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(jnp.ones(INPUT))

        def __call__(self, h, x):
            self.w[...] = 0.9 * self.w[...]
            return h + self.w[...] * x, x

    with pytest.raises(NotSupportedError, match="`w`"):
        trace_model(Plastic(), jnp.ones(INPUT), state=jnp.zeros(INPUT), call="state, x -> state, out")


def test_array_without_a_variable_is_a_state_too():
    class Raw(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(jnp.ones((INPUT, HIDDEN)))
            self.h = jnp.zeros((BATCH, HIDDEN))
            self.mask = jnp.ones(HIDDEN)

        def __call__(self, x):
            self.h = 0.5 * self.h + x @ self.w[...] * self.mask
            return self.h

    program = trace_model(Raw(), XS[0]).program
    assert (names(program.params), names(program.hidden), names(program.other)) == (["w"], ["h"], [])


def test_variable_that_is_filled_by_the_first_step_is_refused_by_name():
    class Lazy(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(jnp.ones((INPUT, HIDDEN)))
            self.h = nnx.Variable(None)

        def __call__(self, x):
            before = self.h.get_value()
            self.h.set_value(x @ self.w[...] + (0.0 if before is None else 0.5 * before))
            return self.h.get_value()

    with pytest.raises(StateMismatchError, match="`h` holds 0 arrays before a step and 1 after"):
        trace_model(Lazy(), XS[0])


def test_parameters_are_not_given_beside_the_module():
    with pytest.raises(TypeError, match="leave out `params`"):
        trace_model(gru(), XS[0], params={}, state=jnp.zeros((BATCH, HIDDEN)))


def test_missing_state_is_asked_for():
    class Bare(nnx.Module):
        def __init__(self):
            self.cell = gru()

        def __call__(self, carry, x):
            return self.cell(carry, x)

    with pytest.raises(StateNotInitializedError, match="`state=`"):
        trace_model(Bare(), XS[0])


def test_module_without_a_state():
    with pytest.raises(NoRecurrentStateError, match="pass its cell"):
        trace_model(nnx.RNN(gru()), jnp.ones((BATCH, 5, INPUT)))


def test_neuron_without_a_batch_axis_asks_for_the_state():
    class Neuron(nnx.Module):
        def __init__(self):
            self.decay = nnx.Param(jnp.full(INPUT, 0.5))

        def initial_state(self, batch_size):
            return jnp.zeros((batch_size, INPUT))

        def __call__(self, x, v):
            v = self.decay[...] * v + x
            return jnp.tanh(v), v

    with pytest.raises(StateNotInitializedError, match="no batch axis"):
        trace_model(Neuron(), jnp.ones(INPUT))
    assert names(trace_model(Neuron(), XS[0]).program.hidden) == ["state"]


def test_form_without_a_state_where_one_was_given():
    with pytest.raises(ValueError, match="takes no state, and one was given"):
        trace_model(gru(), XS[0], state=jnp.zeros((BATCH, HIDDEN)), call="x -> out")
    with pytest.raises(TypeError, match="`call` is a string"):
        trace_model(gru(), XS[0], call=3)


def test_state_of_another_shape():
    with pytest.raises((StateMismatchError, ExampleInputError), match=r"float64\[3\]"):
        trace_model(gru(), XS[0], state=jnp.zeros(3))
