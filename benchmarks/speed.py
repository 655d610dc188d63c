"""The time of a gradient over a sequence: forward only, BPTT, every rule, and braintrace in an environment of its own.

All sides run the same models (`models.py`) on the same machine in one run, and take turns call by call (`turns.py`);
what each case computes is told in `cases.py`. Ratios are taken within that run, of the medians and of the minima.
Times are given per step, so braintrace may run a shorter sequence where time is short (`--rival-steps`); what a call
costs once then weighs more on it, and by default it runs the same.

    python benchmarks/speed.py                          # print the tables
    python benchmarks/speed.py --write                  # and write docs/results/speed.md
    python benchmarks/speed.py --quick                  # tiny sizes, to see that everything runs
    python benchmarks/speed.py --rival-python PATH      # another environment with braintrace
    python benchmarks/speed.py --against CHECKOUT       # beside another commit: how much faster or slower this one is
"""

import argparse
import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

import tables
from cases import INPUTS, OUTPUTS, Setting
from turns import Measured, Worker, take_turns

RESULT = tables.RESULTS / "speed.md"
OURS, RIVAL = "foretrace", "braintrace"
TITLES = {"PlainLIF": "Recurrent LIF", "LIF": "Recurrent LIF with a synaptic current (two states)", "GRU": "GRU"}
RULES = ("D_RTRL", "pp_prop", "EProp", "OTTT", "Hybrid")
SMALL_RULES = (*RULES, "OSTL_recurrent", "OSTL_feedforward", "OTPE", "SnAp", "UORO", "RTRL")
RIVAL_CASES = ("D_RTRL/module", "pp_prop/module")
FORMS = {
    "sequence": "by sequence",
    "carry": "by sequence, with its carry",
    "step": "step by step",
    "module": "by sequence, module",
    "same-step": "step by step, the same parameters",
    "same-module": "by sequence, module, the same parameters",
}
MEASURED = {"D_RTRL": tuple(FORMS), "pp_prop": tuple(form for form in FORMS if form != "carry")}
CASES = ["forward", "BPTT", *(f"{rule}/{form}" for rule in RULES for form in MEASURED.get(rule, ("sequence", "step")))]
SMALL_CASES = ["forward", "BPTT", *(f"{rule}/{form}" for rule in SMALL_RULES for form in ("sequence", "step"))]


class Size(NamedTuple):
    """Units and batch of a model."""

    units: int
    batch: int

    def __str__(self) -> str:
        return f"({self.units}, {self.batch})"


SIZES = (Size(256, 16), Size(512, 32), Size(1024, 1))
SMALL_SIZE = Size(64, 4)
Key = tuple[str, str]
Results = dict[tuple[str, Size], dict[Key, Measured]]


@dataclass(frozen=True)
class Target:
    """A figure that a run is held against: at most the limit, or at least it."""

    what: str
    model: str
    size: Size
    figure: float
    best: float
    limit: float
    at_least: bool = False

    @property
    def holds(self) -> bool:
        return self.figure >= self.limit if self.at_least else self.figure <= self.limit

    def row(self) -> list[str]:
        if math.isnan(self.figure):
            return [self.what, self.model, str(self.size), self._asked(), "-", "-", "not measured"]
        figures = [f"{self.figure:.2f}", f"{self.best:.2f}"]
        return [self.what, self.model, str(self.size), self._asked(), *figures, "yes" if self.holds else "**no**"]

    def _asked(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.limit:g}"


def measure(
    setting: Setting, own_cases: list[str], pythons: dict[str, Path], arguments: argparse.Namespace
) -> tuple[dict[Key, Measured], list[str]]:
    """The times of all cases of one model and size, and the versions that were measured."""
    settings = {OURS: setting, RIVAL: replace(setting, steps=arguments.rival_steps)}
    workers = [Worker(pythons[package], package, settings[package]) for package in pythons]
    if arguments.against:
        workers.append(Worker(pythons[OURS], OURS, setting, arguments.against))
    if arguments.against:  # a checkout that may not know `weights=`
        own_cases = [case for case in own_cases if "/same-" not in case]
    cases = {OURS: own_cases, RIVAL: RIVAL_CASES, str(arguments.against): own_cases}
    try:
        asked = [(worker, case) for worker in workers for case in cases[worker.package]]
        return take_turns(asked, arguments.repeats, arguments.case_seconds), [worker.versions for worker in workers]
    finally:
        for worker in workers:
            worker.close()


