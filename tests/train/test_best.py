"""The best network is that of the lowest validation loss; it is saved, survives a resumption, and can be used again."""

from typing import Any

import brainstate
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from foretrace import train
from foretrace.train.stopping import Stopping
from train.killed import Net, learner
from train.small_task import BATCH, fit, make_params

# Two good steps, and then one that leads astray.
ASTRAY = optax.sgd(optax.piecewise_constant_schedule(0.3, {2: 100.0}))
SETTINGS: dict[str, Any] = dict(validate_every=1, checkpoint_every=2, keep=9)


@pytest.fixture(scope="module")
def run(tmp_path_factory: Any) -> Any:
    """A run of a function that gets worse again."""
    return fit(optimizer=ASTRAY, iterations=4, folder=tmp_path_factory.mktemp("best") / "run", **SETTINGS)


@pytest.fixture(scope="module")
def module_run(tmp_path_factory: Any) -> Any:
    """The learner of a module, and a run of it that gets worse again."""
    trained = learner("module")
    return trained, fit(trained, ASTRAY, iterations=4, folder=tmp_path_factory.mktemp("best") / "run", **SETTINGS)


def same(found: Any, expected: Any) -> bool:
    return all(np.asarray(found[name]).tobytes() == np.asarray(value).tobytes() for name, value in expected.items())


def test_best_is_the_network_of_the_lowest_loss(run: Any) -> None:
    losses = [record["validation_loss"] for record in run.metrics]
    assert run.best.iteration == 1 + int(np.argmin(losses)) < 4
    assert run.best.metrics["loss"] == min(losses)
    alone = fit(optimizer=ASTRAY, iterations=run.best.iteration)
    assert same(run.best.params, alone.params)
    assert not same(run.params, alone.params)


def test_best_is_in_the_folder(run: Any) -> None:
    file = run.folder / "best.safetensors"
    assert same(train.restore(file, make_params()), run.best.params)
    assert train.read(file).note == {"iteration": run.best.iteration, "metrics": run.best.metrics}


def test_best_survives_a_resumption(run: Any) -> None:
    (run.folder / "best.safetensors").unlink()
    last = run.folder / "checkpoint-00000004.safetensors"
    last.unlink()
    resumed = fit(optimizer=ASTRAY, iterations=4, folder=run.folder, resume=True, **SETTINGS)
    assert (resumed.best.iteration, resumed.best.metrics) == (run.best.iteration, run.best.metrics)
    assert same(resumed.best.params, run.best.params)
    assert same(train.restore(run.folder / "best.safetensors", make_params()), run.best.params)


def test_module_gets_its_best_values_by_one_call(module_run: Any) -> None:
    trained, result = module_run
    net = trained.model
    assert net.steps.value == 4 * 12
    assert result.best.restore(trained) is trained
    assert net.weights["w_rec"].value is result.best.params["weights", "w_rec"]
    assert net.steps.value == result.best.iteration * 12  # what lasts over trials belongs to it


def test_new_module_gets_the_best_values_from_the_folder(module_run: Any) -> None:
    _, result = module_run
    net = Net()
    brainstate.nn.init_all_states(net, BATCH)
    train.restore(result.folder / "best.safetensors", net)
    assert same({name: state.value for name, state in net.weights.items()}, _by_name(result.best.params))
    assert net.steps.value == result.best.iteration * 12


def _by_name(params: Any) -> dict[str, Any]:
    return {name: value for (_, name), value in params.items()}


def test_other_networks_are_refused(run: Any, module_run: Any) -> None:
    other = Net()
    other.weights["w_in"].value = jnp.zeros((3, 5))
    for best in (run.best, module_run[1].best):
        with pytest.raises(train.CheckpointError, match="not those of Net"):
            best.restore(other)
    with pytest.raises(TypeError, match=r"got dict. Take `.params`"):
        run.best.restore(make_params())


def test_there_is_none_without_a_validation() -> None:
    assert fit(iterations=1).best is None


def test_validation_that_is_not_finite_is_never_the_best() -> None:
    stopping = Stopping(None, patience=2)
    assert not stopping.see({"loss": float("nan")})
    assert stopping.see({"loss": 2.0})
    assert not stopping.see({"loss": float("nan")})
    assert stopping.reason({"loss": float("nan")}) is None
    assert not stopping.see({"loss": 2.0})
    assert stopping.reason({"loss": 2.0}) == "patience"
