"""A brainstate module becomes a program that computes the same, state by state, and stays as it was."""

import subprocess
import sys

import brainpy
import brainstate
import braintools
import brainunit as u
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from foretrace import extract_module_info
from foretrace.errors import StateMismatchError
from foretrace.frontends import TracedModel, frontend_of, trace_model
from foretrace.program.diagnostics import DiagnosticKind

INIT = braintools.init


class Toy(brainstate.nn.Module):
    """Every kind of state in one step; `extra` is held but never touched."""

    def __init__(self):
        super().__init__()
        self.weights = brainstate.ParamState({"weight": jnp.full((3, 4), 0.3) * u.mV, "bias": jnp.ones(4) * u.mV})
        self.gain = brainstate.ParamState(jnp.ones((4, 2)))
        self.unused = brainstate.ParamState(jnp.ones(2))
        self.steps = brainstate.ShortTermState(jnp.int32(0))
        self.mean = brainstate.LongTermState(jnp.zeros(4) * u.mV)

    def init_state(self, batch_size=None):
        self.v = brainstate.HiddenState(jnp.zeros(4) * u.mV)
        self.pair = brainstate.HiddenGroupState(jnp.zeros((4, 2)))
        self.named = brainstate.HiddenTreeState({"a": jnp.zeros(4) * u.mV, "b": jnp.zeros(4) * u.mA})
        self.count = brainstate.HiddenState(jnp.zeros(4, jnp.int32))
        self.extra = brainstate.HiddenState(jnp.zeros(4))

    def update(self, x, scale=1.0):
        weights = self.weights.value
        self.v.value = 0.9 * self.v.value + scale * (x @ weights["weight"] + weights["bias"])
        self.pair.value = 0.5 * self.pair.value + self.v.value.to_decimal(u.mV)[:, None] * self.gain.value
        self.named.set_value({"a": 0.5 * self.named.get_value("a") + self.v.value})
        self.count.value = self.count.value + (self.v.value > 1.0 * u.mV)
        self.mean.value = 0.9 * self.mean.value + 0.1 * self.v.value
        self.steps.value = self.steps.value + 1
        noise = brainstate.random.normal(size=4)
        return {"v": self.v.value + noise * u.mV, "pair": self.pair.value.sum(-1)}


class Synaptic(brainstate.nn.Module):
    """Three inputs to four LIF neurons through a synapse after the weights, with a readout."""

    def __init__(self, synapse, merged, unit):
        super().__init__()
        self.neuron = brainpy.state.LIF(4, tau=20.0 * u.ms, R=1.0 * u.ohm)
        comm = brainstate.nn.Linear(3, 4, w_init=INIT.KaimingNormal(unit=unit), b_init=INIT.ZeroInit(unit=unit))
        zero, scale = INIT.ZeroInit(unit=unit), u.mA / unit
        if merged:
            parts = synapse.desc(4, g_initializer=zero), brainpy.state.CUBA.desc(scale=scale)
        else:
            parts = synapse(4, g_initializer=zero), brainpy.state.CUBA(scale=scale)
        self.into = brainpy.state.AlignPostProj(comm=comm, syn=parts[0], out=parts[1], post=self.neuron)
        self.readout = brainstate.nn.Linear(4, 2)

    def update(self, x):
        self.into(x)
        self.neuron(0.0 * u.mA)
        return self.readout(self.neuron.get_spike()), self.neuron.V.value


class PreSynaptic(brainstate.nn.Module):
    """A synapse before the weights, with short-term plasticity."""

    def __init__(self, plasticity):
        super().__init__()
        self.plasticity = plasticity(3)
        self.synapse = brainpy.state.Expon(3, g_initializer=INIT.ZeroInit())
        self.neuron = brainpy.state.LIF(4, tau=20.0 * u.ms, R=1.0 * u.ohm)
        comm, out = brainstate.nn.Linear(3, 4), brainpy.state.CUBA(scale=u.mA)
        self.into = brainpy.state.CurrentProj(comm=comm, out=out, post=self.neuron)

    def update(self, x):
        self.into(self.synapse(self.plasticity(x)))
        self.neuron(0.0 * u.mA)
        return self.neuron.get_spike()


def neuron_layer(kind):
    current = brainstate.nn.Linear(3, 4, w_init=INIT.KaimingNormal(unit=u.mA), b_init=None)
    return brainstate.nn.Sequential(current, kind(4))


def dropped_out():
    return brainstate.nn.Sequential(brainstate.nn.GRUCell(3, 4), brainstate.nn.Dropout(0.5))


