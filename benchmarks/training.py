"""Published tasks, trained from the command line with online rules until their goals: recorded runs.

Each run is a command of `foretrace train` in a folder of its own, `runs/results/<name>`. A run that is there already is
not repeated, and one that was broken off goes on. The page is made of what the folders hold.

    python benchmarks/training.py                      # run all, and print the table
    python benchmarks/training.py pattern evidence     # some of them
    python benchmarks/training.py --write              # and write docs/results/training.md with a curve for each
    python benchmarks/training.py --only-write         # run nothing
"""

import argparse
import json
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tables
from foretrace.viz import learning_curves

RESULT = tables.RESULTS / "training.md"
RUNS = tables.ROOT / "runs" / "results"


@dataclass(frozen=True)
class Run:
    """A recorded run.

    Attributes:
        task: The task, which heads a section of the page.
        goal: What the publication asks for, in words.
        measure: The metric of the goal.
        arguments: Of `foretrace train`, after the task.
        short: Further arguments, which make it a matter of seconds with a goal of its own; the tests run that. None for
            a run that stands beside another one of the same task.
        beside: The run of BPTT that it is held against, for a goal that says how far from it.
    """

    task: str
    goal: str
    measure: str
    arguments: str
    short: str | None = None
    beside: str | None = None


POINTS = 2.0  # from BPTT, of a hundred
_LRU = "--cell LRU --layers 2 --validate-every 100"
_GRU = "--cell GRU --validate-every 100"
RECORDED = {
    "evidence": Run(
        "evidence",
        "error below 0.07",
        "error",
        "--rule D_RTRL --stop --validate-every 10",
        "--set n_cues=1 --set delay=50 --set n_test=64 --hidden 30 --batch 32 --lr 1e-2 --iterations 60 "
        "--stop 'error<0.1'",
    ),
    "pattern": Run(
        "pattern",
        "normalised error below 0.05",
        "nmse",
        "--rule D_RTRL --stop --validate-every 100",
        "--set duration=300 --hidden 50 --iterations 1000 --stop 'nmse<0.2'",
    ),
    "store-recall": Run(
        "store-recall",
        "error below 0.05",
        "error",
        "--rule D_RTRL --stop --validate-every 10",
        "--set dt=5 --set n_symbols=4 --set expected_delay=2 --set n_test=64 --batch 32 --iterations 200 "
        "--stop 'error<0.25'",
    ),
    "dms": Run(
        "dms",
        "accuracy above 0.95",
        "accuracy",
        "--rule pp_prop --stop --validate-every 10",
        "--set dt=5 --set n_directions=2 --set n_test=64 --hidden 50 --batch 32 --lr 3e-3 --iterations 60 "
        "--stop 'accuracy>0.9'",
    ),
    "mnist": Run(
        "mnist",
        "within 2 points of BPTT",
        "accuracy",
        f"--rule D_RTRL {_LRU}",
        "--layers 1 --hidden 64 --lr 1e-2 --iterations 60 --validate-every 20 --stop 'accuracy>0.6'",
        "mnist-bptt",
    ),
    "mnist-bptt": Run("mnist", "the measure for D_RTRL", "accuracy", f"--rule BPTT {_LRU}"),
    "mnist-gru": Run("mnist", "within 2 points of BPTT", "accuracy", f"--rule D_RTRL {_GRU}", beside="mnist-gru-bptt"),
    "mnist-gru-bptt": Run("mnist", "the measure for D_RTRL", "accuracy", f"--rule BPTT {_GRU}"),
}


def command(name: str) -> list[str]:
    """The command of a run, as a user would type it."""
    run = RECORDED[name]
    return ["foretrace", "train", run.task, *shlex.split(run.arguments)]


def shortened(name: str) -> list[str]:
    """The arguments of the command's short form, in which later ones count."""
    return [*command(name)[1:], *shlex.split(RECORDED[name].short or ""), "--no-folder", "--quiet"]


def train(name: str) -> None:
    """Runs or goes on with a run, unless it has ended."""
    folder = RUNS / name
    if (folder / "result.json").exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    started = ["--resume"] if (folder / "metrics.jsonl").exists() else []
    print(shlex.join(command(name)), flush=True)
    subprocess.run([sys.executable, "-m", *command(name), "--folder", str(folder), *started], check=False)


