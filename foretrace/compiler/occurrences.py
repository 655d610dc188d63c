"""Occurrences: the places where a value made of parameters alone meets data.

Each is *linear*, `y = A(x) w`, or *elementwise*, where `y` is `w` itself, or *opaque*: the parameter enters an
equation that neither is linear in it nor passes it on element by element, so that no trace can be kept for it.

Where a model marks operators, the marked ones are traced and a plain `x @ w` stays untraced; where it marks none,
they are all found among plain JAX equations. Untraced ones are recorded too: their parameters still get the exact
in-step gradient, and the report says so.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from foretrace._jax import JaxprEqn, Literal, Primitive, Var, is_float
from foretrace._repr import one_line, shape_text
from foretrace.compiler.patterns import structure_of
from foretrace.compiler.structure import Known
from foretrace.compiler.values import Made, Values
from foretrace.ops import ETPPrimitive, is_etp_primitive
from foretrace.program.records import StepProgram


class OccurrenceKind(enum.StrEnum):
    """How a parameter enters."""

    LINEAR = "linear"
    ELEMENTWISE = "elementwise"
    OPAQUE = "opaque"


@dataclass(frozen=True)
class Weight:
    """One value made of parameters alone, as an occurrence uses it.

    Attributes:
        name: Its role in the operator.
        index: Its place among the equation's inputs.
        var: The variable.
        parameters: Indices of the program's parameters that it is made of.
    """

    name: str
    index: int
    var: Var
    parameters: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Occurrence:
    """One place where parameters meet data.

    Attributes:
        kind: Linear, elementwise or opaque.
        primitive: The marked operator, or else the primitive of the equation where they meet.
        eqn: The equation where they meet. For an elementwise occurrence, the first that uses the value.
        weights: The values made of parameters.
        x_var: What a linear operator multiplies; None where there is no such operand.
        y_var: The operator's output; for an elementwise occurrence, the value itself.
        marked: The user marked it.
        traced: An eligibility trace is to be kept for it where it reaches a state.
        on_purpose: It is not traced because the user says so, by `foretrace.untraced`.
    """

    kind: OccurrenceKind
    primitive: Primitive
    eqn: JaxprEqn
    weights: tuple[Weight, ...]
    x_var: Var | None
    y_var: Var
    marked: bool
    traced: bool
    on_purpose: bool = False

    @one_line
    def __repr__(self) -> Iterator[str]:
        yield self.kind.value
        yield self.primitive.name
        yield shape_text(self.y_var.aval.shape)
        yield "traced" if self.traced else "not traced"

    @property
    def is_loop(self) -> bool:
        """Whether a loop with mixing in its body uses the value."""
        return self.kind is OccurrenceKind.OPAQUE and self.eqn.primitive.name == "scan"

    @property
    def parameters(self) -> tuple[int, ...]:
        """Indices of the program's parameters that enter here."""
        return tuple(sorted({i for weight in self.weights for i in weight.parameters}))


LINEAR_OPERANDS = {"dot_general": (0, 1), "conv_general_dilated": (1,), "gather": (0,), "dynamic_slice": (0,)}
"""Plain primitives that are linear in a weight, and the operands that may be the weight."""


def has_marks(program: StepProgram) -> bool:
    """Whether the model marks any operator."""
    return any(is_etp_primitive(eqn.primitive) for eqn in program.jaxpr.eqns)


def find_occurrences(program: StepProgram, values: Values, *, discover: bool) -> tuple[Occurrence, ...]:
    """Finds every occurrence, in the order of the equations.

    Args:
        program: The step program.
        values: What its values are made of.
        discover: Whether plain equations are traced as well as marked ones.

    Returns:
        The occurrences, one for each linear or opaque equation and one for each value that enters elementwise.
    """
    known = Known(values.data_jaxpr, program.consts)
    found: list[Occurrence] = []
    seen: set[Var] = set()
    for eqn in values.data_jaxpr.eqns:
        for occurrence in _at(eqn, values, known, discover):
            if occurrence.kind is OccurrenceKind.ELEMENTWISE:
                if occurrence.y_var in seen:
                    continue
                seen.add(occurrence.y_var)
            found.append(occurrence)
    return tuple(found)


def _at(eqn: JaxprEqn, values: Values, known: Known, discover: bool) -> Iterator[Occurrence]:
    candidates = [i for i, atom in enumerate(eqn.invars) if values.of(atom) is Made.PARAMETERS and is_float(atom.aval)]
    if not candidates:
        return
    if is_etp_primitive(eqn.primitive):
        yield from _marked(eqn, values, candidates)
        return
    structure = structure_of(eqn, known)
    for i in candidates:
        edges = [locals_[i] for locals_ in structure if i in locals_]
        if not edges:
            continue
        if _is_linear(eqn, i, values):
            x_var = next((a for k, a in enumerate(eqn.invars) if k != i and values.of(a) is Made.DATA), None)
            yield _one(eqn, OccurrenceKind.LINEAR, i, values, x_var, eqn.outvars[0], discover)
        else:
            kind = OccurrenceKind.OPAQUE if any(edge.mixing for edge in edges) else OccurrenceKind.ELEMENTWISE
            yield _one(eqn, kind, i, values, None, eqn.invars[i], discover)


def _marked(eqn: JaxprEqn, values: Values, candidates: list[int]) -> Iterator[Occurrence]:
    primitive = cast(ETPPrimitive, eqn.primitive)
    trainable = primitive.trainable_invars(eqn.params)
    weights = tuple(_weight(name, i, eqn, values) for name, i in trainable.items() if i in candidates)
    rest = [i for i in candidates if i not in trainable.values()]
    if weights:
        x = None if primitive.x_invar_index is None else eqn.invars[primitive.x_invar_index]
        x_var = None if isinstance(x, Literal) else x
        y_var = eqn.outvars[primitive.y_outvar_index]
        out = any(weight.var in values.untraced for weight in weights)
        yield Occurrence(OccurrenceKind.LINEAR, primitive, eqn, weights, x_var, y_var, True, not out, out)
    for i in rest:
        yield _one(eqn, OccurrenceKind.OPAQUE, i, values, None, eqn.invars[i], False)


def _is_linear(eqn: JaxprEqn, operand: int, values: Values) -> bool:
    if eqn.primitive.name == "dot_general":
        return values.of(eqn.invars[1 - operand]) is not Made.PARAMETERS
    return operand in LINEAR_OPERANDS.get(eqn.primitive.name, ())


def _one(
    eqn: JaxprEqn, kind: OccurrenceKind, index: int, values: Values, x_var: Var | None, y_var: Var, traced: bool
) -> Occurrence:
    weight = _weight("weight", index, eqn, values)
    mark = values.marks.get(weight.var)
    out = weight.var in values.untraced
    traced = kind is not OccurrenceKind.OPAQUE and (traced or mark is not None) and not out
    return Occurrence(kind, mark or eqn.primitive, eqn, (weight,), x_var, y_var, mark is not None, traced, out)


def _weight(name: str, index: int, eqn: JaxprEqn, values: Values) -> Weight:
    var = eqn.invars[index]
    return Weight(name, index, var, tuple(sorted(values.parameters[var])))
