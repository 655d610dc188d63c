"""A stream that is killed loses what came after its last checkpoint, and goes on from there as if never stopped."""

import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from foretrace import train
from train.small_stream import items, stream
from train.test_killed import NEVER, Jobs, jobs  # noqa: F401

pytestmark = [
    pytest.mark.xdist_group("killed"),  # with the other jobs of the process that forks
    pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked"),
]


def newest(folder: Path) -> int:
    """The steps of the newest checkpoint; -1 where there is none."""
    return max((int(file.stem.split("-")[1]) for file in folder.glob("checkpoint-*.safetensors")), default=-1)


def killed_and_resumed(jobs: Jobs, folder: Path, kills: int) -> None:  # noqa: F811
    chance = random.Random(os.urandom(8))
    before = -1
    for _ in range(kills):
        process = jobs.start("stream", str(folder), NEVER)
        end = time.monotonic() + 300
        while newest(folder) <= before + 4:  # it has learned something beyond what it began with
            assert time.monotonic() < end, "the stream does not get on"
            time.sleep(0.0005)
        time.sleep(chance.uniform(0.0, 0.05))
        saved = newest(folder)
        os.kill(process, signal.SIGKILL)
        assert jobs.end() == -signal.SIGKILL
        before = train.read(max(folder.glob("checkpoint-*.safetensors"))).note["lines"]
        assert before >= saved  # what was on the disk is whole, and is what it goes on from
    limit = before + 20
    jobs.start("stream", str(folder), limit)
    assert jobs.end() == 0
    whole = stream(items, limit=limit, piece=4, every=3)
    found = train.restore(folder / "weights.safetensors")
    for name, value in whole.params.items():
        assert np.asarray(found[name]).tobytes() == np.asarray(value).tobytes()


def test_killed_and_resumed(jobs: Jobs, tmp_path: Path) -> None:  # noqa: F811
    killed_and_resumed(jobs, tmp_path, kills=1)


@pytest.mark.slow
def test_killed_five_times(jobs: Jobs, tmp_path: Path) -> None:  # noqa: F811
    killed_and_resumed(jobs, tmp_path, kills=5)
