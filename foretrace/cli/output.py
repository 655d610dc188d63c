"""Standard streams that may go away while a command runs: a reader that leaves, a lost terminal, a full disk.

What is printed by a command that saves its results in files is told on the side: it must not end a run of hours.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any


class Lasting:
    """A stream that goes nowhere once it cannot be written any more."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes, if that can be done."""
        try:
            return int(self._stream.write(text))
        except (OSError, ValueError):  # ValueError: the stream is closed
            drop(self._stream)
            return len(text)

    def flush(self) -> None:
        """Hands on what was written, if that can be done."""
        try:
            self._stream.flush()
        except (OSError, ValueError):
            drop(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def drop(stream: Any) -> None:
    """Sends a stream nowhere, with what it still holds: else Python fails once more on it when the program ends."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


@contextlib.contextmanager
def lasting_output() -> Iterator[None]:
    """Within the block, standard streams that cannot be written any more are no error."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (Lasting(stream) for stream in before)
    try:
        yield
    finally:
        with contextlib.suppress(AttributeError):
            sys.stdout.flush()
            sys.stderr.flush()
        sys.stdout, sys.stderr = before


def open_missing_streams() -> None:
    """Opens streams that were closed when the program began: else the next file that is opened takes their place."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it gets the lowest number that is free
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
