"""Where a picture is drawn: in axes of its own, or in those that the user gives."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from foretrace._checks import require_index, require_positive
from foretrace._look import figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PathLike = str | os.PathLike[str]


@contextlib.contextmanager
def canvas(
    what: str,
    size: tuple[float, float],
    shape: tuple[int, int],
    path: PathLike | None,
    axes: "Axes | Sequence[Axes] | None",
    **options: Any,
) -> "Iterator[tuple[Figure, list[Axes]]]":
    """Axes to draw in, row by row, and their figure; the figure is written when all is drawn.

    Args:
        what: What is drawn, for errors: `Drawing a raster`.
        size: Width and height of a figure of its own, in inches.
        shape: Rows and columns of axes.
        path: A file to write, or None.
        axes: The user's axes; None to make a figure.
        **options: For matplotlib's `subplots`.

    Raises:
        TypeError: What is given are no axes.
        ValueError: They are not as many as the picture has.
    """
    if axes is None:
        with figure(what, size, path) as drawn:
            yield drawn, list(drawn.subplots(*shape, squeeze=False, **options).flat)
        return
    given: list[Any] = list(np.ravel(np.asarray(axes, dtype=object)))
    if not all(hasattr(one, "add_artist") and hasattr(one, "figure") for one in given):
        raise TypeError(f"`axes` are axes of matplotlib, one or several; got {type(axes).__name__}.")
    wanted = shape[0] * shape[1]
    if len(given) != wanted:
        raise ValueError(f"{what} takes {wanted} axes, {shape[0]} rows of {shape[1]}; `axes` has {len(given)}.")
    whole = given[0].figure.figure  # of a subfigure, the figure that it is part of
    with figure(what, size, path, given=whole):
        yield whole, given


def numbers(name: str, values: Any) -> np.ndarray:
    """Values as an array of plain numbers; those of a quantity are without its unit.

    Raises:
        ValueError: They are no numbers, or there are none.
    """
    try:
        found = np.asarray(getattr(values, "mantissa", values))
        if not np.issubdtype(found.dtype, np.bool_) and not np.issubdtype(found.dtype, np.number):
            found = found.astype(float)
    except (TypeError, ValueError) as error:
        raise ValueError(f"`{name}` is no array of numbers: {error}.") from error
    if found.size == 0:
        raise ValueError(f"`{name}` is empty: its shape is {found.shape}.")
    return found


def unit_of(values: Any) -> str:
    """The unit of a quantity in brackets, after a space; nothing for plain numbers."""
    unit = getattr(values, "unit", None) if hasattr(values, "mantissa") else None
    return "" if unit is None or str(unit) in ("", "1") else f" ({unit})"


def of_trial(name: str, values: Any, trial: int | None) -> np.ndarray:
    """Values `(T, N)` of one trial, of an array `(T, N)` or `(T, B, N)`.

    Raises:
        ValueError: Another shape, or no such trial.
    """
    array = numbers(name, values)
    if array.ndim == 2 and trial is None:
        return array
    if array.ndim != 3:
        also = "" if trial is None else f" With `trial={trial}`, it has an axis for trials: (T, B, N)."
        raise ValueError(
            f"`{name}` has shape {array.shape}; give (T, N), steps and neurons, or (T, B, N) with `trial=`.{also}"
        )
    count = array.shape[1]
    if trial is None and count > 1:
        raise ValueError(f"`{name}` has {count} trials, shape {array.shape}: say which is drawn with `trial=`.")
    chosen = 0 if trial is None else require_index("trial", trial)
    if not -count <= chosen < count:
        raise ValueError(f"`{name}` has {count} trials; there is none of number {trial}.")
    return array[:, chosen]


def times(steps: int, dt: float | None) -> tuple[np.ndarray, str]:
    """The time of each step, and the label of the axis.

    Raises:
        ValueError: A step without duration.
    """
    if dt is None:
        return np.arange(steps), "step"
    require_positive("dt", dt, "the duration of a step in ms, above 0, or None to count steps")
    return np.arange(steps) * dt, "time (ms)"


def plain(text: Any) -> str:
    """A text whose dollar signs are not read as mathematics."""
    return str(text).replace("$", r"\$")
