"""What each rule costs and how near it comes to BPTT: the figures behind the guide to choosing a rule.

For each model and rule, in one run: the time of a gradient over a sequence as a ratio to BPTT, the bytes of the rule's
traces, and the gradient itself beside that of BPTT. All rules of a model take turns call by call (`turns.py`), so that
a slow phase of the machine falls on all of them. BPTT is what a JAX user would write, reverse mode through a `lax.scan`
of the same model (`models.py`); where others have traces, it has the record that it keeps for the way back.

Gradients are compared for two losses: one that counts at every step, and one that counts in the last tenth of the
sequence alone, where credit has to come from further away. The readout's gradient is exact with every rule, so the
cosine of the other weights is given apart.

RTRL and SnAp follow every path through a step, with a number for every parameter and every state that it reaches. They
are measured at a small size, beside the rules that one would weigh them against.

    python benchmarks/rules.py                # print the tables
    python benchmarks/rules.py --write        # and write docs/results/rules.md, and the table in docs/rules.md
    python benchmarks/rules.py --quick        # tiny sizes, to see that everything runs
"""

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import cases
import foretrace
import models
import tables
from cases import INPUTS, OUTPUTS, Setting
from foretrace.learners.blocks import trace_bytes
from turns import Measured, take_turns

RESULT = tables.RESULTS / "rules.md"
GUIDE = tables.ROOT / "docs" / "rules.md"
START, END = "<!-- measured: written by benchmarks/rules.py -->", "<!-- measured: end -->"
BPTT = "BPTT"
TITLES = {"PlainLIF": "Recurrent LIF", "ALIF": "Recurrent LIF with adaptation", "GRU": "GRU"}
TAIL = 0.1  # the part of the sequence that the second loss counts in


@dataclass(frozen=True)
class Choice:
    """A rule with its options, under the name that the tables call it by."""

    label: str
    rule: str
    options: dict[str, Any] = field(default_factory=dict)


D_RTRL = Choice("D_RTRL", "D_RTRL")
OSTL = Choice("OSTL_recurrent", "OSTL_recurrent")
UORO = Choice("UORO, one draw", "UORO")
NOTHING = Choice("no trace (DNI before it has learned)", "DNI")
RULES = (
    D_RTRL,
    Choice("D_RTRL, window 20", "D_RTRL", {"window": 20}),
    Choice("D_RTRL, traces in bfloat16", "D_RTRL", {"trace_dtype": "bfloat16"}),
    Choice("pp_prop, decay 0.9", "pp_prop", {"decay_or_rank": 0.9}),
    Choice("pp_prop, decay 0.98", "pp_prop", {"decay_or_rank": 0.98}),
    Choice("hybrid, decay 0.9", "hybrid", {"decay_or_rank": 0.9}),
    OSTL,
    Choice("OSTL_feedforward", "OSTL_feedforward"),
    Choice("OTTT, leak 0.9", "OTTT", {"leak": 0.9}),
    Choice("OTPE full, leak 0.9", "OTPE", {"leak": 0.9}),
    Choice("OTPE approx, leak 0.9", "OTPE", {"leak": 0.9, "mode": "approx"}),
    Choice("EProp, random feedback", "EProp", {"feedback": "random"}),
    UORO,
    NOTHING,
)
SMALL_RULES = (
    Choice("RTRL", "RTRL"),
    Choice("LowRank, rank 4", "low_rank", {"rank": 4}),
    Choice("SnAp, n = 2", "SnAp", {"n": 2}),
    Choice("SnAp, n = 1", "SnAp", {"n": 1}),
    OSTL,
    D_RTRL,
    UORO,
    NOTHING,
)
LEFT_OUT = (
    "OSTTP and ThreeFactor are left out: they learn from targets or a reward, not from the loss, so there is nothing "
    "to hold their gradients against. EProp with symmetric feedback is D_RTRL."
)


