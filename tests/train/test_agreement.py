"""What the first of several processes reads is known to all, and so are its errors and the signals of any."""

import json
from signal import SIGINT, SIGTERM
from typing import Any

import numpy as np
import pytest

from foretrace.train import processes
from foretrace.train.processes import FirstProcessError, Processes

FIRST, SECOND = Processes(2, 0), Processes(2, 1)
JSON: Any = (lambda value: json.dumps(value).encode(), json.loads)


def never() -> Any:
    raise AssertionError("read in a process that is not the first")


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What the first process sends, which the second one gets."""
    line: list[bytes] = []

    def from_first(data: bytes) -> bytes:
        if data:
            line.append(data)
        return line[-1]

    monkeypatch.setattr(processes, "from_first_process", from_first)
    return line


def test_what_the_first_reads_is_told_to_the_others(sent: list[bytes]) -> None:
    assert FIRST.told(lambda: {"lines": 3}, *JSON) == {"lines": 3}
    assert SECOND.told(never, *JSON) == {"lines": 3}


def test_error_of_the_first_is_raised_there_and_told_to_the_others(sent: list[bytes]) -> None:
    def fails() -> Any:
        raise FileExistsError("`runs/a` holds a run.")

    with pytest.raises(FileExistsError):
        FIRST.told(fails, *JSON)
    with pytest.raises(FirstProcessError, match="ended with FileExistsError: `runs/a` holds a run"):
        SECOND.told(never, *JSON)


def test_one_process_sends_nothing(sent: list[bytes]) -> None:
    value = object()
    assert Processes().told(lambda: value, never, never) is value
    assert Processes().agreed(SIGINT) is SIGINT
    assert Processes().where(True) == [0]
    assert not sent


def test_signal_to_any_process_is_one_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "from_processes", lambda own: np.stack([own, np.asarray(int(SIGTERM))]))
    assert FIRST.agreed(None) is SIGTERM
    monkeypatch.setattr(processes, "from_processes", lambda own: np.stack([own, own]))
    assert FIRST.agreed(None) is None
    assert FIRST.where(False) == []
