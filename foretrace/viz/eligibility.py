"""Eligibility traces over time: what each synapse remembers of its own past, ready to meet a learning signal."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from foretrace._checks import is_whole, require_list
from foretrace._look import PAPER, series
from foretrace.viz.canvas import PathLike, canvas, numbers, plain, times
from foretrace.viz.recording import record_traces

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Synapse = tuple[int, ...]
SHADES = (PAPER, "#7fa3bd", "#16213e")
"""From the lowest to the highest value, ever darker."""
MOST = 6
"""How many traces are drawn where none are named."""


def eligibility_traces(
    source: Any,
    xs: Any = None,
    *,
    params: Any = None,
    state: Any = None,
    weights: str | Sequence[str] | None = None,
    trial: int | None = None,
    synapses: int | Sequence[Synapse] = 3,
    dt: float | None = 1.0,
    path: PathLike | None = None,
    axes: "Axes | Sequence[Axes] | None" = None,
) -> "Figure":
    """Draws eligibility traces over time: those of a few synapses of a neuron as lines, all of that neuron as a map.

    Args:
        source: A learner from `foretrace.compile`, which is run over `xs`; or traces from `record_traces`.
        xs: Inputs, time first, for a learner.
        params: As for `record_traces`, and so the next three.
        state: The state to start from.
        weights: Names of the parameters to draw; None for all that have a trace, at most six.
        trial: Which element of the batch; None for the sum over all.
        synapses: How many lines, the strongest synapse and others of its neuron; or which, each by its index in the
            parameter. The map is of the neuron of the first.
        dt: Milliseconds per step; None to count steps.
        path: A file to write, whose ending says the format; None to write none.
        axes: Axes to draw in, two for each trace, lines and map; None for a figure of its own.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: matplotlib is not installed.
        TypeError: Neither a learner nor recorded traces.
        ValueError: No traces, an unknown parameter, or a synapse that is not there.

    Examples:
        >>> import numpy as np
        >>> decay = 0.9 ** np.arange(50)
        >>> figure = eligibility_traces({"w -> v": decay[:, None, None] * np.ones((50, 3, 2))}, synapses=[(0, 1)])
        >>> figure.axes[0].get_legend_handles_labels()[1]
        ['w[0, 1]']
    """
    if isinstance(source, Mapping):
        if xs is not None:
            raise TypeError("Recorded traces are drawn as they are: leave out `xs`.")
        traces = _of_weights(source, weights)
    elif xs is None:
        raise TypeError("A learner is run over inputs to have its traces drawn: give them as `xs`.")
    else:
        traces = record_traces(source, xs, params=params, state=state, weights=weights, trial=trial)
    shown = _checked(traces, everything=weights is not None)
    shape = (len(shown), 2)
    size = (8.4, 0.5 + 1.9 * len(shown))
    with canvas("Drawing eligibility traces", size, shape, path, axes, sharex=True) as (drawn, places):
        for place, (name, trace) in enumerate(shown.items()):
            at, label = times(len(trace), dt)
            chosen = _synapses(name, trace, synapses)
            _draw_lines(places[2 * place], name, trace, at, chosen)
            _draw_map(places[2 * place + 1], name, trace, dt or 1.0, chosen[0])
        for last in places[-2:]:
            last.set_xlabel(label)
    return drawn


def _of_weights(traces: Mapping[str, Any], weights: str | Sequence[str] | None) -> dict[str, Any]:
    if weights is None:
        return dict(traces)
    asked = [weights] if isinstance(weights, str) else list(weights)
    there = dict.fromkeys(name.partition(" -> ")[0] for name in traces)
    missing = [weight for weight in asked if weight not in there]
    if missing:
        raise ValueError(f"There is no trace of `{missing[0]}`, but of {', '.join(f'`{one}`' for one in there)}.")
    return {name: trace for name, trace in traces.items() if name.partition(" -> ")[0] in asked}


def _checked(traces: Mapping[str, Any], everything: bool) -> dict[str, np.ndarray]:
    if not traces:
        raise ValueError("There are no traces to draw.")
    found = {name: numbers(name, trace) for name, trace in traces.items()}
    lengths = sorted({len(trace) if trace.ndim else 0 for trace in found.values()})
    if len(lengths) > 1 or lengths[0] == 0:
        raise ValueError(
            f"The traces have {lengths} steps. Time is the first axis of each, and all have the same number."
        )
    return found if everything else dict(list(found.items())[:MOST])


def _synapses(name: str, trace: np.ndarray, asked: int | Sequence[Synapse]) -> list[Synapse]:
    shape = trace.shape[1:]
    if isinstance(asked, int):
        if asked < 1:
            raise ValueError(f"`synapses` is a number from 1 on, or a list of indices; got {asked}.")
        return _strongest(np.abs(trace).max(axis=0), asked)
    listed = require_list("synapses", asked, "a number of lines, or indices of synapses")
    chosen = [tuple(one) if isinstance(one, Sequence) else (one,) for one in listed]
    for one in chosen:
        if (
            not all(map(is_whole, one))
            or len(one) != len(shape)
            or not all(0 <= i < n for i, n in zip(one, shape, strict=True))
        ):
            raise ValueError(f"`synapses` names {one}, and `{name}` has synapses of shape {shape}.")
    if not chosen:
        raise ValueError("`synapses` is empty: name at least one, or give a number.")
    return chosen


def _strongest(strength: np.ndarray, count: int) -> list[Synapse]:
    """The strongest synapse, and the strongest others of its neuron: in `x @ w`, those of its column."""
    if not strength.ndim:
        return [()]
    _, *neuron = (int(i) for i in np.unravel_index(int(np.argmax(strength)), strength.shape))
    order = np.argsort(-_column(strength, neuron), kind="stable")[:count]
    return [(int(row), *neuron) for row in order]


def _column(values: np.ndarray, neuron: Sequence[int]) -> np.ndarray:
    """All synapses of a neuron, given by the last indices of a parameter; axes before them are kept."""
    chosen: Any = (..., slice(None), *neuron)
    return values[chosen]


def _draw_lines(axes: "Axes", name: str, trace: np.ndarray, at: np.ndarray, chosen: Sequence[Synapse]) -> None:
    weight, _, state = name.partition(" -> ")
    for place, synapse in enumerate(chosen):
        index: Any = (..., *synapse)
        axes.plot(at, trace[index], label=plain(_index(weight, synapse)), **series(place).line)
    axes.set_title(plain(f"{weight} → {state}" if state else weight), loc="left")
    axes.set_ylabel("eligibility")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), borderaxespad=0)


def _draw_map(axes: "Axes", name: str, trace: np.ndarray, dt: float, strongest: Synapse) -> None:
    """All synapses of the neuron that the first line belongs to; of a vector, all elements."""
    from matplotlib.colors import LinearSegmentedColormap

    weight = name.partition(" -> ")[0]
    if trace.ndim > 2:
        values = _column(trace, strongest[1:])
        label = f"{weight}[:, {', '.join(map(str, strongest[1:]))}]"
    else:
        values, label = trace.reshape(len(trace), -1), weight
    shades = LinearSegmentedColormap.from_list("eligibility", SHADES)
    extent = (0, len(values) * dt, values.shape[1] - 0.5, -0.5)
    ends: dict[str, Any] = dict(vmin=min(0, values.min()), vmax=max(0, values.max()))
    image = axes.imshow(values.T, cmap=shades, extent=extent, aspect="auto", interpolation="nearest", **ends)
    axes.set_ylabel(plain(label))
    axes.locator_params(axis="y", integer=True)
    axes.spines[:].set_visible(True)
    axes.figure.colorbar(image, ax=axes, label="eligibility", pad=0.02).outline.set_linewidth(0.7)


def _index(weight: str, synapse: Synapse) -> str:
    return f"{weight}[{', '.join(map(str, synapse))}]" if synapse else weight