@dataclass(frozen=True)
class Gradients:
    """Gradients by parameter, of the loss at every step and of that at the end."""

    everywhere: dict[str, Any]
    at_the_end: dict[str, Any]


@dataclass
class Figures:
    """What was measured of a rule.

    Attributes:
        kept: Bytes of its traces; of BPTT, those of its record.
        seconds: Of each call, per step; with what was wrong where it could not be run.
        gradients: Its gradients; None where it could not be run.
    """

    kept: int = 0
    seconds: Measured = field(default_factory=Measured)
    gradients: Gradients | None = None


Results = dict[str, dict[str, Figures]]


def ends(setting: Setting) -> tuple[jax.Array, jax.Array]:
    """The weights of the steps for both losses; each adds up to the number of steps."""
    whole = jnp.ones(setting.steps, jnp.float32)
    last = jnp.arange(setting.steps) >= round((1 - TAIL) * setting.steps)
    return whole, last * (setting.steps / jnp.sum(last))


class InProcess:
    """A worker for `take_turns` that runs its cases in this process."""

    package = "foretrace"

    def __init__(self, setting: Setting, choices: Sequence[Choice]) -> None:
        self.setting, self.choices = setting, {choice.label: choice for choice in choices}
        self.runs: dict[str, Callable[[Any], Any]] = {}
        self.whole, self.last = ends(setting)

    def ask(self, case: str) -> dict[str, Any]:
        """Times one call of a case: `{"seconds": ...}` or `{"error": ...}`."""
        try:
            run = self.run(case)
            return {"seconds": cases.seconds(lambda: run(self.whole))}
        except Exception as error:  # a rule that cannot be run is a line of the page, not the end of the benchmark
            return {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"}

    def run(self, case: str) -> Callable[[Any], Any]:
        """The gradient as a function of the weights of the steps; made when it is first asked for."""
        if case not in self.runs:
            self.runs[case] = self._bptt() if case == BPTT else self._online(self.choices[case])
        return self.runs[case]

    def gradients(self, case: str) -> Gradients:
        run = self.run(case)
        return Gradients(run(self.whole), run(self.last))

    def kept(self, case: str) -> int:
        """The bytes of the traces; of BPTT, those of what it records on the way out."""
        if case != BPTT:
            learner = self._learner(self.choices[case])
            return trace_bytes(learner.plan, learner.rule)
        loss, params = self._total(self.whole)
        record = jax.eval_shape(lambda params: jax.vjp(loss, params)[1], params)
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(record))

    def _total(self, weights: Any) -> tuple[Callable[[Any], Any], Any]:
        network = self.setting.network(models.plain)
        state, (xs, ys) = network.state(self.setting.batch), self.setting.sequences()
        total = lambda params: jnp.sum(weights * cases.total_loss(network, params, state, xs, ys)[1][0])
        return total, network.params()

    def _bptt(self) -> Callable[[Any], Any]:
        params = self._total(self.whole)[1]
        run = jax.jit(lambda params, weights: jax.grad(self._total(weights)[0])(params))
        return lambda weights: run(params, weights)

    def _learner(self, choice: Choice) -> Any:
        network = self.setting.network(foretrace)
        state, (xs, _) = network.state(self.setting.batch), self.setting.sequences()
        return foretrace.compile(
            network.step, choice.rule, xs[0], params=network.params(), state=state, **choice.options
        )

    def _online(self, choice: Choice) -> Callable[[Any], Any]:
        learner, network = self._learner(choice), self.setting.network(foretrace)
        params, state, (xs, ys) = network.params(), network.state(self.setting.batch), self.setting.sequences()

        @jax.jit
        def run(params: Any, state: Any, xs: Any, ys: Any, weights: Any) -> Any:
            carry = learner.init(state)
            return learner.grad(params, carry, xs, ys, loss=cases.squared_error, mask=weights)[0]

        return lambda weights: run(params, state, xs, ys, weights)


