"""Where the gradients of Foretrace and braintrace differ: each case a small model, with BPTT as the truth.

Every case is one where an online rule should be exact: a single step, which has no history; a parameter that needs
none; a model whose every path is direct; or the same sequence fed in two ways. The figure is an error relative to the
right gradient, or a ratio to it. Both sides run the same source, braintrace in an environment of its own.

    python benchmarks/differences.py                          # print the table
    python benchmarks/differences.py --write                  # and write docs/results/differences.md
    python benchmarks/differences.py --rival-python PATH      # another environment with braintrace
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import brainstate
import brainunit as u
import jax
import jax.numpy as jnp
import numpy as np

import tables

RESULT = tables.RESULTS / "differences.md"
OURS, RIVAL = "foretrace", "braintrace"
MARK = "@result "
STEPS, BATCH, INPUTS, UNITS = 6, 3, 4, 5
Gradients = dict[tuple[Any, ...], Any]


@dataclass(frozen=True)
class Case:
    """A measurement: what it is, what it should give, and a function of the package that takes it."""

    what: str
    right: str
    measure: Callable[[Any], float]


CASES: list[Case] = []


def case(what: str, right: str) -> Callable[[Callable[[Any], float]], Callable[[Any], float]]:
    """Lists a measurement; its order in this file is that of the page."""

    def listed(measure: Callable[[Any], float]) -> Callable[[Any], float]:
        CASES.append(Case(what, right, measure))
        return measure

    return listed


class Net(brainstate.nn.Module):
    """A cell, with a readout where one is asked for."""

    def __init__(self, cell: Any, readout: Any = None) -> None:
        super().__init__()
        self.cell, self.readout = cell, readout

    def update(self, x: Any) -> Any:
        h = self.cell(x)
        return h if self.readout is None else self.readout(h)


class Written(brainstate.nn.Module):
    """One state and one weight, with a step that is written out."""

    def __init__(self, step: Callable[[Any, Any, Any], Any], columns: int = UNITS) -> None:
        super().__init__()
        self.step = step
        self.w = brainstate.ParamState(jnp.asarray(drawn((INPUTS + UNITS, columns), 3) * 0.5))

    def init_state(self, batch_size: int, **_: Any) -> None:
        self.h = brainstate.HiddenState(jnp.zeros((batch_size, UNITS)))

    def update(self, x: Any) -> Any:
        self.h.value = self.step(jnp.concatenate([x, self.h.value], axis=-1), self.h.value, self.w.value)
        return self.h.value


def drawn(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def inputs(steps: int = STEPS) -> jax.Array:
    return jnp.asarray(drawn((steps, BATCH, INPUTS), 1))


def loss(out: Any) -> Any:
    return 0.5 * jnp.sum((out - 0.3) ** 2)


def fresh(net: Any) -> Any:
    brainstate.nn.init_all_states(net, batch_size=BATCH)
    return net.states(brainstate.ParamState)


def by_bptt(net: Any, xs: jax.Array) -> Gradients:
    """The gradient of the summed losses by reverse mode through all steps."""
    weights = fresh(net)
    return brainstate.transform.grad(lambda: sum(loss(net(x)) for x in xs), weights)()


def online(package: Any, net: Any, xs: jax.Array, rule: str = "D_RTRL", **options: Any) -> Gradients:
    """The gradient of the summed losses, one step after the other, in the default mode of the rule."""
    weights = fresh(net)
    learner = package.compile(net, rule, xs[0], batch_size=BATCH, **options)
    gradient = brainstate.transform.jit(brainstate.transform.grad(lambda x: loss(learner(x)), weights))
    return added([gradient(x) for x in xs])


def added(parts: list[Gradients]) -> Gradients:
    return jax.tree.map(lambda *leaves: sum(leaves[1:], start=leaves[0]), *parts)


def chosen(gradients: Gradients, *ends: str) -> np.ndarray:
    """The leaves whose names end so, in one row; all of them where none is named."""
    found = jax.tree_util.tree_leaves_with_path(dict(gradients.items()))
    name = lambda path: ".".join(str(part) for key in path for part in np.atleast_1d(np.array(key.key, dtype=object)))
    rows = [np.ravel(u.get_mantissa(leaf)) for path, leaf in found if not ends or name(path).endswith(ends)]
    if not rows:
        raise SystemExit(f"No parameter ends with {ends}: {[name(path) for path, _ in found]}")
    return np.concatenate(rows)


def ratio(found: np.ndarray, right: np.ndarray) -> float:
    return float(np.linalg.norm(found) / np.linalg.norm(right))


def error(found: np.ndarray, right: np.ndarray) -> float:
    return float(np.linalg.norm(found - right) / np.linalg.norm(right))


@case("readout of an RNN: length of its gradient, as a part of that of BPTT", "1")
def readout(package: Any) -> float:
    net = Net(package.nn.ValinaRNNCell(INPUTS, UNITS), package.nn.Linear(UNITS, 2))
    ends = ("readout.weight.weight", "readout.weight.bias")
    return ratio(chosen(online(package, net, inputs()), *ends), chosen(by_bptt(net, inputs()), *ends))


@case("reset gate of a GRU, one step from a state of ones: the same", "1")
def reset_gate(package: Any) -> float:
    net = Net(package.nn.GRUCell(INPUTS, UNITS, state_init=jnp.ones))
    ends = ("Wr.weight.weight",)
    return ratio(chosen(online(package, net, inputs(1)), *ends), chosen(by_bptt(net, inputs(1)), *ends))


@case("input and candidate weights of an LSTM, one step: the same", "1")
def lstm(package: Any) -> float:
    net = Net(package.nn.LSTMCell(INPUTS, UNITS))
    ends = ("Wi.weight.weight", "Wg.weight.weight")
    return ratio(chosen(online(package, net, inputs(1)), *ends), chosen(by_bptt(net, inputs(1)), *ends))


@case("LIF neurons with a synaptic current, one step: the same", "1")
def synapse(package: Any) -> float:
    class TwoStates(Written):
        def init_state(self, batch_size: int, **_: Any) -> None:
            super().init_state(batch_size)
            self.v = brainstate.HiddenState(jnp.zeros((batch_size, UNITS)))

        def update(self, x: Any) -> Any:
            current = super().update(x)
            self.v.value = 0.9 * self.v.value + 0.1 * current
            return self.v.value

    net = TwoStates(lambda xh, h, w: 0.8 * h + package.matmul(xh, w))
    return ratio(chosen(online(package, net, inputs(1))), chosen(by_bptt(net, inputs(1))))


@case("a weight that acts directly and through a second one (MinimalRNN), one step: error", "0")
def detour(package: Any) -> float:
    net = Net(package.nn.MinimalRNNCell(INPUTS, UNITS, state_init=jnp.ones))
    ends = ("phi.weight.weight",)
    return error(chosen(online(package, net, inputs(1)), *ends), chosen(by_bptt(net, inputs(1)), *ends))


def gated(y: Any, h: Any) -> Any:
    gate, candidate = jnp.split(y, 2, axis=-1)
    return (1 - jax.nn.sigmoid(gate)) * h + jax.nn.sigmoid(gate) * jnp.tanh(candidate)


@case("two gates of one product, cut apart, one step: error", "0")
def fused(package: Any) -> float:
    net = Written(lambda xh, h, w: gated(package.matmul(xh, w), h), 2 * UNITS)
    return error(chosen(online(package, net, inputs(1))), chosen(by_bptt(net, inputs(1))))


@case("the same beside another marked weight: length of its gradient, as a part of that of BPTT", "1")
def fused_beside(package: Any) -> float:
    class Beside(Written):
        def __init__(self, step: Any) -> None:
            super().__init__(step, 2 * UNITS)
            self.other = brainstate.ParamState(jnp.asarray(drawn((INPUTS, UNITS), 4)))

        def update(self, x: Any) -> Any:
            super().update(x)
            self.h.value = self.h.value + package.matmul(x, self.other.value)
            return self.h.value

    net = Beside(lambda xh, h, w: gated(package.matmul(xh, w), h))
    return ratio(chosen(online(package, net, inputs(1)), "w"), chosen(by_bptt(net, inputs(1)), "w"))


@case("a slice `y[:n]` of a product enters the state, one step: error", "0")
def sliced(package: Any) -> float:
    net = Written(lambda xh, h, w: 0.9 * h + package.matmul(xh, w)[..., :UNITS], UNITS + 2)
    return error(chosen(online(package, net, inputs(1))), chosen(by_bptt(net, inputs(1))))


def rolling(package: Any, rule: str, **options: Any) -> float:
    net = Written(lambda xh, h, w: 0.9 * jnp.roll(h, 1, axis=-1) + package.matmul(xh.at[..., INPUTS:].set(0.0), w))
    return error(chosen(online(package, net, inputs(), rule, **options)), chosen(by_bptt(net, inputs())))


@case("`jnp.roll` of the state, D_RTRL over six steps, no other path: error", "0")
def rolled(package: Any) -> float:
    return rolling(package, "D_RTRL")


@case("the same with e-prop", "0")
def rolled_eprop(package: Any) -> float:
    return rolling(package, "e_prop")


@case("a model of plain `h @ w`, nothing marked, one step: error", "0")
def unmarked(package: Any) -> float:
    net = Written(lambda xh, h, w: jnp.tanh(xh @ w))
    return error(chosen(online(package, net, inputs(1))), chosen(by_bptt(net, inputs(1))))


@case("pp_prop after four steps, fed in one call and not in four: change of the gradient of the fifth", "0")
def warm_up(package: Any) -> float:
    xs, found = inputs(), []
    for feed in (lambda call: [call(x) for x in xs[:4]], lambda call: call(package.MultiStepData(xs[:4]))):
        net = Written(lambda xh, h, w: 0.9 * h + package.matmul(xh, w))
        weights = fresh(net)
        learner = package.compile(net, "pp_prop", xs[0], batch_size=BATCH, decay_or_rank=0.9)
        feed(learner)
        found.append(chosen(brainstate.transform.grad(lambda: loss(learner(xs[4])), weights)()))  # noqa: B023
    return error(found[1], found[0])


@case("pp_prop, a bias beside an equal weight whose input is always one: length of its gradient as a part", "1")
def bias(package: Any) -> float:
    net = Net(Constant(package))
    found = online(package, net, jnp.ones((STEPS, BATCH, 1)), "pp_prop", decay_or_rank=0.9)
    return ratio(chosen(found, "weight.bias"), chosen(found, "weight.weight"))


class Constant(brainstate.nn.Module):
    """A leaky state with a weight and a bias, both at zero: for an input of one they have the same influence."""

    def __init__(self, package: Any) -> None:
        super().__init__()
        self.layer = package.nn.Linear(1, UNITS, w_init=jnp.zeros((1, UNITS)))

    def init_state(self, batch_size: int, **_: Any) -> None:
        self.h = brainstate.HiddenState(jnp.zeros((batch_size, UNITS)))

    def update(self, x: Any) -> Any:
        self.h.value = 0.9 * self.h.value + self.layer(x)
        return self.h.value


@case("the rule by the name `'snap'`, SnAp-2 on a leaky layer over six steps: error", "0")
def snap(package: Any) -> float:
    net = Written(lambda xh, h, w: 0.9 * h + package.matmul(xh.at[..., INPUTS:].set(0.0), w))
    return error(chosen(online(package, net, inputs(), "snap")), chosen(by_bptt(net, inputs())))


def measured(package: str) -> dict[str, Any]:
    """All figures of one package, or what it says where it refuses, and its versions."""
    warnings.simplefilter("ignore")
    library, found = importlib.import_module(package), {}
    for one in CASES:
        brainstate.random.seed(0)
        try:
            found[one.what] = one.measure(library)
        except Exception as refused:  # what a package refuses is a line of the page
            found[one.what] = f"{type(refused).__name__}"
    return {"figures": found, "versions": tables.versions(package, "brainstate", "jax")}


def in_process(python: Path, package: str) -> dict[str, Any]:
    """The figures of a package in a fresh process of the given interpreter."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "0"}
    command = [str(python), __file__, "--worker", package]
    finished = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if finished.returncode:
        raise SystemExit(f"{package} failed:\n{finished.stderr}")
    return dict(json.loads(finished.stdout.rpartition(MARK)[2]))


