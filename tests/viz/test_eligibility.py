"""Recorded traces are those of the rule, and pictures show them."""

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from foretrace.viz import eligibility_traces, record_traces

STEPS, BATCH, INPUTS, UNITS = 6, 2, 3, 4
XS = jax.random.normal(jax.random.key(0), (STEPS, BATCH, INPUTS))


def mixing(params, state, x):
    h = jnp.tanh(x @ params["w"] + state["h"] @ params["u"] + params["b"])
    return {"h": h}, h


PARAMS = {
    "w": 0.5 * jax.random.normal(jax.random.key(1), (INPUTS, UNITS)),
    "u": 0.5 * jax.random.normal(jax.random.key(2), (UNITS, UNITS)),
    "b": jnp.zeros(UNITS),
}
STATE = {"h": jnp.zeros((BATCH, UNITS))}


def recorded(rule, trial=None, **options):
    chosen = {"weights": options.pop("weights", None)}
    learner = ft.compile(mixing, rule, XS[0], params=PARAMS, state=STATE, **options)
    return record_traces(learner, XS, params=PARAMS, state=STATE, trial=trial, **chosen)


@pytest.fixture(scope="module")
def learner():
    return ft.compile(mixing, "D_RTRL", XS[0], params=PARAMS, state=STATE)


@pytest.fixture(scope="module")
def traces(learner):
    return record_traces(learner, XS, params=PARAMS, state=STATE)


def test_an_exact_rule_records_the_derivative_of_the_states():
    def later(params, steps):
        state = STATE
        for x in XS[:steps]:
            state, _ = mixing(params, state, x)
        return jnp.sum(state["h"][1])

    found = recorded("RTRL", trial=1)
    assert set(found) == {"b -> h", "u -> h", "w -> h"}
    for steps in (1, STEPS):
        want = jax.grad(later)(PARAMS, steps)
        for name in PARAMS:
            np.testing.assert_allclose(found[f"{name} -> h"][steps - 1], want[name], rtol=1e-10, atol=1e-12)


def test_traces_of_trials_add_up(learner, traces):
    each = [record_traces(learner, XS, params=PARAMS, state=STATE, weights="w", trial=k) for k in range(BATCH)]
    np.testing.assert_allclose(sum(found["w -> h"] for found in each), traces["w -> h"], rtol=1e-12)


def test_factors_are_recorded_as_their_product():
    decay = 0.9
    found = recorded("pp_prop", trial=0, decay_or_rank=decay, weights="w")
    assert list(found) == ["w -> h"]
    state, entered, effect = STATE, 0.0, 0.0
    for step, x in enumerate(XS):
        before = state
        state, _ = mixing(PARAMS, before, x)
        slope = 1 - state["h"][0] ** 2  # of tanh; the state itself comes back through mixing alone
        entered = decay * entered + x[0]
        effect = (1 - decay) * slope  # so nothing of it is carried on
        want = np.outer(entered, effect) / (1 - decay ** (step + 1))
        np.testing.assert_allclose(found["w -> h"][step], want, rtol=1e-10)


@pytest.fixture(scope="module")
def module_learner():
    brainstate.random.seed(0)
    return ft.compile(brainstate.nn.GRUCell(INPUTS, UNITS), "D_RTRL", XS[0, :1], batch_size=1)


def test_a_module_records_what_its_learner_keeps_and_stays_as_it_was(module_learner):
    cell = module_learner.model
    before = np.asarray(cell.h.value)
    found = record_traces(module_learner, XS[:, :1], weights="Wh.weight")
    np.testing.assert_array_equal(cell.h.value, before)
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(module_learner.etrace.value))
    module_learner.etrace_evolve(XS[:, :1])
    kept = module_learner.get_etrace_of(("Wh", "weight"))
    largest = max((leaf for leaf in jax.tree.leaves(kept)), key=jnp.size)
    name = next(name for name, trace in found.items() if trace.ndim == 3)
    np.testing.assert_allclose(found[name][-1], largest.reshape(found[name][-1].shape), rtol=1e-10)


