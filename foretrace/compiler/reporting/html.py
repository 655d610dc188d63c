"""The report as a cell of a notebook: the summary, the table of parameters, and warnings."""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from foretrace._html import boxed, cell, named, prose, table
from foretrace._repr import shape_text
from foretrace.compiler.history import HistoryKind, Parameter
from foretrace.compiler.reporting.drawing import EDGE, FACE
from foretrace.compiler.reporting.words import HISTORY, Wording, without_reasons
from foretrace.program.diagnostics import DiagnosticLevel
from foretrace.program.records import path_name

if TYPE_CHECKING:
    from foretrace.compiler.graph import ETraceGraph
    from foretrace.compiler.reporting.report import CompilationReport

MOST_REASONS = 3
HEADER = ["parameter", "shape", "enters", "reaches", "history keeps", "why"]


def report_cell(report: "CompilationReport", title: str | None = None) -> str:
    """What a notebook shows for a report, or for what a report is about.

    Args:
        report: The report. Of level 0, the summary alone; from level 2 on, its text too.
        title: The first line; None for the first line of the summary.
    """
    first, *rest = report.to_str(0).splitlines()
    parts = [f"<p>{escape(line)}</p>" for line in ([] if title is None else [first]) + rest]
    if report.level >= 1 and report.parameters:
        parts.append(_parameters(report.graph, report.parameters))
        parts += [
            f"<p><b>{r.level.value}</b>: {prose(r.message)}</p>" for r in report if r.level is not DiagnosticLevel.INFO
        ]
    if report.level >= 2:
        parts.append(f"<details><summary>all of it, as text</summary><pre>{escape(str(report))}</pre></details>")
    return cell(first if title is None else title, *parts)


def kind_box(kind: HistoryKind) -> str:
    """What a history keeps, in the colours of the drawing."""
    return boxed(HISTORY[kind], FACE[kind], EDGE[kind])


def reason_lines(reasons: Sequence[str], most: int) -> list[str]:
    """The first few reasons, and how many more there are."""
    more = len(reasons) - most
    return [*map(prose, reasons[:most]), *([f"and {more} more of the kind"] if more > 0 else [])]


def _parameters(graph: "ETraceGraph", parameters: Sequence[Parameter]) -> str:
    wording = Wording(graph)
    return table(HEADER, [_row(graph, parameter, wording) for parameter in parameters])


def _row(graph: "ETraceGraph", parameter: Parameter, wording: Wording) -> list[str]:
    reached = [path_name(path) for relation in parameter.relations for path in relation.connected_hidden_paths]
    enters = dict.fromkeys(wording.occurrence(occurrence) for occurrence in parameter.occurrences)
    return [
        named(parameter.name),
        named(shape_text(graph.program.params[parameter.index].aval.shape)),
        "<br>".join(map(named, enters)) or "nowhere",
        "<br>".join(map(named, dict.fromkeys(reached))) or "none",
        kind_box(parameter.history),
        f'<div class="why">{_why(parameter)}</div>',
    ]


def _why(parameter: Parameter) -> str:
    return "<br>".join(reason_lines(parameter.reasons, MOST_REASONS)) or escape(without_reasons(parameter))
