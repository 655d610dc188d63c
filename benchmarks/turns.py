"""Packages that take turns: one process for each, in an environment of its own, timed case by case.

A process compiles a case when it is first asked for it, and then times one call each time it is asked. So the calls
of all packages can follow each other in any order, and a slow phase of the machine falls on all of them.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

MARK = "@result "


@dataclass
class Measured:
    """Seconds per step of one case, of each call; and what was wrong where it could not be run."""

    seconds: list[float] = field(default_factory=list)
    error: str = ""

    @property
    def median(self) -> float:
        return median(self.seconds) if self.seconds else float("nan")

    @property
    def best(self) -> float:
        return min(self.seconds, default=float("nan"))


class Worker:
    """A process that runs the cases of one package for one setting, of another checkout of it where one is named."""

    def __init__(self, python: Path, package: str, setting: Any, checkout: Path | None = None) -> None:
        command = [str(python), __file__, package, json.dumps(asdict(setting))]
        environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "0"}
        if checkout is not None:
            environment["PYTHONPATH"] = str(checkout)
        self.setting, self.package = setting, package if checkout is None else str(checkout)
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.versions: str = self._receive()["versions"]

    def ask(self, case: str) -> dict[str, Any]:
        """Times one call of a case: `{"seconds": ...}` or `{"error": ...}`."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(case + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return {"error": "the process has ended"}
        return self._receive()

    def _receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(MARK):
                return dict(json.loads(line.removeprefix(MARK)))
        return {"error": "the process has ended", "versions": f"{self.package}, which did not start"}

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def take_turns(
    asked: Iterable[tuple[Worker, str]], repeats: int, case_seconds: float
) -> dict[tuple[str, str], Measured]:
    """Times every case of every worker, one call each in turn.

    The order of the calls is reversed from round to round. A case that has taken more than `case_seconds` in all is not
    called again.
    """
    cases, found = list(asked), {}
    for worker, case in cases:
        answer = worker.ask(case)  # compiles it; this time does not count
        found[worker.package, case] = Measured(error=answer.get("error", ""))
    for turn in range(repeats):
        for worker, case in cases if turn % 2 == 0 else reversed(cases):
            measured, steps = found[worker.package, case], worker.setting.steps
            if measured.error or sum(measured.seconds) * steps > case_seconds:
                continue
            answer = worker.ask(case)
            measured.error = answer.get("error", "")
            if not measured.error:
                measured.seconds.append(answer["seconds"] / steps)
    return found


def serve(package: str, setting_text: str) -> None:
    """Answers the parent, case by case, until its input ends."""
    import warnings

    import cases
    import tables

    warnings.simplefilter("ignore")
    setting, runs = cases.Setting(**json.loads(setting_text)), {}
    answer = lambda **values: print(MARK + json.dumps(values), flush=True)
    answer(versions=tables.versions(package, "brainstate", "jax"))
    for line in sys.stdin:
        case = line.strip()
        try:
            runs[case] = runs.get(case) or cases.make(package, case, setting)
            answer(seconds=cases.seconds(runs[case]))
        except Exception as error:  # a rule that cannot be run is a line of the page, not the end of the benchmark
            answer(error=f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}")


if __name__ == "__main__":
    serve(*sys.argv[1:])
