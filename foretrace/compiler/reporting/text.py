"""The report as text: what it says about parameters, groups and diagnostics, and in what order.

One line for each parameter says where it enters, which states it reaches directly, what its history keeps, and why no
more. Reasons that several parameters share stand below the table, each behind a letter (numbers in brackets belong to
names, such as `params[1]`), with a sentence for every word that needs one. Higher levels add to the lower ones. The
text follows from the graph alone, so two runs give the same.
"""

import functools
import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from foretrace._jax import source_line
from foretrace._repr import counted, shape_text
from foretrace.compiler.history import HistoryKind, Parameter
from foretrace.compiler.reporting.tables import WIDTH, paragraph, table
from foretrace.compiler.reporting.words import (
    HISTORY,
    HISTORY_MEANING,
    POSITIONS,
    Wording,
    readable,
    without_reasons,
)
from foretrace.program.diagnostics import DiagnosticLevel
from foretrace.program.records import path_name

if TYPE_CHECKING:
    from foretrace.compiler.graph import ETraceGraph
    from foretrace.compiler.reporting.report import CompilationReport

EXACT = (HistoryKind.ALL, HistoryKind.NONE_NEEDED)
MOST_LINES = 3  # of one parameter's occurrences in the table
MOST_REASONS = 2  # of one parameter before they go below the table


@dataclass(frozen=True)
class ReportText:
    """The sections of a report."""

    report: "CompilationReport"

    @property
    def graph(self) -> "ETraceGraph":
        return self.report.graph

    @functools.cached_property
    def parameters(self) -> Sequence[Parameter]:
        return self.report.parameters

    def at_level(self, level: int) -> str:
        """The whole text: 0 the summary, 1 parameters and warnings, 2 groups too, 3 everything."""
        listed = self.report.kind is not None  # all these diagnostics were asked for, and not warnings alone
        sections = [self._summary(short=level == 0)]
        if level >= 1:
            sections += [self._parameters(), self._diagnostics(quiet=listed, loud=True)]
        if level >= 2:
            sections.append(self._groups())
        if level >= 3:
            sections += [self._occurrences(), self._diagnostics(quiet=not listed, loud=False)]
        return "\n\n".join("\n".join(lines) for lines in sections if lines)

    def _summary(self, short: bool) -> list[str]:
        every = self.graph.parameters
        warnings = sum(record.level is not DiagnosticLevel.INFO for record in self.report)
        said = counted(warnings, "warning") if warnings else "no warnings"
        lines = [f"{self.graph.sizes}; {said}.", _verdict(every)]
        if not short and len(self.parameters) < len(every):
            lines.append(f"Showing {len(self.parameters)} of {counted(len(every), 'parameter')}.")
        return lines

    def _parameters(self) -> list[str]:
        if not self.parameters:
            return []
        notes = _notes(self.parameters)
        wording = Wording(self.graph)
        entries = [
            _repeated([wording.occurrence(occurrence) for occurrence in parameter.occurrences])
            for parameter in self.parameters
        ]
        rows = [
            [
                self._named(parameter.name),
                shape_text(self.graph.program.params[parameter.index].aval.shape),
                entry or "nowhere",
                self._reached(parameter),
                HISTORY[parameter.history],
                self._named(_why(parameter, notes)),
            ]
            for parameter, entry in zip(self.parameters, entries, strict=True)
        ]
        header = ["parameter", "shape", "enters", "reaches", "history keeps", "why"]
        lines = table(header, rows, [26, 16, 30, 20, 17, 60])
        if notes:
            marked = [paragraph(self._named(reason), f"({_letters(n)}) ") for reason, n in notes.items()]
            lines += ["", *itertools.chain.from_iterable(marked)]
        return [*lines, "", *self._legend(entries)]

    def _legend(self, entries: Sequence[str]) -> list[str]:
        """A sentence for each word of the table that needs one."""
        kinds = [kind for kind in HistoryKind if any(parameter.history is kind for parameter in self.parameters)]
        words = {HISTORY[kind]: HISTORY_MEANING[kind] for kind in kinds}
        if any("mixing" in reason for parameter in self.parameters for reason in parameter.reasons):
            words["mixing"] = "an operation whose result at one position depends on many (a matrix product, a sum)"
        if any("f(" in entry for entry in entries):
            words["f(...)"] = "a value computed from what stands in the brackets"
        return [line for word, meaning in words.items() for line in paragraph(meaning, f"{word}: ", "    ")]

    def _groups(self) -> list[str]:
        rows = [
            [
                str(group.index),
                self._named(", ".join(map(path_name, group.hidden_paths))),
                shape_text(group.varshape),
                str(group.num_state),
                POSITIONS[group.positions.kind],
                "yes" if group.coupled else "no",
            ]
            for group in (self.graph.hidden_groups[index] for index, _ in self.report.hidden_groups)
        ]
        header = ["group", "states", "shape", "values each", "from step to step", "coupled in step"]
        return table(header, rows, [5, 34, 18, 11, 45, 15])

    def _occurrences(self) -> list[str]:
        rows = []
        for parameter in self.parameters:
            related = {id(relation.occurrence): relation for relation in parameter.relations}
            for occurrence in parameter.occurrences:
                relation = related.get(id(occurrence))
                groups = [] if relation is None else [str(group.index) for group in relation.hidden_groups]
                written = PurePath(source_line(occurrence.eqn)).name  # the folder differs from machine to machine
                shape = shape_text(occurrence.y_var.aval.shape)
                facts = [occurrence.primitive.name, occurrence.kind.value, shape, ", ".join(groups) or "none"]
                rows.append([self._named(parameter.name), *facts, written])
        header = ["parameter", "operator", "kind", "output", "groups", "written at"]
        return table(header, rows, [26, 20, 11, 14, 8, 40]) if rows else []

    def _diagnostics(self, quiet: bool, loud: bool) -> list[str]:
        """The records for information (quiet), and those that are more than that (loud)."""
        wanted = {DiagnosticLevel.INFO: quiet, DiagnosticLevel.WARNING: loud, DiagnosticLevel.ERROR: loud}
        return [
            line
            for record in self.report
            if wanted[record.level]
            for line in paragraph(self._named(record.message), f"{record.level.value} {record.kind.value}: ", "    ")
        ]

    def _reached(self, parameter: Parameter) -> str:
        program, patterns = self.graph.program, self.graph.patterns
        names = [
            leaf.name
            for leaf, out in zip(program.hidden, program.hidden_outvars, strict=True)
            if any(patterns.reaches_directly(occurrence.y_var, out) for occurrence in parameter.occurrences)
        ]
        nothing = "none directly" if parameter.history is HistoryKind.IN_STEP else "none"
        return self._named(", ".join(names)) or nothing

    def _named(self, text: str) -> str:
        program = self.graph.program
        return readable([*program.params, *program.hidden])(text)


