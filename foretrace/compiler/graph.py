"""The eligibility-trace graph: everything the compiler found about a step program.

`compile_program` is the compiler's one entry. It classifies values, finds occurrences, runs the pattern analysis once
with states and `y`s as sources, and reads groups, relations and histories off the patterns. All orders follow the
program's own order, so the same model gives the same graph in every run.
"""

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from foretrace._checks import require_choice
from foretrace._jax import Var, is_float
from foretrace.compiler import pattern_rules as _pattern_rules  # noqa: F401  (registers them)
from foretrace.compiler.findings import find_records
from foretrace.compiler.groups import HiddenGroup, find_groups
from foretrace.compiler.history import Parameter, find_parameters
from foretrace.compiler.occurrences import Occurrence, find_occurrences, has_marks
from foretrace.compiler.patterns import Patterns, analyse
from foretrace.compiler.perturbation import HiddenPerturbation, add_perturbation
from foretrace.compiler.relations import HiddenParamOpRelation, find_reach, make_relation
from foretrace.compiler.reporting.drawing import draw_graph
from foretrace.compiler.reporting.report import CompilationReport
from foretrace.compiler.slicing import DirectSlicer
from foretrace.compiler.substeps import split_loops
from foretrace.compiler.values import Values, classify
from foretrace.program import to_code
from foretrace.program.diagnostics import CompilationRecord, DiagnosticKind, Path
from foretrace.program.records import StepProgram

Discover = Literal["auto", "marked", "all"]


class ModelInfo(Protocol):
    """What a frontend knows about the model behind a program."""

    @property
    def program(self) -> StepProgram: ...

    def with_program(self, program: StepProgram) -> Any:
        """The same model, told by an equivalent program."""


@dataclass(frozen=True, eq=False)
class ETraceGraph:
    """Where each parameter of a model enters its dynamics, and which positions of which states it reaches.

    What only people ask for (`parameters`, `diagnostics`) and what only some rules need (`hidden_perturb`) is worked
    out when it is first read.

    Attributes:
        module_info: What the frontend knows about the model.
        hidden_groups: States that depend on one another position by position.
        hid_path_to_group: The group of each state.
        hidden_param_op_relations: Occurrences that reach a state along direct paths.
        program: The step program that the graph speaks of, with loops split into sub-steps.
        occurrences: Every place where parameters meet data.
        patterns: The direct dependency patterns.
        values: What the values of the step are made of.
        hidden_states: The states as the model's library has them.
        group_records: What was decided about groups.
        include_hidden_perturb: Whether the perturbed step is wanted.
        analysis_seconds: How long the analysis took.
        further_records: Makes what is to be said beside the compiler's own findings, as of the size of traces.
    """

    module_info: Any
    hidden_groups: tuple[HiddenGroup, ...]
    hid_path_to_group: dict[Path, HiddenGroup]
    hidden_param_op_relations: tuple[HiddenParamOpRelation, ...]
    program: StepProgram = field(repr=False)
    occurrences: tuple[Occurrence, ...] = field(repr=False)
    patterns: Patterns = field(repr=False)
    values: Values = field(repr=False)
    hidden_states: tuple[Any, ...] = field(repr=False)
    group_records: tuple[CompilationRecord, ...] = field(repr=False)
    include_hidden_perturb: bool
    analysis_seconds: float
    further_records: Callable[[], Sequence[CompilationRecord]] = field(default=tuple, repr=False)

    @functools.cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """What the history of each parameter keeps, in the program's order."""
        relations = self.hidden_param_op_relations
        return find_parameters(self.program, self.occurrences, relations, self.patterns, self.values)

    @functools.cached_property
    def diagnostics(self) -> tuple[CompilationRecord, ...]:
        """What was decided, and why."""
        found = find_records(self.program, self.values, self.parameters, self.patterns)
        return (*self.program.diagnostics, *self.group_records, *found, *self.further_records())

    @functools.cached_property
    def hidden_perturb(self) -> HiddenPerturbation | None:
        """The step with a perturbation on every new state, if asked for."""
        return add_perturbation(self.program, self.hidden_states) if self.include_hidden_perturb else None

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

    def call_hidden_perturb(
        self, args: Any, perturb_data: Sequence[Any], old_state_vals: Sequence[Any] | None = None
    ) -> tuple[Any, dict[Path, Any], dict[Path, Any], dict[Var, Any]]:
        """Runs the model for one step with perturbed new states.

        Args:
            args: The model's inputs, as a tuple.
            perturb_data: One perturbation for each state, as `hidden_perturb.init_perturb_data()` gives them.
            old_state_vals: Values of the states before the step; the model's own where None.

        Returns:
            Output, new hidden values, new values of other states, and temporaries, as `ModuleInfo.jaxpr_call`.
        """
        if self.hidden_perturb is None:
            raise ValueError("The graph has no perturbation: compile it with include_hidden_perturb=True.")
        info = self.module_info
        params, hidden, other = info.flatten_states(old_state_vals)
        flat = self.hidden_perturb.eval_jaxpr([*params, *hidden, *other, *info.flatten_inputs(*args)], perturb_data)
        return info.unflatten_step(flat)

    def dict(self) -> dict[str, Any]:
        """The attributes by name."""
        lazy = ("parameters", "diagnostics", "hidden_perturb")
        return {name: getattr(self, name) for name in (*self.__dataclass_fields__, *lazy)}


