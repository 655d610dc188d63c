"""Memory against the length of the sequence: flat for an online rule, a rising line for BPTT."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from foretrace._checks import is_number, is_whole
from foretrace._look import PAPER, series
from foretrace.viz.canvas import PathLike, canvas, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


def memory_against_length(
    table: Mapping[str, Mapping[int, float | None]],
    *,
    path: PathLike | None = None,
    axes: "Axes | Sequence[Axes] | None" = None,
) -> "Figure":
    """Draws memory against the number of steps, a line for each rule, both axes logarithmic.

    Args:
        table: For each rule, the bytes at each number of steps; None where nothing was measured.
        path: A file to write, whose ending says the format; None to write none.
        axes: Axes to draw in; None for a figure of its own.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: An empty table, a rule without a figure, or one that is not above zero.

    Examples:
        >>> table = {"D_RTRL": {100: 15.4e6, 1_000: 15.4e6}, "BPTT": {100: 8.4e6, 1_000: 74e6}}
        >>> memory_against_length(table).axes[0].get_ylabel()
        'memory (MB)'
    """
    curves = _checked(table)
    lowest = min(float(values.min()) for _, values in curves.values())
    scale, unit = next((size for size in SIZES if lowest >= size[0]), SIZES[-1])
    with canvas("Drawing memory against length", (4.6, 3.2), (1, 1), path, axes) as (drawn, (place,)):
        for number, (rule, (steps, values)) in enumerate(curves.items()):
            look = series(number)
            marks: dict[str, Any] = dict(marker=look.marker, markerfacecolor=PAPER, markeredgecolor=look.color)
            place.plot(steps, values / scale, label=plain(rule), **look.line, **marks)
        _logarithmic(place)
        place.set(xlabel="length of the sequence (steps)", ylabel=f"memory ({unit})")
        place.legend()
    return drawn


def _checked(table: Mapping[str, Mapping[int, float | None]]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    if not isinstance(table, Mapping) or not table:
        raise ValueError(f"`table` is a dict from rules to bytes by number of steps, with at least one; got {table!r}.")
    curves = {}
    for rule, by_length in table.items():
        if not isinstance(by_length, Mapping):
            raise ValueError(f"The memory of `{rule}` is a dict from numbers of steps to bytes; got {by_length!r}.")
        for steps, size in by_length.items():
            if not is_whole(steps) or not (size is None or is_number(size)):
                raise TypeError(f"`{rule}` has {size!r} bytes at {steps!r} steps; give two plain numbers.")
        found = sorted((steps, size) for steps, size in by_length.items() if size is not None)
        if not found:
            raise ValueError(f"`{rule}` has no memory at any length: leave it out, or measure it.")
        wrong = [(steps, size) for steps, size in found if not (steps > 0 and size > 0)]
        if wrong:
            raise ValueError(f"`{rule}` has {wrong[0][1]!r} bytes at {wrong[0][0]!r} steps; both must be above 0.")
        curves[rule] = (np.array([steps for steps, _ in found]), np.array([size for _, size in found], float))
    return curves


def _logarithmic(axes: "Axes") -> None:
    """Both axes logarithmic, with numbers written out."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set(xscale="log", yscale="log")
    axes.margins(0.08)
    for axis in (axes.xaxis, axes.yaxis):
        low, high = axis.get_view_interval()
        subs = (1.0,) if high / low > 30 else (1.0, 2.0, 5.0)
        axis.set_major_locator(LogLocator(subs=subs, numticks=12))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.grid(color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)
