"""Runs on a mesh, as one process with four devices says what came of them: `python on_mesh.py CASE ...`.

Prints a line of JSON: for each case that is named the largest difference of the trained parameters from those of one
device, and what else the tests ask for.
"""

import functools
import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType

import foretrace as ft
from foretrace import train
from foretrace.cli import main as command_line
from train.small_task import TASK

BATCH, UNITS, ITERATIONS = 4, 6, 8


def step(params: Any, state: Any, x: Any) -> Any:
    """Leaky units with a linear readout, and a firing of sorts."""
    h = 0.8 * state + 0.2 * jnp.tanh(x @ params["w_in"] + state @ params["w_rec"])
    return h, {"out": h @ params["w_out"], "spikes": jax.nn.sigmoid(h)}


def make_params() -> dict[str, Any]:
    """Weights of `step`."""
    shapes = {"w_in": (2, UNITS), "w_out": (UNITS, 1), "w_rec": (UNITS, UNITS)}
    rng = np.random.default_rng(0)
    return {name: jnp.asarray(rng.normal(scale=0.5, size=shape)) for name, shape in shapes.items()}


@functools.cache
def make_learner() -> Any:
    """A learner of `step`."""
    state = jnp.zeros((BATCH, UNITS))
    return ft.compile(step, "D_RTRL", jnp.ones((BATCH, 2)), params=make_params(), state=state)


def batches() -> list[Any]:
    """Batches that come from outside; the last is a small one."""
    rng = np.random.default_rng(5)
    sizes = [BATCH, BATCH, BATCH - 1]
    return [(rng.normal(size=(size, 12, 2)), rng.normal(size=(size, 1))) for size in sizes]


class Net(brainstate.nn.Module):
    """`step` as a module that also counts its steps and jitters its input, so that something lasts over trials."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = {name: brainstate.ParamState(value) for name, value in make_params().items()}
        self.steps = brainstate.LongTermState(jnp.zeros(()))

    def init_state(self, batch_size: int, **_: Any) -> None:
        self.h = brainstate.HiddenState(jnp.zeros((batch_size, UNITS)))

    def update(self, x: Any) -> Any:
        self.steps.value = self.steps.value + 1.0
        x = x + 0.1 * brainstate.random.rand(*x.shape)
        self.h.value, out = step({name: w.value for name, w in self.weights.items()}, self.h.value, x)
        return out


def fit(learner: Any = None, axes: Any = None, kind: AxisType = AxisType.Auto, **options: Any) -> Any:
    """`train.fit` on the small task, on a mesh of these axes."""
    learner = learner or make_learner()
    options = {"iterations": ITERATIONS, "batch_size": BATCH, "progress": False, "task": TASK} | options
    task, places = options.pop("task"), None
    if axes is not None:
        count = int(np.prod(list(axes.values())))
        kinds = (kind,) * len(axes)
        mesh = jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=kinds, devices=jax.devices()[:count])
        places = learner.pure.shardings(mesh, **{{"data": "batch", "units": "units"}[name]: name for name in axes})
    return train.fit(learner, task, optax.adam(1e-2), shardings=places, **options)


def apart(found: Any, expected: Any) -> float:
    """The largest difference between the arrays of two trees."""
    pairs = zip(*map(jax.tree.leaves, (found, expected)), strict=True)
    return max(float(np.max(np.abs(np.subtract(a, b)))) for a, b in pairs)


def compared(axes: Any, kind: AxisType = AxisType.Auto, make: Any = make_learner, **options: Any) -> Any:
    """How far a run on a mesh is from one on one device."""
    task = options.pop("task", lambda: TASK)
    one, many = (fit(make(), *given, task=task(), **options) for given in ((), (axes, kind)))
    best = 0.0 if one.best is None else apart(many.best.params, one.best.params)
    losses = apart([r["loss"] for r in many.metrics], [r["loss"] for r in one.metrics])
    devices = {len(leaf.devices()) for leaf in jax.tree.leaves((many.state.params, many.state.opt_state))}
    moments = many.state.opt_state[-1 if "clip" in options else 0]
    moments = (moments[0] if "clip" in options else moments).mu
    pairs = zip(*map(jax.tree.leaves, (moments, many.state.params)), strict=True)
    alike = all(moment.sharding == param.sharding for moment, param in pairs)
    return {"apart": max(apart(many.params, one.params), best, losses), "devices": sorted(devices), "alike": alike}


def module() -> Any:
    """A learner of the module."""
    return ft.compile(Net(), "D_RTRL", jnp.ones((BATCH, 2)), batch_size=BATCH)


def module_afterwards() -> Any:
    """A module that was trained on a mesh is as one that never was: it runs on one device."""
    learner = module()
    fit(learner, {"data": 2})
    learner(jnp.ones((BATCH, 2)))
    devices = [state.value.devices() for state in learner.model.states(brainstate.ParamState).values()]
    return {"devices": max(map(len, devices))}


def resumed(*parts: Any) -> Any:
    """A run in parts, each on devices of its own, beside one that was never stopped."""
    folder = Path(tempfile.mkdtemp())
    settings = dict(validate_every=3, checkpoint_every=3, update_every=6, stream=True)
    for number, axes in enumerate(parts):
        done = ITERATIONS * (number + 1) // len(parts)
        found = fit(axes=axes, iterations=done, folder=folder, resume=True, **settings)
    whole = fit(iterations=ITERATIONS, **settings)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    notes = [train.read(file).note["settings"] for file in folder.glob("checkpoint-*")]
    return {
        "apart": apart((found.params, found.best.params), (whole.params, whole.best.params)),
        "lines": [json.loads(line)["iteration"] for line in lines],
        "settings": sorted({name for note in notes for name in note}),
    }


def command() -> Any:
    """What `foretrace train` leaves, without a mesh and with one."""
    words = "train evidence --set n_cues=1 --set cue=6 --set gap=2 --set delay=2 --set recall=4 --set n_test=4".split()
    words += "--hidden 4 --batch 4 --cell RNN --iterations 4 --quiet".split()
    folders = [tempfile.mkdtemp(), tempfile.mkdtemp()]
    for folder, mesh in zip(folders, ([], ["--mesh", "data=2,units=2"]), strict=True):
        assert command_line([*words, *mesh, "--folder", folder]) == 0
    return {"apart": apart(*(train.restore(Path(folder) / "best.safetensors") for folder in folders))}


BOTH = {"data": 2, "units": 2}
SETTINGS: dict[str, Any] = {"validate_every": 4, "clip": 1.0, "rate_target": 400.0, "rate_cost": 1.0}
CASES = {
    "data": lambda: compared({"data": 2}, **SETTINGS),
    "units": lambda: compared({"units": 2}, **SETTINGS),
    "explicit": lambda: compared(BOTH, AxisType.Explicit, **SETTINGS),
    "stream": lambda: compared(BOTH, stream=True, update_every=5),
    "fed": lambda: compared(
        {"data": 2}, task=lambda: ft.tasks.from_batches(batches(), test=batches()[0]), validate_every=4
    ),
    "module": lambda: compared({"data": 2}, make=module, validate_every=4),
    "module afterwards": module_afterwards,
    "more": lambda: resumed({"data": 2}, BOTH),
    "fewer": lambda: resumed(BOTH, None, {"units": 2}),
    "command": command,
}


def main() -> None:
    """Runs the cases that are named."""
    warnings.simplefilter("error")
    brainstate.environ.set(precision=64)
    print("found " + json.dumps({name: CASES[name]() for name in sys.argv[1:]}))


if __name__ == "__main__":
    sys.exit(main())