def label(key: Key) -> str:
    """What a line of the table is called."""
    package, case = key
    rule, _, form = case.partition("/")
    if package == RIVAL:
        return f"{RIVAL} {rule}, its default"
    return f"{rule}, {FORMS[form]}" if form else rule


def ratio(top: Measured | None, bottom: Measured | None) -> tuple[float, float]:
    """The ratio of two cases, by their medians and by their minima; NaN where one is missing."""
    if top is None or bottom is None:
        return math.nan, math.nan
    return top.median / bottom.median, top.best / bottom.best


def cells(measured: Measured | None, bptt: Measured | None) -> list[str]:
    """Milliseconds per step, and the two ratios to BPTT."""
    if measured is None or not measured.seconds:
        return ["-"] * 3
    return [f"{1e3 * measured.median:.3g}", *(f"{figure:.2f}" for figure in ratio(measured, bptt))]


def table(results: Results, model: str) -> str:
    """All cases of one model, the sizes side by side."""
    columns = {size: found for (name, size), found in results.items() if name == model}
    header = [""]
    for size in columns:
        header += [f"{size} ms/step", "x BPTT", "x BPTT (min)"]
    keys = dict.fromkeys(key for found in columns.values() for key in found)
    rows = []
    for key in keys:
        parts = [cells(found.get(key), found.get((OURS, "BPTT"))) for found in columns.values()]
        rows.append([label(key), *(cell for part in parts for cell in part)])
    return tables.markdown(header, rows)


def targets(results: Results) -> list[Target]:
    """What was aimed at, and what was measured."""
    found = []
    for (model, size), times in results.items():
        ours = {case: measured for (package, case), measured in times.items() if package == OURS}
        rival = {case: measured for (package, case), measured in times.items() if package == RIVAL}
        by_bptt = {rule: ratio(ours.get(f"{rule}/sequence"), ours.get("BPTT")) for rule in ("D_RTRL", "pp_prop")}
        faster = {
            (rule, form): ratio(rival.get(f"{rule}/module"), ours.get(f"{rule}/{form}"))
            for rule in ("D_RTRL", "pp_prop")
            for form in ("same-step", "same-module")
        }
        found += [
            Target("D_RTRL by sequence / BPTT", model, size, *by_bptt["D_RTRL"], 0.8 if size == Size(1024, 1) else 1.1),
            Target("pp_prop by sequence / BPTT", model, size, *by_bptt["pp_prop"], 0.6),
        ]
        for (rule, form), figures in faster.items():
            limit = 8.0 if (rule, form) == ("D_RTRL", "same-step") and size == Size(512, 32) else 1.0
            what = f"{RIVAL} {rule} / {rule} {FORMS[form]}"
            found.append(Target(what, model, size, *figures, limit, at_least=True))
    return sorted(found, key=lambda target: target.what)


def against(results: Results, checkout: Path) -> str:
    """Times of this checkout over those of another, by the medians and by the minima of each case."""
    rows, figures = [], []
    for (model, size), times in results.items():
        for (package, case), measured in times.items():
            other = times.get((str(checkout), case))
            if package == OURS and other is not None and measured.seconds and other.seconds:
                found = ratio(measured, other)
                figures.append(found)
                rows.append([label((package, case)), model, str(size), *(f"{figure:.2f}" for figure in found)])
    medians, minima = zip(*figures, strict=True)
    mean = lambda numbers: math.exp(sum(map(math.log, numbers)) / len(numbers))
    summary = (
        f"Over {len(figures)} cases the ratio of medians is {median(medians):.2f} in the median and "
        f"{mean(medians):.2f} in the geometric mean; that of minima {median(minima):.2f} and {mean(minima):.2f}."
    )
    header = ["case", "model", "(units, batch)", "this / other, medians", "minima"]
    return f"{summary}\n\n{tables.markdown(header, rows)}\n"


def failures(results: Results) -> list[str]:
    """What could not be run, and why."""
    return [
        f"- {label(key)}, {model} {size}: {measured.error}"
        for (model, size), times in results.items()
        for key, measured in times.items()
        if measured.error
    ]


