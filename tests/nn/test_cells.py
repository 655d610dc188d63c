"""The recurrent cells and readouts: shapes, states, numbers, gradients, saved parameters and what the report says."""

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import brainstate
import brainunit as u
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from foretrace.nn.cells import (
    CFNCell,
    GRUCell,
    LRUCell,
    LSTMCell,
    MiniGRU,
    MiniLSTM,
    MinimalRNNCell,
    URLSTMCell,
    ValinaRNNCell,
    VanillaRNNCell,
)
from foretrace.nn.readout import LeakyRateReadout, LeakySpikeReadout
from learners.nets import assert_close
from nn.cells import BATCH, CASES, HIDDEN, INPUT, Case, inputs
from oracle import Oracle
from zoo.solved import loss

STEPS = 10


def cases(wanted: Callable[[Case], bool] = lambda case: True) -> Any:
    """Parametrises over the table; one process compiles all that a case needs."""
    chosen = {name: case for name, case in CASES.items() if wanted(case)}
    return pytest.mark.parametrize(
        "case", [pytest.param(case, id=name, marks=pytest.mark.xdist_group(name)) for name, case in chosen.items()]
    )


every_case = cases()


@pytest.fixture(autouse=True)
def _time_step() -> Iterator[None]:
    with brainstate.environ.context(dt=1.0 * u.ms):
        yield


def arrays(cell: Any, kind: type = brainstate.HiddenState) -> dict[str, np.ndarray]:
    """The leaves of a cell's states by path, without units."""
    named = ((path, jax.tree_util.tree_flatten_with_path(state.value)[0]) for path, state in cell.states(kind).items())
    return {leaf_name(path, keys): np.asarray(leaf) for path, leaves in named for keys, leaf in leaves}


def leaf_name(path: tuple[str, ...], keys: Any) -> str:
    """A name such as `Wz.weight.bias`; the keys of a unit's wrapper are left out."""
    return ".".join([*path, *(key.key for key in keys if isinstance(key, jax.tree_util.DictKey))])


@dataclass(frozen=True)
class Solved:
    """A cell of the table, compiled, and its gradients.

    Attributes:
        learner: The learner, with the cell as its model.
        xs: The inputs of ten steps.
        step: The gradient of one step's loss by traces, which runs on from call to call.
        oracle: That of the ten steps by the dense oracle, by the parameters' names.
    """

    learner: Any
    xs: Any
    step: Callable[[Any], Any]
    oracle: dict[str, Any]

    def gradients(self) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Those of the first step and of all steps, from the states that the cell has."""
        self.learner.reset_state()
        parts = [self.step(self.xs[t : t + 1]) for t in range(STEPS)]
        return parts[0], jax.tree.map(lambda *leaves: sum(leaves), *parts)


@functools.cache
def solved(case: Case) -> Solved:
    cell = case.build()
    xs = inputs(case.filled()[1], STEPS)
    learner = ft.compile(cell, "D_RTRL", xs[0], batch_size=BATCH, discover="marked")
    case.fill(cell)
    info = learner.graph.module_info
    dense = Oracle(learner.graph, loss).gradient(*info.flatten_states(), [info.flatten_inputs(x) for x in xs])
    names = [parameter.name for parameter in learner.graph.parameters]

    @brainstate.transform.jit
    def step(xs: Any) -> Any:
        return learner.etrace_grad(xs, step_fn=lambda x: loss([learner(x)]), reduction="sum")

    return Solved(learner, xs, step, dict(zip(names, dense, strict=True)))


@functools.cache
def online(case: Case) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """By traces: the gradients of the first step and of all ten, from the table's parameters and states on."""
    case.fill(solved(case).learner.model)
    return solved(case).gradients()


def through_time(cell: Any, xs: Any) -> dict[Any, Any]:
    """By brainstate's own gradient through the loop, without a learner."""
    total = lambda: jnp.sum(brainstate.transform.for_loop(lambda x: loss([cell(x)]), xs))
    return brainstate.transform.jit(lambda: brainstate.transform.grad(total, cell.states(brainstate.ParamState))())()


