"""A task of twelve steps with the form of `foretrace.tasks.Task`, small networks for it, and a short way to `fit`."""

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import optax

import foretrace as ft
from foretrace import train

BATCH, UNITS = 4, 5


class Trials(NamedTuple):
    """A batch of trials."""

    inputs: jax.Array
    targets: jax.Array
    mask: jax.Array


@dataclass
class RunningSum:
    """The leaky sum of the first of two inputs; the first steps do not count."""

    n_steps: int = 12
    scale: float = 0.5
    name: str = "running sum"
    n_inputs: int = 2
    n_outputs: int = 1
    dt: float = 1.0
    kind: str = "regression"
    goal: Any = ("error", "<", 0.5)

    def sample(self, key: Any, batch_size: int) -> Trials:
        inputs = jax.random.uniform(key, (self.n_steps, batch_size, 2), minval=-1.7, maxval=1.7)
        total = lambda s, x: (0.8 * s + self.scale * x, 0.8 * s + self.scale * x)
        return self._trials(inputs, jax.lax.scan(total, jnp.zeros((batch_size, 1)), inputs[..., :1])[1])

    def _trials(self, inputs: Any, targets: Any) -> Trials:
        counts = np.broadcast_to((np.arange(self.n_steps) >= 4)[:, None], inputs.shape[:2])
        return Trials(inputs, targets, counts / (self.n_steps - 4))

    def loss(self, output: Any, target: Any, mask: Any) -> Any:
        return jnp.mean(mask * jnp.sum((output - target) ** 2, axis=-1))

    def measure(self, outputs: Any, trial: Trials) -> dict[str, Any]:
        return {"error": jnp.mean(jnp.sum(trial.mask * jnp.sum((outputs - trial.targets) ** 2, axis=-1), axis=0))}

    def test_trials(self, batch_size: int) -> Iterator[Trials]:
        for seed in range(2):
            inputs = np.random.default_rng(900 + seed).uniform(-1.7, 1.7, (self.n_steps, batch_size, 2))
            sums = itertools.accumulate(self.scale * inputs[..., :1], lambda s, x: 0.8 * s + x)
            yield self._trials(inputs, np.stack(list(sums)))  # in numpy, which compiles nothing


TASK = RunningSum()


def step(params: Any, state: Any, x: Any) -> Any:
    """Leaky units with a linear readout."""
    h = 0.8 * state + 0.2 * jnp.tanh(x @ params["w_in"] + state @ params["w_rec"])
    return h, h @ params["w_out"]


def make_params(seed: int = 0) -> dict[str, Any]:
    """Weights of `step`."""
    shapes = {"w_in": (2, UNITS), "w_out": (UNITS, 1), "w_rec": (UNITS, UNITS)}
    rng = np.random.default_rng(seed)  # which compiles nothing
    return {name: jnp.asarray(rng.normal(scale=0.5, size=shape)) for name, shape in shapes.items()}


@functools.cache
def make_learner(rule: str = "D_RTRL", **options: Any) -> Any:
    """A learner of `step`."""
    state = jnp.zeros((BATCH, UNITS))
    return ft.compile(step, rule, jnp.ones((BATCH, 2)), params=make_params(), state=state, **options)


class Net(brainstate.nn.Module):
    """A GRU with a linear readout."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = brainstate.nn.GRUCell(2, UNITS)
        self.readout = brainstate.nn.Linear(UNITS, 1)

    def update(self, x: Any) -> Any:
        return self.readout(self.cell(x))


def make_net() -> Net:
    """The same net every time."""
    brainstate.random.seed(1)
    return Net()


def by_bptt(net: Any = None) -> Any:
    """A learner of a net, back through time."""
    return ft.compile(net or make_net(), "BPTT", jnp.ones((BATCH, 2)), batch_size=BATCH)


def fit(learner: Any = None, optimizer: Any = None, **options: Any) -> Any:
    """`train.fit` on the small task, quietly; by default of `step` by D-RTRL with Adam."""
    if learner is None or isinstance(learner, ft.learners.Learner):
        options.setdefault("params", make_params())
    options = {"iterations": 10, "batch_size": BATCH, "progress": False, "task": TASK} | options
    task = options.pop("task")
    return train.fit(learner or make_learner(), task, optimizer or optax.adam(1e-2), **options)