def measure(setting: Setting, choices: Sequence[Choice], arguments: argparse.Namespace) -> dict[str, Figures]:
    """All figures of one model and size, BPTT's first."""
    worker = InProcess(setting, choices)
    labels = [BPTT, *worker.choices]
    times = take_turns([(worker, label) for label in labels], arguments.repeats, arguments.case_seconds)
    found = {}
    for label in labels:
        seconds = times[worker.package, label]
        if seconds.error:
            found[label] = Figures(seconds=seconds)
        else:
            found[label] = Figures(worker.kept(label), seconds, worker.gradients(label))
    return found


def flat(gradient: dict[str, Any], readout: bool = True) -> np.ndarray:
    """A gradient as one vector, with the weights of the readout or without."""
    chosen = [value for name, value in gradient.items() if readout or not name.endswith("readout")]
    return np.concatenate([np.ravel(np.asarray(value, np.float64)) for value in chosen])


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    size = np.linalg.norm(one) * np.linalg.norm(other)
    return float(one @ other / size) if size else math.nan


def agreement(mine: dict[str, Any], other: dict[str, Any]) -> tuple[float, float, float]:
    """The cosine of all parameters, that of all but the readout, and the relative error of all."""
    whole, true = flat(mine), flat(other)
    error = float(np.linalg.norm(whole - true) / np.linalg.norm(true))
    return cosine(whole, true), cosine(flat(mine, readout=False), flat(other, readout=False)), error


def row(label: str, figures: Figures, bptt: Figures) -> list[str]:
    """A line of a table."""
    if figures.gradients is None or bptt.gradients is None:
        return [label, *["-"] * 9]
    time = [figures.seconds.median / bptt.seconds.median, figures.seconds.best / bptt.seconds.best]
    every = agreement(figures.gradients.everywhere, bptt.gradients.everywhere)
    end = agreement(figures.gradients.at_the_end, bptt.gradients.at_the_end)
    kept = f"{figures.kept / 1e3:,.0f}" if figures.kept >= 1e4 else f"{figures.kept / 1e3:.3g}"
    return [label, *(f"{ratio:.2f}" for ratio in time), kept, *(f"{figure:.3f}" for figure in (*every, *end))]


def rows(found: dict[str, Figures]) -> list[list[str]]:
    """The lines of all rules of one model and size."""
    return [row(label, figures, found[BPTT]) for label, figures in found.items()]


def table(found: dict[str, Figures]) -> str:
    """All rules of one model and size."""
    header = ["", "time / BPTT", "(min)", "kept, kB"]
    for loss in ("every step", "at the end"):
        header += [f"{loss}: cosine", "without readout", "relative error"]
    return tables.markdown(header, rows(found))


def guide(lines: Sequence[Sequence[Sequence[str]]]) -> str:
    """The table of the guide: the lines of each model, with its models side by side in every cell."""
    columns = {"time / BPTT": 1, "kept, kB": 3, "cosine, loss at every step": 5, "cosine, loss at the end": 8}
    cells = [
        [of_models[0][0], *(" / ".join(line[place] for line in of_models) for place in columns.values())]
        for of_models in zip(*lines, strict=True)
    ]
    return tables.markdown(["", *columns], cells)


def inserted(text: str, table: str) -> str:
    """A page with the table between its marks replaced."""
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not (start and end):
        raise ValueError(f"The guide has no place for the table: {START!r} and {END!r} are not both there.")
    return f"{before}{START}\n\n{table}\n\n{END}{after}"


def failures(results: Results) -> list[str]:
    """What could not be run, and why."""
    return [
        f"- {label}, {model}: {figures.seconds.error}"
        for model, found in results.items()
        for label, figures in found.items()
        if figures.seconds.error
    ]


