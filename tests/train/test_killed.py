"""A run that is killed at any moment and resumed ends with the same weights, bit for bit."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from foretrace import train
from train.killed import SETTINGS
from train.small_task import fit, make_params

TESTS = Path(__file__).parent.parent


def start(folder: Path, iterations: int) -> subprocess.Popen:
    paths = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(Path(__file__).parent / "killed.py"), str(folder), str(iterations)]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths}, stderr=subprocess.PIPE)


def lines(folder: Path) -> int:
    file = folder / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def kill_at(folder: Path, iterations: int, wanted: int, later: float) -> None:
    """Kills a run a moment after it has written some lines."""
    process = start(folder, iterations)
    began = lines(folder)
    while process.poll() is None and not began <= wanted <= lines(folder):
        time.sleep(0.0005)
    time.sleep(later)
    assert process.poll() is None, process.stderr.read().decode()
    process.send_signal(signal.SIGKILL)
    process.communicate()


def end_of(folder: Path, kills: int, iterations: int, seed: int) -> None:
    """Kills a run several times, and lets it end."""
    chance = random.Random(seed)
    for number in range(kills):
        wanted = 1 + (number + 1) * (iterations // 2) // kills
        kill_at(folder, iterations, wanted, later=chance.uniform(0.0, 0.02))
    last = start(folder, iterations)
    _, said = last.communicate(timeout=300)
    assert last.returncode == 0, said.decode()


def same_as_never_killed(folder: Path, kills: int, iterations: int, seed: int) -> None:
    end_of(folder, kills, iterations, seed)
    whole = fit(iterations=iterations, **SETTINGS)
    found = train.restore(folder / "weights.safetensors", make_params())
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(whole.params), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [record["iteration"] for record in records] == list(range(1, iterations + 1))
    assert [record["loss"] for record in records] == [record["loss"] for record in whole.metrics]


def test_killed_twice(tmp_path: Path) -> None:
    same_as_never_killed(tmp_path, kills=2, iterations=300, seed=int.from_bytes(os.urandom(4), "little"))


@pytest.mark.slow
def test_killed_twenty_times(tmp_path: Path) -> None:
    same_as_never_killed(tmp_path, kills=20, iterations=3000, seed=int.from_bytes(os.urandom(4), "little"))
