"""Time from a model to its eligibility-trace graph, beside braintrace in an environment of its own.

Both sides compile the same source (`models.py`) with their `compile_etrace_graph`. Every measurement is a fresh
process that compiles several freshly built models; the first is reported apart as `first`, because it pays for
cold caches, and the best of the others is `total` (and `whole`, once diagnostics and perturbation are read). The
processes of the two sides alternate, and the order of a pair changes from round to round, so that a slow phase of the
machine falls on both.

`analysis` is the part of the total that is not tracing: `graph.analysis_seconds` where the graph has it, otherwise
the difference between `compile_etrace_graph` and `extract_module_info`, each at its best.

    python benchmarks/compile_time.py                          # print the table
    python benchmarks/compile_time.py --write                  # and write docs/results/compile_time.md
    python benchmarks/compile_time.py --rival-python PATH      # another environment with braintrace
"""

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "docs" / "results" / "compile_time.md"
OURS, RIVAL = "foretrace", "braintrace"
MODELS = ("LIF", "GRU", "LSTM")
UNITS = (256, 1024)
INPUTS = 100


@dataclass(frozen=True)
class Timing:
    """Seconds of one package for one model, and the versions that were measured."""

    first: float
    total: float
    whole: float
    analysis: float
    versions: str

    def best(self, other: "Timing | None") -> "Timing":
        if other is None:
            return self
        names = ("first", "total", "whole", "analysis")
        return Timing(*(min(getattr(self, name), getattr(other, name)) for name in names), self.versions)


Table = dict[tuple[str, int], dict[str, Timing]]


def measure(package: str, model: str, units: int, batch: int, repeats: int) -> Timing:
    """Times one package on one model in this process."""
    import models

    warnings.simplefilter("ignore")
    library = importlib.import_module(package)
    totals, wholes, analyses, traces = [], [], [], []
    for _ in range(repeats + 1):
        module, x = models.build(library, model, INPUTS, units, batch)
        start = time.perf_counter()
        graph = library.compile_etrace_graph(module, x)
        totals.append(time.perf_counter() - start)
        _ = graph.hidden_perturb, graph.diagnostics
        wholes.append(time.perf_counter() - start)
        if hasattr(graph, "analysis_seconds"):
            analyses.append(graph.analysis_seconds)
            continue
        module, x = models.build(library, model, INPUTS, units, batch)
        start = time.perf_counter()
        library.extract_module_info(module, x)
        traces.append(time.perf_counter() - start)
    total = min(totals[1:])
    analysis = min(analyses[1:]) if analyses else max(total - min(traces[1:]), 0.0)
    parts = [library, *(importlib.import_module(name) for name in ("brainstate", "jax"))]
    return Timing(
        totals[0], total, min(wholes[1:]), analysis, ", ".join(f"{part.__name__} {part.__version__}" for part in parts)
    )


def in_process(python: Path, package: str, model: str, units: int, batch: int, repeats: int) -> Timing:
    """Times one package in a fresh process of the given interpreter."""
    command = [str(python), __file__, "--worker", package, model, str(units), str(batch), str(repeats)]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "0"}
    finished = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if finished.returncode:
        raise SystemExit(f"{package} failed on {model} with {units} units:\n{finished.stderr}")
    return Timing(**json.loads(finished.stdout.splitlines()[-1]))


def compare(pythons: dict[str, Path], batch: int, rounds: int, repeats: int) -> Table:
    """The best timing of every package for every model and size, the packages taking turns."""
    table: Table = {}
    for model in MODELS:
        for units in UNITS:
            row = table.setdefault((model, units), {})
            for turn in range(rounds):
                packages = list(pythons) if turn % 2 == 0 else list(reversed(pythons))
                for package in packages:
                    timing = in_process(pythons[package], package, model, units, batch, repeats)
                    row[package] = timing.best(row.get(package))
    return table


def cells(row: dict[str, Timing]) -> list[str]:
    """The numbers of one line, in milliseconds, and how our total compares with the rival's."""
    numbers = []
    for package in (OURS, RIVAL):
        timing = row.get(package)
        times = (timing.analysis, timing.total, timing.whole, timing.first) if timing else ()
        numbers += [f"{1e3 * t:.1f}" for t in times] or ["-"] * 4
    if OURS not in row or RIVAL not in row:
        return [*numbers, "-", "-"]
    ours, rival = row[OURS], row[RIVAL]
    return [*numbers, f"{ours.total / rival.total:.2f}", f"{ours.whole / rival.whole:.2f}"]


def markdown(table: Table) -> str:
    """The table as Markdown."""
    kinds = [f"{package} {kind}" for package in (OURS, RIVAL) for kind in ("analysis", "total", "whole", "first")]
    header = ["model", "units", *kinds, "total, ratio", "whole, ratio"]
    lines = [header, ["---"] * len(header)]
    lines += [[model, str(units), *cells(row)] for (model, units), row in table.items()]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def page(table: Table, arguments: argparse.Namespace) -> str:
    """The whole result page: what was measured, with what, and the table."""
    sides = next(iter(table.values())).values()
    return "\n".join(
        [
            "# Compile time",
            "",
            "Written by `benchmarks/compile_time.py --write`. Milliseconds; batch "
            f"{arguments.batch}, {INPUTS} inputs, float32; best of {arguments.rounds} processes of {arguments.repeats} "
            "compilations each. `total` is what a user waits for after a warm-up, tracing included; `analysis` is the "
            "part that is not tracing; `whole` adds the diagnostics and the perturbed step, which Foretrace makes when "
            "they are first read; `first` is the first compilation of a process. A ratio below 1 means that Foretrace "
            "is faster.",
            "",
            *(f"- {timing.versions}" for timing in sides),
            f"- Python {platform.python_version()}, {os.cpu_count()} CPU cores, {platform.machine()}",
            "",
            markdown(table),
            "",
        ]
    )


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rival-python", type=Path, default=ROOT / ".venv-rival" / "bin" / "python")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3, help="processes per package, model and size")
    parser.add_argument("--repeats", type=int, default=5, help="compilations per process after the first")
    parser.add_argument("--only", choices=(OURS, RIVAL), help="measure one side alone")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.relative_to(ROOT)}")
    parser.add_argument("--worker", nargs=5, metavar=("PACKAGE", "MODEL", "UNITS", "BATCH", "REPEATS"))
    return parser.parse_args(argv)


def main(argv: list[str]) -> None:
    arguments = parse(argv)
    if arguments.worker:
        package, model, *numbers = arguments.worker
        print(json.dumps(asdict(measure(package, model, *map(int, numbers)))))
        return
    pythons = {OURS: Path(sys.executable), RIVAL: arguments.rival_python}
    if arguments.only:
        pythons = {arguments.only: pythons[arguments.only]}
    if RIVAL in pythons and not pythons[RIVAL].exists():
        print(f"No interpreter at the path of --rival-python: {RIVAL} is left out (`make bench` sets it up).")
        del pythons[RIVAL]
    if not pythons:
        raise SystemExit("Nothing to measure.")
    table = compare(pythons, arguments.batch, arguments.rounds, arguments.repeats)
    print(page(table, arguments))
    if arguments.write:
        RESULT.parent.mkdir(parents=True, exist_ok=True)
        RESULT.write_text(page(table, arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
