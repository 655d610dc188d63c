"""The picture of the demonstration: how two kinds of training went, and what the trained neurons do."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from foretrace._look import GROUND, INK, figure, series
from foretrace.cli.network import CUE, NEURONS, RECALL, STEPS, Params, make_sequences, record_spikes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(path: Path, curves: Mapping[str, Sequence[float]], params: Params) -> None:
    """Draws learning curves, and the spikes of a trained network for each cue.

    Args:
        path: The file to write.
        curves: For each kind of training, the loss at every update.
        params: The trained parameters.

    Raises:
        ImportError: matplotlib is not installed.
    """
    with figure("The demonstration's picture", (11, 3.6), path) as drawn:
        learning, *rasters = drawn.subplots(1, 3, width_ratios=(1.1, 1, 1))
        _draw_curves(learning, curves)
        spikes, cues = _recorded(params)
        for cue, axes in enumerate(rasters):
            _draw_raster(axes, spikes[:, int(np.argmax(cues == cue))], f"trained online, cue {cue + 1}")


def _draw_curves(axes: "Axes", curves: Mapping[str, Sequence[float]]) -> None:
    for place, (name, losses) in enumerate(curves.items()):
        axes.plot(np.arange(1, len(losses) + 1), losses, label=name, **series(place).line)
    axes.set(xlabel="update", ylabel="loss at recall", title="learning", ylim=(0, None))
    axes.legend()


def _draw_raster(axes: "Axes", spikes: Any, title: str) -> None:
    times, neurons = np.nonzero(np.asarray(spikes))
    for start, length, name in ((0, CUE, "cue"), (STEPS - RECALL, RECALL, "recall")):
        axes.axvspan(start, start + length, color=GROUND, alpha=0.5, linewidth=0)
        axes.text(start + length / 2, NEURONS * 1.01, name, ha="center", va="bottom", fontsize=8)
    axes.scatter(times, neurons, s=3, marker="|", color=INK, linewidths=0.8)
    axes.set(xlabel="step", ylabel="neuron", xlim=(0, STEPS), ylim=(0, NEURONS))
    axes.set_title(title, pad=16)


def _recorded(params: Params) -> tuple[np.ndarray, np.ndarray]:
    data = make_sequences(jax.random.key(3), 16)
    return np.asarray(jax.jit(record_spikes)(params, data.inputs)), np.asarray(data.targets[0])
