"""What the compiler says about what it found: one typed record for everything kept, left out or odd.

The records follow from the analysis and change nothing in it. Their kinds are for programs, their texts for people.
"""

from typing import TYPE_CHECKING

from foretrace._jax import JaxprEqn, source_line
from foretrace.compiler.backward import call_name, nonlinear_calls
from foretrace.compiler.history import Detour, Parameter, detour, nonlinear_makers, uncredited_states
from foretrace.compiler.occurrences import Occurrence, OccurrenceKind
from foretrace.compiler.pattern_rules.indexing import MOST_CHOICES
from foretrace.compiler.values import Made, Values
from foretrace.ops import ETPPrimitive, untraced_p
from foretrace.program.diagnostics import CompilationRecord, DiagnosticKind, DiagnosticLevel
from foretrace.program.records import path_name, quoted
from foretrace.program.walks import needed_eqns

if TYPE_CHECKING:
    from foretrace.compiler.graph import ETraceGraph


def find_records(graph: "ETraceGraph") -> list[CompilationRecord]:
    """Records of unknown primitives, backward passes that are not linear, odd marked operators, states without credit,
    and each parameter's occurrences."""
    return [
        *map(_unknown, graph.patterns.unknown),
        *_not_linear(graph),
        *(record for eqn in graph.program.jaxpr.eqns for record in _mark_records(eqn, graph.values)),
        *_without_credit(graph),
        *(record for parameter in graph.parameters for record in _parameter_records(graph, parameter)),
    ]


def _mark_records(eqn: JaxprEqn, values: Values) -> list[CompilationRecord]:
    """What is odd about a marked operator: weights that are data, several outputs; a mark on data."""
    primitive = eqn.primitive
    if primitive is untraced_p and values.of(eqn.invars[0]) is Made.DATA:
        text = f"`untraced` at {source_line(eqn)} marks a value that is not made of parameters alone. It does nothing "
        text += "there: mark the parameters before they meet data."
        kind = DiagnosticKind.TRAINABLE_INVAR_NOT_PARAMSTATE
        return [CompilationRecord(kind, DiagnosticLevel.WARNING, text, primitive.name)]
    if not isinstance(primitive, ETPPrimitive):
        return []
    records = []
    trainable = primitive.trainable_invars(eqn.params)
    data = [name for name, i in trainable.items() if values.of(eqn.invars[i]) is not Made.PARAMETERS]
    if data:
        names, every = " and ".join(f"`{name}`" for name in data), len(data) == len(trainable)
        text = (
            f"{names} of the marked operator `{primitive.name}` at {source_line(eqn)} is not made of parameters alone. "
        )
        text += "It gets no trace: mark the operator that its parameters enter, or use a plain operator here."
        kinds = DiagnosticKind.RELATION_EXCLUDED_NO_PARAMSTATE, DiagnosticKind.TRAINABLE_INVAR_NOT_PARAMSTATE
        records.append(CompilationRecord(kinds[not every], DiagnosticLevel.WARNING, text, primitive.name))
    if len(eqn.outvars) > 1:
        text = (
            f"The marked operator `{primitive.name}` has several outputs; output {primitive.y_outvar_index} is traced."
        )
        kind = DiagnosticKind.MULTI_OUTPUT_PRIMITIVE_DETECTED
        records.append(CompilationRecord(kind, DiagnosticLevel.INFO, text, primitive.name))
    return records


def _without_credit(graph: "ETraceGraph") -> list[CompilationRecord]:
    kind, level = DiagnosticKind.STATE_WITHOUT_CREDIT, DiagnosticLevel.WARNING
    learned = [source for source in graph.patterns.sources if source not in graph.program.other_invars]
    records = []
    for leaf, out in uncredited_states(graph):
        if any(graph.patterns.reaches(source, out) for source in learned):
            text = (
                f"State `{leaf.name}` passes a derivative on from step to step, but is carried along without credit. "
            )
            text += "Make it a HiddenState if its history should be credited."
            records.append(CompilationRecord(kind, level, text, hidden_paths=(leaf.path,)))
    return records


def _unknown(name: str) -> CompilationRecord:
    text = (
        f"Primitive `{name}` has no rule: it counts as mixing everything, so no history passes through it. "
        "Write it with JAX's own primitives, or mark the operator with foretrace.register_primitive."
    )
    return CompilationRecord(DiagnosticKind.PRIMITIVE_UNKNOWN, DiagnosticLevel.WARNING, text, primitive=name)


