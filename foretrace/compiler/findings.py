"""What the compiler says about what it found: one typed record for everything kept, left out or odd.

The records follow from the analysis and change nothing in it. Their kinds are for programs, their texts for people.
"""

from collections.abc import Iterator, Sequence

from foretrace._jax import JaxprEqn, source_line
from foretrace.compiler.backward import call_name, nonlinear_calls
from foretrace.compiler.history import Detour, Parameter, detour, nonlinear_makers, uncredited_states
from foretrace.compiler.occurrences import Occurrence, OccurrenceKind
from foretrace.compiler.pattern_rules.indexing import MOST_CHOICES
from foretrace.compiler.patterns import Patterns
from foretrace.compiler.relations import HiddenParamOpRelation
from foretrace.compiler.values import Made, Values
from foretrace.ops import ETPPrimitive, untraced_p
from foretrace.program.diagnostics import CompilationRecord, DiagnosticKind, DiagnosticLevel
from foretrace.program.records import StepProgram, path_name, quoted
from foretrace.program.walks import needed_eqns


def find_records(
    program: StepProgram, values: Values, parameters: Sequence[Parameter], patterns: Patterns
) -> list[CompilationRecord]:
    """Records of unknown primitives, backward passes that are not linear, odd marked operators, states without credit,
    and each parameter's occurrences."""
    occurrences = list({id(o): o for parameter in parameters for o in parameter.occurrences}.values())
    return [
        *map(_unknown, patterns.unknown),
        *_not_linear(program, values, parameters, patterns),
        *(record for eqn in program.jaxpr.eqns for record in _mark_records(eqn, values)),
        *_without_credit(program, patterns),
        *(
            record
            for parameter in parameters
            for record in _parameter_records(parameter, patterns, program, occurrences)
        ),
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


def _without_credit(program: StepProgram, patterns: Patterns) -> list[CompilationRecord]:
    kind, level = DiagnosticKind.STATE_WITHOUT_CREDIT, DiagnosticLevel.WARNING
    learned = [source for source in patterns.sources if source not in program.other_invars]
    records = []
    for leaf, out in uncredited_states(program, patterns):
        if any(patterns.reaches(source, out) for source in learned):
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


def _not_linear(
    program: StepProgram, values: Values, parameters: Sequence[Parameter], patterns: Patterns
) -> list[CompilationRecord]:
    """Backward passes that no trace can follow, where history runs: on the way to states, and in making a weight."""
    counts = "It counts as mixing: credit within a step follows it exactly, and no history passes through it."
    found = [(call, counts) for call in _nonlinear_on_the_way(program, values, patterns)]
    for relation in (relation for parameter in parameters for relation in parameter.relations):
        makes = (
            f"`{path_name(relation.path)}` passes through it on the way to its operator: the cotangent of each step "
        )
        makes += "passes by itself, where BPTT adds those of later steps first."
        found += [(call, makes) for call in nonlinear_makers(relation, values)]
    return list({record.message: record for record in (_nonlinear(call, text) for call, text in found)}.values())


def _nonlinear_on_the_way(program: StepProgram, values: Values, patterns: Patterns) -> Iterator[JaxprEqn]:
    for eqn in reversed(needed_eqns(values.data_jaxpr.eqns, program.hidden_outvars)):
        for call, operands in nonlinear_calls(eqn):
            if any(patterns.is_reached(eqn.invars[i]) for i in operands):
                yield call


def _nonlinear(call: JaxprEqn, follows: str) -> CompilationRecord:
    name = call_name(call)
    text = (
        f"The backward pass of `{name}` at {source_line(call)} is not known to be linear in its cotangent. {follows} "
    )
    text += "Clip gradients behind the learner, or write a backward pass that is linear."
    return CompilationRecord(DiagnosticKind.BACKWARD_NOT_LINEAR, DiagnosticLevel.WARNING, text, primitive=name)


def _parameter_records(
    parameter: Parameter, patterns: Patterns, program: StepProgram, occurrences: Sequence[Occurrence]
) -> list[CompilationRecord]:
    related = {id(relation.occurrence): relation for relation in parameter.relations}
    if not parameter.occurrences:
        text = f"Parameter `{parameter.name}` meets no data in this step: its gradient is zero, unless "
        text += "the step returns a value made of parameters alone."
        return [_about(parameter, DiagnosticKind.PARAMETER_UNUSED, DiagnosticLevel.WARNING, text)]
    records = []
    for occurrence in parameter.occurrences:
        relation = related.get(id(occurrence))
        if relation is None:
            records.append(_excluded(parameter, occurrence, patterns, program, occurrences))
            continue
        text = (
            f"`{parameter.name}` reaches {quoted(*relation.connected_hidden_paths)} by `{occurrence.primitive.name}`."
        )
        records.append(_about(parameter, DiagnosticKind.RELATION_INCLUDED, DiagnosticLevel.INFO, text, relation))
        if "mixed" in relation.path_classification.values():
            text = f"`{parameter.name}` also reaches its states through mixing; that part carries no history."
            records.append(
                _about(parameter, DiagnosticKind.RELATION_PARTIAL_PATH, DiagnosticLevel.INFO, text, relation)
            )
    return records


def _excluded(
    parameter: Parameter,
    occurrence: Occurrence,
    patterns: Patterns,
    program: StepProgram,
    occurrences: Sequence[Occurrence],
) -> CompilationRecord:
    outs = program.hidden_outvars
    name, operator, y_var = parameter.name, occurrence.primitive.name, occurrence.y_var
    keeps = "It keeps its exact in-step gradient."
    if not any(patterns.reaches(y_var, out) for out in outs):
        kind, level = DiagnosticKind.RELATION_EXCLUDED_NON_TEMPORAL, DiagnosticLevel.INFO
        text = f"`{name}` reaches no state by `{operator}`: it needs no history there."
    elif occurrence.on_purpose:
        kind, level = DiagnosticKind.RELATION_EXCLUDED_ON_PURPOSE, DiagnosticLevel.INFO
        text = f"`{name}` is kept out of history on purpose, by `untraced`. {keeps}"
    elif occurrence.is_loop:
        kind, level = DiagnosticKind.RELATION_PARTIAL_PATH, DiagnosticLevel.INFO
        text = f"`{name}` also acts from one sub-step of a loop to the next through mixing. {keeps}"
    elif occurrence.kind is OccurrenceKind.OPAQUE:
        kind, level = DiagnosticKind.RELATION_EXCLUDED_NONLINEAR, DiagnosticLevel.WARNING
        text = f"`{name}` enters `{operator}`, which is neither linear in it nor elementwise. {keeps}"
    elif not occurrence.traced:
        kind, level = DiagnosticKind.RELATION_EXCLUDED_UNMARKED, DiagnosticLevel.WARNING
        text = f"`{name}` enters by a plain `{operator}` in a model that marks other operators. {keeps}"
    else:
        kind, text = _behind(*detour(occurrence, program, patterns, occurrences))
        level, text = DiagnosticLevel.WARNING, f"`{name}` in `{operator}` reaches states only {text} {keeps}"
    return _about(parameter, kind, level, text, operator=operator)


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


def _about(
    parameter: Parameter,
    kind: DiagnosticKind,
    level: DiagnosticLevel,
    text: str,
    relation: HiddenParamOpRelation | None = None,
    operator: str | None = None,
) -> CompilationRecord:
    hidden = () if relation is None else relation.connected_hidden_paths
    operator = operator if relation is None else relation.primitive.name
    return CompilationRecord(kind, level, text, operator, parameter.path, hidden)
