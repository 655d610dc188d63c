"""The pictures that commands leave, made of those of `foretrace.viz`; none where matplotlib is missing."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FORMATS = (".svg", ".png")


def draw_curves(runs: Mapping[str, Sequence[Mapping[str, Any]]], goal: Any, stem: Path) -> list[Path]:
    """Draws the loss, and the metric of a goal, of one run or several.

    Args:
        runs: The metrics of each, by name.
        goal: The goal to draw a line at; None for none.
        stem: The file to write, without its ending.

    Returns:
        The files written.
    """
    from foretrace.viz import learning_curves

    return _written(lambda path: learning_curves(runs, **_shown(runs, goal), path=path), stem)


def _shown(runs: Mapping[str, Sequence[Mapping[str, Any]]], goal: Any) -> dict[str, Any]:
    """Options of `learning_curves`: two metrics, the goal where it is one of them, and a mean where runs are long."""
    there = {name for run in runs.values() for record in run for name in record}
    measures = [goal[0]] if goal is not None else ["error", "nmse", "mse"]
    metrics = ["loss", *(name for name in measures if name in there and name != "loss")][:2]
    longest = max(map(len, runs.values()))
    return {
        "metrics": metrics,
        "goal": goal if goal is not None and goal[0] in metrics else None,
        "smooth": longest // 20 if longest >= 60 else None,
    }


def _written(draw: Any, stem: Path) -> list[Path]:
    files = [stem.with_name(stem.name + ending) for ending in FORMATS]
    try:
        for file in files:
            _replace(draw, file)
    except ImportError as error:
        print(f"no picture: {error}", file=sys.stderr)
        return []
    return files


def _replace(draw: Any, file: Path) -> None:
    """Draws beside a file and moves it there: half a picture is none, and a link is replaced, not followed."""
    beside = file.with_name(f".{file.stem}.{os.getpid()}.part{file.suffix}")
    try:
        beside.unlink(missing_ok=True)
        draw(beside)
        os.replace(beside, file)
    finally:
        beside.unlink(missing_ok=True)


def draw_comparison(comparison: Any, stem: Path) -> list[Path]:
    """Draws learning curves, the cosine of each layer's gradient to BPTT, and the time and memory of a gradient.

    Args:
        comparison: A `foretrace.cli.comparison.Comparison`.
        stem: The file to write, without its ending.

    Returns:
        The files written.
    """
    return _written(lambda path: _comparison_figure(comparison, path), stem)


def _comparison_figure(comparison: Any, path: Path) -> None:
    from foretrace._look import figure

    trained = {row.rule.label: row.metrics for row in comparison.rows if row.metrics}
    rows = 2 if trained else 1
    with figure("Drawing a comparison", (9.2, 3.1 * rows), path) as drawn:
        places = drawn.subplots(rows, 1)
        upper, lower = (places[0], places[1]) if trained else (None, places)
        spec = lower.get_subplotspec()
        lower.remove()
        left, middle, right = spec.subgridspec(1, 3, width_ratios=(2.2, 1, 1)).subplots()
        _draw_cosines(left, comparison)
        labels = [row.rule.label for row in comparison.rows]
        _draw_bars(middle, labels, [1000 * row.gradient_seconds for row in comparison.rows], "time of a gradient (ms)")
        sizes = [(row.gradient_bytes or 0) / 1e6 for row in comparison.rows]
        _draw_bars(right, labels, sizes, "memory of a gradient (MB)")
        if trained:
            _draw_runs(upper, trained, comparison.experiment.task.goal)


def _draw_runs(axes: Any, runs: Mapping[str, Any], goal: Any) -> None:
    from foretrace.viz import learning_curves

    options, spec = _shown(runs, goal), axes.get_subplotspec()
    axes.remove()
    places = spec.subgridspec(1, len(options["metrics"])).subplots(squeeze=False)[0]
    learning_curves(runs, **options, axes=list(places))


def _draw_cosines(axes: Any, comparison: Any) -> None:
    """Bars in groups: a group for each layer, a bar for each rule."""
    from foretrace._look import INK, SMALL, series
    from foretrace.viz.canvas import plain

    layers, rows = [*comparison.layers, "overall"], comparison.rows
    width = 0.8 / max(1, len(rows))
    for place, row in enumerate(rows):
        look, values = series(place), [comparison.cosine(row, "before", layer) for layer in layers]
        at = [k - 0.4 + (place + 0.5) * width for k in range(len(layers))]
        shown = [value or 0.0 for value in values]
        axes.bar(
            at, shown, width, facecolor=look.color, edgecolor="white", hatch=look.hatch, label=plain(row.rule.label)
        )
    axes.axhline(1, color=INK, linewidth=0.7, linestyle=(0, (2, 2)))
    axes.axhline(0, color=INK, linewidth=0.7)
    axes.set_xticks(range(len(layers)), layers)
    axes.set(title="cosine of the gradient to BPTT, before training")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=min(4, len(rows)), fontsize=SMALL)


def _draw_bars(axes: Any, labels: Sequence[str], values: Sequence[float], title: str) -> None:
    from foretrace._look import SMALL, series
    from foretrace.viz.canvas import plain

    for place, value in enumerate(values):
        look = series(place)
        axes.barh(place, value, 0.7, facecolor=look.color, edgecolor="white", hatch=look.hatch)
        axes.text(value, place, f" {value:,.3g}", va="center", fontsize=SMALL)
    axes.set_yticks(range(len(labels)), [plain(label) for label in labels])
    axes.invert_yaxis()
    axes.margins(x=0.3)
    axes.set(title=title)
