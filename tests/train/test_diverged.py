"""A NaN or an infinity ends a run by an error that names it, and what was good before is kept."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import foretrace as ft
from foretrace import train
from train.killed import learner
from train.small_task import fit, make_learner, make_params


def breaking(name: Any, iteration: int) -> Any:
    """Gradient descent that makes a parameter infinite in one iteration."""

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        updates = jax.tree.map(lambda g: -0.1 * g, grads)
        updates[name] = jnp.where(state + 1 == iteration, jnp.inf, updates[name])
        return updates, state + 1

    return optax.GradientTransformation(lambda params: jnp.zeros((), jnp.int32), update)


def test_infinite_parameter_is_named_and_the_last_good_state_saved(tmp_path: Path) -> None:
    said = r"The parameter `w_out` is not finite after iteration 3\. .*until then is in `.*run`"
    with pytest.raises(train.DivergedError, match=said) as caught:
        fit(optimizer=breaking("w_out", 3), iterations=9, folder=tmp_path / "run", checkpoint_every=50)
    result = caught.value.result
    assert (result.stopped_because, result.iterations, len(result.metrics)) == ("not finite", 2, 2)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.params))
    kept = sorted(file.name for file in (tmp_path / "run").glob("checkpoint-*"))
    assert kept == ["checkpoint-00000000.safetensors", "checkpoint-00000002.safetensors"]
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 2


def test_loss_is_named_with_the_parameters_that_it_broke() -> None:
    said = r"loss of iteration 2 is not finite; after it the parameters `w_in` and 2 more are not either\. Lower"
    with pytest.raises(ft.NonFiniteError, match=said):
        fit(optimizer=optax.sgd(1e200), iterations=5)


def test_place_that_a_learner_finds_is_told() -> None:
    with pytest.raises(train.DivergedError, match="In iteration 2: The loss is not finite at step 0") as caught:
        fit(make_learner(check_finite=True), optax.sgd(1e200), iterations=5)
    assert caught.value.result.iterations == 1


def test_module_holds_the_last_good_values() -> None:
    trained = learner("module")
    with pytest.raises(train.DivergedError, match="w_out"):
        fit(trained, breaking(("weights", "w_out"), 2), iterations=9)
    values = {name: state.value for name, state in trained.model.weights.items()}
    assert np.isfinite(values["w_out"]).all()
    assert not np.array_equal(values["w_out"], make_params()["w_out"])