def normed():
    return brainstate.nn.Sequential(brainstate.nn.BatchNorm0d(3), brainstate.nn.GRUCell(3, 4))


STATE = brainpy.state
MODELS = {
    "toy": (Toy, None),
    "gru": (lambda: brainstate.nn.GRUCell(3, 4), None),
    "gru batched": (lambda: brainstate.nn.GRUCell(3, 4), 16),
    "lstm batched": (lambda: brainstate.nn.LSTMCell(3, 4), 16),
    "lif": (lambda: neuron_layer(STATE.LIF), None),
    "lif batched": (lambda: neuron_layer(STATE.LIF), 16),
    "lif refractory": (lambda: neuron_layer(STATE.LIFRef), None),
    "alif": (lambda: neuron_layer(STATE.ALIF), None),
    "gif": (lambda: neuron_layer(STATE.Gif), None),
    "expon": (lambda: Synaptic(STATE.Expon, False, u.mS), None),
    "expon merged": (lambda: Synaptic(STATE.Expon, True, u.mS), None),
    "expon plain": (lambda: Synaptic(STATE.Expon, True, u.UNITLESS), None),
    "expon batched": (lambda: Synaptic(STATE.Expon, True, u.mS), 16),
    "dual expon": (lambda: Synaptic(STATE.DualExpon, True, u.mS), None),
    "plasticity": (lambda: PreSynaptic(STATE.STP), None),
    "depression": (lambda: PreSynaptic(STATE.STD), None),
    "dropout": (dropped_out, None),
    "batch norm": (normed, 16),
}


def make(name):
    build, batch_size = MODELS[name]
    brainstate.random.seed(11)
    model = build()
    brainstate.nn.init_all_states(model, **({} if batch_size is None else {"batch_size": batch_size}))
    shape = (4, 3) if batch_size is None else (4, batch_size, 3)
    return model, 20.0 * np.random.default_rng(5).random(shape)


def environment():
    return brainstate.environ.context(dt=0.1 * u.ms, t=0.0 * u.ms, fit=True)


def assert_same(found, wanted):
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_program_computes_what_the_model_computes(name):
    model, xs = make(name)
    with environment():
        info = extract_module_info(model, jnp.asarray(xs[0]))
        params, hidden, other = info.flatten_states()
        run_model, run_program = brainstate.transform.jit(model), jax.jit(lambda *lists: info.program(*lists))
        for x in map(jnp.asarray, xs):
            wanted = run_model(x)
            hidden, other, outputs = run_program(params, hidden, other, info.flatten_inputs(x))
            assert_same(info.unflatten_output(outputs), wanted)
    values = info.unflatten_state(hidden, other)
    for state in info.compiled_model_states:
        if not isinstance(state, brainstate.ParamState):
            assert_same(values[info.state_id_to_path[id(state)]], state.value)


@pytest.mark.parametrize("name", ["toy", "expon", "expon merged", "plasticity", "dropout"])
def test_tracing_leaves_the_model_as_it_was(name):
    model, xs = make(name)
    before = {path: state.value for path, state in model.states().items()}
    key = brainstate.random.DEFAULT.value
    attributes = {path: dict(vars(node)) for path, node in model.nodes().items()}
    with environment():
        extract_module_info(model, jnp.asarray(xs[0]))
    assert brainstate.random.DEFAULT.value is key
    assert all(state.value is before[path] for path, state in model.states().items())
    for path, node in model.nodes().items():
        assert vars(node).keys() == attributes[path].keys()
        assert all(value is attributes[path][name] for name, value in vars(node).items())
        assert not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(dict(vars(node))))


def test_a_failed_trace_leaves_the_model_as_it_was():
    model, xs = make("expon")
    with environment():
        with pytest.raises(Exception, match="float64"):
            extract_module_info(model, jnp.ones(7))
        wanted = make("expon")[0](jnp.asarray(xs[0]))
        assert_same(model(jnp.asarray(xs[0])), wanted)


def test_no_tracer_leaks():
    model, xs = make("expon")
    with environment(), jax.checking_leaks():
        extract_module_info(model, jnp.asarray(xs[0]))


@pytest.fixture
def toy():
    model, xs = make("toy")
    return extract_module_info(model, jnp.asarray(xs[0])), jnp.asarray(xs[0])


def test_roles(toy):
    info, _ = toy
    program = info.program
    assert {leaf.path for leaf in program.params} == {("weights", "weight"), ("weights", "bias"), ("gain",)}
    assert [leaf.path for leaf in program.hidden] == [("v",), ("pair",), ("named",)]
    assert {leaf.path for leaf in program.other} == {
        ("count",),
        ("mean",),
        ("steps",),
        ("external", "RandomState"),
    }
    assert [leaf.packed for leaf in program.hidden] == [False, True, True]


