"""The eligibility-trace graph: everything the compiler found about a step program.

`compile_program` is the compiler's one entry. It classifies values, finds occurrences, runs the pattern analysis once
with states and `y`s as sources, and reads groups, relations and histories off the patterns. All orders follow the
program's own order, so the same model gives the same graph in every run.
"""

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from foretrace._checks import require_choice
from foretrace._jax import is_float
from foretrace._optional import view
from foretrace._repr import counted, one_line
from foretrace.compiler import pattern_rules as _pattern_rules  # noqa: F401  (registers them)
from foretrace.compiler.findings import find_records
from foretrace.compiler.groups import HiddenGroup, find_groups
from foretrace.compiler.history import Parameter, find_parameters
from foretrace.compiler.occurrences import Occurrence, find_occurrences, has_marks
from foretrace.compiler.patterns import Patterns, analyse
from foretrace.compiler.relations import HiddenParamOpRelation, find_relations
from foretrace.compiler.reporting.drawing import draw_graph
from foretrace.compiler.reporting.html import report_cell
from foretrace.compiler.reporting.report import CompilationReport
from foretrace.compiler.slicing import DirectSlicer
from foretrace.compiler.substeps import split_loops
from foretrace.compiler.values import Values, classify
from foretrace.program import to_code
from foretrace.program.diagnostics import CompilationRecord, DiagnosticKind, Path
from foretrace.program.records import Leaf, StepProgram

Discover = Literal["auto", "marked", "all"]


class TracedModel(Protocol):
    """What the compiler asks of a traced model."""

    @property
    def program(self) -> StepProgram: ...

    def with_program(self, program: StepProgram) -> Any:
        """The same model, told by an equivalent program."""

    def owner(self, leaf: Leaf) -> Any:
        """The object of the model's library that holds an array of the program, or the leaf itself."""


@dataclass(frozen=True, eq=False)
class ETraceGraph:
    """Where each parameter of a model enters its dynamics, and which positions of which states it reaches.

    What only people ask for (`parameters`, `diagnostics`) is worked out when it is first read.

    Attributes:
        model: The traced model.
        hidden_groups: States that depend on one another position by position.
        hid_path_to_group: The group of each state.
        hidden_param_op_relations: Occurrences that reach a state along direct paths.
        program: The step program that the graph speaks of, with loops split into sub-steps.
        occurrences: Every place where parameters meet data.
        patterns: The direct dependency patterns.
        values: What the values of the step are made of.
        group_records: What was decided about groups.
        analysis_seconds: How long the analysis took.
        further_records: Makes what is to be said beside the compiler's own findings, as of the size of traces.
    """

    model: Any
    hidden_groups: tuple[HiddenGroup, ...]
    hid_path_to_group: dict[Path, HiddenGroup]
    hidden_param_op_relations: tuple[HiddenParamOpRelation, ...]
    program: StepProgram = field(repr=False)
    occurrences: tuple[Occurrence, ...] = field(repr=False)
    patterns: Patterns = field(repr=False)
    values: Values = field(repr=False)
    group_records: tuple[CompilationRecord, ...] = field(repr=False)
    analysis_seconds: float
    further_records: Callable[[], Sequence[CompilationRecord]] = field(default=tuple, repr=False)

    @one_line
    def __repr__(self) -> Iterator[str]:
        yield self.sizes
        yield counted(len(self.hidden_param_op_relations), "relation")

    def _repr_html_(self) -> str:
        return report_cell(self.explain(), repr(self))

    @property
    def sizes(self) -> str:
        """How many parameters, states and groups there are, in words."""
        states = f"{counted(len(self.program.hidden), 'state')} in {counted(len(self.hidden_groups), 'group')}"
        return f"{counted(len(self.program.params), 'parameter')}, {states}"

    @functools.cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """What the history of each parameter keeps, in the program's order."""
        return find_parameters(self)

    @functools.cached_property
    def diagnostics(self) -> tuple[CompilationRecord, ...]:
        """What was decided, and why."""
        return (*self.program.diagnostics, *self.group_records, *find_records(self), *self.further_records())

    module_info = view("views:module_info", "What is known of the model; for a brainstate module a `ModuleInfo`.")
    hidden_perturb = view("perturbation:hidden_perturb", "The step with a perturbation on every new state.")
    call_hidden_perturb = view("perturbation:call_hidden_perturb", "Runs one step with it.", method=True)

    def explain(
        self,
        level: int = 1,
        *,
        weight_path: Path | str | None = None,
        hidden_path: Path | str | None = None,
        kind: DiagnosticKind | str | None = None,
    ) -> CompilationReport:
        """A report for people, which is also the sequence of diagnostics that fit the filters.

        Args:
            level: 0 for a summary, 1 for the table of parameters and warnings, 2 for groups too, 3 for everything.
            weight_path: Only what concerns this parameter, given by its path or its dotted name.
            hidden_path: Only what concerns this state.
            kind: Only diagnostics of this kind.

        Returns:
            The report; print it.
        """
        return CompilationReport(self, level, weight_path, hidden_path, kind)

    def to_code(self) -> str:
        """The step as readable Python."""
        return to_code(self.program)

    def show_graph(self, path: Any = None) -> Any:
        """Draws groups, weights and paths.

        Args:
            path: A file to write (`.svg`, `.png`, `.pdf`); None to get the figure.

        Returns:
            The matplotlib figure.
        """
        return draw_graph(self, path)

    def dict(self) -> dict[str, Any]:
        """The attributes by name."""
        lazy = ("parameters", "diagnostics", "module_info", "hidden_perturb")
        return {name: getattr(self, name) for name in (*self.__dataclass_fields__, *lazy)}


def compile_program(model: TracedModel, *, discover: Discover = "auto") -> ETraceGraph:
    """Compiles a step program to its eligibility-trace graph.

    Args:
        model: The traced model; its `program` is compiled.
        discover: `'marked'` traces marked operators alone, `'all'` plain ones too, `'auto'` marked ones where the
            model marks any and all where it marks none.

    Returns:
        The graph.
    """
    require_choice("discover", discover, ("auto", "marked", "all"))
    start = time.perf_counter()
    program = split_loops(model.program)
    values = classify(program)
    everything = discover == "all" or (discover == "auto" and not has_marks(program))
    occurrences = find_occurrences(program, values, discover=everything)
    states_in = [*program.hidden_invars, *(var for var in program.other_invars if is_float(var.aval))]
    sources = dict.fromkeys([*states_in, *program.hidden_outvars, *(o.y_var for o in occurrences)])
    patterns = analyse(values.data_jaxpr, list(sources), consts=program.consts)
    slicer = DirectSlicer(values.data_jaxpr, patterns.structures)
    groups, group_records = find_groups(program, slicer, patterns, [model.owner(leaf) for leaf in program.hidden])
    owners = [model.owner(leaf) for leaf in program.params]
    return ETraceGraph(
        model=model if program is model.program else model.with_program(program),
        hidden_groups=groups,
        hid_path_to_group={path: group for group in groups for path in group.hidden_paths},
        hidden_param_op_relations=find_relations(program, occurrences, groups, patterns, owners),
        program=program,
        occurrences=occurrences,
        patterns=patterns,
        values=values,
        group_records=group_records,
        analysis_seconds=time.perf_counter() - start,
    )