def _verdict(parameters: Sequence[Parameter]) -> str:
    """Whether D-RTRL is exact, in one line."""
    approximate = [parameter.name for parameter in parameters if parameter.history not in EXACT]
    if not approximate:
        return "D-RTRL equals BPTT for this model."
    if len(approximate) == len(parameters):
        return "D-RTRL is approximate for every parameter of this model."
    for shown in range(len(approximate), 0, -1):
        more = f" and {len(approximate) - shown} more" if shown < len(approximate) else ""
        line = f"D-RTRL is approximate for {', '.join(approximate[:shown])}{more}; exact for the rest."
        if len(line) <= WIDTH:
            return line
    return f"D-RTRL is approximate for {counted(len(approximate), 'parameter')}; exact for the rest."


def _notes(parameters: Sequence[Parameter]) -> dict[str, int]:
    """Numbers for the reasons, where some repeat or one parameter has many; none where they fit into the table."""
    used = Counter(reason for parameter in parameters for reason in _merged(parameter.reasons))
    few = all(len(_merged(parameter.reasons)) <= MOST_REASONS for parameter in parameters)
    return {} if few and len(used) == used.total() else {reason: number for number, reason in enumerate(used, 1)}


def _why(parameter: Parameter, notes: dict[str, int]) -> str:
    if not parameter.occurrences or not parameter.reasons:
        return without_reasons(parameter)
    reasons = _merged(parameter.reasons)
    return _ranges([notes[reason] for reason in reasons]) if notes else "; ".join(reasons)


def _merged(reasons: Sequence[str]) -> list[str]:
    """Reasons that differ in their last name alone, as one with all the names."""
    names: dict[tuple[str, str], list[str]] = {}
    for reason in reasons:
        before, name, after = re.fullmatch(r"(.*?)((?:`[^`]*`)?)([^`]*)", reason, re.DOTALL).groups()  # type: ignore[union-attr]
        names.setdefault((before, after), []).append(name)
    return [before + ", ".join(dict.fromkeys(found)) + after for (before, after), found in names.items()]


def _letters(number: int) -> str:
    """The mark of a note: a to z, then aa, ab and so on."""
    before, place = divmod(number - 1, 26)
    return (_letters(before) if before else "") + chr(ord("a") + place)


def _ranges(numbers: Sequence[int]) -> str:
    """`(a-c) (e)` for 1, 2, 3, 5."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    ends = [dict.fromkeys((_letters(run[0]), _letters(run[-1]))) for run in runs]
    return " ".join(f"({'-'.join(marks)})" for marks in ends)


def _repeated(texts: Sequence[str]) -> str:
    """One line for each text, those that repeat with their number, and not too many."""
    lines = [text if count == 1 else f"{text} ({count} times)" for text, count in Counter(texts).items()]
    rest = len(lines) - MOST_LINES
    return "\n".join(lines if rest <= 0 else [*lines[:MOST_LINES], f"and {rest} more"])
