"""Progress on a terminal as one line that is written over, elsewhere as plain lines now and then."""

import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TextIO

LINES = 20  # plain lines for a whole run, about
MOST_LINES = 100  # with those of validations
SHOWN = 4  # metrics in a line
VALIDATION = "validation_"
HIDDEN = {"iteration", "seconds", "gradient_norm", "certificate", "rate_loss"}


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
    _validation: str = ""
    _form: int = 0
    _said: int = 0

    @property
    def is_terminal(self) -> bool:
        """Whether a line can be written over."""
        return self.stream is not None and not getattr(self.stream, "closed", False) and self.stream.isatty()

    def update(self, record: Mapping[str, Any]) -> None:
        """Shows one iteration: on a terminal at once, else when enough have gone by or one was validated."""
        if self.stream is None:
            return
        done = int(record["iteration"])
        if self._first is None:  # the first iteration is compiled, and tells nothing of the others
            self._first = (done, time.monotonic())
        due = done >= self.total or done * LINES // self.total > (done - 1) * LINES // self.total
        validation = validated(record)
        if self.is_terminal:
            self._validation = validation or self._validation  # the last one stays to be seen
            self._over(self._fitting(done, described(record), self._left(done)))
        elif due or (validation and (done - self._said) * MOST_LINES >= self.total):
            self._said = done
            words = [self.label, f"{done}/{self.total}", *described(record), validation, self._left(done)]
            self.say("  ".join(filter(None, words)))

    def wait(self, done: int, text: str) -> None:
        """Says what is going on before the first iteration."""
        if done >= self.total:
            return
        if self.is_terminal:
            self._over(self._fitting(done, [text], ""))
        elif self.stream is not None:
            self.say("  ".join(filter(None, [self.label, f"{done}/{self.total}", f"{text} ..."])))

    def show(self, text: str) -> None:
        """A line that the next one is written over, where that can be done."""
        if self.is_terminal:
            self._over(text)
        else:
            self.say(text)

    def say(self, text: str) -> None:
        """A line that stays."""
        self._over("")
        self._write(f"{text}\n")

    def close(self, text: str) -> None:
        """The last line."""
        if self.is_terminal and self._shown:
            self._write("\n")
            self._shown = 0
        self.say(text)

    def _over(self, text: str) -> None:
        if self.stream is None or not self.is_terminal or not (text or self._shown):
            return
        width = _columns()
        self._write(f"\r{text[:width].ljust(min(self._shown, width))}" + ("" if text else "\r"))
        self._shown = len(text)

    def _write(self, text: str) -> None:
        """Writes at once. A reader that has left, a lost terminal or a full disk ends the showing, not the run."""
        try:
            if self.stream is not None:
                print(text, end="", file=self.stream, flush=True)
        except (OSError, ValueError):  # ValueError: the stream is closed
            self.stream = None

    def _fitting(self, done: int, words: list[str], left: str) -> str:
        """A line with as much as the terminal has room for; what had none once is left out from then on."""
        count = f"{done}/{self.total}"
        forms = [
            [self._bar(done, 20), self.label, count, *words, self._validation, left],
            [self._bar(done, 10), self.label, count, *words, left],
            [self._bar(done, 10), count, *words, left],
            [count, *words, left],
        ]
        lines = ["  ".join(filter(None, form)) for form in forms]
        while self._form < len(lines) - 1 and len(lines[self._form]) > _columns():
            self._form += 1
        return lines[self._form]

    def _bar(self, done: int, width: int) -> str:
        full = done * width // self.total
        return f"[{'#' * full}{'.' * (width - full)}]"

    def _left(self, done: int) -> str:
        """The time that has passed, and about how much is left."""
        now = time.monotonic()
        first, then = self._first or (0, self._began)
        left = clock((now - then) / (done - first) * (self.total - done)) if done > first else "?"
        return f"{clock(now - self._began)} < {left}"


def described(record: Mapping[str, Any]) -> list[str]:
    """The first few metrics of a record in words, the firing rate among them."""
    names = [name for name in record if name not in HIDDEN and not name.startswith(VALIDATION)]
    kept = [name for name in names if name != "rate" and not ("accuracy" in names and name == "error")][: SHOWN - 1]
    shown = [*kept, "rate"] if "rate" in names else kept
    return [f"{name} {number(record[name])}{' Hz' if name == 'rate' else ''}" for name in shown]


def validated(record: Mapping[str, Any]) -> str:
    """The first few metrics of a record's validation in words; nothing where it has none."""
    found = {name.removeprefix(VALIDATION): v for name, v in record.items() if name.startswith(VALIDATION)}
    return f"(validation: {', '.join(described(found))})" if found else ""


def _columns() -> int:
    return shutil.get_terminal_size().columns - 1


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