def test_leaves_of_a_pytree_parameter_share_their_owner(toy):
    owners = {leaf.path: leaf.owner for leaf in toy[0].program.params}
    assert owners[("weights", "bias")] == owners[("weights", "weight")] == ("weights",)
    assert owners[("gain",)] == ("gain",)


def test_records_about_states(toy):
    records = {(record.kind, record.weight_path, record.hidden_paths) for record in toy[0].diagnostics}
    assert (DiagnosticKind.PARAMETER_UNUSED, ("unused",), ()) in records
    assert (DiagnosticKind.STATE_UNTOUCHED, None, (("extra",),)) in records
    assert (DiagnosticKind.STATE_MISMATCH, None, (("count",),)) in records


def test_untouched_states_are_retrieved_but_not_compiled(toy):
    info, _ = toy
    compiled = [info.state_id_to_path[id(state)] for state in info.compiled_model_states]
    assert {("extra",), ("unused",)} <= set(info.retrieved_model_states)
    assert not {("extra",), ("unused",)} & set(compiled)


def test_named_inputs_enter_too():
    model, xs = make("toy")
    x = jnp.asarray(xs[0])
    info = extract_module_info(model, x, scale=2.0)
    assert [leaf.path for leaf in info.program.inputs] == [("input", 0), ("input", "scale")]
    found = info.jaxpr_call(x, scale=3.0)[0]
    assert_same(found, model(x, scale=jnp.float64(3.0)))


def test_states_within_transformations_are_found():
    class Looped(brainstate.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = brainstate.ParamState(jnp.full((3, 3), 0.2))

        def init_state(self):
            self.h = brainstate.HiddenState(jnp.zeros(3))

        def update(self, x):
            def inner(_):
                self.h.value = jnp.tanh(self.h.value @ self.w.value + x)

            brainstate.transform.for_loop(inner, jnp.arange(3))
            brainstate.transform.cond(x.sum() > 0, lambda: inner(0), lambda: None)
            return self.h.value

    model = Looped()
    brainstate.nn.init_all_states(model)
    info = extract_module_info(model, jnp.ones(3))
    assert_same(info.jaxpr_call(jnp.ones(3))[0], model(jnp.ones(3)))


def test_first_use_of_the_random_state_is_traced_with_its_key():
    """In a fresh process the default random state has no key yet; only a fresh process can show it."""
    code = """
import brainstate, jax.numpy as jnp, foretrace as ft

class Noisy(brainstate.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = brainstate.ParamState(jnp.ones(3))
        self.h = brainstate.HiddenState(jnp.zeros(3))

    def update(self, x):
        self.h.value = 0.9 * self.h.value + self.w.value * x * brainstate.random.normal(size=3)
        return self.h.value

info = ft.extract_module_info(Noisy(), jnp.ones(3))
out, *_ = info.jaxpr_call(jnp.ones(3))
print(out.shape)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "(3,)", done.stderr


def test_a_module_comes_in_by_the_table_like_any_other_model():
    model, xs = make("toy")
    traced = trace_model(model, jnp.asarray(xs[0]), named={"scale": 2.0})
    assert frontend_of(model).name == "brainstate"
    assert isinstance(traced, TracedModel)
    assert set(traced.split.params) == {("weights",), ("gain",), ("unused",)}
    assert [leaf.name for leaf in traced.program.inputs] == ["input[0]", "input.scale"]


def test_a_module_taken_apart_shows_the_values_of_now():
    model, xs = make("toy")
    traced = trace_model(model, jnp.asarray(xs[0]))
    model.gain.value, model.v.value = jnp.full((4, 2), 3.0), jnp.ones(4) * u.mV
    assert_same(traced.split.params[("gain",)], jnp.full((4, 2), 3.0))
    assert_same(traced.split.state[("v",)], jnp.ones(4) * u.mV)
    old = model.v
    brainstate.nn.init_all_states(model)  # makes states anew
    assert model.v is not old
    assert_same(traced.split.state[("v",)], jnp.zeros(4) * u.mV)


def test_an_unused_parameter_gets_zeros_and_a_missing_one_is_named(toy):
    traced = toy[0].traced
    params = traced.split.params
    back = traced.unflatten_params(traced.flatten_params(params))
    assert_same(back[("gain",)], params[("gain",)])
    assert_same(back[("unused",)], jnp.zeros(2))
    del params[("gain",)]
    with pytest.raises(StateMismatchError, match="no value for `gain`"):
        traced.flatten_params(params)