def page(results: Results, small: Results, arguments: argparse.Namespace) -> str:
    """The whole result page: what was measured, with what, and the tables."""
    units, batch, steps = arguments.size
    parts = [
        "# Rules",
        f"Written by `benchmarks/rules.py --write`. The gradient over a sequence of {steps} steps: {units} units, "
        f"batch {batch}, {INPUTS} inputs, a linear readout of {OUTPUTS} outputs, squared error, random inputs, targets "
        "and weights, float32. All rules of a model take turns in one run, "
        f"{arguments.repeats} calls each after a first one that compiles; a rule that has taken "
        f"{arguments.case_seconds:g} s is called no more. Times are of the whole gradient, by sequence, as a ratio to "
        "BPTT's: of medians, and of minima. `kept` is what lasts from step to step: a rule's traces, whatever the "
        "length of the sequence (SnAp's with its tables of indices); for BPTT, its record of this one, which grows "
        "with it.",
        "The gradient is held against that of BPTT for a loss at every step, and for a loss in the last "
        f"{TAIL:.0%} of the steps. The cosine is that of all parameters, and then that of all but the readout, whose "
        "gradient is exact with every rule; the relative error is the norm of the difference over the norm of BPTT's. "
        "They are those of untrained networks on random data, and tell rules apart rather than what a network of "
        "yours would lose; `ft.compare_gradients` and `foretrace compare` measure that. " + LEFT_OUT,
        f"- {tables.versions('foretrace', 'jax')}\n- {tables.machine()}",
    ]
    for model, found in results.items():
        parts += [f"## {TITLES[model]}", table(found)]
    if small:
        units, batch, steps = arguments.small
        parts += [
            "## RTRL and SnAp, at a small size",
            f"{units} units, batch {batch}, {steps} steps. RTRL keeps the derivative of every state by every parameter "
            "that it reaches, LowRank a few directions of it. SnAp with n = 2 keeps as much as RTRL where recurrent "
            "weights are dense, and so does n = 1 for a weight behind another one, as a GRU's reset gate is. They are "
            "for small models, or sparse ones, and are measured here alone.",
        ]
    for model, found in small.items():
        parts += [f"### {TITLES[model]}, small", table(found)]
    failed = failures(results) + failures(small)
    if failed:
        parts += ["## Not run", "\n".join(failed)]
    return "\n\n".join(parts) + "\n"


def parse_size(text: str) -> tuple[int, int, int]:
    units, batch, steps = text.split("x")
    return int(units), int(batch), int(steps)


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    size = dict(type=parse_size, metavar="UNITSxBATCHxSTEPS")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.relative_to(tables.ROOT)} and the guide")
    parser.add_argument("--models", nargs="+", choices=TITLES, default=list(TITLES))
    parser.add_argument("--size", default=(100, 16, 200), **size, help="of the models; 100x16x200")
    parser.add_argument("--small", default=(24, 4, 50), **size, help="of the models for RTRL and SnAp; 24x4x50")
    parser.add_argument("--repeats", type=int, default=7, help="calls of each rule after the first")
    parser.add_argument("--case-seconds", type=float, default=20.0, help="a rule that took longer is called no more")
    arguments = parser.parse_args(argv)
    if arguments.quick:
        arguments.size, arguments.small, arguments.repeats = (8, 2, 40), (4, 2, 10), 2
    return arguments


def main(argv: list[str]) -> None:
    arguments = parse(argv)
    results, small = {}, {}
    for model in arguments.models:
        print(model, file=sys.stderr, flush=True)
        results[model] = measure(Setting(model, *arguments.size), RULES, arguments)
        small[model] = measure(Setting(model, *arguments.small), SMALL_RULES, arguments)
    text = page(results, small, arguments)
    print(text)
    if arguments.write:
        tables.write(RESULT, text)
        if list(results) == list(TITLES):  # the guide has all of them side by side
            tables.write(GUIDE, inserted(GUIDE.read_text(), guide([rows(found) for found in results.values()])))


if __name__ == "__main__":
    main(sys.argv[1:])
