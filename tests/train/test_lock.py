"""Two runs never work in one folder at once, and a run that was killed stands in nobody's way."""

import errno
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from foretrace import train
from foretrace.train import lock
from foretrace.train.checkpoint import CheckpointWarning
from foretrace.train.lock import FolderInUseError, locked
from train.small_task import fit

# The same lock without the package, whose import takes seconds.
HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
file.write("process 7 on another")
file.flush()
print("held", flush=True)
time.sleep(600)
"""


def test_folder_of_another_process_is_refused_until_that_is_killed(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / lock.LOCK)], stdout=subprocess.PIPE, text=True
    ) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            said = r"under way in .*\(process 7 on another\).*name another folder"
            with pytest.raises(FolderInUseError, match=said), locked(tmp_path):
                pass
        finally:
            other.send_signal(signal.SIGKILL)
    with locked(tmp_path):
        pass


def test_folder_of_a_run_in_this_process_is_refused(tmp_path: Path) -> None:
    def begin_another(metrics: Any) -> bool:
        with pytest.raises(train.FolderInUseError):
            fit(iterations=1, folder=tmp_path, resume=True)
        return True

    assert fit(iterations=2, folder=tmp_path, validate_every=1, stop=begin_another).stopped_because == "goal"


def test_file_system_without_locks_is_told(tmp_path: Path, monkeypatch: Any) -> None:
    def none(_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock, "_lock", none)
    with pytest.warns(CheckpointWarning, match=r"without locks \(No locks available\)"), locked(tmp_path):
        pass


def test_lock_is_given_back(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(KeyError), locked(tmp_path):
            raise KeyError


def test_link_in_the_place_of_the_lock_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / lock.LOCK).symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match=r"is a link to another file.*Remove the link"):
        fit(iterations=1, folder=tmp_path)
    assert (tmp_path / "precious").read_text() == "precious"
