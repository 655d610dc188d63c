"""What a stream leaves: parameters, totals, and the history of its windowed metrics, in which drift is seen."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from foretrace import _html
from foretrace._look import figure, series
from foretrace._repr import listed, one_line
from foretrace.train.progress import described, number
from foretrace.train.streaming.learning import StreamState
from foretrace.train.streaming.window import Record

if TYPE_CHECKING:
    from os import PathLike

    from matplotlib.figure import Figure


class StreamStep(NamedTuple):
    """One step of a stream, as `on_step` gets it: predicted before it was learned from.

    Attributes:
        number: Its number, counted from 1 and on through resumptions.
        prediction: What the network said.
        target: The target; None where there is none.
        loss: The loss of the step; None where there is no target.
        metrics: The metrics of the step by name; empty where there is no target.
        spikes: The spikes of the step; None for a network without.
    """

    number: int
    prediction: Any
    target: Any
    loss: float | None
    metrics: dict[str, float]
    spikes: Any = None


@dataclass(frozen=True)
class StreamResult:
    """A stream that was learned from.

    Attributes:
        params: The parameters at the end; of a module, by path.
        steps: Steps in all, those before a resumption included.
        labelled: Steps that had a target.
        metrics: The means of loss and metrics over the last window.
        totals: Their means over the whole stream.
        history: The means over the window at evenly spaced steps, a bounded number of records.
        state: All that changed; see `StreamState`.
        stopped_because: `'ended'` (the source), `'limit'`, `'on_step'`, `'interrupted'`, `'failed'` or `'not finite'`.
        seconds: The time that it took, without what came before a resumption.
        window: Steps in a window.
        folder: Where checkpoints are; None for nowhere.
        label: The name of the rule.
    """

    params: Any
    steps: int
    labelled: int
    metrics: dict[str, float | None]
    totals: dict[str, float | None]
    history: list[Record]
    state: StreamState
    stopped_because: str
    seconds: float
    window: int
    folder: Path | None = None
    label: str = ""
    _began: int = field(default=0, repr=False)

    @one_line
    def __repr__(self) -> Iterator[str]:
        yield self.label
        yield f"{self.steps:,} steps"
        yield f"{self.labelled:,} with a target" if self.labelled != self.steps else ""
        yield listed(described(self.metrics))
        yield "" if self.stopped_because == "ended" else f"stopped: {self.stopped_because}"

    def _repr_html_(self) -> str:
        rows = [[_html.named(name), number(self.totals[name]), number(value)] for name, value in self.metrics.items()]
        header = ["metric", "whole stream", f"last {self.window:,} steps"]
        losses = self.column("loss")[1]
        curve = [_html.curve(losses, "windowed loss")] if len(losses) > 1 else []
        return _html.cell(repr(self), _html.table(header, rows, frozenset({1, 2})), *curve)

    @property
    def steps_per_second(self) -> float:
        """Steps in a second, waiting for the source and compilation included."""
        return (self.steps - self._began) / self.seconds if self.seconds else 0.0

    def column(self, name: str) -> tuple[list[int], list[float]]:
        """The steps of the history that have a metric, and its values."""
        found = [(record["step"], record[name]) for record in self.history if record.get(name) is not None]
        return [step for step, _ in found], [value for _, value in found]

    def plot(self, metrics: str | Sequence[str] | None = None, path: "str | PathLike[str] | None" = None) -> "Figure":
        """Draws windowed metrics against the steps: where the stream changes, the curve rises and comes down again.

        Args:
            metrics: Which of them, each in axes of its own; None for all.
            path: A file to write, whose ending says the format; None to write none.

        Returns:
            The matplotlib figure.

        Raises:
            ImportError: matplotlib is not installed.
            ValueError: There is no such metric, or nothing to draw yet.
        """
        names = list(self.metrics) if metrics is None else [metrics] if isinstance(metrics, str) else list(metrics)
        missing = [name for name in names if name not in self.metrics]
        if missing or not names:
            said = f"There is no metric `{missing[0]}`" if missing else "No metric was asked for"
            raise ValueError(f"{said}. There are {', '.join(f'`{name}`' for name in self.metrics)}.")
        if not any(self.column(name)[0] for name in names):
            raise ValueError(
                f"There is nothing to draw after {self.steps} steps: the first window has not filled a tenth."
            )
        with figure("Drawing a stream", (7.0, 1.0 + 1.7 * len(names)), path) as drawn:
            places = drawn.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0]
            for place, (axes, name) in enumerate(zip(places, names, strict=True)):
                axes.plot(*self.column(name), **series(place).line)
                axes.set(ylabel=name.replace("_", " "))
            places[-1].set(xlabel=f"step (means over the last {self.window:,} steps)")
        return drawn


class StreamError(RuntimeError):
    """The source of a stream failed, or gave an item that cannot be learned from.

    Args:
        message: What failed, and after how many steps.
        result: The stream so far.

    Attributes:
        result: The stream up to the item before.
    """

    def __init__(self, message: str, result: StreamResult) -> None:
        super().__init__(message)
        self.result = result
