"""Formulas of the pages: a fence of `math` holds LaTeX, and becomes MathML when the site is built.

Browsers set MathML by themselves, so a page needs neither a script nor a font from elsewhere. GitHub sets the same
fences.
"""

import re
from typing import Any

import latex2mathml.converter

FENCE = re.compile(r"^```math\n(.*?)\n```$", re.DOTALL | re.MULTILINE)


def formula(latex: str) -> str:
    """A formula on a line of its own; several lines of LaTeX are several lines of formulas."""
    lines = (latex2mathml.converter.convert(line, display="block") for line in latex.splitlines())
    return f'<div class="formula">{"".join(lines)}</div>'


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """Called by MkDocs with the text of each page."""
    return FENCE.sub(lambda fence: formula(fence[1]), markdown)