def page(results: Results, small: Results, versions: list[str], arguments: argparse.Namespace) -> str:
    """The whole result page: what was measured, with what, and the tables."""
    header = ["ratio", "model", "(units, batch)", "target", "measured", "by minima", "holds"]
    aimed = targets(results)
    parts = [
        "# Speed",
        f"Written by `benchmarks/speed.py --write`. The gradient over a sequence of {arguments.steps} steps, "
        f"{INPUTS} inputs, a linear readout of {OUTPUTS} outputs, squared error at every step, float32. All cases of a "
        f"model and size take turns in one run, {arguments.repeats} calls each after a first one that compiles; a case "
        f"that has taken {arguments.case_seconds:g} s is called no more. Times are medians per step; `x BPTT` is the "
        "ratio of medians, `(min)` that of minima. `forward` and `BPTT` are plain JAX: a `lax.scan` of the same model, "
        "and reverse mode through it. `by sequence` is the learner of a step function with its automatic block, for "
        "losses and gradient as BPTT gives them; `with its carry` gives the states and traces at the end too; `step by "
        f"step` does so with `block=1` (rules in two factors multiply the gradients of dense weights out over several "
        f"steps there); `module` is `etrace_grad` of a module's learner. {RIVAL} goes step by step "
        "in its default mode, and leaves readouts and a GRU's reset gate at zero. `The same parameters` are those that "
        "it gives a gradient, asked for by `weights=`; the lines without these words say what the rest costs. "
        f"Its sequence has {arguments.rival_steps} steps.",
        "\n".join([*(f"- {line}" for line in versions), f"- {tables.machine()}"]),
        "## Targets",
        f"{sum(target.holds for target in aimed)} of {len(aimed)} hold, by the ratio of medians.",
        tables.markdown(header, [target.row() for target in aimed]),
    ]
    for model in dict.fromkeys(name for name, _ in results):
        parts += [f"## {TITLES[model]}", table(results, model)]
    if small:
        parts += [
            "## Every rule, at a small size",
            f"{arguments.small_steps} steps. RTRL and SnAp keep far more than the other rules, and are measured here "
            "alone. SnAp with n = 1.",
        ]
    for model in dict.fromkeys(name for name, _ in small):
        parts += [f"### {TITLES[model]}, small", table(small, model)]
    failed = failures(results) + failures(small)
    if failed:
        parts += ["## Not run", "\n".join(failed)]
    return "\n\n".join(parts) + "\n"


def parse_size(text: str) -> Size:
    units, _, batch = text.partition("x")
    return Size(int(units), int(batch))


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rival-python", type=Path, default=tables.ROOT / ".venv-rival" / "bin" / "python")
    parser.add_argument("--against", type=Path, help="another checkout, measured beside this one and printed alone")
    parser.add_argument("--models", nargs="+", choices=TITLES, default=list(TITLES))
    parser.add_argument("--sizes", nargs="+", type=parse_size, default=list(SIZES), metavar="UNITSxBATCH")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rival-steps", type=int, help="steps of braintrace's sequence; by default the same")
    parser.add_argument("--repeats", type=int, default=7, help="calls of each case after the first")
    parser.add_argument("--case-seconds", type=float, default=30.0, help="a case that took longer is called no more")
    parser.add_argument("--small-steps", type=int, default=100, help="steps at the small size; 0 to leave it out")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.relative_to(tables.ROOT)}")
    arguments = parser.parse_args(argv)
    if arguments.quick:
        arguments.sizes, arguments.steps = [Size(16, 2)], 12
        arguments.repeats, arguments.small_steps = 2, min(6, arguments.small_steps)
    arguments.rival_steps = arguments.rival_steps or arguments.steps
    return arguments


def main(argv: list[str]) -> None:
    arguments = parse(argv)
    pythons = {OURS: Path(sys.executable), RIVAL: arguments.rival_python}
    if arguments.against:
        del pythons[RIVAL]
    elif not pythons[RIVAL].exists():
        print(f"No interpreter at the path of --rival-python: {RIVAL} is left out (`make bench` sets it up).")
        del pythons[RIVAL]
    results, small, versions = {}, {}, []
    for model in arguments.models:
        for size in arguments.sizes:
            print(f"{model} {size}", file=sys.stderr, flush=True)
            setting = Setting(model, *size, arguments.steps)
            results[model, size], versions = measure(setting, CASES, pythons, arguments)
        if arguments.small_steps:
            size = Size(8, 2) if arguments.quick else SMALL_SIZE
            print(f"{model} {size}", file=sys.stderr, flush=True)
            setting = Setting(model, *size, arguments.small_steps)
            small[model, size], _ = measure(setting, SMALL_CASES, {OURS: pythons[OURS]}, arguments)
    if arguments.against:
        print(against(results | small, arguments.against))
        return
    text = page(results, small, versions, arguments)
    print(text)
    if arguments.write:
        tables.write(RESULT, text)


if __name__ == "__main__":
    main(sys.argv[1:])