def _not_linear(graph: "ETraceGraph") -> list[CompilationRecord]:
    """Backward passes that no trace can follow, where history runs: on the way to states, and in making a weight."""
    counts = "It counts as mixing: credit within a step follows it exactly, and no history passes through it."
    found = [
        (call, counts)
        for eqn in reversed(needed_eqns(graph.values.data_jaxpr.eqns, graph.program.hidden_outvars))
        for call, operands in nonlinear_calls(eqn)
        if any(graph.patterns.is_reached(eqn.invars[i]) for i in operands)
    ]
    for relation in (relation for parameter in graph.parameters for relation in parameter.relations):
        makes = (
            f"`{path_name(relation.path)}` passes through it on the way to its operator: the cotangent of each step "
        )
        makes += "passes by itself, where BPTT adds those of later steps first."
        found += [(call, makes) for call in nonlinear_makers(relation, graph.values)]
    return list({record.message: record for record in (_nonlinear(call, text) for call, text in found)}.values())


def _nonlinear(call: JaxprEqn, follows: str) -> CompilationRecord:
    name = call_name(call)
    text = (
        f"The backward pass of `{name}` at {source_line(call)} is not known to be linear in its cotangent. {follows} "
    )
    text += "Clip gradients behind the learner, or write a backward pass that is linear."
    return CompilationRecord(DiagnosticKind.BACKWARD_NOT_LINEAR, DiagnosticLevel.WARNING, text, primitive=name)


def _parameter_records(graph: "ETraceGraph", parameter: Parameter) -> list[CompilationRecord]:
    name, related = parameter.name, {id(relation.occurrence): relation for relation in parameter.relations}
    if not parameter.occurrences:
        text = f"Parameter `{name}` meets no data in this step: its gradient is zero, unless "
        text += "the step returns a value made of parameters alone."
        kind, level = DiagnosticKind.PARAMETER_UNUSED, DiagnosticLevel.WARNING
        return [CompilationRecord(kind, level, text, weight_path=parameter.path)]
    records = []
    for occurrence in parameter.occurrences:
        operator, relation = occurrence.primitive.name, related.get(id(occurrence))
        if relation is None:
            kind, level, text = _excluded(graph, occurrence)
            records.append(CompilationRecord(kind, level, f"`{name}` {text}", operator, parameter.path))
            continue
        paths = relation.connected_hidden_paths
        said = {DiagnosticKind.RELATION_INCLUDED: f"`{name}` reaches {quoted(*paths)} by `{operator}`."}
        if "mixed" in relation.path_classification.values():
            text = f"`{name}` also reaches its states through mixing; that part carries no history."
            said[DiagnosticKind.RELATION_PARTIAL_PATH] = text
        info = DiagnosticLevel.INFO
        records += [CompilationRecord(kind, info, text, operator, parameter.path, paths) for kind, text in said.items()]
    return records


def _excluded(graph: "ETraceGraph", occurrence: Occurrence) -> tuple[DiagnosticKind, DiagnosticLevel, str]:
    """Why an occurrence has no trace: what to say behind the name of the parameter."""
    operator, keeps = occurrence.primitive.name, "It keeps its exact in-step gradient."
    if not any(graph.patterns.reaches(occurrence.y_var, out) for out in graph.program.hidden_outvars):
        kind, level = DiagnosticKind.RELATION_EXCLUDED_NON_TEMPORAL, DiagnosticLevel.INFO
        return kind, level, f"reaches no state by `{operator}`: it needs no history there."
    if occurrence.on_purpose:
        kind, level = DiagnosticKind.RELATION_EXCLUDED_ON_PURPOSE, DiagnosticLevel.INFO
        text = "is kept out of history on purpose, by `untraced`."
    elif occurrence.is_loop:
        kind, level = DiagnosticKind.RELATION_PARTIAL_PATH, DiagnosticLevel.INFO
        text = "also acts from one sub-step of a loop to the next through mixing."
    elif occurrence.kind is OccurrenceKind.OPAQUE:
        kind, level = DiagnosticKind.RELATION_EXCLUDED_NONLINEAR, DiagnosticLevel.WARNING
        text = f"enters `{operator}`, which is neither linear in it nor elementwise."
    elif not occurrence.traced:
        kind, level = DiagnosticKind.RELATION_EXCLUDED_UNMARKED, DiagnosticLevel.WARNING
        text = f"enters by a plain `{operator}` in a model that marks other operators."
    else:
        (kind, text), level = _behind(*detour(graph, occurrence)), DiagnosticLevel.WARNING
        text = f"in `{operator}` reaches states only {text}"
    return kind, level, f"{text} {keeps}"


def _behind(found: Detour, primitive: str) -> tuple[DiagnosticKind, str]:
    """How to say what stands between an operator and the states."""
    if found is not Detour.INDEX:
        return DiagnosticKind.RELATION_EXCLUDED_WEIGHT_TO_WEIGHT, f"through {found.value} (`{primitive}`)."
    text = (
        f"through `{primitive}` at an index that floating values decide, or that may mean more than {MOST_CHOICES} "
        "positions. A shorter buffer with a whole number as its pointer is followed, and one that is shifted by a roll "
        "or a concatenation; `RTRL` and `SnAp` follow this one too."
    )
    return DiagnosticKind.RELATION_EXCLUDED_INDEX_BY_DATA, text
