"""What a run leaves: parameters at the end and at their best, metrics of every iteration, and why it stopped."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import Any

from foretrace import _html
from foretrace._repr import counted, listed, one_line
from foretrace.compiler.reporting.tables import table
from foretrace.errors import NonFiniteError
from foretrace.train.best import Best
from foretrace.train.folder import Record
from foretrace.train.iteration import TrainState
from foretrace.train.progress import VALIDATION, described, number

MOST_POINTS = 300
"""Of the curve in a notebook, about."""


@dataclass(frozen=True)
class Result:
    """A finished run.

    Attributes:
        params: The parameters at the end; of a module, by path.
        metrics: One record for each iteration.
        state: All that changed in the run; see `TrainState`.
        stopped_because: `'iterations'`, `'data'` (no batch was left), `'goal'`, `'patience'`, `'interrupted'` or
            `'not finite'`.
        folder: Where checkpoints and metrics are; None for nowhere.
        best: The network at the validation with the lowest loss; None where nothing was validated.
        label: The names of the task and the rule.
    """

    params: Any
    metrics: list[Record]
    state: TrainState
    stopped_because: str
    folder: Path | None = None
    best: Best | None = None
    label: str = ""

    @one_line
    def __repr__(self) -> Iterator[str]:
        yield self.label
        yield counted(len(self.metrics), "iteration")
        yield listed(described(self.metrics[-1]) if self.metrics else [])
        yield "" if self.stopped_because == "iterations" else f"stopped: {self.stopped_because}"

    def _repr_html_(self) -> str:
        last = [
            [_html.named(name), number(value)] for name, value in (self.metrics[-1] if self.metrics else {}).items()
        ]
        parts = [_html.table(["metric", "last"], last, frozenset({1}))] if last else []
        losses = [value for value in self.column("loss")[1] if math.isfinite(value)]
        if len(losses) > 1:
            said = f"loss, from {number(losses[0])} to {number(losses[-1])}"
            thinned = losses[:: max(1, len(losses) // MOST_POINTS)]
            parts += [f'<p class="soft">{said}</p>', _html.curve(thinned, said)]
        return _html.cell(repr(self), *parts)

    @property
    def iterations(self) -> int:
        """Iterations done, those before a resumption included."""
        return int(self.state.iteration)

    @property
    def seconds(self) -> float:
        """The time that all iterations took, compilation and validation included."""
        return float(sum(record.get("seconds") or 0.0 for record in self.metrics))

    @property
    def validation(self) -> dict[str, Any] | None:
        """The metrics of the last validation; None where there was none."""
        found = [validation_of(record) for record in reversed(self.metrics)]
        return next((metrics for metrics in found if metrics), None)

    def column(self, name: str) -> tuple[list[int], list[float]]:
        """The iterations that have a metric, and its values, to be drawn for instance."""
        found = [(record["iteration"], record[name]) for record in self.metrics if record.get(name) is not None]
        return [iteration for iteration, _ in found], [value for _, value in found]

    def table(self, rows: int = 20, columns: Sequence[str] | None = None) -> str:
        """The metrics as a table of plain text.

        Args:
            rows: About how many iterations are shown, evenly spread; the last one always, and those with a validation.
            columns: The metrics to show; None for all.
        """
        if not self.metrics:
            return "no iterations"
        every = max(1, len(self.metrics) // max(1, rows))
        last = len(self.metrics) - 1
        shown = [r for k, r in enumerate(self.metrics) if k % every == 0 or k == last or validation_of(r)]
        names = list(columns or dict.fromkeys(name for record in shown for name in record))
        cells = [[number(record.get(name)) for name in names] for record in shown]
        return "\n".join(table(names, cells, [max(12, len(name)) for name in names], width=400))


class DivergedError(NonFiniteError):
    """The loss, the gradient or a parameter is no longer finite.

    Args:
        message: What is not finite, and what may help.
        result: The run so far.

    Attributes:
        result: The run up to the last iteration in which everything was finite; of a stream, a `StreamResult`.
    """

    def __init__(self, message: str, result: Any) -> None:
        super().__init__(message)
        self.result = result


class Terminated(SystemExit):
    """The process was told to end, by SIGTERM or SIGHUP, and the run was saved first.

    It ends the program with the exit code that is usual then, 128 and the number of the signal.

    Args:
        signal: The signal.
        result: The run so far.

    Attributes:
        result: The run up to the last iteration that was done; of a stream, a `StreamResult`.
        signal: The signal.
    """

    def __init__(self, signal: Signals, result: Any) -> None:
        super().__init__(128 + signal)
        self.signal, self.result = signal, result


def validation_of(record: Record) -> dict[str, Any] | None:
    """The metrics of the validation in a record, if it has one."""
    found = {name.removeprefix(VALIDATION): v for name, v in record.items() if name.startswith(VALIDATION)}
    return found or None
