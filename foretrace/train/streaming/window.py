"""Metrics of a stream in memory that does not grow: means over a sliding window, and a history of bounded length.

The history has the means of the window at evenly spaced steps. When it has become too long, every second point is left
out, and points are twice as far apart from then on: it always covers the whole stream, at the finest spacing that fits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Record = dict[str, Any]
MOST = 1000
"""Points of a history, at most."""


class Window:
    """The last steps of a stream.

    Args:
        names: What is measured at each step.
        size: Steps in the window.
        dtype: Of what is measured.
    """

    def __init__(self, names: Sequence[str], size: int, dtype: Any = float) -> None:
        self.names, self.rows = tuple(names), np.full((size, len(names)), np.nan, dtype)
        self.at = 0

    def add(self, rows: np.ndarray) -> None:
        """Takes rows in, one for each step, NaN where there was no target."""
        size = len(self.rows)
        self.at = (self.at + max(0, len(rows) - size)) % size  # a row stands at its number, modulo the size
        rows = rows[-size:]
        first = min(len(rows), size - self.at)
        self.rows[self.at : self.at + first] = rows[:first]
        self.rows[: len(rows) - first] = rows[first:]
        self.at = (self.at + len(rows)) % size

    def means(self) -> dict[str, float | None]:
        """The mean of each metric over the steps of the window that had a target; None where none had."""
        unknown = np.isnan(self.rows[:, 0])
        known = self.rows[~unknown] if unknown.any() else self.rows
        means = known.mean(axis=0, dtype=float) if len(known) else [None] * len(self.names)
        return {name: None if mean is None else float(mean) for name, mean in zip(self.names, means, strict=True)}


@dataclass
class History:
    """What a stream has been like from its beginning.

    Attributes:
        window: The last steps.
        spacing: Steps between two points.
        points: The means of the window at evenly spaced steps.
        steps: Steps seen.
        labelled: Those with a target.
        sums: The sum of each metric over all of these.
    """

    window: Window
    spacing: int
    points: list[Record] = field(default_factory=list)
    steps: int = 0
    labelled: int = 0
    sums: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, names: Sequence[str], size: int, dtype: Any = float) -> "History":
        """An empty history of these metrics, with points at every tenth of the window."""
        return cls(Window(names, size, dtype), max(1, size // 10), sums=dict.fromkeys(names, 0.0))

    def add(self, rows: np.ndarray) -> None:
        """Takes the rows of some steps in."""
        unknown = np.isnan(rows[:, 0])
        known = rows[~unknown] if unknown.any() else rows
        self.labelled += len(known)
        for name, value in zip(self.window.names, known.sum(axis=0, dtype=float), strict=True):
            self.sums[name] += float(value)
        due = np.arange(self.spacing - self.steps % self.spacing, len(rows) + 1, self.spacing)
        if len(due):
            self._points(due, rows)
        self.window.add(rows)
        self.steps += len(rows)

    def _points(self, due: np.ndarray, rows: np.ndarray) -> None:
        """Notes the means of the window after some numbers of further rows, all by two running sums."""
        size = len(self.window.rows)
        both = np.concatenate([np.roll(self.window.rows, -self.window.at, axis=0), rows]).astype(float)
        known = ~np.isnan(both[:, 0])
        counts = np.concatenate([[0], np.cumsum(known)])
        sums = np.concatenate([np.zeros((1, both.shape[1])), np.cumsum(np.where(known[:, None], both, 0.0), axis=0)])
        for end in due.tolist():
            if (self.steps + end) % self.spacing:  # the spacing has grown on the way
                continue
            count = counts[end + size] - counts[end]
            means = ((sums[end + size] - sums[end]) / count).tolist() if count else [None] * both.shape[1]
            self.points.append({"step": self.steps + end, **dict(zip(self.window.names, means, strict=True))})
            if len(self.points) > MOST:
                self.spacing *= 2
                self.points = [point for point in self.points if point["step"] % self.spacing == 0]

    def means(self) -> dict[str, float | None]:
        """The mean of each metric over the whole stream."""
        return {name: value / self.labelled if self.labelled else None for name, value in self.sums.items()}

    def plain(self) -> dict[str, Any]:
        """All but the window, as plain values."""
        return {"spacing": self.spacing, "points": self.points, "labelled": self.labelled, "sums": self.sums}

    def restore(self, plain: dict[str, Any], window: np.ndarray, steps: int) -> None:
        """Takes over what `plain` gave, and the rows of a window."""
        self.spacing, self.points = int(plain["spacing"]), [dict(point) for point in plain["points"]]
        self.steps, self.labelled = steps, int(plain["labelled"])
        self.sums = {name: float(plain["sums"][name]) for name in self.window.names}
        self.window.rows[:], self.window.at = window, steps % len(self.window.rows)
