"""`fit` lowers the loss for every kind of learner, and does exactly what a loop written by hand does."""

from typing import Any

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import foretrace as ft
from foretrace import train
from foretrace.errors import NonFiniteError
from foretrace.train.stopping import reached
from train.small_task import BATCH, TASK, UNITS, RunningSum, by_bptt, fit, make_learner, make_net, make_params, step

LEARNERS: dict[str, Any] = {
    "D_RTRL": make_learner,
    "pp_prop": lambda: make_learner("pp_prop", decay_or_rank=0.9),
    "window": lambda: make_learner(window=4),
    "BPTT": lambda: make_learner("BPTT"),
    "module": lambda: ft.compile(make_net(), "D_RTRL", jnp.ones((BATCH, 2)), batch_size=BATCH),
    "mapped module": lambda: ft.compile(make_net(), "D_RTRL", jnp.ones((BATCH, 2)), batch_size=BATCH, vmap=True),
    "module's BPTT": lambda: by_bptt(),
}


def fell(metrics: list[dict[str, Any]]) -> bool:
    losses = [record["loss"] for record in metrics]
    return bool(np.mean(losses[-5:]) < 0.6 * np.mean(losses[:5]))


OFTEN = ("D_RTRL", "BPTT", "module")


@pytest.mark.parametrize(
    "name", [*OFTEN, *(pytest.param(n, marks=pytest.mark.slow) for n in LEARNERS if n not in OFTEN)]
)
def test_loss_falls(name: str) -> None:
    learner = LEARNERS[name]()
    options = {} if "module" in name else {"params": make_params()}
    assert fell(fit(learner, optax.adam(3e-2), iterations=60, **options).metrics)


def by_hand(update_every: int, iterations: int, clip: float) -> Any:
    """The same by a loop over updates."""
    learner, params = make_learner(), make_params()
    optimizer = optax.chain(optax.clip_by_global_norm(clip), optax.adam(1e-2))
    opt_state, key = optimizer.init(params), jax.random.key(0)
    loss = lambda out, y: TASK.loss(out, *y)
    gradient = jax.jit(lambda params, carry, xs, ys: learner.grad(params, carry, xs, ys, loss=loss))
    for _ in range(iterations):
        key, drawn = jax.random.split(key)
        trial = TASK.sample(drawn, BATCH)
        carry = learner.init(jnp.zeros((BATCH, UNITS)))
        for begin in range(0, TASK.n_steps, update_every):
            piece = slice(begin, begin + update_every)
            grads, carry, _ = gradient(params, carry, trial.inputs[piece], (trial.targets[piece], trial.mask[piece]))
            change, opt_state = optimizer.update(grads, opt_state, params)
            params = optax.apply_updates(params, change)
    return params


def test_equal_to_a_loop_by_hand() -> None:
    found = fit(iterations=3, update_every=5, clip=0.01).params
    for name, value in by_hand(5, 3, 0.01).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-12)


