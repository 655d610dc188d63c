"""A plain step function becomes a program that computes the same, whatever its pytrees and units."""

import dataclasses

import brainunit as u
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from foretrace.errors import (
    CompilationError,
    EmptyModelError,
    ExampleInputError,
    NoRecurrentStateError,
    NotSupportedError,
    StateMismatchError,
)
from foretrace.frontends import trace_model


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Membrane:
    v: jax.Array
    spare: None = None


def rich_step(params, state, x, gain):
    """Dicts, tuples, a dataclass, None, an integer, a key and a unit in one model."""
    membrane, counter, key = state["membrane"], state["counter"], state["key"]
    key, now = jax.random.split(key)
    noise = jax.random.normal(now, membrane.v.shape) * u.mV
    v = params["decay"] * membrane.v + (x["a"] @ params["w"][0] + x["b"]) * gain + noise
    return {"membrane": Membrane(v), "counter": counter + 1, "key": key}, (v, {"count": counter})


def rich_values():
    keys = jax.random.split(jax.random.key(1), 3)
    params = {"decay": jnp.float64(0.9), "w": (jax.random.normal(keys[0], (3, 4)) * u.mV, None)}
    state = {"membrane": Membrane(jnp.zeros(4) * u.mV), "counter": jnp.int32(0), "key": jax.random.key(7)}
    return params, state, {"a": jax.random.normal(keys[1], (3,)), "b": jnp.ones(4) * u.mV}, jnp.float64(1.5)


def assert_same(found, wanted):
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def test_program_computes_what_the_step_computes():
    params, state, x, gain = rich_values()
    model = trace_model(rich_step, x, gain, params=params, state=state)
    hidden, other = model.flatten_state(state)
    for _ in range(3):
        state, out = rich_step(params, state, x, gain)
        hidden, other, outputs = model.program(
            model.flatten_params(params), hidden, other, model.flatten_inputs(x, gain)
        )
        assert_same(model.unflatten_state(hidden, other), state)
        assert_same(model.unflatten_output(outputs), out)


def test_roles_and_paths():
    params, state, x, gain = rich_values()
    program = trace_model(rich_step, x, gain, params=params, state=state).program
    assert [leaf.path for leaf in program.params] == [("decay",), ("w", 0)]
    assert [leaf.path for leaf in program.hidden] == [("membrane", "v")]
    assert [leaf.path for leaf in program.other] == [("counter",), ("key",)]
    assert [leaf.path for leaf in program.inputs] == [("input", 0, "a"), ("input", 0, "b"), ("input", 1)]
    assert [leaf.path for leaf in program.outputs] == [("output", 0), ("output", 1, "count")]


def test_bare_arrays_are_named_by_their_role():
    program = trace_model(lambda w, h, x: (w * h + x, h), 1.0, params=0.5, state=jnp.float64(0)).program
    assert (program.params[0].path, program.hidden[0].path) == (("params",), ("state",))


def test_params_go_there_and_back():
    params, state, x, gain = rich_values()
    model = trace_model(rich_step, x, gain, params=params, state=state)
    assert_same(model.unflatten_params(model.flatten_params(params)), params)
    assert not any(isinstance(leaf, u.Quantity) for leaf in model.flatten_params(params))


def test_abstract_example_input_is_enough():
    shape = jax.ShapeDtypeStruct((3,), jnp.float64)
    model = trace_model(lambda w, h, x: (w * h + x, h), shape, params=jnp.ones(3), state=jnp.zeros(3))
    assert model.program.inputs[0].aval.shape == (3,)


def test_program_runs_under_jit():
    params, state, x, gain = rich_values()
    model = trace_model(rich_step, x, gain, params=params, state=state)

    @jax.jit
    def run(params, state, x, gain):
        new = model.program(model.flatten_params(params), *model.flatten_state(state), model.flatten_inputs(x, gain))
        return model.unflatten_state(*new[:2])

    assert_same(run(params, state, x, gain), rich_step(params, state, x, gain)[0])


def trace_with(step, *inputs, params=None, state=None):
    params = {"w": jnp.ones((3, 4))} if params is None else params
    return trace_model(step, *inputs, params=params, state=jnp.zeros(4) if state is None else state)


def linear_step(params, state, x):
    state = 0.9 * state + x @ params["w"]
    return state, state


def test_changed_unit_names_both_units_and_the_path():
    with pytest.raises(StateMismatchError) as error:
        trace_with(lambda p, s, x: ({"v": s["v"] / u.ohm}, x), 1.0, state={"v": jnp.zeros(4) * u.mV})
    assert all(word in str(error.value) for word in ("`v`", "`mV`", "`mA`"))


