"""The report as one page of HTML that needs nothing else: no script, no font, no image, no network.

Whatever comes from a model (names of parameters, reasons, code) is escaped. Colours follow the reader's setting, light
or dark; on paper the page is black on white. A content security policy forbids what the page does not do anyway.
"""

import os
import re
import tempfile
import xml.etree.ElementTree as xml
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from foretrace._html import KIND, named, prose, table
from foretrace._look import FAMILY
from foretrace._repr import bytes_text
from foretrace.compiler import ETraceGraph, HistoryKind
from foretrace.compiler.reporting.drawing import draw_graph
from foretrace.compiler.reporting.html import kind_box, reason_lines
from foretrace.compiler.reporting.words import HISTORY_MEANING

PLURAL = {"number to learn": "numbers to learn", "group of states": "groups of states"}
MOST_REASONS = 6
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
STYLE = (
    """
:root { color-scheme: light dark; --ink: #1d1d1f; --soft: #5c5c66; --paper: #ffffff; --card: #f5f5f7; --line: #d8d8de;
  --accent: #00664d; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8ec; --soft: #a3a3ad; --paper: #17171a; --card: #222226;
  --line: #3a3a42; --accent: #6fd3b2; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 76rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .75rem; }
p { margin: .4rem 0; }
.soft { color: var(--soft); }
code, pre, .name { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: .875em; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .75rem; margin: 1.25rem 0; }
.cards div { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .6rem .9rem; }
.cards b { display: block; font-size: 1.35rem; }
.verdict { border-left: .3rem solid var(--accent); padding: .3rem 0 .3rem .9rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .94rem; }
th, td { text-align: left; vertical-align: top; padding: .4rem .8rem .4rem 0; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; white-space: nowrap; }
td.number, th.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
"""
    f".kind {{ {KIND} }}"
    """
dl { display: grid; grid-template-columns: max-content 1fr; gap: .35rem .9rem; margin: .9rem 0 0; font-size: .94rem; }
dd { margin: 0; }
.drawing { background: #ffffff; border: 1px solid var(--line); border-radius: .5rem; padding: .5rem; overflow-x: auto; }
.drawing svg { display: block; max-width: 100%; height: auto; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .9rem 1rem;
  overflow-x: auto; line-height: 1.45; }
ul { padding-left: 1.2rem; }
.warning, .error { font-weight: 600; }
@media print { :root { font-size: 11px; --ink: #000; --soft: #333; --paper: #fff; --card: #fff; --line: #999; }
  body { max-width: none; padding: 0; } pre { white-space: pre-wrap; overflow: visible; }
  .scroll, .drawing { overflow: visible; } tr, .cards div { break-inside: avoid; }
  .kind { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""
)


def write_page(path: str | os.PathLike[str], facts: dict[str, Any], graph: ETraceGraph) -> None:
    """Writes the page of a model.

    Args:
        path: The file to write.
        facts: What `graph_facts` says of it.
        graph: Its graph, to be drawn.
    """
    Path(path).write_text(make_page(facts, drawing_of(graph)), encoding="utf-8")


def make_page(facts: dict[str, Any], drawing: str | None) -> str:
    """The page as text.

    Args:
        facts: What `graph_facts` says of a model.
        drawing: The graph as SVG; None where there is none.
    """
    title = escape(facts["target"])
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title} – Foretrace</title>",
        '<link rel="icon" href="data:,">',
        f"<style>{STYLE}</style>",
        "</head>",
        "<body>",
        *_head(facts, title),
        *_parameters(facts),
        *_groups(facts),
        *_diagnostics(facts),
        *_drawing(drawing),
        *_code(facts),
        "</body>",
        "</html>",
    ]
    return "\n".join(parts) + "\n"


def _head(facts: dict[str, Any], title: str) -> list[str]:
    counts = {
        "parameter": len(facts["parameters"]),
        "number to learn": sum(p["elements"] for p in facts["parameters"]),
        "state": sum(len(group["states"]) for group in facts["groups"]),
        "group of states": len(facts["groups"]),
        "warning": sum(d["level"] != "info" for d in facts["diagnostics"]),
    }
    shown = [(f"{count:,}", name if count == 1 else PLURAL.get(name, f"{name}s")) for name, count in counts.items()]
    shown.append((bytes_text(facts["rule"]["trace_bytes"]), f"traces of {facts['rule']['name']}"))
    cards = [f"<div><b>{escape(value)}</b>{escape(name)}</div>" for value, name in shown]
    return [
        "<header>",
        f"<h1>{title}</h1>",
        f'<p class="soft">What the compiler found in one step. Foretrace {escape(facts["foretrace"])}, '
        f"JAX {escape(facts['jax'])}.</p>",
        f'<div class="cards">{"".join(cards)}</div>',
        *(f'<p class="verdict">{escape(line)}</p>' for line in facts["summary"][1:]),
        "</header>",
    ]


def _parameters(facts: dict[str, Any]) -> list[str]:
    rows = [
        [
            named(p["name"]),
            named(_shape(p["shape"])),
            "<br>".join(named(text) for text in p["enters"]) or "nowhere",
            "<br>".join(named(text) for text in p["reaches"]) or "none",
            kind_box(HistoryKind(p["history"])),
            "<br>".join(reason_lines(p["reasons"], MOST_REASONS)),
            escape(bytes_text(p["trace_bytes"] or None)),
        ]
        for p in facts["parameters"]
    ]
    header = ["parameter", "shape", "enters", "reaches", "history keeps", "why no more", "traces"]
    kinds = [kind for kind in HistoryKind if any(p["history"] == kind for p in facts["parameters"])]
    meanings = [f"<dt>{kind_box(kind)}</dt><dd>{escape(HISTORY_MEANING[kind])}</dd>" for kind in kinds]
    return ["<h2>Parameters</h2>", table(header, rows, numbers=frozenset({6})), f"<dl>{''.join(meanings)}</dl>"]


def _groups(facts: dict[str, Any]) -> list[str]:
    rows = [
        [
            str(group["index"]),
            "<br>".join(map(named, group["states"])),
            named(_shape(group["shape"])),
            str(group["values_each"]),
            escape(group["positions"]),
            "yes" if group["coupled"] else "no",
        ]
        for group in facts["groups"]
    ]
    header = ["group", "states", "shape", "values each", "from step to step", "coupled in step"]
    other = [f"<p>Carried along without credit: {', '.join(map(named, facts['other_states']))}.</p>"]
    return ["<h2>States</h2>", table(header, rows), *(other if facts["other_states"] else [])]


def _diagnostics(facts: dict[str, Any]) -> list[str]:
    order = {"error": 0, "warning": 1, "info": 2}
    found = sorted(facts["diagnostics"], key=lambda d: order[d["level"]])
    if not found:
        return ["<h2>Diagnostics</h2>", "<p>None.</p>"]
    rows = [
        [f'<span class="{escape(d["level"])}">{escape(d["level"])}</span>', named(d["kind"]), prose(d["message"])]
        for d in found
    ]
    return ["<h2>Diagnostics</h2>", table(["level", "kind", "what"], rows)]


def _drawing(drawing: str | None) -> list[str]:
    if drawing is None:
        missing = "<p>Not drawn: that needs matplotlib, <code>pip install 'foretrace[viz]'</code>.</p>"
        return ["<h2>The graph</h2>", missing]
    return ["<h2>The graph</h2>", f'<div class="drawing">{drawing}</div>']


def _code(facts: dict[str, Any]) -> list[str]:
    lines = []
    for line in facts["code"].splitlines():
        code, mark, comment = line.partition("  # ")
        lines.append(escape(code) + (f'<span class="soft">{escape(mark + comment)}</span>' if mark else ""))
    return ["<h2>The step, as the compiler sees it</h2>", f"<pre><code>{chr(10).join(lines)}</code></pre>"]


def _shape(shape: Sequence[int]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def drawing_of(graph: ETraceGraph) -> str | None:
    """The graph as SVG that can stand inside of HTML; None where matplotlib is missing."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "graph.svg"
        try:
            draw_graph(graph, file)
        except ImportError:
            return None
        text = file.read_text(encoding="utf-8")
    # Verdana has the widths of DejaVu Sans, for readers who do not have the latter.
    return inline_svg(text.replace(f"'{FAMILY}'", f"'{FAMILY}', Verdana, sans-serif"), "the graph")


def inline_svg(text: str, label: str) -> str:
    """A file of SVG as an element of HTML: without prolog, namespaces, metadata, and styles that reach beyond it."""
    root = xml.fromstring(text)
    for parent in list(root.iter()):
        parent.tag = _local(parent.tag)
        parent.attrib = {_local(name): value for name, value in parent.attrib.items()}
        for child in [c for c in parent if _local(c.tag) in ("metadata", "style")]:
            parent.remove(child)
    for name in ("version", "width", "height"):
        root.attrib.pop(name, None)
    width = float(root.attrib["viewBox"].split()[2])
    root.attrib |= {"role": "img", "aria-label": label, "width": f"{4 / 3 * width:.0f}"}  # points to pixels
    root.attrib["style"] = "stroke-linejoin: round; stroke-linecap: butt"
    return xml.tostring(root, encoding="unicode", short_empty_elements=False)


def _local(name: str) -> str:
    return re.sub(r"^\{.*\}", "", name)