def test_module_and_function_do_the_same() -> None:
    class Same(brainstate.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = {name: brainstate.ParamState(value) for name, value in make_params().items()}

        def init_state(self, batch_size: int, **_: Any) -> None:
            self.h = brainstate.HiddenState(jnp.zeros((batch_size, UNITS)))

        def update(self, x: Any) -> Any:
            self.h.value, out = step({name: w.value for name, w in self.weights.items()}, self.h.value, x)
            return out

    net = Same()
    learner = ft.compile(net, "D_RTRL", jnp.ones((BATCH, 2)), batch_size=BATCH)
    found = fit(learner, iterations=4, update_every=5, stream=True)
    expected = fit(iterations=4, update_every=5, stream=True)
    for name, value in expected.params.items():
        np.testing.assert_allclose(net.weights[name].value, value, rtol=1e-9, atol=1e-12)
    assert [r["loss"] for r in found.metrics] == pytest.approx([r["loss"] for r in expected.metrics], rel=1e-9)


def test_module_keeps_no_traced_value_and_begins_anew() -> None:
    net = make_net()
    learner = ft.compile(net, "D_RTRL", jnp.ones((BATCH, 2)), batch_size=BATCH)
    result = fit(learner, iterations=2)
    assert all(isinstance(leaf, jax.Array) for state in net.states().values() for leaf in jax.tree.leaves(state.value))
    assert jnp.all(net.cell.h.value == 0)
    assert result.params[("readout", "weight")]["weight"] is net.readout.weight.value["weight"]
    learner(jnp.ones((BATCH, 2)))


def test_running_statistics_last_and_dropout_is_off_in_validation() -> None:
    class Noisy(brainstate.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.dropout = make_net(), brainstate.nn.Dropout(0.5)
            self.seen = brainstate.ShortTermState(jnp.zeros(()))

        def update(self, x: Any) -> Any:
            self.seen.value = self.seen.value + 1.0
            return self.net(self.dropout(x))

    net = Noisy()
    with brainstate.environ.context(fit=True):
        learner = by_bptt(net)
    first, second = fit(learner, optax.sgd(0.0), iterations=2, validate_every=1).metrics
    assert net.seen.value == 2 * TASK.n_steps
    assert first["validation_loss"] == second["validation_loss"]


def test_iteration_is_traced_once() -> None:
    traces = []

    def update(*given: Any) -> Any:
        traces.append(1)
        return adam.update(*given)

    adam = optax.adam(1e-2)
    params = {name: np.asarray(value) for name, value in make_params().items()}
    fit(optimizer=optax.GradientTransformation(adam.init, update), params=params, iterations=20)
    assert len(traces) == 1


def test_stream_carries_states_and_traces() -> None:
    anew, stream = fit(iterations=2), fit(iterations=2, stream=True)
    assert anew.state.carry is None
    assert jnp.any(stream.state.carry.state != 0)
    assert jnp.any(jax.tree.leaves(stream.state.carry.trace)[0] != 0)
    assert anew.metrics[0]["loss"] == stream.metrics[0]["loss"]
    assert anew.metrics[1]["loss"] != stream.metrics[1]["loss"]


def test_rule_that_takes_something_from_outside() -> None:
    learner = make_learner("three_factor")
    silent = fit(learner, optax.sgd(0.1), iterations=1, external=lambda trial: jnp.zeros(trial.inputs.shape[0]))
    np.testing.assert_array_equal(silent.params["w_rec"], make_params()["w_rec"])
    with pytest.raises(ValueError, match="modulator"):
        fit(learner, iterations=1)


def test_a_rule_with_a_bound_has_a_column_for_it() -> None:
    record = fit(make_learner(ft.LowRank(1, every=3, certify=True)), iterations=1, update_every=6).metrics[0]
    assert 0 < record["certificate"] < 100 * record["gradient_norm"]


def test_stops_at_the_goal() -> None:
    result = fit(optimizer=optax.adam(3e-2), iterations=400, validate_every=10, stop=True)
    assert result.stopped_because == "goal"
    assert result.iterations < 400
    assert result.validation["error"] < 0.5
    assert result.iterations % 10 == 0


def test_patience() -> None:
    waited = fit(optimizer=optax.sgd(0.0), iterations=9, validate_every=1, patience=3)
    assert (waited.iterations, waited.stopped_because) == (4, "patience")


def test_goals() -> None:
    metrics = {"loss": 1.0, "accuracy": 0.9}
    assert reached(("accuracy", ">", 0.8), metrics)
    assert not reached(("accuracy", "<", 0.8), metrics)
    assert not reached(("accuracy", ">", 0.9), metrics)
    assert reached(lambda m: m["loss"] == 1.0, metrics)


def test_interrupted_run_is_returned() -> None:
    def impatient(metrics: Any) -> bool:
        raise KeyboardInterrupt

    result = fit(iterations=9, validate_every=2, stop=impatient)
    assert (result.stopped_because, len(result.metrics)) == ("interrupted", 2)


def test_table_and_columns() -> None:
    records = [{"iteration": n, "loss": 1.0 / n} | ({"validation_error": 0.5} if n == 2 else {}) for n in range(1, 5)]
    result = train.Result({}, records, None, "iterations")  # type: ignore[arg-type]
    assert result.table().splitlines()[2:4] == ["1          1       -", "2          0.5     0.5"]
    assert result.table(rows=1, columns=["loss"]).split() == ["loss", "----", "1", "0.5", "0.25"]
    assert result.column("validation_error") == ([2], [0.5])
    assert result.validation == {"error": 0.5}


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"optimizer": optax.adam}, TypeError, "call it"),
        ({"optimizer": 0.1}, TypeError, r"got 0\.1"),
        ({"learner": step}, TypeError, "foretrace.compile"),
        ({"params": make_params(), "state": jnp.zeros((2, 2))}, ValueError, "was expected"),
        ({"iterations": 0}, ValueError, "`iterations` is a whole number"),
        ({"update_every": 0}, ValueError, "`update_every`"),
        ({"stop": True}, ValueError, "validate_every"),
        ({"stop": ("error", "~", 1.0), "validate_every": 1}, ValueError, "'<' or '>'"),
        ({"stop": ("accuracy", ">", 1.0), "validate_every": 1}, ValueError, "not measured. There are loss, error"),
        ({"stop": True, "validate_every": 1, "task": RunningSum(goal=None)}, ValueError, "has no goal"),
        ({"clip": -1.0}, ValueError, "`clip`"),
        ({"rate_cost": 1.0}, ValueError, "both `rate_target="),
        ({"rate_cost": 1.0, "rate_target": 10.0}, ValueError, "no spikes"),
        ({"task": RunningSum(n_outputs=3)}, ValueError, r"readout of a step is \(4, 1\).* wants \(4, 3\)"),
        ({"resume": True}, ValueError, "`folder=`"),
        ({"optimizer": optax.sgd(1e200), "iterations": 5}, NonFiniteError, "iteration 2 is not finite"),
    ],
)
def test_errors_say_what_to_do(options: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        fit(**options)


def test_module_without_a_rule_is_refused() -> None:
    with pytest.raises(TypeError, match=r"foretrace\.compile"):
        train.fit(make_net(), TASK, optax.sgd(0.1), iterations=1, batch_size=BATCH)
    with pytest.raises(TypeError, match="holds its own parameters"):
        train.fit(by_bptt(), TASK, optax.sgd(0.1), iterations=1, batch_size=BATCH, params={})