@every_case
@pytest.mark.parametrize("batch", [None, BATCH])
def test_shapes_of_output_and_states(case: Case, batch: int | None) -> None:
    cell, lead = case.build(), () if batch is None else (batch,)
    brainstate.nn.init_all_states(cell, **({} if batch is None else {"batch_size": batch}))
    assert cell(jnp.ones((*lead, INPUT))).shape == (*lead, *cell.out_size)
    assert {name: state.shape for name, state in arrays(cell).items()} == dict.fromkeys(case.states, (*lead, HIDDEN))


@every_case
def test_reset_gives_the_initial_states(case: Case) -> None:
    cell, _ = case.filled()
    brainstate.nn.reset_all_states(cell, batch_size=BATCH)
    assert all(np.array_equal(state, np.zeros((BATCH, HIDDEN))) for state in arrays(cell).values())
    brainstate.nn.reset_all_states(cell)
    assert {state.shape for state in arrays(cell).values()} == {(HIDDEN,)}


@cases(lambda case: case.start is not None)
def test_initial_states_are_numbers_arrays_or_functions(case: Case) -> None:
    unit = u.mV if case.start == "V_init" else u.UNITLESS
    row = np.arange(HIDDEN) / 10
    for given, wanted in (
        (0.25, np.full(HIDDEN, 0.25)),
        (row, row),
        (lambda size: jnp.full(size, 2.0), [2.0] * HIDDEN),
    ):
        start = (lambda size, given=given: given(size) * unit) if callable(given) else given * unit
        cell = case.build(**{case.start: start})
        brainstate.nn.init_all_states(cell, batch_size=BATCH)
        assert all(np.array_equal(state, [wanted] * BATCH) for state in arrays(cell).values())


@every_case
def test_numbers_of_braintrace(case: Case) -> None:
    cell, generator = case.filled()
    outputs, states = [], []
    for x in inputs(generator, 5):
        outputs.append(np.ravel(cell(x)))
        after = arrays(cell)
        states.append(np.concatenate([after[name].mean(0) for name in case.states]))
    np.testing.assert_allclose(np.mean(outputs, axis=0), case.outputs, rtol=0, atol=1e-11)
    np.testing.assert_allclose(np.mean(states, axis=0), case.means, rtol=0, atol=1e-11)


@every_case
def test_arguments(case: Case) -> None:
    assert list(inspect.signature(case.make.__init__).parameters)[1:] == case.arguments.split()


@every_case
def test_one_step_equals_bptt(case: Case) -> None:
    assert_close(online(case)[0], through_time(case.filled()[0], solved(case).xs[:1]))


@every_case
def test_ten_steps_equal_the_oracle(case: Case) -> None:
    flat = {path: jax.tree_util.tree_flatten_with_path(value)[0] for path, value in online(case)[1].items()}
    found = {leaf_name(path, keys): leaf for path, leaves in flat.items() for keys, leaf in leaves}
    assert_close(found, solved(case).oracle)


@cases(lambda case: case.exact)
def test_exact_cells_equal_bptt_at_any_length(case: Case) -> None:
    assert_close(online(case)[1], through_time(case.filled()[0], solved(case).xs))


@cases(lambda case: case.make in (MiniGRU, MiniLSTM))
def test_gates_of_the_input_alone_make_mini_cells_exact(case: Case) -> None:
    model, (cell, _) = solved(case), case.filled()
    case.fill(model.learner.model)
    for one in (cell, model.learner.model):
        for layer in (getattr(one, gate) for gate in one.layers if gate != "W_x"):
            cut = layer.weight.value["weight"].at[INPUT:].set(0.0)
            layer.weight.value = {**layer.weight.value, "weight": cut}
    assert_close(model.gradients()[1], through_time(cell, model.xs))


@every_case
def test_the_report_says_what_each_history_keeps(case: Case) -> None:
    graph = solved(case).learner.graph
    assert {parameter.name: parameter.history.value for parameter in graph.parameters} == case.history
    assert [sorted(path[0] for path in group.hidden_paths) for group in graph.hidden_groups] == [list(case.states)]


