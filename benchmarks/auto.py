"""`"auto"` beside rules that are picked by hand: 12 models, 6 memories from 1 MB to what BPTT needs.

For each model the gradient of one sequence by every rule in `BY_HAND` is held against that of BPTT, and its memory is
what XLA plans for it (beside inputs and targets). `auto` then gets each memory, and its choice, as its written options
give it, is measured in the same way. Nothing is timed. The page is written anew after every model.

    python benchmarks/auto.py                # print the table
    python benchmarks/auto.py --write        # and write docs/results/auto.md
    python benchmarks/auto.py --quick        # tiny sizes and two models, to see that everything runs
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import foretrace as ft
import models
import tables
from foretrace.learners.budget.candidates import Candidate
from foretrace.learners.budget.choice import Choice, choose
from foretrace.learners.budget.measured import Measured, measured_for

RESULT = tables.RESULTS / "auto.md"
WITHIN = 0.02
EXACT = 1e-6
BY_HAND = [
    *(Candidate(ft.BPTT(), window) for window in (1, 5, 20, 50, None)),
    *(Candidate(ft.D_RTRL(), window) for window in (None, 20)),
    *(Candidate(ft.pp_prop(decay)) for decay in (0.9, 0.99)),
    Candidate(ft.Hybrid(0.9)),
    Candidate(ft.EProp()),
    Candidate(ft.OSTLRecurrent()),
    Candidate(ft.SnAp(n=1)),
]
Step = Callable[[Any, Any, Any], tuple[Any, Any]]


@dataclass(frozen=True)
class Size:
    """How large the models and the sequences are."""

    inputs: int = 20
    units: int = 64
    outputs: int = 5
    batch: int = 16
    steps: int = 300


@dataclass(frozen=True)
class Model:
    """A step with its parameters and its first state."""

    step: Step
    params: Any
    state: Any


def _weights(rng: np.random.Generator, rows: int, columns: int) -> jax.Array:
    return jnp.asarray(rng.normal(size=(rows, columns)) / np.sqrt(rows), jnp.float32)


def cell(name: str) -> Callable[[Size], Model]:
    def make(size: Size) -> Model:
        network = models.Network(models.plain, models.MODELS[name], size.inputs, size.units, size.outputs)
        return Model(network.step, network.params(), network.state(size.batch))

    return make


def read_out(layers: int, layer: Callable[..., Any], state: Callable[[Size], Any]) -> Callable[[Size], Model]:
    """Layers of one kind, each with weights `in`, `rec`, `gate` and values `a`, `b` for each unit, and a readout."""

    def make(size: Size) -> Model:
        rng = np.random.default_rng(1)
        params: dict[str, Any] = {"out": _weights(rng, size.units, size.outputs)}
        for k in range(layers):
            rows = size.inputs if k == 0 else size.units
            params[f"layer{k}"] = {
                "in": _weights(rng, rows, size.units),
                "gate": _weights(rng, rows, size.units),
                "rec": _weights(rng, size.units, size.units),
                "a": jnp.asarray(rng.uniform(1.0, 3.0, size.units), jnp.float32),
                "b": jnp.asarray(rng.uniform(0.0, 1.0, size.units), jnp.float32),
            }

        def step(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
            after = []
            for k in range(layers):
                new, x = layer(params[f"layer{k}"], state[k], x)
                after.append(new)
            return after, x @ params["out"]

        return Model(step, params, [state(size) for _ in range(layers)])

    return make


def rnn(p: Any, h: Any, x: Any) -> tuple[Any, Any]:
    h = jnp.tanh(x @ p["in"] + h @ p["rec"] + 0.1 * p["b"])
    return h, h


def min_gru(p: Any, h: Any, x: Any) -> tuple[Any, Any]:
    z = jax.nn.sigmoid(x @ p["gate"] - p["a"])
    h = (1 - z) * h + z * (x @ p["in"] + p["b"])
    return h, h


def rotating(nonlinear: bool) -> Callable[..., Any]:
    """A linear recurrence by a rotation and a decay for each unit (LRU), or with a nonlinear output (RTU)."""

    def step(p: Any, state: Any, x: Any) -> tuple[Any, Any]:
        decay = jax.nn.sigmoid(p["a"])
        c, s = decay * jnp.cos(p["b"]), decay * jnp.sin(p["b"])
        re, im = state["re"], state["im"]
        state = {"re": c * re - s * im + x @ p["in"], "im": s * re + c * im + x @ p["gate"]}
        return state, jnp.tanh(state["re"] + state["im"]) if nonlinear else jax.nn.relu(state["re"]) + state["im"]

    return step


def lif(p: Any, v: Any, x: Any) -> tuple[Any, Any]:
    fired = models.spike(v - 1.0)
    v = jax.nn.sigmoid(p["a"]) * v + x @ p["in"] + 0.3 * fired @ p["rec"] - fired
    return v, models.spike(v - 1.0)


def sparse(p: Any, h: Any, x: Any) -> tuple[Any, Any]:
    rows = np.random.default_rng(2).random(p["rec"].shape) < 0.1
    h = jnp.tanh(x @ p["in"] + h @ (p["rec"] * rows * 2.0) + 0.5 * h)
    return h, h


def delayed(p: Any, state: Any, x: Any) -> tuple[Any, Any]:
    """A unit reads what all units were four steps before, from a line of delays that moves on."""
    h = jnp.tanh(x @ p["in"] + state["line"][0] @ p["rec"] + 0.8 * state["h"])
    return {"h": h, "line": jnp.concatenate([state["line"][1:], h[None]])}, h


one = lambda size: jnp.zeros((size.batch, size.units), jnp.float32)
two = lambda size: {"re": one(size), "im": one(size)}
line = lambda size: {"h": one(size), "line": jnp.zeros((4, size.batch, size.units), jnp.float32)}
MODELS: dict[str, Callable[[Size], Model]] = {
    "LIF": cell("PlainLIF"),
    "ALIF": cell("ALIF"),
    "LIF with synapse": cell("LIF"),
    "GRU": cell("GRU"),
    "LSTM": cell("LSTM"),
    "tanh RNN": read_out(1, rnn, one),
    "LRU, 2 layers": read_out(2, rotating(False), two),
    "minGRU": read_out(1, min_gru, one),
    "RTU": read_out(1, rotating(True), two),
    "LIF, 2 layers": read_out(2, lif, one),
    "sparse recurrence, 10%": read_out(1, sparse, one),
    "delay of 4 steps": read_out(1, delayed, line),
}


def loss(out: Any, y: Any) -> Any:
    return 0.5 * jnp.mean((out - y) ** 2)


def measured(model: Model, size: Size) -> Measured:
    rng = np.random.default_rng(3)
    xs = jnp.asarray(rng.normal(size=(size.steps, size.batch, size.inputs)), jnp.float32)
    ys = jnp.asarray(rng.normal(size=(size.steps, size.batch, size.outputs)), jnp.float32)
    learner = ft.compile(model.step, "BPTT", xs[0], params=model.params, state=model.state)
    return measured_for(learner, None, (xs, ys), loss)


@dataclass(frozen=True)
class Outcome:
    """One model and one memory."""

    model: str
    budget: int
    bptt: int
    choice: Choice
    planned: int
    cosine: float
    error: float
    best: tuple[float, str]

    @property
    def holds(self) -> bool:
        exact = self.budget < self.bptt or self.error <= EXACT
        return exact and self.planned <= self.budget and self.cosine >= self.best[0] - WITHIN

    @property
    def row(self) -> list[str]:
        best = "nothing fits" if self.best[1] == "" else f"{self.best[0]:.4f}, {self.best[1]}"
        name = self.choice.chosen.candidate.name
        cells = [
            self.model,
            tables.megabytes(self.budget),
            name,
            tables.megabytes(self.planned),
            f"{self.cosine:.4f}",
            f"{self.error:.1e}",
        ]
        return [*cells, best, "yes" if self.holds else "**no**"]


def outcomes(name: str, size: Size) -> list[Outcome]:
    """`auto` and the rules by hand on one model."""
    bench = measured(MODELS[name](size), size)
    whole = bench.bytes(Candidate(ft.BPTT()))
    picked = [one for one in BY_HAND if bench.supports(one) and bench.least(one) <= whole]
    fitting = [one for one in picked if bench.bytes(one) <= whole]
    by_hand = [(bench.bytes(one), bench.agreement(one).cosine, one.name) for one in fitting]
    budgets = [int(b) for b in np.geomspace(min(1e6, whole / 4), whole, 6)]
    budgets[-1] = whole
    found = []
    for budget in budgets:
        choice = choose(bench, budget)
        again = ft.compile(
            MODELS[name](size).step,
            choice.rule,
            bench.sample.xs[0],
            params=bench.params,
            state=bench.state,
            **choice.options,
        )
        written = Candidate(again.rule, again.window, again.block)
        agreement = bench.agreement(written)
        best = max(((cosine, who) for size_, cosine, who in by_hand if size_ <= budget), default=(-1.0, ""))
        found.append(
            Outcome(name, budget, whole, choice, bench.bytes(written), agreement.cosine, agreement.error, best)
        )
    return found


HEADER = ["model", "memory", "auto chose", "takes", "cosine", "error", "best by hand that fits", "holds"]


def kept_rows() -> list[list[str]]:
    """The rows of the page as it stands."""
    lines = RESULT.read_text().splitlines() if RESULT.exists() else []
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("|")]
    return [row for row in rows if row[0] in MODELS]


def page(rows: list[list[str]], size: Size) -> str:
    """The result page."""
    missed = sum(row[-1] != "yes" for row in rows)
    by_hand = [(float(row[4]), row[6].split(",")[0]) for row in rows]
    worst = max(float(best) - own for own, best in by_hand if best != "nothing fits")
    parts = [
        "# Memory and gradient",
        f"Written by `benchmarks/auto.py --write`. {size.units} units, {size.inputs} inputs, batch {size.batch}, "
        f"{size.steps} steps of random inputs and targets, float32, untrained weights. MB, of 10^6 bytes, as XLA plans "
        "them for one gradient, inputs and targets not counted. Cosine and error (the norm of the difference over that "
        "of BPTT's gradient) are to BPTT on the same data. By hand: "
        + "; ".join(one.name for one in BY_HAND)
        + f". A row holds where `auto` stays within the memory, is at most {WITHIN:g} below the best cosine by hand "
        "that fits in it, and is exact where BPTT fits.",
        f"{len(rows) - missed} of {len(rows)} rows hold. `auto` is at most {max(worst, 0.0):.4f} below the best by "
        "hand.",
        f"- {tables.versions('jax')}\n- {tables.machine()}",
        tables.markdown(HEADER, rows),
    ]
    return "\n\n".join(parts) + "\n"


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS), metavar="MODEL")
    parser.add_argument("--quick", action="store_true", help="tiny sizes and two models, to see that everything runs")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.relative_to(tables.ROOT)}")
    arguments = parser.parse_args(argv)
    size = Size(3, 6, 2, 2, 30) if arguments.quick else Size()
    rows = [] if arguments.quick else [row for row in kept_rows() if row[0] not in arguments.models]
    for name in arguments.models[:2] if arguments.quick else arguments.models:
        print(name, file=sys.stderr, flush=True)
        rows += [one.row for one in outcomes(name, size)]
        jax.clear_caches()  # hundreds of compiled gradients are no longer needed
        rows.sort(key=lambda row: list(MODELS).index(row[0]))
        if arguments.write:  # what is not measured now stays on the page
            tables.write(RESULT, page(rows, size))
    print(page(rows, size))


if __name__ == "__main__":
    main(sys.argv[1:])