def test_changed_scale_of_a_unit_is_a_changed_unit():
    with pytest.raises(StateMismatchError):
        trace_with(lambda p, s, x: (s.in_unit(u.volt), x), 1.0, state=jnp.zeros(4) * u.mV)


@pytest.mark.parametrize(
    "step",
    [
        lambda p, s, x: s,
        lambda p, s, x: (s, x, x),
        lambda p, s, x: ({"s": s}, x),
        lambda p, s, x: (None, x),
        lambda p, s, x: (s[:2], x),
        lambda p, s, x: (s.astype(jnp.float32), x),
    ],
    ids=["no pair", "three values", "another tree", "no state", "another shape", "another dtype"],
)
def test_what_comes_back_must_be_the_state(step):
    with pytest.raises(StateMismatchError):
        trace_with(step, 1.0)


def test_no_example_input():
    with pytest.raises(ExampleInputError):
        trace_with(linear_step)


@pytest.mark.parametrize("x", [jnp.ones(5), jnp.ones(3) * u.mV, "text", (jnp.ones(3),)])
def test_example_input_that_does_not_fit(x):
    with pytest.raises(ExampleInputError):
        trace_with(linear_step, x)


def test_the_original_exception_is_kept():
    def broken(params, state, x):
        raise ValueError("my own mistake")

    with pytest.raises(ExampleInputError, match="my own mistake") as error:
        trace_with(broken, jnp.ones((7, 2)))
    assert isinstance(error.value.__cause__, ValueError)
    assert "float64[7, 2]" in str(error.value)


@pytest.mark.parametrize("kind", [KeyError, ZeroDivisionError, RuntimeError])
def test_other_exceptions_of_the_step_pass_through(kind):
    def broken(params, state, x):
        raise kind("mine")

    with pytest.raises(kind):
        trace_with(broken, 1.0)


def test_branching_on_a_value_is_left_to_jax():
    with pytest.raises(jax.errors.TracerBoolConversionError):
        trace_with(lambda p, s, x: (s, x) if x > 0 else (s, -x), 1.0)


def test_parameter_that_is_not_floating():
    with pytest.raises(NotSupportedError) as error:
        trace_with(linear_step, jnp.ones(3), params={"w": jnp.ones((3, 4)), "mask": {"m": jnp.ones(3, bool)}})
    assert isinstance(error.value, CompilationError)
    assert "`mask.m`" in str(error.value)


def test_no_parameters_and_no_recurrent_state():
    with pytest.raises(EmptyModelError):
        trace_with(lambda p, s, x: (s + x, s), 1.0, params={})
    with pytest.raises(NoRecurrentStateError):
        trace_with(lambda p, s, x: (s + 1, x), 1.0, state=jnp.int32(0))


def test_step_must_be_callable():
    with pytest.raises(TypeError):
        trace_with(3, 1.0)


def test_later_values_are_checked_by_form():
    model = trace_with(linear_step, jnp.ones(3))
    with pytest.raises(ExampleInputError):
        model.flatten_inputs(jnp.ones(4))
    with pytest.raises(ExampleInputError):
        model.flatten_inputs(jnp.ones(3) * u.mV)
    with pytest.raises(StateMismatchError):
        model.flatten_state(jnp.zeros((2, 4)))
    with pytest.raises(ValueError, match="structure"):
        model.flatten_params({"v": jnp.ones((3, 4))})


def test_python_numbers_convert_where_nothing_is_lost():
    def step(params, state, x, index):
        return params * state + x[index], state

    model = trace_model(step, jnp.ones(3, jnp.float32), 1, params=jnp.float32(1), state=jnp.float32(0))
    assert [leaf.dtype for leaf in model.flatten_inputs(np.ones(3, np.float32), 2)] == [jnp.float32, jnp.int64]
    assert model.flatten_params(2)[0].dtype == jnp.float32
    with pytest.raises(ExampleInputError):
        model.flatten_inputs(jnp.ones(3, jnp.float32), 1.5)


def test_tuples_are_named_by_what_they_are():
    def step(params, state, x):
        first = 0.9 * state[0] + x @ params[0]
        return (first, 0.8 * state[1] + first * params[1]), first

    given = (jnp.ones((3, 4)), jnp.ones(4))
    program = trace_model(step, jnp.ones(3), params=given, state=(jnp.zeros(4), jnp.zeros(4))).program
    assert [leaf.name for leaf in program.params] == ["params[0]", "params[1]"]
    assert [leaf.name for leaf in program.hidden] == ["state[0]", "state[1]"]