@every_case
def test_saved_parameters_fit_a_new_cell(case: Case, tmp_path: Path) -> None:
    first, second = case.build(seed=1), case.build(seed=2)
    np.savez(tmp_path / "cell.npz", **arrays(first, brainstate.ParamState))
    saved = np.load(tmp_path / "cell.npz")
    outputs = []
    for cell in (first, second):
        brainstate.nn.init_all_states(cell, batch_size=BATCH)
        outputs.append(cell(jnp.ones((BATCH, INPUT))))
    for path, state in second.states(brainstate.ParamState).items():
        load = lambda keys, leaf, path=path: jnp.asarray(saved[leaf_name(path, keys)])
        state.value = jax.tree_util.tree_map_with_path(load, state.value)
    brainstate.nn.reset_all_states(second, batch_size=BATCH)
    outputs.append(second(jnp.ones((BATCH, INPUT))))
    assert np.array_equal(outputs[0], outputs[2])
    assert case.make is LeakySpikeReadout or not np.allclose(outputs[0], outputs[1])


def test_both_spellings_are_one_cell() -> None:
    assert ValinaRNNCell is VanillaRNNCell


def test_axes_before_the_last_are_kept() -> None:
    cell = LSTMCell((5, INPUT), (5, HIDDEN))
    brainstate.nn.init_all_states(cell, batch_size=BATCH)
    assert cell(jnp.ones((BATCH, 5, INPUT))).shape == (BATCH, 5, HIDDEN)
    assert cell.Wi.weight.value["weight"].shape == (INPUT + HIDDEN, HIDDEN)


def test_no_bias_where_none_is_asked_for() -> None:
    assert set(CFNCell(INPUT, HIDDEN, b_init=None).Wh.weight.value) == {"weight"}


def test_activation_is_used() -> None:
    cell = ValinaRNNCell(1, 1, w_init=1.0, activation=lambda value: value + 5.0)
    brainstate.nn.init_all_states(cell)
    assert cell(jnp.array([2.0])).tolist() == [7.0]


def test_phi_embeds_the_input() -> None:
    cell = MinimalRNNCell(HIDDEN, HIDDEN, phi=jnp.square, w_init=0.0)
    brainstate.nn.init_all_states(cell)
    np.testing.assert_allclose(cell(jnp.full(HIDDEN, 2.0)), 2.0)  # half of the old state 0, half of 4
    assert list(cell.states(brainstate.ParamState)) == [("W_u", "weight")]


def test_forget_gates_of_urlstm_are_spread_evenly() -> None:
    gates = np.sort(jax.nn.sigmoid(URLSTMCell(1, 1000, w_init=0.0).bias.value))
    assert gates[0] >= 0.001
    assert gates[-1] <= 0.999
    assert np.max(np.abs(gates - np.linspace(0, 1, 1000))) < 0.06  # Kolmogorov and Smirnov: beyond it 1 in 700
    assert np.isfinite(URLSTMCell(1, 1).bias.value).all()


def test_eigenvalues_of_lru_lie_on_the_ring() -> None:
    cell = LRUCell(2, 500, r_min=0.8, r_max=0.95, max_phase=0.5)
    radius = np.exp(-np.exp(cell.nu_log.value))
    angle = np.exp(cell.theta_log.value)
    assert 0.8 <= radius.min() < 0.81
    assert 0.94 < radius.max() <= 0.95
    assert 0.0 < angle.min() < 0.02
    assert 0.48 < angle.max() <= 0.5
    np.testing.assert_allclose(np.exp(cell.gamma_log.value), np.sqrt(1 - radius**2), rtol=1e-12)


def test_readout_may_have_a_time_constant_for_each_output() -> None:
    readout = LeakyRateReadout(1, 2, tau=np.array([1.0, 2.0]) * u.ms, w_init=0.0, r_init=1.0)
    brainstate.nn.init_all_states(readout)
    np.testing.assert_allclose(readout(jnp.ones(1)), np.exp([-1.0, -0.5]))


@pytest.mark.parametrize(("reset", "height"), [("soft", 1.0), ("hard", 1.4)])
def test_the_derivative_of_a_reset(reset: str, height: float) -> None:
    # Both resets are differentiated as a fall by a constant times the spike, whose derivative at 1.4 is 0.3 (1 - 0.4).
    readout = LeakySpikeReadout(1, 1, V_init=1.4 * u.mV, spk_reset=reset)
    brainstate.nn.init_all_states(readout)

    def after() -> Any:
        readout(jnp.ones(1))
        return (readout.V.value / u.mV)[0]

    found = brainstate.transform.grad(after, {"V": readout.V})()["V"]
    np.testing.assert_allclose(u.get_mantissa(found), np.exp(-0.2) * (1 - 0.3 * 0.6 * height), rtol=1e-12)


