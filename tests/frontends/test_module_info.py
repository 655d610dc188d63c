"""The record of a traced module: its maps refer to the program's variables, and its calls give values back."""

import brainstate
import brainunit as u
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from foretrace import extract_module_info
from foretrace.errors import ExampleInputError, StateMismatchError

X = jnp.array([0.5, -1.0, 2.0])


class Small(brainstate.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = brainstate.ParamState({"weight": jnp.full((3, 4), 0.3), "bias": jnp.ones(4)})
        self.steps = brainstate.ShortTermState(jnp.int32(0))

    def init_state(self):
        self.v = brainstate.HiddenState(jnp.zeros(4) * u.mV)

    def update(self, x):
        self.steps.value = self.steps.value + 1
        w = self.w.value
        self.v.value = 0.9 * self.v.value + jnp.tanh(x @ w["weight"] + w["bias"]) * u.mV
        return self.v.value.sum()


@pytest.fixture
def info():
    model = Small()
    brainstate.nn.init_all_states(model)
    return extract_module_info(model, X)


def test_maps_refer_to_the_program(info):
    program = info.program
    assert info.jaxpr is info.closed_jaxpr.jaxpr
    assert info.jaxpr.invars == program.jaxpr.invars
    assert list(info.hidden_path_to_invar.values()) == program.hidden_invars
    assert list(info.hidden_path_to_outvar.values()) == program.hidden_outvars
    assert info.invar_to_hidden_path == {program.hidden_invars[0]: ("v",)}
    assert info.outvar_to_hidden_path == {program.hidden_outvars[0]: ("v",)}
    assert info.hidden_outvar_to_invar == {program.hidden_outvars[0]: program.hidden_invars[0]}
    assert info.weight_invars == program.param_invars
    assert info.weight_path_to_invars == {("w",): program.param_invars}
    assert info.invar_to_weight_path == dict.fromkeys(program.param_invars, ("w",))
    assert (info.num_var_out, info.num_var_state) == (1, 4)


def test_state_trees_hold_variables_in_the_form_of_the_values(info):
    paths = [info.state_id_to_path[id(state)] for state in info.compiled_model_states]
    trees = dict(zip(paths, info.state_tree_invars, strict=True))
    bias, weight = info.program.param_invars
    assert trees[("w",)] == {"bias": bias, "weight": weight}
    assert trees[("v",)] is info.program.hidden_invars[0]


def test_split_state_outvars(info):
    weights, hidden, other = info.split_state_outvars()
    bias, weight = info.program.param_invars
    assert weights == [{"bias": bias, "weight": weight}]
    assert hidden == info.program.hidden_outvars
    assert other == info.program.other_outvars


def test_jaxpr_call_gives_values_with_units_and_leaves_states_alone(info):
    states = {info.state_id_to_path[id(state)]: state for state in info.compiled_model_states}
    out, hidden, other, temporaries = info.jaxpr_call(X)
    assert float(states[("v",)].value.mantissa.sum()) == 0.0
    expected = np.tanh(np.asarray(X) @ np.full((3, 4), 0.3) + 1.0)
    np.testing.assert_allclose(hidden[("v",)].to_decimal(u.mV), expected, rtol=1e-12)
    np.testing.assert_allclose(out.to_decimal(u.mV), expected.sum(), rtol=1e-12)
    assert int(other[("steps",)]) == 1
    assert temporaries == {}


def test_jaxpr_call_on_given_states(info):
    values = [jnp.ones(4) * u.mV if is_hidden else value for is_hidden, value in _roles_and_values(info)]
    from_zero, from_one = info.jaxpr_call(X)[1][("v",)], info.jaxpr_call(X, old_state_vals=values)[1][("v",)]
    np.testing.assert_allclose((from_one - from_zero).to_decimal(u.mV), 0.9, rtol=1e-12)


def _roles_and_values(info):
    return [(isinstance(state, brainstate.HiddenState), state.value) for state in info.compiled_model_states]


def test_given_states_must_fit(info):
    values = [value for _, value in _roles_and_values(info)]
    with pytest.raises(StateMismatchError):
        info.jaxpr_call(X, old_state_vals=values[1:])
    wrong = [jnp.ones(4) * u.mA if is_hidden else value for is_hidden, value in _roles_and_values(info)]
    with pytest.raises(StateMismatchError):
        info.jaxpr_call(X, old_state_vals=wrong)
    with pytest.raises(ExampleInputError):
        info.jaxpr_call(jnp.ones((2, 3)))


def test_added_outputs_come_as_temporaries(info):
    (tanh,) = [eqn for eqn in info.jaxpr.eqns if eqn.primitive.name == "tanh"]
    longer = info.add_jaxpr_outs([*tanh.invars, *tanh.outvars, info.weight_invars[0]])
    out, _, _, temporaries = longer.jaxpr_call(X)
    np.testing.assert_allclose(temporaries[tanh.outvars[0]], np.tanh(temporaries[tanh.invars[0]]), rtol=1e-12)
    np.testing.assert_array_equal(temporaries[info.weight_invars[0]], np.ones(4))
    np.testing.assert_array_equal(out.mantissa, info.jaxpr_call(X)[0].mantissa)
    assert info.added_outvars == ()
    assert longer.program is info.program


def test_adding_outputs_twice_adds_them_once(info):
    var = info.jaxpr.eqns[0].outvars[0]
    twice = info.add_jaxpr_outs([var, var]).add_jaxpr_outs([var])
    assert twice.added_outvars == (var,)
    assert len(twice.jaxpr.outvars) == len(info.jaxpr.outvars) + 1


def test_strange_variables_are_refused(info):
    strange = jax.make_jaxpr(lambda x: x + 1)(1.0).jaxpr.eqns[0].outvars
    with pytest.raises(ValueError, match="variables"):
        info.add_jaxpr_outs(strange)


def test_dict_has_every_field(info):
    found = info.dict()
    assert found["program"] is info.program
    assert found["weight_path_to_invars"] == info.weight_path_to_invars
    assert {"stateful_model", "closed_jaxpr", "state_tree_outvars", "num_var_state"} <= set(found)


def test_gradients_go_back_to_paths_with_the_parameter_form(info):
    params, hidden, other = info.flatten_states()
    inputs = info.flatten_inputs(X)
    grads = jax.grad(lambda params: info.program(params, hidden, other, inputs)[2][0])(params)
    by_path = info.unflatten_params(grads)
    assert {name: leaf.shape for name, leaf in by_path[("w",)].items()} == {"bias": (4,), "weight": (3, 4)}
