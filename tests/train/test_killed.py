"""A run that is killed at any moment and resumed ends with the same weights, bit for bit."""

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foretrace import train
from train.killed import SETTINGS, learner
from train.small_task import fit

pytestmark = [
    pytest.mark.xdist_group("killed"),  # one worker starts the process that forks
    pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked"),
]
TESTS = Path(__file__).parent.parent
NEVER = 1_000_000
"""Iterations of a run that is killed: it cannot end before that."""


class Jobs:
    """Processes of `killed.py`, one after another."""

    def __init__(self) -> None:
        self.running: int | None = None
        paths = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
        self.forks = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "killed.py")],
            env={**os.environ, "PYTHONPATH": paths},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, *job: Any) -> int:
        """Starts a job, and returns the number of its process."""
        assert self.forks.stdin is not None
        print(json.dumps(job), file=self.forks.stdin, flush=True)
        self.running = self._read()
        return self.running

    def end(self) -> int:
        """Waits for the end of the job: its exit code, or minus the signal that ended it."""
        code, self.running = self._read(), None
        return code

    def close(self) -> None:
        """Ends whatever a failed test has left running."""
        if self.running is not None:
            os.kill(self.running, signal.SIGKILL)
        self.forks.communicate()  # with its input closed it ends

    def _read(self) -> int:
        assert self.forks.stdout is not None
        return int(self.forks.stdout.readline())


@pytest.fixture(scope="module")
def jobs() -> Iterator[Jobs]:
    """The process that forks."""
    found = Jobs()
    yield found
    found.close()


def lines(folder: Path) -> int:
    file = folder / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def wait_for(folder: Path, wanted: int) -> None:
    """Waits until a run has written some lines."""
    end = time.monotonic() + 300
    while lines(folder) < wanted:
        assert time.monotonic() < end, "the run does not get on"
        time.sleep(0.0005)


def killed(jobs: Jobs, what: str, folder: Path, kills: int, by: signal.Signals) -> int:
    """Kills a run several times, each time when it has got on a little; returns the iterations to end with."""
    chance = random.Random(os.urandom(8))
    for _ in range(kills):
        began = lines(folder)
        process = jobs.start(what, str(folder), NEVER)
        wait_for(folder, began + chance.randint(1, 6))
        time.sleep(chance.uniform(0.0, 0.02))
        os.kill(process, by)
        code = jobs.end()
        if by is signal.SIGKILL:
            assert code == -by
        else:
            assert code == 128 + by
            assert saved(folder) == lines(folder) > began  # not one iteration is lost
    return lines(folder) + 4


def saved(folder: Path) -> int:
    """The iterations in the newest checkpoint."""
    return int(train.read(max(folder.glob("checkpoint-*.safetensors"))).note["lines"])


def same(found: Any, expected: Any) -> bool:
    return np.asarray(found).tobytes() == np.asarray(expected).tobytes()


def same_as_never_killed(jobs: Jobs, what: str, folder: Path, kills: int, by: signal.Signals = signal.SIGKILL) -> None:
    iterations = killed(jobs, what, folder, kills, by)
    jobs.start(what, str(folder), iterations)
    assert jobs.end() == 0
    whole = fit(learner(what), iterations=iterations, **SETTINGS)
    assert whole.best is not None
    found, best = (train.restore(folder / f"{name}.safetensors") for name in ("weights", "best"))
    for name in ("w_in", "w_out", "w_rec"):
        path, named = (name, name) if what == "function" else (("weights", name), f"weights.{name}")
        assert same(found[named], whole.params[path])
        assert same(best[named], whole.best.params[path])
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [record["iteration"] for record in records] == list(range(1, iterations + 1))
    assert [record["loss"] for record in records] == [record["loss"] for record in whole.metrics]


@pytest.mark.parametrize("what", ["function", "module"])
def test_killed_and_resumed(jobs: Jobs, what: str, tmp_path: Path) -> None:
    same_as_never_killed(jobs, what, tmp_path, kills=1)


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGHUP])
def test_told_to_end_and_resumed(jobs: Jobs, by: signal.Signals, tmp_path: Path) -> None:
    same_as_never_killed(jobs, "function", tmp_path, kills=1, by=by)


@pytest.mark.parametrize(
    ("by", "code", "said"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "ended by SIGTERM, and saved")],
)
def test_command_that_is_told_to_end_says_how_to_go_on(
    jobs: Jobs, by: signal.Signals, code: int, said: str, tmp_path: Path
) -> None:
    task = "evidence --set n_cues=1 --set cue=6 --set gap=2 --set delay=2 --set recall=4 --set n_test=4".split()
    words = ["train", *task, "--hidden", "4", "--batch", "2", "--cell", "RNN", "--iterations", str(NEVER)]
    folder = tmp_path / "run"
    process = jobs.start("command", str(folder), [*words, "--folder", str(folder)])
    wait_for(folder, 3)
    os.kill(process, by)
    assert jobs.end() == code
    text = Path(f"{folder}.txt").read_text()
    how = f"{shlex.join(['foretrace', *words])} --folder {folder} --resume"
    assert text.endswith(f"foretrace train: {said}. Go on with:\n  {how}\n")
    assert "Traceback" not in text
    assert saved(folder) == lines(folder) >= 3
    assert json.loads((folder / "result.json").read_text())["stopped_because"] == "interrupted"


@pytest.mark.slow
@pytest.mark.parametrize("what", ["function", "module"])
def test_killed_twenty_times(jobs: Jobs, what: str, tmp_path: Path) -> None:
    same_as_never_killed(jobs, what, tmp_path, kills=20)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["function", "module"])
def test_told_to_end_thirty_times(jobs: Jobs, what: str, tmp_path: Path) -> None:
    same_as_never_killed(jobs, what, tmp_path, kills=30, by=signal.SIGTERM)