def test_states_that_are_packed_are_recorded_one_by_one():
    class Packed(brainstate.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = brainstate.ParamState(jnp.ones((INPUTS, UNITS)))

        def init_state(self):
            self.s = brainstate.HiddenGroupState(jnp.zeros((UNITS, 2)))

        def update(self, x):
            v, a = self.s.value[..., 0], self.s.value[..., 1]
            v = 0.5 * v + x @ self.w.value
            self.s.value = jnp.stack([v, 0.9 * a + v], axis=-1)
            return v

    learner = ft.compile(Packed(), "D_RTRL", XS[0, 0])
    found = record_traces(learner, jnp.ones((2, INPUTS)))
    assert {name: trace[:, 0, 0].tolist() for name, trace in found.items()} == {
        "w -> s[0]": [1.0, 1.5],
        "w -> s[1]": [1.0, 2.4],
    }


def test_a_state_may_be_named_that_is_reached_through_mixing_alone():
    def stacked(params, state, x):
        one = 0.5 * state["one"] + x @ params["w"]
        two = 0.5 * state["two"] + one @ params["v"]
        return {"one": one, "two": two}, two

    params = {"w": jnp.ones((INPUTS, UNITS)), "v": jnp.ones((UNITS, UNITS))}
    state = {"one": jnp.zeros(UNITS), "two": jnp.zeros(UNITS)}
    learner = ft.compile(stacked, "RTRL", XS[0, 0], params=params, state=state)
    given = dict(params=params, state=learner.init(state), weights=["w"])
    assert list(record_traces(learner, XS[:, 0], **given)) == ["w -> one"]
    assert list(record_traces(learner, XS[:, 0], **given, states="two")) == ["w -> two"]


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"weights": "x"}, ValueError, "`weights` names `x`.*`b`, `u`, `w`"),
        ({"states": ["x"]}, ValueError, "`states` names `x`.*`h`"),
        ({"trial": BATCH}, ValueError, r"`h` has shape \(2, 4\): there is no trial 2"),
    ],
)
def test_what_cannot_be_recorded_is_named(learner, options, error, said):
    with pytest.raises(error, match=said):
        record_traces(learner, XS, **{"params": PARAMS, "state": STATE} | options)


def test_a_rule_without_traces_and_a_thing_that_is_no_learner_are_refused(module_learner):
    without = ft.compile(mixing, "DNI", XS[0], params=PARAMS, state=STATE)
    with pytest.raises(ft.NotSupportedError, match="DNI keeps no traces"):
        record_traces(without, XS, params=PARAMS, state=STATE)
    with pytest.raises(TypeError, match="got function"):
        record_traces(mixing, XS)
    with pytest.raises(ft.StateMismatchError, match="There is no value for"):
        record_traces(module_learner, XS[:, :1], params={})


def test_lines_are_synapses_of_the_neuron_of_the_map(traces):
    figure = eligibility_traces(traces, weights="w", dt=2.0)
    lines, shown, _ = figure.axes
    trace = traces["w -> h"]
    strongest = np.unravel_index(np.abs(trace).max(0).argmax(), trace.shape[1:])
    labels = [line.get_label() for line in lines.lines]
    assert labels[0] == f"w[{strongest[0]}, {strongest[1]}]"
    assert sorted(labels) == [f"w[{row}, {strongest[1]}]" for row in range(INPUTS)]
    np.testing.assert_array_equal(lines.lines[0].get_ydata(), trace[:, *strongest])
    np.testing.assert_array_equal(lines.lines[0].get_xdata(), 2.0 * np.arange(STEPS))
    np.testing.assert_array_equal(shown.images[0].get_array(), trace[:, :, strongest[1]].T)
    assert shown.images[0].get_extent() == [0, 2.0 * STEPS, INPUTS - 0.5, -0.5]
    assert (lines.get_ylabel(), shown.get_ylabel()) == ("eligibility", f"w[:, {strongest[1]}]")
    assert lines.get_title(loc="left") == "w → h"
    assert {axes.get_xlabel() for axes in (lines, shown)} == {"time (ms)"}


def test_a_learner_is_run_and_drawn(learner, traces, tmp_path):
    given = dict(params=PARAMS, state=STATE, weights="b", synapses=[(1,)], dt=None)
    figure = eligibility_traces(learner, XS, **given, path=tmp_path / "traces.png")
    np.testing.assert_allclose(figure.axes[0].lines[0].get_ydata(), traces["b -> h"][:, 1])
    assert figure.axes[0].lines[0].get_label() == "b[1]"
    assert figure.axes[1].get_xlabel() == "step"
    assert (tmp_path / "traces.png").exists()


def test_a_single_number_has_a_trace_too():
    figure = eligibility_traces({"tau -> v": np.arange(5.0)})
    assert figure.axes[0].lines[0].get_label() == "tau"
    assert figure.axes[1].images[0].get_array().shape == (1, 5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"weights": "x"}, "no trace of `x`, but of `b`, `u`, `w`"),
        ({"synapses": 0}, "from 1 on"),
        ({"synapses": []}, "`synapses` is empty"),
        ({"synapses": [(0, UNITS)], "weights": "w"}, r"\(0, 4\), and `w -> h` has synapses of shape \(3, 4\)"),
    ],
)
def test_what_cannot_be_drawn_is_named(traces, options, said):
    with pytest.raises(ValueError, match=said):
        eligibility_traces(traces, **options)


@pytest.mark.parametrize("given", [{}, {"a": np.zeros((0, 2))}, {"a": np.zeros(3), "b": np.zeros(4)}])
def test_traces_of_no_or_different_lengths_are_refused(given):
    with pytest.raises(ValueError, match=r"no traces|is empty|\[3, 4\] steps"):
        eligibility_traces(given)
