"""What cannot be compiled is refused by type, and the one door tells models apart."""

import brainstate
import brainunit as u
import jax.numpy as jnp
import pytest

from foretrace import extract_module_info
from foretrace.errors import (
    EmptyModelError,
    ExampleInputError,
    NoRecurrentStateError,
    NotSupportedError,
    StateMismatchError,
    StateNotInitializedError,
)
from foretrace.frontends import TracedModel, trace_model


class Base(brainstate.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = brainstate.ParamState(jnp.full((3, 4), 0.3))

    def init_state(self):
        self.v = brainstate.HiddenState(jnp.zeros(4) * u.mV)

    def current(self, x):
        return (x @ self.w.value) * u.mV

    def update(self, x):
        self.v.value = 0.9 * self.v.value + self.current(x)
        return self.v.value


def extract(kind, x=None, initialised=True):
    model = kind()
    if initialised:
        brainstate.nn.init_all_states(model)
    return extract_module_info(model, jnp.ones(3) if x is None else x)


def test_written_parameter_is_refused_by_name():
    class Plastic(Base):
        def update(self, x):
            self.w.value = 0.99 * self.w.value
            return super().update(x)

    with pytest.raises(NotSupportedError, match="`w`"):
        extract(Plastic)


def test_changed_unit_names_both_units_and_the_path():
    class Drifting(Base):
        def update(self, x):
            self.v.value = self.v.value / u.ohm
            return self.current(x)

    with pytest.raises(StateMismatchError) as error:
        extract(Drifting)
    assert isinstance(error.value, ValueError)
    assert all(word in str(error.value) for word in ("`v`", "`mV`", "`mA`"))


def test_refused_state_keeps_its_value():
    class Drifting(Base):
        def update(self, x):
            self.v.value = self.v.value / u.ohm
            raise KeyError("later in the step")

    model = Drifting()
    brainstate.nn.init_all_states(model)
    before = model.v.value
    with pytest.raises(KeyError):
        extract_module_info(model, jnp.ones(3))
    assert model.v.value is before


def test_array_in_place_of_a_quantity_without_unit():
    class Mixed(Base):
        def init_state(self):
            self.v = brainstate.HiddenState(u.Quantity(jnp.zeros(4)))

        def update(self, x):
            self.v.value = 0.9 * jnp.asarray(u.get_mantissa(self.v.value)) + x @ self.w.value
            return x

    assert extract(Mixed).program.hidden[0].path == ("v",)


def test_changed_shape():
    class Growing(Base):
        def update(self, x):
            self.v.value = jnp.concatenate([self.v.value.mantissa, x]) * u.mV
            return self.current(x)

    with pytest.raises(StateMismatchError):
        extract(Growing)


def test_integer_parameter():
    class Indexed(Base):
        def __init__(self):
            super().__init__()
            self.index = brainstate.ParamState(jnp.array([2, 1, 0]))

        def update(self, x):
            return super().update(x[self.index.value])

    with pytest.raises(NotSupportedError, match="`index`"):
        extract(Indexed)


@pytest.mark.parametrize("x", [jnp.ones(5), jnp.ones((2, 5)), "text", jnp.ones(3) * u.mV])
def test_example_input_that_does_not_fit(x):
    with pytest.raises(ExampleInputError):
        extract(Base, x)


def test_missing_example_input():
    model = Base()
    brainstate.nn.init_all_states(model)
    with pytest.raises(ExampleInputError):
        extract_module_info(model)


def test_states_that_were_not_initialised():
    with pytest.raises(StateNotInitializedError, match="init_all_states"):
        extract(Base, initialised=False)
    with pytest.raises(StateNotInitializedError):
        extract(lambda: brainstate.nn.GRUCell(3, 4), initialised=False)


def test_another_missing_attribute_is_the_users_own():
    class Mistyped(Base):
        def update(self, x):
            return self.vv.value

    with pytest.raises(AttributeError) as error:
        extract(Mistyped)
    assert not isinstance(error.value, StateNotInitializedError)


def test_model_without_parameters_and_without_states():
    class Fixed(Base):
        def current(self, x):
            return x.sum() * u.mV

    class Still(Base):
        def update(self, x):
            return self.current(x)

    with pytest.raises(EmptyModelError):
        extract(Fixed)
    with pytest.raises(NoRecurrentStateError):
        extract(Still)


def test_only_modules_are_modules():
    with pytest.raises(TypeError):
        extract_module_info(lambda x: x, jnp.ones(3))


def step(params, state, x):
    return params * state + x, state


def test_the_door_tells_models_apart():
    model = Base()
    brainstate.nn.init_all_states(model)
    module = trace_model(model, jnp.ones(3))
    function = trace_model(step, jnp.ones(3), params=jnp.ones(3), state=jnp.zeros(3))
    assert isinstance(module, TracedModel)
    assert isinstance(function, TracedModel)
    assert module.program.params
    assert function.program.params


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (step, {}),
        (step, {"params": 1.0}),
        (3, {"params": 1.0, "state": 0.0}),
        (Base, {}),
        (Base(), {"params": 1.0, "state": 0.0}),
    ],
    ids=["function alone", "no state", "not callable", "class", "module with params"],
)
def test_what_is_no_model(model, options):
    with pytest.raises(TypeError):
        trace_model(model, jnp.ones(3), **options)
