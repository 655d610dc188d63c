"""How online gradients agree with those of BPTT, parameter by parameter and rule by rule, with the numbers."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from foretrace._checks import require_list
from foretrace._look import INK, PAPER, SMALL
from foretrace.compiler.reporting.words import HISTORY
from foretrace.learners.comparing import ComparedGradient, GradientComparison
from foretrace.viz.canvas import PathLike, canvas, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Comparisons = GradientComparison | Sequence[GradientComparison] | Mapping[str, GradientComparison]
CELL, LETTER, TITLE = 0.3, 0.068, 1.7
"""Inches: the height of a cell, the width of a letter, and that of the wider title."""
LINE = 11
"""Letters in a line of a rule's name."""
SHADES = (PAPER, "#e9b98f", "#a14a1d", "#40160a")
"""From agreement to none; each is darker than the one before."""


def gradient_agreement(
    comparison: Comparisons, *, path: PathLike | None = None, axes: "Axes | Sequence[Axes] | None" = None
) -> "Figure":
    """Draws cosines to the gradient of BPTT and ratios of norms: a row for each parameter, a column for each rule.

    Every cell has its number; the darker it is, the further from BPTT. What the history of a parameter keeps stands on
    the right.

    Args:
        comparison: What `foretrace.compare_gradients` gave for one rule; several in a list; or by a name of your own.
        path: A file to write, whose ending says the format; None to write none.
        axes: Two axes to draw in; None for a figure of its own.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: matplotlib is not installed.
        TypeError: Something else than comparisons.
        ValueError: No comparison, or comparisons of different parameters.

    Examples:
        >>> import jax.numpy as jnp
        >>> import foretrace as ft
        >>> def step(params, h, x):
        ...     h = jnp.tanh(x @ params["w"] + 0.5 * h)
        ...     return h, h
        >>> params, xs, h = {"w": jnp.ones((2, 3))}, jnp.ones((5, 2)), jnp.zeros(3)
        >>> learner = ft.compile(step, "D_RTRL", xs[0], params=params, state=h)
        >>> found = ft.compare_gradients(learner, xs, loss=lambda out: jnp.sum(out**2), params=params, state=h)
        >>> figure = gradient_agreement(found)
        >>> [axes.get_title() for axes in figure.axes]
        ['cosine to BPTT', 'norm over that of BPTT']
    """
    by_rule = _by_rule(comparison)
    rows = [*next(iter(by_rule.values())).rows, next(iter(by_rule.values())).overall]
    columns = [[*one.rows, one.overall] for one in by_rule.values()]
    names = [textwrap.fill(plain(rule), LINE, break_long_words=False) for rule in by_rule]
    letters = max(8, *(len(line) for name in names for line in name.split("\n")))
    width = 1.7 + LETTER * max(len(row.name) for row in rows) + 2 * max(TITLE, (letters + 1) * LETTER * len(names))
    height = 0.6 + CELL * len(rows) + 0.15 * max(name.count("\n") + 1 for name in names)
    with canvas("Drawing agreement", (width, height), (1, 2), path, axes) as (drawn, places):
        cosines = _values(columns, "cosine")
        ratios = _values(columns, "norm_ratio")
        _draw_cells(places[0], cosines, _angle(cosines), "cosine to BPTT", names)
        _draw_cells(places[1], ratios, _octaves(ratios), "norm over that of BPTT", names)
        _name_rows(places, rows)
    return drawn


def _by_rule(comparison: Comparisons) -> dict[str, GradientComparison]:
    if isinstance(comparison, GradientComparison):
        return {comparison.rule: comparison}
    wanted = "results of `foretrace.compare_gradients`"
    given = (
        comparison
        if isinstance(comparison, Mapping)
        else dict(enumerate(require_list("comparison", comparison, wanted)))
    )
    for one in given.values():
        if not isinstance(one, GradientComparison):
            raise TypeError(
                f"`gradient_agreement` draws what `foretrace.compare_gradients` gives; got {type(one).__name__}."
            )
    if not given:
        raise ValueError("`comparison` is empty: give at least one result of `foretrace.compare_gradients`.")
    named = {key if isinstance(key, str) else one.rule: one for key, one in given.items()}
    if len(named) < len(given):
        raise ValueError("Two comparisons are of the same rule: give them as a dict, with a name for each.")
    _check_rows(named)
    return named


def _check_rows(named: Mapping[str, GradientComparison]) -> None:
    first, *others = named
    names = [row.name for row in named[first].rows]
    for other in others:
        found = [row.name for row in named[other].rows]
        if found != names:
            raise ValueError(
                f"`{first}` and `{other}` are of different parameters, {names} and {found}: compare rules on one model."
            )


def _values(columns: Sequence[Sequence[ComparedGradient]], name: str) -> np.ndarray:
    return np.array([[getattr(row, name) for row in column] for column in columns], float).T


def _angle(cosines: np.ndarray) -> np.ndarray:
    """The angle to BPTT; 1 is a right one."""
    return np.arccos(np.clip(cosines, -1, 1)) / (np.pi / 2)


def _octaves(ratios: np.ndarray) -> np.ndarray:
    """How far norms are apart; 1 is twice or half."""
    return np.abs(np.log2(np.maximum(ratios, 2.0**-9)))


def _draw_cells(axes: "Axes", values: np.ndarray, distance: np.ndarray, title: str, rules: Sequence[str]) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    shades = LinearSegmentedColormap.from_list("agreement", SHADES)
    axes.imshow(np.clip(distance, 0, 1), cmap=shades, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    for (row, column), value in np.ndenumerate(values):
        dark = not math.isnan(value) and distance[row, column] > 0.57
        text = "-" if math.isnan(value) else _rounded(value)
        axes.text(column, row, text, ha="center", va="center", fontsize=SMALL, color=PAPER if dark else INK)
    for edge in range(1, values.shape[1]):
        axes.axvline(edge - 0.5, color=PAPER, linewidth=1.5)
    axes.axhline(len(values) - 1.5, color=INK, linewidth=0.7)  # above the row of all parameters together
    axes.set_xticks(range(len(rules)), rules)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(True)
    axes.set_title(title)


def _rounded(value: float) -> str:
    """Three digits after the point, fewer for what is large."""
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.3g}"


def _name_rows(places: "Sequence[Axes]", rows: Sequence[ComparedGradient]) -> None:
    """Parameters on the left, what their histories keep on the right."""
    left, right = places
    left.set_yticks(range(len(rows)), [plain(row.name) for row in rows])
    right.set_yticks(range(len(rows)), ["" if row.history is None else HISTORY[row.history] for row in rows])
    right.yaxis.tick_right()
    right.tick_params(axis="y", length=0)
    right.annotate(
        "history keeps",
        (1, 1),
        (8, 4),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=SMALL,
        style="italic",
    )
