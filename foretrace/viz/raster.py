"""What spiking neurons do in a trial: a raster of spikes, and beneath it potentials, thresholds and outputs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from foretrace._checks import is_number, require_list
from foretrace._look import GROUND, INK, series
from foretrace.tasks.picture import draw_phases, name_populations
from foretrace.viz.canvas import PathLike, canvas, numbers, of_trial, times, unit_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from foretrace.tasks.task import Span

MOST_DRAWN = 3
"""How many neurons have their potential drawn where none are named."""
MOST_STROKES = 4000
"""Beyond this many spikes, strokes are kept as dots in an SVG, which would grow large."""


def spike_raster(
    spikes: Any,
    membranes: Any = None,
    *,
    trial: int | None = None,
    dt: float | None = 1.0,
    populations: "Sequence[Span] | None" = None,
    phases: "Sequence[Span] | None" = None,
    neurons: Sequence[int] | None = None,
    thresholds: Any = None,
    outputs: Any = None,
    targets: Any = None,
    path: PathLike | None = None,
    axes: "Axes | Sequence[Axes] | None" = None,
) -> "Figure":
    """Draws the spikes of a trial, and where given the potentials of a few neurons, and outputs beside their targets.

    Args:
        spikes: Steps and neurons (T, N), or with trials (T, B, N); what is not zero is a spike.
        membranes: Potentials of the same shape.
        trial: Which trial, for arrays with an axis of trials.
        dt: Milliseconds per step; None to count steps.
        populations: Names of ranges of neurons, `(name, start, stop)`.
        phases: Names of ranges of steps, likewise, as `task.phases`.
        neurons: Whose potential is drawn; None for the three that spike most.
        thresholds: A number, one for each neuron (N,), or one for each step too, of the shape of the spikes.
        outputs: The network's outputs, (T, K) or (T, B, K).
        targets: What they should be, of the same shape.
        path: A file to write, whose ending says the format; None to write none.
        axes: Axes to draw in, for the raster, each potential, and outputs; None for a figure of its own.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: Arrays whose shapes do not fit, or an unknown neuron or trial.

    Examples:
        >>> import numpy as np
        >>> spikes = np.random.default_rng(0).random((200, 20)) < 0.05
        >>> figure = spike_raster(spikes, populations=[("LIF", 0, 10), ("ALIF", 10, 20)])
        >>> figure.axes[0].get_xlabel()
        'time (ms)'
    """
    fired = of_trial("spikes", spikes, trial) != 0
    at, label = times(len(fired), dt)
    potentials = _potentials(fired, membranes, thresholds, neurons, trial)
    read = _outputs(len(fired), outputs, targets, trial)
    heights = [2.2, *[0.7] * len(potentials), *([1.1] if read else [])]
    options = dict(sharex=True, height_ratios=heights)
    with canvas("Drawing spikes", (7.2, 0.7 + sum(heights)), (len(heights), 1), path, axes, **options) as (
        drawn,
        places,
    ):
        _draw_spikes(places[0], fired, at, populations)
        draw_phases(places[0], _checked_spans("phases", () if phases is None else phases, len(fired)), dt or 1.0)
        for place, potential in zip(places[1:], potentials, strict=False):
            _draw_potential(place, potential, at)
        if potentials and potentials[0].threshold is not None:
            _legend(places[1])
        if read:
            _draw_outputs(places[-1], read, at)
        for place in places:
            place.set_xlim(0, len(fired) * (dt or 1.0))
        places[-1].set_xlabel(label)
    return drawn


@dataclass(frozen=True)
class _Potential:
    """One neuron: its potential, its threshold if known, and the steps at which it fired."""

    neuron: int
    values: np.ndarray
    threshold: np.ndarray | None
    fired: np.ndarray
    unit: str


def _potentials(
    fired: np.ndarray, membranes: Any, thresholds: Any, neurons: Sequence[int] | None, trial: int | None
) -> list[_Potential]:
    if membranes is None:
        given = [name for name, value in (("neurons", neurons), ("thresholds", thresholds)) if value is not None]
        if given:
            raise ValueError(f"`{given[0]}` concerns the potentials: give them as `membranes`.")
        return []
    values = of_trial("membranes", membranes, trial)
    if values.shape != fired.shape:
        raise ValueError(f"`membranes` are (T, N) = {values.shape}, and `spikes` {fired.shape}: they must agree.")
    levels = None if thresholds is None else _thresholds(thresholds, fired.shape, trial)
    chosen = np.argsort(-fired.sum(0), kind="stable")[:MOST_DRAWN] if neurons is None else neurons
    found = []
    for neuron in map(int, chosen):
        if not 0 <= neuron < fired.shape[1]:
            raise ValueError(f"`neurons` names {neuron}; there are {fired.shape[1]}, from 0 on.")
        level = None if levels is None else levels[:, neuron]
        found.append(_Potential(neuron, values[:, neuron], level, fired[:, neuron], unit_of(membranes)))
    return found


def _thresholds(thresholds: Any, shape: tuple[int, int], trial: int | None) -> np.ndarray:
    levels = numbers("thresholds", thresholds)
    if levels.ndim > 1:
        levels = of_trial("thresholds", thresholds, trial if levels.ndim == 3 else None)
    try:
        return np.broadcast_to(levels, shape)
    except ValueError as error:
        raise ValueError(
            f"`thresholds` has shape {levels.shape}; give a number, one for each of {shape[1]} neurons, or (T, N) = "
            f"{shape}."
        ) from error


def _outputs(steps: int, outputs: Any, targets: Any, trial: int | None) -> dict[str, np.ndarray]:
    found = {
        name: of_trial(name, values, trial)
        for name, values in (("outputs", outputs), ("targets", targets))
        if values is not None
    }
    for name, values in found.items():
        if len(values) != steps:
            raise ValueError(f"`{name}` has {len(values)} steps, and `spikes` {steps}: they must agree.")
    if len(found) == 2 and found["outputs"].shape != found["targets"].shape:
        shapes = found["outputs"].shape, found["targets"].shape
        raise ValueError(f"`outputs` and `targets` have shapes {shapes[0]} and {shapes[1]}: they must agree.")
    return found


def _draw_spikes(axes: "Axes", fired: np.ndarray, at: np.ndarray, populations: "Sequence[Span] | None") -> None:
    steps, neurons = np.nonzero(fired)
    many = len(steps) > MOST_STROKES
    total, middle = fired.shape[1], neurons + (0 if populations is None else 0.5)  # populations are ranges of an axis
    axes.vlines(at[steps], middle - 0.42, middle + 0.42, color=INK, linewidth=0.7, rasterized=many)
    if populations is not None:
        name_populations(axes, _checked_spans("populations", populations, total), total)
        axes.set_ylabel("neurons")
    else:
        axes.set(ylim=(total - 0.5, -0.5), ylabel="neuron")
        axes.locator_params(axis="y", integer=True)


def _checked_spans(name: str, spans: "Sequence[Span]", total: int) -> "list[Span]":
    for span in require_list(name, spans, "ranges (name, start, stop)"):
        is_span = isinstance(span, tuple | list) and len(span) == 3 and all(map(is_number, span[1:]))
        if not is_span or not 0 <= span[1] < span[2] <= total:
            raise ValueError(f"`{name}` has {span!r}; give (name, start, stop) within 0 to {total}.")
    return list(spans)


def _draw_potential(axes: "Axes", potential: _Potential, at: np.ndarray) -> None:
    axes.plot(at, potential.values, color=INK, linewidth=0.8, label="potential")
    if potential.threshold is not None:
        look = series(1)
        axes.plot(at, potential.threshold, linewidth=1.0, label="threshold", **look.line)
    spikes = at[potential.fired]
    if len(spikes):  # a line without points that is not clipped has no extent, and the layout collapses
        above: dict[str, Any] = dict(transform=axes.get_xaxis_transform(), clip_on=False, label="_spikes")
        axes.plot(spikes, np.full(len(spikes), 1.02), "|", color=INK, **above)
    axes.set_ylabel(f"neuron {potential.neuron}{potential.unit}", rotation=0, ha="right", va="center")


def _draw_outputs(axes: "Axes", read: dict[str, np.ndarray], at: np.ndarray) -> None:
    count = next(iter(read.values())).shape[1]
    for channel in range(count):
        number = "" if count == 1 else f" {channel + 1}"
        look = series(channel)
        if "targets" in read:
            label = f"target{number}"
            axes.plot(
                at, read["targets"][:, channel], color=GROUND, linewidth=4.5, linestyle=look.linestyle, label=label
            )
        if "outputs" in read:
            axes.plot(at, read["outputs"][:, channel], label=f"output{number}", **look.line)
    axes.set_ylabel("output" if "outputs" in read else "target")
    _legend(axes)


def _legend(axes: "Axes") -> None:
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), borderaxespad=0)
