"""The look of all pictures: one font, thin axes, a palette that keeps its differences in grey.

A colour never stands alone. `series(0)`, `series(1)`, ... give each curve a colour of another lightness, a line of
other dashes, another marker and another hatching, so that a picture reads on a grey print and without colour vision.

`figure` makes a figure by matplotlib's object interface: no window, no global state, the same file for the same
data. It stands below all layers, because the compiler, the tasks and the command line draw too.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, PAPER, RULE, GROUND = "#222222", "#ffffff", "#8a8a8a", "#d9d9d9"
FAMILY = "DejaVu Sans"
SMALL = 8
"""Points of notes and legends, where all else has 9."""
DOTS = 150
"""Dots per inch of a picture that is made of them."""

FILES = {"svg.fonttype": "none", "svg.hashsalt": "foretrace", "text.usetex": False}
"""Text stays text in an SVG, and equal pictures are equal files."""

STYLE: dict[str, Any] = {
    **FILES,
    "font.family": FAMILY,
    "font.size": 9,
    "axes.titlesize": 9,
    "figure.titlesize": 10,
    "axes.labelsize": 9,
    "axes.linewidth": 0.7,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": SMALL,
    "legend.handlelength": 3,
}

PALETTE = ("#16213e", "#cf5c39", "#006d52", "#62a8d8", "#6b1e5c", "#e0c341")
"""Neighbours differ most; of any two the CIE lightness differs by at least `LIGHTNESS_STEP`."""
LIGHTNESS_STEP = 12
DASHES: tuple[Any, ...] = ("solid", (0, (5, 1.8)), (0, (6, 1.6, 1.2, 1.6)), (0, (1.2, 1.6)), (0, (9, 2)), (0, (3, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P")
HATCHES = ("", "//", "..", "xx", "\\\\", "++")


class Series(NamedTuple):
    """How one series of data is drawn.

    Attributes:
        color: Its colour.
        linestyle: The dashes of its line.
        marker: The marker of its points.
        hatch: The hatching of its areas.
    """

    color: str
    linestyle: Any
    marker: str
    hatch: str

    @property
    def line(self) -> dict[str, Any]:
        """The options of a line."""
        return {"color": self.color, "linestyle": self.linestyle}


def series(place: int) -> Series:
    """The look of the series of a number; the first 36 all differ."""
    color, turn = place % len(PALETTE), place // len(PALETTE)
    other = (color + turn) % len(DASHES)
    return Series(PALETTE[color], DASHES[other], MARKERS[other], HATCHES[other])


def require_matplotlib(what: str) -> None:
    """Looks whether pictures can be drawn.

    Args:
        what: What is to be drawn, for the error: `Drawing a graph`.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ImportError(f"{what} needs matplotlib: pip install 'foretrace[viz]'") from error


@contextlib.contextmanager
def figure(
    what: str,
    size: tuple[float, float],
    path: str | os.PathLike[str] | None = None,
    given: "Figure | None" = None,
    **options: Any,
) -> "Iterator[Figure]":
    """A figure to draw in, in the style of the house, written when all is drawn.

    Args:
        what: What is drawn, for the error where matplotlib is missing: `Drawing a graph`.
        size: Width and height in inches.
        path: A file to write, whose ending says the format; None to write none.
        given: A figure that is there already and is drawn in.
        **options: Of matplotlib's style, in the place of the house's.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: A file ending that matplotlib cannot write.

    Examples:
        >>> with figure("Drawing a line", (4, 3)) as drawn:
        ...     _ = drawn.subplots().plot([1, 2, 3], **series(0).line)
        >>> len(drawn.axes)
        1
    """
    require_matplotlib(what)
    import matplotlib

    from foretrace._figure import ShownFigure

    with matplotlib.rc_context(STYLE | options):
        made = ShownFigure(figsize=size, layout="constrained", facecolor=PAPER) if given is None else given
        ending = None if path is None else ending_of(made, path)
        yield made
        if path is not None:
            dated = {"svg": "Date", "pdf": "CreationDate"}.get(ending or "")
            made.savefig(path, format=ending, dpi=DOTS, metadata={dated: None} if dated else None)


def ending_of(made: "Figure", path: str | os.PathLike[str]) -> str:
    """The format that a file's name asks for.

    Raises:
        ValueError: A format that matplotlib cannot write.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"`path` is the name of a file, such as 'picture.svg', or None; got a {type(path).__name__}.")
    ending = os.path.splitext(os.fspath(path))[1].lstrip(".").lower()
    if ending not in made.canvas.get_supported_filetypes():
        raise ValueError(f"A picture cannot be written to `{os.fspath(path)}`: end the name in .svg, .png or .pdf.")
    return ending