def outcome(name: str) -> dict[str, Any] | None:
    """What a run came to; None where it has not ended."""
    file = RUNS / name / "result.json"
    return json.loads(file.read_text()) if file.exists() else None


def reached(name: str, ended: dict[str, dict[str, Any]]) -> str:
    """Whether a run reached its goal; a dash for one that has none."""
    run, found = RECORDED[name], ended[name]
    if run.beside is not None:
        if run.beside not in ended:
            return f"{run.beside} has not ended"
        gap = 100 * (ended[run.beside]["validation"][run.measure] - found["validation"][run.measure])
        return f"{'yes' if gap <= POINTS else '**no**'} ({gap:.1f} points)"
    if "--stop" not in run.arguments:
        return "-"
    return "yes" if found["stopped_because"] == "goal" else f"**no** ({found['stopped_because']})"


def row(name: str, ended: dict[str, dict[str, Any]]) -> list[str]:
    """A line of the table."""
    run, found = RECORDED[name], ended[name]
    return [
        run.task,
        found["network"]["cell"],
        found["rule"]["name"],
        run.goal,
        f"{run.measure} {found['validation'][run.measure]:.4g}",
        reached(name, ended),
        f"{found['iterations']:,}",
        f"{found['seconds']:.0f}",
    ]


def table(ended: dict[str, dict[str, Any]]) -> str:
    """All runs that have ended."""
    header = ["task", "cell", "rule", "goal", "at the end", "goal reached", "iterations", "seconds"]
    return tables.markdown(header, [row(name, ended) for name in ended])


def section(task: str, ended: dict[str, dict[str, Any]]) -> str:
    """The commands and the curve of a task."""
    own = {name: found for name, found in ended.items() if RECORDED[name].task == task}
    curve = tables.RESULTS / f"training_{task}.svg"
    measure = RECORDED[next(iter(own))].measure
    runs = {f"{found['network']['cell']}, {found['rule']['name']}": RUNS / name for name, found in own.items()}
    longest = max(found["iterations"] for found in own.values())
    learning_curves(runs, ["loss", measure], smooth=longest // 30 if longest > 200 else None, path=curve)
    commands = "\n".join(shlex.join(command(name)) for name in own)
    seeds = sorted({found["training"]["seed"] for found in own.values()})
    given = next(iter(own.values()))["task"]
    settings = ", ".join(f"{name} {value}" for name, value in given.items() if name != "name")
    lines = [
        f"## {task}",
        f"Seed {seeds[0]}; the task with {settings} (times in ms, rates in Hz).",
        f"```bash\n{commands}\n```",
        f"![{task}]({curve.name})",
    ]
    return "\n\n".join(lines)


def page(ended: dict[str, dict[str, Any]]) -> str:
    """The page."""
    tasks = dict.fromkeys(RECORDED[name].task for name in ended)
    return "\n\n".join(
        [
            "# Training",
            "Written by `benchmarks/training.py --write`: published tasks, trained from the command line until their "
            "goals. What a command does not say is as published, or ours where nothing was (`foretrace tasks TASK` "
            "shows it). The measure is that of held-out trials at the last validation; seconds include "
            "compilation and validation, on a machine that did other things as well.",
            f"- {tables.versions('foretrace', 'jax')}\n- {tables.machine()}",
            table(ended),
            *(section(task, ended) for task in tasks),
            "",
        ]
    )


def main() -> None:
    """Runs what is asked for, prints the table, and writes the page if asked to."""
    parser = argparse.ArgumentParser(description="Train on published tasks and record the runs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(RECORDED)} (default: all)")
    parser.add_argument("--write", action="store_true", help=f"write {Path('docs/results') / RESULT.name}")
    parser.add_argument("--only-write", action="store_true", help="run nothing, write the page of what is there")
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - set(RECORDED)):
        parser.error(f"there is no run {', '.join(unknown)}; there are {', '.join(RECORDED)}")
    if not options.only_write:
        for name in options.names or RECORDED:
            train(name)
    ended = {name: found for name in RECORDED if (found := outcome(name)) is not None}
    print(table(ended))
    if options.write or options.only_write:
        tables.write(RESULT, page(ended))


if __name__ == "__main__":
    main()
