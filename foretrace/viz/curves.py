"""Learning curves: how metrics go from iteration to iteration, run beside run."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foretrace._checks import require_list
from foretrace._look import INK, PAPER, SMALL, series
from foretrace.train.folder import METRICS, Record
from foretrace.train.result import VALIDATION, Result
from foretrace.viz.canvas import PathLike, canvas, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Run = Result | Sequence[Mapping[str, Any]] | PathLike
Goal = tuple[str, str, float]

UNITS = {"rate": "Hz", "seconds": "s per iteration", "accuracy": "fraction of trials", "error": "fraction of trials"}
DEFAULT = ("loss", "error")
PALE = 0.3


def learning_curves(
    runs: Mapping[str, Run],
    metrics: str | Sequence[str] | None = None,
    *,
    goal: Goal | Sequence[Goal] | None = None,
    smooth: int | None = None,
    path: PathLike | None = None,
    axes: "Axes | Sequence[Axes] | None" = None,
) -> "Figure":
    """Draws metrics against the iteration, a line for each run; a validation is an open marker.

    Args:
        runs: For each name, the `Result` of `foretrace.train.fit`, the records of its metrics, the file
            `metrics.jsonl`, or the folder where that file is.
        metrics: What is drawn, each in axes of its own; None for the loss and, where there is one, the error.
        goal: A metric, a comparison and a value, as `task.goal`, or several of them: drawn as a line across.
        smooth: A number of iterations: their mean is drawn beside the single values, which are pale then.
        path: A file to write, whose ending says the format; None to write none.
        axes: Axes to draw in, one for each metric; None for a figure of its own.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: No runs, a run without records, a metric that no run has, or a goal that is none.

    Examples:
        >>> records = [{"iteration": k, "loss": 1 / k, "error": 0.5 / k} for k in range(1, 30)]
        >>> figure = learning_curves({"D_RTRL": records}, goal=("error", "<", 0.07))
        >>> [axes.get_ylabel() for axes in figure.axes]
        ['loss', 'error (fraction of trials)']
    """
    if not isinstance(runs, Mapping) or not runs:
        raise ValueError(f"`runs` is a dict from names to runs, with at least one; got {runs!r}.")
    if smooth is not None and (not isinstance(smooth, int) or isinstance(smooth, bool) or smooth < 1):
        raise ValueError(f"`smooth` is a number of iterations from 1 on, or None; got {smooth!r}.")
    records = {name: _records(name, run) for name, run in runs.items()}
    names = _metrics(records, metrics)
    goals = _goals(goal)
    size = (0.6 + 3.6 * len(names), 3.0)
    with canvas("Drawing learning curves", size, (1, len(names)), path, axes) as (drawn, places):
        for place, name in zip(places, names, strict=True):
            _draw_metric(place, name, records, smooth)
            _draw_goals(place, [one for one in goals if one[0] == name])
        _legend(places[0], records, names, smooth)
    return drawn


def _records(name: str, run: Run) -> list[Record]:
    if isinstance(run, str | Path) or hasattr(run, "__fspath__"):
        found: Any = _read(Path(run))
    else:
        found = run.metrics if isinstance(run, Result) else run
    if not isinstance(found, Sequence) or not all(isinstance(record, Mapping) for record in found):
        raise ValueError(
            f"The run `{name}` is a {type(run).__name__}. Give the result of `fit`, a list of records (dicts of "
            f"metrics), or the path of a `{METRICS}`."
        )
    if not found:
        raise ValueError(f"The run `{name}` has no records: it has not done an iteration yet.")
    return [dict(record) for record in found]


def _read(path: Path) -> list[Record]:
    file = path / METRICS if path.is_dir() else path
    if not file.is_file():
        raise ValueError(f"There is no file of metrics at `{file}`.")
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    records = []
    for place, line in enumerate(lines):
        try:
            records.append(json.loads(line))
        except ValueError as error:
            if place == len(lines) - 1:  # of a run that is being written
                break
            raise ValueError(f"Line {place + 1} of `{file}` is not JSON: {error}.") from error
    return records


def _metrics(records: Mapping[str, list[Record]], asked: str | Sequence[str] | None) -> list[str]:
    """The metrics to draw, each of which some run has."""
    there = dict.fromkeys(
        key.removeprefix(VALIDATION)
        for run in records.values()
        for record in run
        for key, value in record.items()
        if value is not None and key != "iteration"
    )
    names = [asked] if isinstance(asked, str) else list(DEFAULT)
    if asked is not None and not isinstance(asked, str):
        names = list(map(str, require_list("metrics", asked, "names of metrics")))
    if asked is None:
        names = [name for name in names if name in there] or list(there)[:1]
    missing = [name for name in names if name not in there]
    if missing or not names:
        said = f"No run has the metric `{missing[0]}`" if missing else "No metrics were asked for"
        raise ValueError(f"{said}. There are {', '.join(f'`{name}`' for name in there) or 'none'}.")
    return names


def _goals(goal: Any) -> list[Goal]:
    if goal is None:
        return []
    is_one = isinstance(goal, tuple) and goal and isinstance(goal[0], str)
    goals = [goal] if is_one else require_list("goal", goal, "goals such as ('error', '<', 0.07)")
    for one in goals:
        if not isinstance(one, tuple) or len(one) != 3 or not isinstance(one[2], int | float):
            raise ValueError(f"A goal is a metric, a comparison and a value, ('error', '<', 0.07); got {one!r}.")
    return goals


def _column(records: Sequence[Record], name: str) -> tuple[np.ndarray, np.ndarray]:
    found = [
        (record.get("iteration", place + 1), record[name])
        for place, record in enumerate(records)
        if record.get(name) is not None
    ]
    return np.array([at for at, _ in found]), np.array([value for _, value in found], float)


def _draw_metric(axes: "Axes", name: str, records: Mapping[str, list[Record]], smooth: int | None) -> None:
    for place, (run, own) in enumerate(records.items()):
        look = series(place)
        at, values = _column(own, name)
        if len(at):
            if smooth is not None:
                axes.plot(at, values, color=look.color, linewidth=0.8, alpha=PALE, label="_raw")
            axes.plot(at, values if smooth is None else _smoothed(values, smooth), label=plain(run), **look.line)
        at, values = _column(own, VALIDATION + name)
        if len(at):
            options: dict[str, Any] = dict(
                markerfacecolor=PAPER, markeredgecolor=look.color, label=f"_validation of {run}"
            )
            axes.plot(at, values, linestyle="none", marker=look.marker, zorder=3, **options)
    unit = UNITS.get(name)
    axes.set(xlabel="iteration", ylabel=plain(name.replace("_", " ")) + (f" ({unit})" if unit else ""))


def _smoothed(values: np.ndarray, width: int) -> np.ndarray:
    """The mean over a window around each value; at the ends, over the part of it that there is."""
    window = np.ones(min(width, len(values)))
    return np.convolve(values, window, "same") / np.convolve(np.ones(len(values)), window, "same")


def _draw_goals(axes: "Axes", goals: Sequence[Goal]) -> None:
    for _, comparison, value in goals:
        axes.axhline(value, color=INK, linewidth=0.8, linestyle=(0, (2, 2)), label="_goal")
        words, where = f"goal\n{comparison} {value:g}", axes.get_yaxis_transform()
        axes.text(1.01, value, words, transform=where, va="center", fontsize=SMALL)


def _legend(axes: "Axes", records: Mapping[str, list[Record]], names: Sequence[str], smooth: int | None) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=plain(run), **series(place).line) for place, run in enumerate(records)]
    if any(len(_column(own, VALIDATION + name)[0]) for own in records.values() for name in names):
        look: dict[str, Any] = dict(markerfacecolor=PAPER, markeredgecolor=INK, label="open marker: validation")
        handles.append(Line2D([], [], linestyle="none", marker="o", **look))
    if smooth is not None:
        handles.append(Line2D([], [], color=INK, alpha=PALE, linewidth=0.8, label=f"pale: before the mean of {smooth}"))
    axes.legend(handles=handles)
