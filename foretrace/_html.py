"""The look of what Foretrace says in HTML: tables and marks, for a page of its own and for a cell of a notebook.

A cell brings its own style, which acts on nothing else of the notebook. It takes the notebook's colours for ink and
paper, so that it reads on light and on dark ones. There is no script, no font, no image and no request, and all text
that comes from a model is escaped.
"""

import re
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

MONOSPACE = 'ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace'
KIND = """display: inline-block; border: 1.5px solid; border-radius: .3rem; padding: 0 .45rem; color: #1d1d1f;
  white-space: nowrap;"""
"""The style of a small box around a word."""

STYLE = f"""
.foretrace {{ color: inherit; max-width: 70rem; line-height: 1.45; }}
.foretrace p {{ margin: .3rem 0; }}
.foretrace .soft {{ opacity: .72; }}
.foretrace .scroll {{ overflow-x: auto; }}
.foretrace .name, .foretrace pre {{ font-family: {MONOSPACE}; font-size: .92em; }}
.foretrace .scroll table {{ border-collapse: collapse; margin: .4rem 0; color: inherit; }}
.foretrace .scroll table th, .foretrace .scroll table td {{ text-align: left; vertical-align: top; white-space: normal;
  padding: .25rem .9rem .25rem 0; border: 0; border-bottom: 1px solid rgba(128, 128, 128, .4); max-width: 28rem; }}
.foretrace .scroll table td > .name {{ white-space: nowrap; }}
.foretrace .scroll table .why {{ min-width: 15rem; }}
.foretrace .scroll table .number {{ text-align: right; font-variant-numeric: tabular-nums; }}
.foretrace .kind {{ {KIND} }}
.foretrace svg {{ display: block; max-width: 100%; height: auto; }}
"""


def cell(title: str, *parts: str) -> str:
    """What a notebook shows for an object.

    Args:
        title: A line of plain text.
        *parts: Elements of HTML.

    Examples:
        >>> "&lt;model&gt;" in cell("<model>")
        True
    """
    head = f'<p class="name"><b>{escape(title)}</b></p>'
    return "\n".join([f'<div class="foretrace"><style>{STYLE}</style>', head, *parts, "</div>"])


def table(header: Sequence[str], rows: Sequence[Sequence[str]], numbers: frozenset[int] = frozenset()) -> str:
    """A table.

    Args:
        header: The titles of the columns, plain text.
        rows: The cells of each row, HTML already.
        numbers: The columns that are set to the right.
    """
    mark = lambda column: ' class="number"' if column in numbers else ""
    titles = "".join(f"<th{mark(k)}>{escape(title)}</th>" for k, title in enumerate(header))
    lines = ["".join(f"<td{mark(k)}>{content}</td>" for k, content in enumerate(row)) for row in rows]
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="scroll"><table>\n<thead><tr>{titles}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'


def named(text: str) -> str:
    """A name or a piece of code."""
    return f'<span class="name">{escape(text)}</span>'


def prose(text: str) -> str:
    """A sentence, with what stands between backticks as code."""
    return re.sub(r"`([^`]*)`", r'<span class="name">\1</span>', escape(text))


def boxed(text: str, face: str, edge: str) -> str:
    """A word in a small box of these colours."""
    return f'<span class="kind" style="background: {face}; border-color: {edge}">{escape(text)}</span>'


def curve(values: Sequence[float], label: str, width: int = 360, height: int = 90) -> str:
    """A curve without axes, from the least value to the greatest.

    Args:
        values: Finite numbers, evenly spaced.
        label: What a reader who does not see it is told.
        width: In pixels.
        height: In pixels.
    """
    low, high = min(values), max(values)
    across: Callable[[int], float] = lambda k: 2 + (width - 4) * k / max(1, len(values) - 1)
    down: Callable[[Any], float] = lambda v: 2 + (height - 4) * ((high - v) / (high - low) if high > low else 0.5)
    points = " ".join(f"{across(k):.1f},{down(value):.1f}" for k, value in enumerate(values))
    return (
        f'<svg role="img" aria-label="{escape(label)}" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}"><polyline fill="none" stroke="currentColor" stroke-width="1.5" points="{points}"/></svg>'
    )
