"""Parameters may be any pytree, units and other dtypes included, through training, checkpoint and resumption."""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import brainunit as u
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from foretrace import train
from train.small_task import BATCH, UNITS, fit, make_params, step


class Read(NamedTuple):
    w_out: Any
    unused: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Recurrent:
    w_rec: Any
    gains: list[Any]


def mixed(unit: Any = u.mV) -> dict[str, Any]:
    """The weights of `step` in many kinds: a quantity, a named tuple, a dataclass, a list, 16 bits, a plain number."""
    weights = make_params()
    return {
        "w_in": weights["w_in"] * unit,
        "rest": (Recurrent(weights["w_rec"].astype(jnp.bfloat16), [0.5, np.ones(UNITS)]), None),
        "3": Read(weights["w_out"], {}),
    }


def mixed_step(params: Any, state: Any, x: Any) -> Any:
    recurrent = params["rest"][0]
    weights = {
        "w_in": (params["w_in"] / u.mV) * recurrent.gains[0],
        "w_rec": recurrent.w_rec.astype(float) * recurrent.gains[1],
        "w_out": params["3"].w_out,
    }
    return step(weights, state, x)


def mixed_learner(params: Any) -> Any:
    state = jnp.zeros((BATCH, UNITS))
    return ft.compile(mixed_step, "D_RTRL", jnp.ones((BATCH, 2)), params=params, state=state)


@pytest.mark.parametrize("rule", ["D_RTRL", "BPTT"])
def test_every_kind_is_trained_saved_and_resumed(rule: str, tmp_path: Path) -> None:
    kind = lambda learner: learner.with_rule(rule)
    learner = kind(mixed_learner(mixed()))
    options: dict[str, Any] = dict(params=mixed(), checkpoint_every=2, validate_every=2, keep=3)
    whole = fit(learner, iterations=4, folder=tmp_path, **options)
    (tmp_path / "checkpoint-00000004.safetensors").unlink()
    resumed = fit(learner, iterations=4, folder=tmp_path, resume=True, **options)
    for found, best in ((resumed, resumed.best), (whole, whole.best)):
        assert jax.tree.structure(found.params) == jax.tree.structure(mixed())
        assert jax.tree.structure(best.params) == jax.tree.structure(mixed())
    assert resumed.params["w_in"].unit == u.mV
    assert resumed.params["rest"][0].w_rec.dtype == jnp.bfloat16
    for one, other, first in zip(*map(jax.tree.leaves, (resumed.params, whole.params, mixed())), strict=True):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()
        assert not np.array_equal(one, first)  # it was trained
    assert sorted(train.read(tmp_path / "best.safetensors").arrays) == [
        "3/w_out",
        "rest/0/gains/0",
        "rest/0/gains/1",
        "rest/0/w_rec",
        "w_in",
    ]
    volts: dict[str, Any] = options | {"params": mixed(u.volt)}
    with pytest.raises(train.CheckpointError, match="another `network`"):
        fit(kind(mixed_learner(mixed(u.volt))), iterations=6, folder=tmp_path, resume=True, **volts)


@pytest.mark.parametrize("leaf", [jnp.arange(5), jnp.ones(5, bool), jax.random.key(0)], ids=["int", "bool", "key"])
def test_what_has_no_gradient_is_refused(leaf: Any) -> None:
    params = {**make_params(), "extra": leaf}
    with pytest.raises(ft.NotSupportedError, match="Not floating, so not trainable: `extra`"):
        ft.compile(step, "BPTT", jnp.ones((BATCH, 2)), params=params, state=jnp.zeros((BATCH, UNITS)))
