"""Progress on a terminal as one line that is written over, elsewhere as plain lines now and then."""

import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TextIO

LINES = 20  # plain lines for a whole run, about
SHOWN = 4  # metrics in a line
HIDDEN = {"iteration", "seconds", "gradient_norm", "rate_loss"}


@dataclass
class Progress:
    """Shows how a run goes on.

    Attributes:
        total: Iterations in all.
        label: What stands at the beginning of every line.
        stream: Where to write; None for nowhere.
    """

    total: int
    label: str = ""
    stream: TextIO | None = None
    _began: float = field(default_factory=time.monotonic)
    _first: tuple[int, float] | None = None
    _shown: int = 0

    @property
    def is_terminal(self) -> bool:
        """Whether a line can be written over."""
        return self.stream is not None and self.stream.isatty()

    def update(self, record: Mapping[str, Any]) -> None:
        """Shows one iteration: on a terminal at once, else when enough have gone by or one was validated."""
        if self.stream is None:
            return
        done = int(record["iteration"])
        if self._first is None:  # the first iteration is compiled, and tells nothing of the others
            self._first = (done, time.monotonic())
        due = done >= self.total or done * LINES // self.total > (done - 1) * LINES // self.total
        if self.is_terminal:
            self._over(f"{self._bar(done)} {self._said(done, record)}")
        elif due or any(name.startswith("validation_") for name in record):
            self.say(self._said(done, record))

    def say(self, text: str) -> None:
        """A line that stays."""
        if self.stream is not None:
            self._over("")
            print(text, file=self.stream, flush=True)

    def close(self, text: str) -> None:
        """The last line."""
        if self.stream is not None and self.is_terminal and self._shown:
            print(file=self.stream)
            self._shown = 0
        self.say(text)

    def _over(self, text: str) -> None:
        if self.stream is None or not self.is_terminal or not (text or self._shown):
            return
        width = shutil.get_terminal_size().columns - 1
        print(
            f"\r{text[:width].ljust(min(self._shown, width))}", end="" if text else "\r", file=self.stream, flush=True
        )
        self._shown = len(text)

    def _bar(self, done: int, width: int = 20) -> str:
        full = done * width // self.total
        return f"[{'#' * full}{'.' * (width - full)}]"

    def _said(self, done: int, record: Mapping[str, Any]) -> str:
        now, passed = time.monotonic(), time.monotonic() - self._began
        first, then = self._first or (0, self._began)
        left = clock((now - then) / (done - first) * (self.total - done)) if done > first else "?"
        words = [self.label, f"{done}/{self.total}"] if self.label else [f"{done}/{self.total}"]
        return "  ".join([*words, *described(record), f"{clock(passed)} < {left}"])


def described(record: Mapping[str, Any]) -> list[str]:
    """The first few metrics of a record in words, those of a validation in brackets."""
    shown = [name for name in record if name not in HIDDEN and not name.startswith("validation_")]
    words = [f"{name} {number(record[name])}{' Hz' if name == 'rate' else ''}" for name in _rate_kept(shown)]
    checked = [name for name in record if name.startswith("validation_")]
    tested = [f"{name.removeprefix('validation_')} {number(record[name])}" for name in checked[:SHOWN]]
    return [*words, f"(validation: {', '.join(tested)})"] if tested else words


def _rate_kept(names: list[str]) -> list[str]:
    kept = [name for name in names if name != "rate"][: SHOWN - 1]
    return [*kept, "rate"] if "rate" in names else kept


def number(value: Any) -> str:
    """A metric in a few digits."""
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def clock(seconds: float) -> str:
    """A duration as hours, minutes and seconds."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def stream_of(progress: bool | TextIO) -> TextIO | None:
    """Where progress goes: the given stream, the terminal's second one, or nowhere."""
    if isinstance(progress, bool):
        return sys.stderr if progress else None
    return progress