def test_readouts_work_without_units() -> None:
    with brainstate.environ.context(dt=1.0):
        readout = LeakySpikeReadout(1, 2, tau=5.0, V_th=1.0, w_init=2.0, V_init=1.5)
        brainstate.nn.init_all_states(readout)
        assert readout.get_spike().tolist() == [1.0, 1.0]
        assert readout(jnp.zeros(1)).tolist() == [0.0, 0.0]
        np.testing.assert_allclose(readout.V.value, 0.5 * np.exp(-0.2))


def test_states_that_do_not_exist_are_named() -> None:
    with pytest.raises(ft.StateNotInitializedError, match=r"`h` of GRUCell does not exist yet.*init_all_states"):
        GRUCell(INPUT, HIDDEN)(jnp.ones(INPUT))
    with pytest.raises(ft.StateNotInitializedError, match="`V` of LeakySpikeReadout"):
        brainstate.nn.reset_all_states(LeakySpikeReadout(INPUT, HIDDEN))
    with pytest.raises(AttributeError, match="'GRUCell' object has no attribute 'gate'"):
        _ = GRUCell(INPUT, HIDDEN).gate


@every_case
def test_an_input_of_another_shape_is_refused(case: Case) -> None:
    cell, _ = case.filled()
    for shape in ((INPUT,), (BATCH + 1, INPUT), (BATCH, INPUT + 1)):
        with pytest.raises(ValueError, match=r"the input has the shape .* must be \(2, 3\)"):
            cell(jnp.ones(shape))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: GRUCell(0, 4), ValueError, "GRUCell: `in_size` must be positive"),
        (lambda: GRUCell((2, 3), 4), ValueError, "GRUCell: .*differ before the last axis"),
        (lambda: GRUCell(3, 4, activation="tan"), ValueError, "GRUCell: there is no activation 'tan'"),
        (lambda: GRUCell(3, 4, activation="Tanh"), ValueError, "GRUCell: there is no activation 'Tanh'"),
        (lambda: GRUCell(3, 4, activation=3), TypeError, "GRUCell: `activation` must be a function"),
        (lambda: MinimalRNNCell(3, 4, phi=3), TypeError, "`phi` must be a function or a module"),
        (lambda: LRUCell(3, 4, r_min=0.9, r_max=0.5), ValueError, "0 <= r_min < r_max <= 1"),
        (lambda: LRUCell(3, 4, r_max=1.1), ValueError, "0 <= r_min < r_max <= 1"),
        (lambda: LRUCell(3, 4, max_phase=0.0), ValueError, "`max_phase` must be positive"),
        (lambda: LRUCell(3, 4.5), TypeError, "LRUCell: `d_hidden` must be a positive whole number"),
        (lambda: LeakyRateReadout(3, 4, tau=5.0), ValueError, "do not have units of one kind"),
        (lambda: LeakySpikeReadout(3, 4, spk_reset="none"), ValueError, "`spk_reset` must be 'soft' or 'hard'"),
        (lambda: LeakySpikeReadout(3, 4, spk_fun=1.0), TypeError, "`spk_fun` must be a function"),
        (lambda: LeakySpikeReadout(3, 4, V_th=1.0), ValueError, "`w_init` has the unit mV and `V_th` 1"),
        (lambda: LeakySpikeReadout(3, 4, V_init=0.0), ValueError, "`V_init` has the unit 1 and `V_th` mV"),
    ],
)
def test_arguments_without_meaning_are_refused(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_a_phi_of_another_size_is_refused() -> None:
    cell = MinimalRNNCell(INPUT, HIDDEN, phi=jnp.tanh)
    brainstate.nn.init_all_states(cell)
    with pytest.raises(ValueError, match=r"`phi` gives the shape \(3,\), and the state has \(4,\)"):
        cell(jnp.ones(INPUT))


def test_an_initial_state_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"MiniGRU: `state_init` of shape \(3,\)"):
        brainstate.nn.init_all_states(MiniGRU(INPUT, HIDDEN, state_init=jnp.ones(3)))


def test_a_readout_needs_a_time_step() -> None:
    with brainstate.environ.context(dt=None), pytest.raises(ValueError, match="the time step is not set"):
        LeakyRateReadout(3, 4)
