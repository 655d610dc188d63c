"""The computations that `speed.py` times, by name: one gradient over a whole sequence each.

`forward` and `BPTT` are what a JAX user would write for the same model: a `lax.scan` of the unmarked step with its
losses, and `jax.value_and_grad` of their sum. The other names are a rule and a form of it:

- `sequence`: the step function's learner, `jax.jit` of `learner.grad`, its block chosen automatically, for the losses
  and the gradient, which is what BPTT gives;
- `carry`: the same, and the states and traces at the end of the sequence too, to go on from;
- `step`: the same as `carry` with `block=1`, one step after the other;
- `module`: the module's learner, `learner.etrace_grad` under `brainstate.transform.jit`. It is the only form of
  braintrace, which goes step by step;
- `same-step` and `same-module`: `step` and `module` of a learner that is asked (`weights=`) for the parameters alone
  that braintrace gives a gradient too. It leaves readouts and a GRU's reset gate at zero.

What is not asked for at the end of a sequence, the compiler may leave out: for `sequence` that is the last change of
the traces.
"""

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import brainstate
import jax
import jax.numpy as jnp
import numpy as np

import models

INPUTS, OUTPUTS = 100, 10
OPTIONS: dict[str, dict[str, Any]] = {
    "pp_prop": {"decay_or_rank": 0.9},
    "Hybrid": {"decay_or_rank": 0.9},
    "EProp": {"feedback": "random"},
    "OTTT": {"leak": 0.9},
    "OTPE": {"leak": 0.9},
    "SnAp": {"n": 1},
}
LEFT_AT_ZERO = ("reset", "readout")  # gates and layers to which braintrace gives no gradient
Run = Callable[[], Any]


@dataclass(frozen=True)
class Setting:
    """A model, its size, and the length of the sequence."""

    model: str
    units: int
    batch: int
    steps: int

    def network(self, ops: Any) -> models.Network:
        return models.Network(ops, models.MODELS[self.model], INPUTS, self.units, OUTPUTS)

    def same_weights(self) -> list[str]:
        """The parameters that braintrace gives a gradient."""
        gates = [gate for gate in models.MODELS[self.model].gates if gate not in LEFT_AT_ZERO]
        return [f"{kind}_{gate}" for gate in gates for kind in "wb"]

    def sequences(self) -> tuple[jax.Array, jax.Array]:
        rng = np.random.default_rng(1)
        shapes = ((self.steps, self.batch, INPUTS), (self.steps, self.batch, OUTPUTS))
        xs, ys = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes)
        return xs, ys


def squared_error(out: jax.Array, y: jax.Array) -> jax.Array:
    return 0.5 * jnp.sum((out - y) ** 2)


def total_loss(network: models.Network, params: Any, state: Any, xs: jax.Array, ys: jax.Array) -> tuple[Any, Any]:
    """The summed loss of a sequence, and the losses of its steps with the last state."""

    def one(state: Any, item: Any) -> tuple[Any, jax.Array]:
        state, out = network.step(params, state, item[0])
        return state, squared_error(out, item[1])

    state, losses = jax.lax.scan(one, state, (xs, ys))
    return jnp.sum(losses), (losses, state)


def forward(setting: Setting) -> Run:
    network = setting.network(models.plain)
    run = jax.jit(lambda *values: total_loss(network, *values))
    values = (network.params(), network.state(setting.batch), *setting.sequences())
    return lambda: run(*values)


def bptt(setting: Setting) -> Run:
    network = setting.network(models.plain)
    run = jax.jit(jax.value_and_grad(lambda *values: total_loss(network, *values), has_aux=True))
    values = (network.params(), network.state(setting.batch), *setting.sequences())
    return lambda: run(*values)


def by_function(library: Any, rule: str, setting: Setting, carry: bool, **options: Any) -> Run:
    """The gradient by the learner of the step function, with or without what it carries on."""
    network = setting.network(library)
    params, state, (xs, ys) = network.params(), network.state(setting.batch), setting.sequences()
    options |= OPTIONS.get(rule, {})
    learner = library.compile(network.step, rule, xs[0], params=params, state=state, **options)

    @jax.jit
    def run(params: Any, state: Any, xs: jax.Array, ys: jax.Array) -> Any:
        gradient, after, losses = learner.grad(params, learner.init(state), xs, ys, loss=squared_error)
        return (gradient, losses, after) if carry else (gradient, losses)

    return lambda: run(params, state, xs, ys)


def by_module(library: Any, rule: str, setting: Setting, **options: Any) -> Run:
    """The gradient by the learner of the module."""
    model, x = models.build(library, setting.model, INPUTS, setting.units, setting.batch, OUTPUTS)
    learner = library.compile(model, rule, x, batch_size=setting.batch, **OPTIONS.get(rule, {}), **options)

    @brainstate.transform.jit
    def run(xs: jax.Array, ys: jax.Array) -> Any:
        step = lambda x, y: squared_error(learner(x), y)
        return learner.etrace_grad(xs, ys, step_fn=step, reduction="sum", return_value=True)

    xs, ys = setting.sequences()
    return lambda: run(xs, ys)


def make(package: str, case: str, setting: Setting) -> Run:
    """The named computation, ready to be called."""
    if case in ("forward", "BPTT"):
        return {"forward": forward, "BPTT": bptt}[case](setting)
    library, (rule, form) = importlib.import_module(package), case.split("/")
    same: dict[str, Any] = {"weights": setting.same_weights()} if form.startswith("same-") else {}
    form = form.removeprefix("same-")
    if form == "module":
        return by_module(library, rule, setting, **same)
    return by_function(library, rule, setting, form != "sequence", block=1 if form == "step" else None, **same)


def seconds(run: Run) -> float:
    """How long one call takes, until its results are there."""
    start = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - start
