"""A picture of the graph: parameters on the left, operators in the middle, groups of states on the right.

A solid arrow is a direct path, which carries history; a dashed one runs through mixing, which does not. The colour,
border and caption of a parameter say what its history keeps, so the picture reads in grey too. `layout.py`
decides where things stand; here they are drawn. Only matplotlib's object interface is used: no window, no global state,
the same file for the same graph.
"""

import os
from typing import TYPE_CHECKING, Any

from foretrace._look import FAMILY, INK, PAPER, figure
from foretrace.compiler.history import HistoryKind
from foretrace.compiler.reporting.layout import (
    FONT,
    LINE_HEIGHT,
    MARGIN,
    PADDING,
    SMALL,
    Arrow,
    Box,
    Picture,
    make_picture,
)
from foretrace.compiler.reporting.words import HISTORY, HISTORY_MEANING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from foretrace.compiler.graph import ETraceGraph

FACE = {
    HistoryKind.ALL: "#cfe8dc",
    HistoryKind.DIRECT: "#fbe3b5",
    HistoryKind.IN_STEP: "#f4c7c3",
    HistoryKind.NONE_NEEDED: "#eeeeee",
}
EDGE = {
    HistoryKind.ALL: "#00664d",
    HistoryKind.DIRECT: "#a86400",
    HistoryKind.IN_STEP: "#a82a20",
    HistoryKind.NONE_NEEDED: "#6a6a6a",
}
BORDER: dict[HistoryKind, Any] = {
    HistoryKind.ALL: "solid",
    HistoryKind.DIRECT: (0, (6, 1.5)),
    HistoryKind.IN_STEP: (0, (2, 1.5)),
    HistoryKind.NONE_NEEDED: (0, (1, 2)),
}
DASHES = (0, (4, 2.5))
SWATCH = 0.35


def draw_graph(graph: "ETraceGraph", path: str | os.PathLike[str] | None = None) -> "Figure":
    """Draws where parameters enter, which groups they reach and how groups feed back.

    Args:
        graph: The compiled graph.
        path: A file to write, whose ending says the format (`.svg`, `.png`, `.pdf`); None to write none.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: A file ending that matplotlib cannot write.

    Examples:
        >>> import jax.numpy as jnp
        >>> from foretrace.entry import compile_etrace_graph
        >>> def step(params, state, x):
        ...     state = 0.9 * state + x @ params["w"]
        ...     return state, state
        >>> graph = compile_etrace_graph(step, jnp.ones(3), params={"w": jnp.ones((3, 2))}, state=jnp.zeros(2))
        >>> width, height = draw_graph(graph).get_size_inches()
    """
    with figure("Drawing a graph", (1, 1), path) as drawn:
        picture = make_picture(graph, text_width)
        legend = _legend(graph)
        width = max(picture.width, max(text_width(text, SMALL) for _, text in legend) + SWATCH + 3 * MARGIN)
        height = picture.height + len(legend) * LINE_HEIGHT * 1.2 + MARGIN + PADDING
        drawn.set_layout_engine("none")
        drawn.set_size_inches(width, height)
        axes = drawn.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
        axes.set_axis_off()
        _draw(axes, picture, legend)
    return drawn


def text_width(text: str, size: float) -> float:
    """The width of a text in inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    if not text.strip():
        return 0.0
    outline = TextPath((0, 0), text.replace("$", "S"), size=size, prop=FontProperties(family=FAMILY))
    return float(outline.vertices[:, 0].max()) / 72  # the control points bound the curves, and are cheap


def _legend(graph: "ETraceGraph") -> list[tuple[HistoryKind | bool, str]]:
    kinds = [kind for kind in HistoryKind if any(parameter.history is kind for parameter in graph.parameters)]
    return [
        *((kind, f"{HISTORY[kind]}: {HISTORY_MEANING[kind]}") for kind in kinds),
        (True, "direct: element by element, carries history"),
        (False, "mixing: one element depends on many, carries none"),
    ]


def _draw(axes: "Axes", picture: Picture, legend: list[tuple[HistoryKind | bool, str]]) -> None:
    for title, middle in picture.titles:
        _text(axes, middle, MARGIN + LINE_HEIGHT / 2, title, FONT, weight="bold")
    for arrow in picture.arrows:
        _arrow(axes, arrow)
    for box in (*picture.parameters.values(), *(operator.box for operator in picture.operators)):
        _box(axes, box, rounded=0.02)
    for box in picture.groups:
        _box(axes, box, rounded=0.12, heading=True)
    if picture.output is not None:
        _box(axes, picture.output, rounded=0.02, dashes=BORDER[HistoryKind.NONE_NEEDED])
    for line, (sign, text) in enumerate(legend):
        _legend_line(axes, picture.height + (line + 1) * LINE_HEIGHT * 1.2, sign, text)


def _box(axes: "Axes", box: Box, rounded: float, heading: bool = False, dashes: Any = "solid") -> None:
    from matplotlib.patches import FancyBboxPatch

    top = box.middle - box.height / 2
    style = f"round,pad=0,rounding_size={rounded}"
    face, edge, border = PAPER, INK, dashes
    if box.history is not None:
        face, edge, border = FACE[box.history], EDGE[box.history], BORDER[box.history]
    shape = FancyBboxPatch(
        (box.left, top), box.width, box.height, style, facecolor=face, edgecolor=edge, linestyle=border, linewidth=1.1
    )
    axes.add_patch(shape)
    first = box.middle - (len(box.lines) - 1) * LINE_HEIGHT / 2
    for k, line in enumerate(box.lines):
        weight = "bold" if heading and k == 0 else "normal"
        _text(axes, box.left + box.width / 2, first + k * LINE_HEIGHT, line, box.size_of(k), weight=weight)


def _arrow(axes: "Axes", arrow: Arrow) -> None:
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path as Outline

    (x0, y0), (x1, y1) = arrow.start, arrow.end
    bend = arrow.bulge or (x1 - x0) / 2
    controls = [(x0 + bend, y0), (x1 + bend if arrow.bulge else x1 - bend, y1)]
    outline = Outline([(x0, y0), *controls, (x1, y1)], [Outline.MOVETO, *[Outline.CURVE4] * 3])
    color = INK if arrow.history is None else EDGE[arrow.history]
    shape = FancyArrowPatch(
        path=outline,
        arrowstyle="-|>" if arrow.head else "-",
        mutation_scale=8,
        color=color,
        linewidth=1.1,
        linestyle="solid" if arrow.direct else DASHES,
    )
    axes.add_patch(shape)
    if arrow.label:
        _text(axes, x0 + 0.75 * arrow.bulge + 0.06, (y0 + y1) / 2, arrow.label, SMALL, align="left")


def _legend_line(axes: "Axes", y: float, sign: HistoryKind | bool, text: str) -> None:
    if isinstance(sign, HistoryKind):
        _box(axes, Box([], left=MARGIN, middle=y, width=SWATCH, history=sign), rounded=0.02)
    else:
        _arrow(axes, Arrow((MARGIN, y), (MARGIN + SWATCH, y), direct=sign))
    _text(axes, MARGIN + SWATCH + 0.1, y, text, SMALL, align="left")


def _text(
    axes: "Axes", x: float, y: float, text: str, size: float, weight: str = "normal", align: str = "center"
) -> None:
    axes.text(
        x,
        y,
        text,
        fontsize=size,
        ha=align,
        va="center_baseline",
        family=FAMILY,
        weight=weight,
        color=INK,
        parse_math=False,
    )
