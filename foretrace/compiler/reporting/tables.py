"""Tables and paragraphs of plain text that keep within a width.

A table takes rows of cells and returns lines: each column as wide as its content up to a limit, the last one with
what is left of the width, longer cells wrapped within their column. Names are broken after dots and underscores.
"""

import re
import textwrap
from collections.abc import Sequence

WIDTH = 110
GAP = "  "
NARROWEST = 24


def table(header: Sequence[str], rows: Sequence[Sequence[str]], limits: Sequence[int], width: int = WIDTH) -> list[str]:
    """Lays out a table.

    Args:
        header: The titles of the columns.
        rows: The cells of each row; a newline inside a cell is kept.
        limits: The largest width of each column.
        width: The largest width of the table.

    Returns:
        Its lines: titles, a rule, and one or more lines for each row.

    Examples:
        >>> for line in table(["name", "what"], [["w", "a weight"], ["b", "a bias"]], [10, 20]):
        ...     print(line)
        name  what
        ----  --------
        w     a weight
        b     a bias
    """
    columns = list(zip(header, *rows, strict=True))
    widths = [
        min(limit, max(len(line) for cell in column for line in cell.split("\n")))
        for column, limit in zip(columns, limits, strict=True)
    ]
    _fit(widths, width - len(GAP) * (len(widths) - 1))
    lines = [_line(header, widths), _line(["-" * w for w in widths], widths)]
    for row in rows:
        cells = [wrap(cell, w) for cell, w in zip(row, widths, strict=True)]
        height = max(map(len, cells))
        lines += [_line([cell[k] if k < len(cell) else "" for cell in cells], widths) for k in range(height)]
    return lines


def wrap(text: str, width: int) -> list[str]:
    """Breaks text into lines of at most `width` characters: at spaces, then inside names, then anywhere."""
    lines: list[str] = []
    for part in text.split("\n"):
        line = ""
        for word in _pieces(part, width):
            if line and len(line) + len(word.rstrip()) > width:
                lines.append(line.rstrip())
                line = ""
            line += word
        lines.append(line.rstrip())
    return lines


def paragraph(text: str, first: str = "", rest: str | None = None, width: int = WIDTH) -> list[str]:
    """Breaks a sentence into lines behind a lead, with the following lines set in."""
    rest = " " * len(first) if rest is None else rest
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False) or [first]


def _fit(widths: list[int], room: int) -> None:
    """Narrows the last column down to a readable width, then the widest ones, until all fit."""
    over = sum(widths) - room
    widths[-1] = max(widths[-1] - max(over, 0), min(widths[-1], NARROWEST))
    while sum(widths) > room:
        widths[widths.index(max(widths))] -= 1


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return GAP.join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _pieces(text: str, width: int) -> list[str]:
    """Words with the spaces behind them; a word that is too long is cut after dots, underscores, or anywhere."""
    pieces: list[str] = []
    for word in re.findall(r"\S+\s*|\s+", text):
        if len(word.rstrip()) <= width:
            pieces.append(word)
            continue
        for part in re.findall(r"[^._]*[._]?", word):
            pieces += [part[k : k + width] for k in range(0, len(part), width)]
    return pieces
