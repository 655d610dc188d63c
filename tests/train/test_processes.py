"""Two processes over loopback train one network; killed or told to end, the run goes on in one, to the same weights."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foretrace import train

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("processes")]
ROOT = Path(__file__).parent.parent.parent
LOOPBACK = "127.0.0.1"
NEVER = 1_000_000
WAIT = 900
"""Seconds after which a run does not get on; a machine may be busy."""
TASK = "evidence --set n_cues=1 --set cue=6 --set gap=2 --set delay=2 --set recall=4 --set n_test=4"
WORDS = f"train {TASK} --hidden 4 --batch 4 --cell RNN --validate-every 4 --checkpoint-every 3".split()
ROUNDING = 1e-10
"""In double precision the sums of two processes are some 1e-16 apart, and so are the weights after tens of updates, of
size 1e-2 each. Adam divides by the size of a gradient, so a small one carries its rounding on enlarged."""


def _free_port() -> str:
    with socket.socket() as free:
        free.bind((LOOPBACK, 0))
        return str(free.getsockname()[1])


class Started:
    """Commands that were started, to be ended whatever happens."""

    def __init__(self) -> None:
        self.all: list[subprocess.Popen[str]] = []

    def command(self, *words: str, **environment: str) -> "subprocess.Popen[str]":
        """Starts `foretrace` with these words, in double precision."""
        known = {"PYTHONPATH": str(ROOT), "JAX_ENABLE_X64": "1", "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
        command = [sys.executable, "-m", "foretrace", *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.all.append(subprocess.Popen(command, env={**os.environ, **known, **environment}, **pipes))
        return self.all[-1]

    def two(self, *words: str, further: Sequence[str] = ()) -> list["subprocess.Popen[str]"]:
        """Starts two processes of one run, each with a device of its own, which meet on the loopback address.

        Args:
            *words: For both.
            further: For the second one alone.
        """
        address = f"{LOOPBACK}:{_free_port()}"
        joined = f"--distributed --coordinator-address {address} --num-processes 2 --process-id".split()
        return [
            self.command(*WORDS, *words, *own, *joined, str(number), JAX_COORDINATOR_BIND_ADDRESS=address)
            for number, own in enumerate([(), further])
        ]

    def two_by_slurm(self, *words: str) -> list["subprocess.Popen[str]"]:
        """The same, with the variables in the place of words that SLURM starts the tasks of a job with."""
        port = _free_port()
        job = {"SLURM_JOB_ID": "77", "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2"}
        job |= {"JAX_COORDINATOR_PORT": port, "JAX_COORDINATOR_BIND_ADDRESS": f"{LOOPBACK}:{port}"}
        return [
            self.command(*WORDS, *words, "--distributed", **job, SLURM_PROCID=number, SLURM_LOCALID=number)
            for number in "01"
        ]

    def alone(self, *words: str) -> None:
        """Runs a process to its end."""
        process = self.command(*WORDS, *words)
        _, said = process.communicate(timeout=WAIT)
        assert process.returncode == 0, said


@pytest.fixture
def started() -> Iterator[Started]:
    found = Started()
    yield found
    for process in found.all:
        process.kill()
        process.communicate()


def lines(folder: Path) -> int:
    file = folder / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def wait_for(folder: Path, wanted: int, processes: Any) -> None:
    """Waits until a run has written some lines."""
    end = time.monotonic() + WAIT
    while lines(folder) < wanted:
        assert time.monotonic() < end, "the run does not get on"
        assert all(process.poll() is None for process in processes), [p.communicate() for p in processes]
        time.sleep(0.01)


def arrays(folder: Path) -> dict[str, Any]:
    """What the newest checkpoint holds, numbers alone."""
    found = train.read(max(folder.glob("checkpoint-*.safetensors"))).arrays
    return {name: np.asarray(array) for name, array in found.items() if name != "key"}


def ends_as_if_never_stopped(started: Started, folder: Path, *mesh: str) -> None:
    """Goes on with a run in one process, and compares it with one that was never stopped."""
    done, whole = lines(folder) + 4, folder.with_name("whole")
    started.alone("--iterations", str(done), "--folder", str(folder), "--resume", "--quiet", *mesh)
    started.alone("--iterations", str(done), "--folder", str(whole), "--quiet")
    found, expected = arrays(folder), arrays(whole)
    assert found.keys() == expected.keys()
    apart = max(float(np.max(np.abs(found[name] - expected[name]))) for name in found)
    assert apart < ROUNDING
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [record["iteration"] for record in records] == list(range(1, done + 1))


@pytest.mark.parametrize("mesh", ["data=2", "units=2"])
def test_killed_and_resumed_in_one_process(started: Started, tmp_path: Path, mesh: str) -> None:
    folder = tmp_path / "run"
    both = started.two("--iterations", str(NEVER), "--folder", str(folder), "--mesh", mesh)
    wait_for(folder, 5, both)
    for process in both:
        process.send_signal(signal.SIGKILL)
    assert [process.wait() for process in both] == [-signal.SIGKILL] * 2
    ends_as_if_never_stopped(started, folder)


@pytest.mark.parametrize("who", [0, 1])
def test_either_process_told_to_end_ends_both_and_the_run_is_saved(started: Started, tmp_path: Path, who: int) -> None:
    folder = tmp_path / "run"
    both = started.two("--iterations", str(NEVER), "--folder", str(folder))
    wait_for(folder, 5, both)
    both[who].send_signal(signal.SIGTERM)
    said = [process.communicate(timeout=WAIT) for process in both]
    assert [process.returncode for process in both] == [128 + signal.SIGTERM] * 2
    assert "ended by SIGTERM, and saved. Go on with:" in said[0][1]
    assert "foretrace" not in "".join(said[1])  # the other one says nothing
    assert train.read(max(folder.glob("checkpoint-*.safetensors"))).note["lines"] == lines(folder)
    ends_as_if_never_stopped(started, folder)


def test_resumed_in_two_processes_as_slurm_starts_them(started: Started, tmp_path: Path) -> None:
    folder, done = tmp_path / "run", "12"
    started.alone("--iterations", "6", "--folder", str(folder), "--quiet")
    both = started.two_by_slurm("--iterations", done, "--folder", str(folder), "--resume")
    said = [process.communicate(timeout=WAIT) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert "going on after iteration 6" in said[0][1]
    ends_as_if_never_stopped(started, folder)


def test_error_of_the_first_process_ends_all(started: Started, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    started.alone("--iterations", "2", "--folder", str(folder), "--quiet")
    both = started.two("--iterations", "4", "--folder", str(folder))
    said = [process.communicate(timeout=WAIT)[1] for process in both]
    assert [process.returncode for process in both] == [2, 1], said
    assert "holds a run: go on with it by --resume" in said[0]
    assert "The first process ended with FileExistsError" in said[1]


def test_other_settings_in_another_process_are_refused(started: Started, tmp_path: Path) -> None:
    both = started.two("--iterations", "4", "--folder", str(tmp_path / "run"), further=["--seed", "7"])
    said = [process.communicate(timeout=WAIT)[1] for process in both]
    assert [process.returncode for process in both] == [1, 1], said
    assert all("Process 1 was started with other settings or versions than the first one" in text for text in said)
    assert "here `seed` = 0 (now 7)" in said[1]
    assert not list((tmp_path / "run").glob("checkpoint-*"))