def compile_program(
    info: ModelInfo,
    *,
    hidden_states: Sequence[Any] | None = None,
    param_states: Sequence[Any] | None = None,
    discover: Discover = "auto",
    include_hidden_perturb: bool = True,
) -> ETraceGraph:
    """Compiles a step program to its eligibility-trace graph.

    Args:
        info: What a frontend made of the model; its `program` is compiled.
        hidden_states: The states as the model's library has them; by default their leaves.
        param_states: The parameters likewise.
        discover: `'marked'` traces marked operators alone, `'all'` plain ones too, `'auto'` marked ones where the
            model marks any and all where it marks none.
        include_hidden_perturb: Whether to make the perturbed step.

    Returns:
        The graph.
    """
    require_choice("discover", discover, ("auto", "marked", "all"))
    start = time.perf_counter()
    program = split_loops(info.program)
    states = program.hidden if hidden_states is None else hidden_states
    weights = program.params if param_states is None else param_states
    values = classify(program)
    everything = discover == "all" or (discover == "auto" and not has_marks(program))
    occurrences = find_occurrences(program, values, discover=everything)
    states_in = [*program.hidden_invars, *(var for var in program.other_invars if is_float(var.aval))]
    sources = dict.fromkeys([*states_in, *program.hidden_outvars, *(o.y_var for o in occurrences)])
    patterns = analyse(values.data_jaxpr, list(sources), consts=program.consts)
    slicer = DirectSlicer(values.data_jaxpr, patterns.structures)
    groups, group_records = find_groups(program, slicer, patterns, states)
    relations = _relations(occurrences, groups, program, patterns, weights)
    return ETraceGraph(
        module_info=info if program is info.program else info.with_program(program),
        hidden_groups=groups,
        hid_path_to_group={path: group for group in groups for path in group.hidden_paths},
        hidden_param_op_relations=relations,
        program=program,
        occurrences=occurrences,
        patterns=patterns,
        values=values,
        hidden_states=tuple(states),
        group_records=group_records,
        include_hidden_perturb=include_hidden_perturb,
        analysis_seconds=time.perf_counter() - start,
    )


def _relations(
    occurrences: Sequence[Occurrence],
    groups: Sequence[HiddenGroup],
    program: StepProgram,
    patterns: Patterns,
    param_states: Sequence[Any],
) -> tuple[HiddenParamOpRelation, ...]:
    relations = []
    for occurrence in occurrences:
        if not occurrence.traced:
            continue
        reached = [
            (group, find_reach(group, occurrence.y_var, patterns))
            for group in groups
            if any(not patterns.of(out, occurrence.y_var).is_empty for out in group.hidden_outvars)
        ]
        if reached:
            relations.append(make_relation(occurrence, reached, program, patterns, param_states))
    return tuple(relations)
