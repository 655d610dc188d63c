"""How a stream goes on, in a line: steps, their rate, and the windowed metrics. A stream has no total to count to."""

import time
from collections.abc import Mapping
from typing import Any, TextIO

from foretrace.train.progress import Progress, described

ON_TERMINAL, ELSEWHERE = 0.2, 30.0
"""Seconds between two lines, at least."""


class StreamProgress:
    """Shows how a stream goes on.

    Args:
        label: What stands at the beginning of every line.
        stream: Where to write; None for nowhere.
    """

    def __init__(self, label: str, stream: TextIO | None) -> None:
        self.label, self.lines = label, Progress(1, label, stream)
        self._last: tuple[float, int] | None = None

    def update(self, steps: int, metrics: Mapping[str, Any]) -> None:
        """Shows where the stream is, if it is time to."""
        if self.lines.stream is None:
            return
        now = time.monotonic()
        if self._last is None:
            self._last = (now, steps)
        then, before = self._last
        if now - then < (ON_TERMINAL if self.lines.is_terminal else ELSEWHERE):
            return
        self._last = (now, steps)
        shown = {name: value for name, value in metrics.items() if name != "step"}
        words = [self.label, f"{steps:,} steps", f"{(steps - before) / (now - then):,.0f}/s", *described(shown)]
        self.lines.show("  ".join(words))

    def say(self, text: str) -> None:
        """A line that stays."""
        self.lines.say(text)

    def close(self, text: str) -> None:
        """The last line."""
        self.lines.close(text)
