"""The picture of the demonstration: how two kinds of training went, and what the trained neurons do."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from foretrace.cli.network import CUE, NEURONS, RECALL, STEPS, Params, make_sequences, record_spikes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = ("#00664d", "#a86400")
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "foretrace", "font.size": 9}  # text stays text in an SVG


def draw(path: Path, curves: Mapping[str, Sequence[float]], params: Params) -> None:
    """Draws learning curves, and the spikes of a trained network for each cue.

    Args:
        path: The file to write.
        curves: For each kind of training, the loss at every update.
        params: The trained parameters.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 3.6), layout="constrained")
        learning, *rasters = figure.subplots(1, 3, width_ratios=(1.1, 1, 1))
        _draw_curves(learning, curves)
        spikes, cues = _recorded(params)
        for cue, axes in enumerate(rasters):
            _draw_raster(axes, spikes[:, int(np.argmax(cues == cue))], f"trained online, cue {cue + 1}")
        figure.savefig(path, metadata={"Date": None})


def _draw_curves(axes: "Axes", curves: Mapping[str, Sequence[float]]) -> None:
    for (name, losses), color, dashes in zip(curves.items(), COLORS, ("solid", "dashed"), strict=True):
        axes.plot(np.arange(1, len(losses) + 1), losses, color=color, linestyle=dashes, label=name)
    axes.set(xlabel="update", ylabel="loss at recall", title="learning", ylim=(0, None))
    axes.legend(frameon=False)


def _draw_raster(axes: "Axes", spikes: Any, title: str) -> None:
    times, neurons = np.nonzero(np.asarray(spikes))
    for start, length, name in ((0, CUE, "cue"), (STEPS - RECALL, RECALL, "recall")):
        axes.axvspan(start, start + length, color="#eeeeee", linewidth=0)
        axes.text(start + length / 2, NEURONS * 1.01, name, ha="center", va="bottom", fontsize=8)
    axes.scatter(times, neurons, s=3, marker="|", color="#222222", linewidths=0.8)
    axes.set(xlabel="step", ylabel="neuron", xlim=(0, STEPS), ylim=(0, NEURONS))
    axes.set_title(title, pad=16)


def _recorded(params: Params) -> tuple[np.ndarray, np.ndarray]:
    data = make_sequences(jax.random.key(3), 16)
    return np.asarray(jax.jit(record_spikes)(params, data.inputs)), np.asarray(data.targets[0])
