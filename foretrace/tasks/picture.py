"""The picture of a trial: the input above, by population; the target and the steps that count beneath.

Everything is ink on paper: spikes are black strokes, counted steps a grey ground, so nothing is lost without colour.
"""

import itertools
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np

from foretrace._look import GROUND, INK, RULE, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from foretrace.tasks.task import Span, Task, Trial

LINES = ("solid", "dashed", "dotted", "dashdot")
MOST_NAMES = 12
"""Up to how many classes the axis of the target names each."""
NARROWEST = 0.006
"""The least width of a run of counted steps, as a part of the axis."""


def draw_trial(task: "Task", trial: "Trial", path: str | os.PathLike[str] | None = None) -> "Figure":
    """Draws the first trial of a batch.

    Args:
        task: The task.
        trial: A batch of its trials.
        path: A file to write, whose ending says the format; None to write none.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: matplotlib is not installed.
    """
    inputs, targets, mask = (np.asarray(leaf)[:, 0] for leaf in jax.tree.leaves(trial))
    with figure("Drawing a trial", (8, 4.6), path) as drawn:
        above, beneath = drawn.subplots(2, 1, sharex=True, height_ratios=(3, 1.2))
        _draw_inputs(above, task, inputs)
        draw_phases(above, task.phases, _time(task, 1))
        _draw_target(beneath, task, targets, mask)
        beneath.set_xlabel("time (ms)" if task.timed else "step")
        beneath.set_xlim(0, _time(task, len(inputs)))
        drawn.suptitle(type(task).__name__)
    return drawn


def _time(task: "Task", step: float) -> float:
    return step * task.dt if task.timed else step


def _draw_inputs(axes: "Axes", task: "Task", inputs: np.ndarray) -> None:
    """Each population has a band of its own: strokes, squares or curves."""
    edges = np.array([_time(task, step) for step in range(len(inputs) + 1)])
    spans = task.populations
    if task.drawn_as == "spikes":
        steps, channels = np.nonzero(inputs)
        height = 0.9 * 72 * 2.6 / task.n_inputs  # points: an axis of about 2.6 inches, shared by all channels
        axes.scatter(edges[steps], channels + 0.5, s=max(height, 1.5) ** 2, marker="|", color=INK, linewidths=0.7)
        name_populations(axes, spans, task.n_inputs)
    elif task.drawn_as == "image":
        axes.pcolormesh(edges, np.arange(task.n_inputs + 1), inputs.T, cmap="Greys", vmin=0)
        name_populations(axes, spans, task.n_inputs)
    elif len(spans) > 1:
        for place, (_, start, stop) in enumerate(spans):
            curves = inputs[:, start:stop]
            low, high = curves.min(), curves.max()
            heights = (curves - low) / max(high - low, 1e-12)
            for curve in (place + 0.95 - 0.9 * heights).T:  # the axis points down
                axes.stairs(curve, edges, baseline=None, color=INK, linewidth=0.9)
        name_populations(axes, [(name, place, place + 1) for place, (name, _, _) in enumerate(spans)], len(spans))
    else:
        for channel, curve in enumerate(inputs.T):
            style = LINES[channel % len(LINES)]
            axes.stairs(curve, edges, baseline=None, color=INK, linestyle=style, linewidth=0.9)
        axes.set_ylabel(spans[0][0])


def name_populations(axes: "Axes", spans: "Sequence[Span]", total: int) -> None:
    """Names ranges of channels along an axis that points down, with a line between neighbours."""
    names = [name for name, _, _ in spans]
    places = [(start + stop) / 2 for _, start, stop in spans] if len(spans) > 1 else []
    axes.set_yticks(places, names[: len(places)], fontsize=9 if len(spans) <= 6 else 7)
    axes.tick_params(axis="y", length=0)
    for _, start, _ in spans[1:]:
        axes.axhline(start, color=RULE, linewidth=0.8)
    axes.set_ylim(total, 0)
    axes.set_ylabel("input" if len(spans) > 1 else names[0])


def draw_phases(axes: "Axes", phases: "Sequence[Span]", duration: float) -> None:
    """Names ranges of steps above an axis of time, given the duration of a step, with a line between neighbours."""
    for name, start, stop in phases:
        if start:
            axes.axvline(start * duration, color=RULE, linewidth=0.8, linestyle="dashed")
        middle = (start + stop) / 2 * duration
        axes.text(middle, 1.02, name, transform=axes.get_xaxis_transform(), ha="center", va="bottom", fontsize=8)


def _draw_target(axes: "Axes", task: "Task", targets: np.ndarray, mask: np.ndarray) -> None:
    edges = np.array([_time(task, step) for step in range(len(mask) + 1)])
    counted = mask > 0
    for place, (left, right, step) in enumerate(_runs(edges, counted, targets if targets.ndim == 1 else mask)):
        label = "steps that count" if place == 0 else None
        axes.axvspan(left, right, color=GROUND, linewidth=0, zorder=0, label=label)
        if targets.ndim == 1:
            axes.hlines(targets[step], left, right, color=INK, linewidth=2)
    if targets.ndim == 1:
        _name_classes(axes, task)
    elif task.kind == "classification":
        _draw_bits(axes, edges, (targets > 0) & counted[:, None])
    else:
        _draw_signals(axes, edges, targets, counted)
    axes.set_ylabel("target")
    if counted.any():
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.1, fontsize=8, frameon=False)


def _runs(edges: np.ndarray, counted: np.ndarray, values: np.ndarray) -> Iterator[tuple[float, float, int]]:
    """Where each run of counted steps of one value begins and ends, none too narrow to be seen; and its first step."""
    changes = np.flatnonzero((np.diff(counted.astype(int)) != 0) | (np.diff(values) != 0)) + 1
    bounds = [0, *changes.tolist(), len(counted)]
    for start, stop in itertools.pairwise(bounds):
        if counted[start]:
            yield min(edges[start], edges[stop] - NARROWEST * edges[-1]), edges[stop], start


def _draw_bits(axes: "Axes", edges: np.ndarray, bits: np.ndarray) -> None:
    shown = np.where(bits, 1.0, np.nan)  # what is not set leaves the ground free
    axes.pcolormesh(edges, np.arange(bits.shape[1] + 1), shown.T, cmap="Greys", vmin=0, vmax=1, zorder=2)
    axes.invert_yaxis()
    axes.set_yticks([])


def _draw_signals(axes: "Axes", edges: np.ndarray, targets: np.ndarray, counted: np.ndarray) -> None:
    for signal, curve in enumerate(targets.T):
        shown = np.where(counted, curve, np.nan)
        axes.stairs(shown, edges, baseline=None, color=INK, linewidth=2, linestyle=LINES[signal % len(LINES)])
        if not counted.all():
            axes.plot(edges[:-1], curve, color=INK, linewidth=0.8, linestyle="dotted")
    axes.set_ylim(min(-0.1, 1.1 * targets.min()), max(0.1, 1.1 * targets.max()))


def _name_classes(axes: "Axes", task: "Task") -> None:
    count = task.n_outputs
    axes.set_ylim(-0.5, count - 0.5)
    if count <= MOST_NAMES:
        axes.set_yticks(range(count), task.class_names, fontsize=8 if count <= 4 else 6)
