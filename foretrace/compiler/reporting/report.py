"""The report: what the compiler found, as text for people and as typed records for tests and tools.

`CompilationReport` takes a graph and filters, prints as a table with one line for each parameter, and is itself the
sequence of the graph's diagnostics that fit the filters. Its text is laid out in `text.py`.
"""

import difflib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, overload

from foretrace.compiler.history import Parameter
from foretrace.compiler.reporting.html import report_cell
from foretrace.compiler.reporting.text import ReportText
from foretrace.program.diagnostics import CompilationRecord, DiagnosticKind, DiagnosticLevel, Path
from foretrace.program.records import path_name

if TYPE_CHECKING:
    from foretrace.compiler.graph import ETraceGraph

LEVELS = (0, 1, 2, 3)


class CompilationReport(Sequence[CompilationRecord]):
    """What was found about a model, as text and as the sequence of diagnostics that fit the filters.

    Args:
        graph: The compiled graph.
        level: 0 for a summary, 1 for the table of parameters, 2 for the groups too, 3 for everything.
        weight_path: Only what concerns this parameter, or the parameters below this path: a tuple or `"cell.w"`.
        hidden_path: Only what concerns this state, likewise.
        kind: Only diagnostics of this kind.

    Raises:
        ValueError: A level, path or kind that does not exist.

    Examples:
        >>> import jax.numpy as jnp
        >>> from foretrace.entry import compile_etrace_graph
        >>> def step(params, state, x):
        ...     state = 0.9 * state + x @ params["w"]
        ...     return state, state
        >>> graph = compile_etrace_graph(step, jnp.ones(3), params={"w": jnp.ones((3, 2))}, state=jnp.zeros(2))
        >>> print(graph.explain(level=0))
        1 parameter, 1 state in 1 group; no warnings.
        D-RTRL equals BPTT for this model.
    """

    def __init__(
        self,
        graph: "ETraceGraph",
        level: int = 1,
        weight_path: Path | str | None = None,
        hidden_path: Path | str | None = None,
        kind: DiagnosticKind | str | None = None,
    ) -> None:
        self.graph = graph
        self.level = _checked_level(level)
        self.kind = None if kind is None else _checked_kind(kind)
        self._weights = _chosen(weight_path, [p.path for p in graph.parameters], "parameter")
        self._states = _chosen(hidden_path, [leaf.path for leaf in graph.program.hidden], "state")
        self._records = tuple(record for record in graph.diagnostics if self._fits(record))

    @overload
    def __getitem__(self, index: int) -> CompilationRecord: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[CompilationRecord]: ...
    def __getitem__(self, index: int | slice) -> CompilationRecord | Sequence[CompilationRecord]:
        return self._records[index]

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[CompilationRecord]:
        return iter(self._records)

    def __bool__(self) -> bool:
        return True  # a report without diagnostics is still a report

    def __str__(self) -> str:
        return self.to_str(self.level)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return report_cell(self)

    @property
    def diagnostics(self) -> tuple[CompilationRecord, ...]:
        """The diagnostics that fit the filters."""
        return self._records

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters that fit the filters."""
        return tuple(parameter for parameter in self.graph.parameters if self._shows(parameter))

    @property
    def hidden_groups(self) -> list[tuple[int, list[Path]]]:
        """The number of each group and the paths of its states."""
        found = [(group.index, list(group.hidden_paths)) for group in self.graph.hidden_groups]
        return [(index, paths) for index, paths in found if self._states is None or self._states.intersection(paths)]

    @property
    def etrace_weights(self) -> list[tuple[Path, list[int]]]:
        """The paths of parameters with a trace, and the numbers of the groups that each reaches directly."""
        reached: dict[Path, set[int]] = {}
        for parameter in self.parameters:
            for relation in parameter.relations:
                groups = {group.index for group in relation.hidden_groups}
                reached.setdefault(self._owner(parameter), set()).update(groups)
        return [(path, sorted(groups)) for path, groups in reached.items()]

    @property
    def excluded_weights(self) -> list[tuple[Path, str]]:
        """The paths of parameters without a trace, and the kind of diagnostic that says why."""
        traced = {path for path, _ in self.etrace_weights}
        excluded: dict[Path, str] = {}
        for parameter in self.parameters:
            if self._owner(parameter) not in traced:
                excluded.setdefault(self._owner(parameter), self._exclusion(parameter))
        return list(excluded.items())

    @property
    def dynamic_states(self) -> list[Path]:
        """The paths of states that are carried along without credit."""
        return [leaf.path for leaf in self.graph.program.other]

    @property
    def counts(self) -> dict[str, int]:
        """How many groups, traced and excluded weights, warnings and errors there are, and diagnostics of each kind."""
        levels = Counter(record.level for record in self)
        return {
            "hidden_groups": len(self.hidden_groups),
            "etrace_weights": len(self.etrace_weights),
            "excluded_weights": len(self.excluded_weights),
            "warnings": levels[DiagnosticLevel.WARNING],
            "errors": levels[DiagnosticLevel.ERROR],
            **Counter(record.kind for record in self),
        }

    def show(self, level: int | None = None, *, file: IO[str] | None = None) -> None:
        """Prints the report.

        Args:
            level: How much to say; the report's own level for None.
            file: Where to print; the standard output for None.
        """
        print(self.to_str(level), file=sys.stdout if file is None else file)

    def to_str(self, level: int | None = None) -> str:
        """The report as text.

        Args:
            level: How much to say; the report's own level for None.

        Returns:
            Lines of at most 110 characters.
        """
        level = self.level if level is None else _checked_level(level)
        return ReportText(self).at_level(level)

    def _shows(self, parameter: Parameter) -> bool:
        if self._weights is not None and parameter.path not in self._weights:
            return False
        return self._states is None or any(self._reaches(parameter, path) for path in self._states)

    def _reaches(self, parameter: Parameter, path: Path) -> bool:
        """Whether a parameter reaches a state along any path."""
        program, patterns = self.graph.program, self.graph.patterns
        outs = [out for leaf, out in zip(program.hidden, program.hidden_outvars, strict=True) if leaf.path == path]
        return any(patterns.reaches(occurrence.y_var, out) for occurrence in parameter.occurrences for out in outs)

    def _fits(self, record: CompilationRecord) -> bool:
        return (
            (self.kind is None or record.kind is self.kind)
            and (self._weights is None or record.weight_path in self._weights)
            and (self._states is None or bool(self._states & set(record.hidden_paths)))
        )

    def _owner(self, parameter: Parameter) -> Path:
        return self.graph.program.params[parameter.index].owner

    def _exclusion(self, parameter: Parameter) -> str:
        records = [record for record in self.graph.diagnostics if record.weight_path == parameter.path]
        kinds = [record.kind for record in records if record.kind is not DiagnosticKind.RELATION_INCLUDED]
        temporal = [kind for kind in kinds if kind is not DiagnosticKind.RELATION_EXCLUDED_NON_TEMPORAL]
        return (temporal or kinds)[0].value


def _checked_level(level: int) -> int:
    if level not in LEVELS:
        raise ValueError(f"A report has the levels 0 (summary), 1 (parameters), 2 (groups), 3 (all), not {level!r}.")
    return int(level)


def _checked_kind(kind: DiagnosticKind | str) -> DiagnosticKind:
    values = [member.value for member in DiagnosticKind]
    if kind not in values:
        raise ValueError(f"No diagnostic is of kind {kind!r}.{_nearest(str(kind), values)}")
    return DiagnosticKind(kind)


def _chosen(wanted: Path | str | None, paths: Sequence[Path], noun: str) -> set[Path] | None:
    """The paths at or below the wanted one; None where nothing is asked for."""
    if wanted is None:
        return None
    name = wanted if isinstance(wanted, str) else path_name(tuple(wanted))
    is_below: Callable[[str], bool] = lambda full: full == name or full.startswith((f"{name}.", f"{name}["))
    found = {path for path in paths if is_below(path_name(path))}
    if not found:
        raise ValueError(f"The model has no {noun} `{name}`.{_nearest(name, list(map(path_name, paths)))}")
    return found


def _nearest(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    return f" The nearest is `{close[0]}`." if close else ""