def shown(figure: float | str) -> str:
    """A figure with three digits, rounding as zero, or the name of the error."""
    if isinstance(figure, str):
        return f"`{figure}`"
    return f"{0.0 if abs(figure) < 1e-5 else figure:.3g}"


def page(results: dict[str, dict[str, Any]]) -> str:
    """The whole result page: what was measured, with what, and the table."""
    rows = [[one.what, one.right, *(shown(found["figures"][one.what]) for found in results.values())] for one in CASES]
    parts = [
        "# Differences from braintrace",
        "Written by `benchmarks/differences.py --write`. Small models with random weights, float32, each rule in its "
        "default mode; D_RTRL where no other is named. Every case is one in which the rule should be exact, so that "
        "the right figure is known. An error is relative to the gradient of BPTT. Where a package refuses the model "
        "or the name, the table shows its error. [Coming from braintrace](../migration.md) tells what follows from it.",
        "\n".join([*(f"- {found['versions']}" for found in results.values()), f"- {tables.machine()}"]),
        tables.markdown(["case", "right", *results], rows),
    ]
    return "\n\n".join(parts) + "\n"


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rival-python", type=Path, default=tables.ROOT / ".venv-rival" / "bin" / "python")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.relative_to(tables.ROOT)}")
    parser.add_argument("--worker", metavar="PACKAGE")
    arguments = parser.parse_args(argv)
    if arguments.worker:
        print(MARK + json.dumps(measured(arguments.worker)))
        return
    pythons = {RIVAL: arguments.rival_python, OURS: Path(sys.executable)}
    if not pythons[RIVAL].exists():
        raise SystemExit("No interpreter at the path of --rival-python; `make bench` sets one up with braintrace.")
    text = page({package: in_process(python, package) for package, python in pythons.items()})
    print(text)
    if arguments.write:
        tables.write(RESULT, text)


if __name__ == "__main__":
    main(sys.argv[1:])
