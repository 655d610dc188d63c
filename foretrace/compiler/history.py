"""What the history of each parameter keeps, and why.

D-RTRL carries credit back in time along direct paths. For a parameter it keeps

- *all*, if every path from its occurrences to a later loss is direct, so that the gradient equals BPTT's;
- *direct* paths only, if there is a trace but some path runs through a mixing equation or another group;
- *in-step* only, if no occurrence has a trace although it reaches a state;
- *none-needed*, if it reaches no state, as a readout: its in-step gradient is the whole gradient.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from foretrace._jax import Atom, JaxprEqn, Var, is_float
from foretrace._repr import listed, one_line
from foretrace.compiler.backward import call_name
from foretrace.compiler.groups import HiddenGroup
from foretrace.compiler.occurrences import Occurrence, OccurrenceKind
from foretrace.compiler.patterns import Patterns
from foretrace.compiler.positions import TransitionKind
from foretrace.compiler.relations import HiddenParamOpRelation
from foretrace.compiler.values import Values
from foretrace.program.diagnostics import Path
from foretrace.program.records import Leaf, path_name, quoted

if TYPE_CHECKING:
    from foretrace.compiler.graph import ETraceGraph


class HistoryKind(enum.StrEnum):
    """What credit for earlier steps keeps."""

    ALL = "all"
    DIRECT = "direct"
    IN_STEP = "in-step"
    NONE_NEEDED = "none-needed"


@dataclass(frozen=True, eq=False)
class Parameter:
    """What was found about one parameter.

    Attributes:
        index: Its place among the program's parameters.
        path: Its path in the model.
        history: What its history keeps.
        reasons: Why no more than that, one sentence each.
        occurrences: Where it enters.
        relations: The traced ones that reach a state directly.
    """

    index: int
    path: Path
    history: HistoryKind
    reasons: tuple[str, ...]
    occurrences: tuple[Occurrence, ...] = field(repr=False)
    relations: tuple[HiddenParamOpRelation, ...] = field(repr=False)

    @one_line
    def __repr__(self) -> Iterator[str]:
        yield self.name
        yield f"history: {self.history.value}"
        yield listed(self.reasons, 1)

    @property
    def name(self) -> str:
        return path_name(self.path)


def find_parameters(graph: "ETraceGraph") -> tuple[Parameter, ...]:
    """Says of every parameter, in the program's order, what its history keeps and why."""
    related = {id(relation.occurrence): relation for relation in graph.hidden_param_op_relations}
    lasting = [*graph.program.hidden_outvars, *(out for _, out in uncredited_states(graph))]
    parameters = []
    for index, leaf in enumerate(graph.program.params):
        own = [o for o in graph.occurrences if index in o.parameters]
        relevant = [o for o in own if any(graph.patterns.reaches(o.y_var, out) for out in lasting)]
        traced = [related[id(o)] for o in relevant if id(o) in related]
        lost = [loss for o in relevant for loss in _losses(graph, o, related.get(id(o)))]
        made_by = (call_name(call) for relation in traced for call in nonlinear_makers(relation, graph.values))
        lost += [f"is made by `{name}`, whose backward pass is not linear in its cotangent" for name in made_by]
        history = HistoryKind.DIRECT if lost else HistoryKind.ALL
        if not traced:
            history = HistoryKind.IN_STEP if relevant else HistoryKind.NONE_NEEDED
        parameters.append(Parameter(index, leaf.path, history, tuple(dict.fromkeys(lost)), tuple(own), tuple(traced)))
    return tuple(parameters)


def nonlinear_makers(relation: HiddenParamOpRelation, values: Values) -> list[JaxprEqn]:
    """The calls with a backward pass that is not linear between the parameters of a relation and its operator."""
    return [values.nonlinear[w.var] for w in relation.occurrence.weights if w.var in values.nonlinear]


def uncredited_states(graph: "ETraceGraph") -> list[tuple[Leaf, Atom]]:
    """States that are carried along without credit although a derivative runs from one step to the next by them."""
    program = graph.program
    outs = [*program.hidden_outvars, *(out for out in program.output_outvars if is_float(out.aval))]
    states = zip(program.other, program.other_invars, program.other_outvars, strict=True)
    return [
        (leaf, new)
        for leaf, old, new in states
        if is_float(old.aval) and any(graph.patterns.reaches(old, out) for out in outs)
    ]


def _losses(graph: "ETraceGraph", occurrence: Occurrence, relation: HiddenParamOpRelation | None) -> list[str]:
    """The paths of one occurrence that carry no history, one sentence each."""
    if relation is None:
        return [_untraced(graph, occurrence)]
    y_var, patterns = occurrence.y_var, graph.patterns
    losses = [
        f"reaches {quoted(leaf.path)} through mixing"
        for leaf, out in zip(graph.program.hidden, graph.program.hidden_outvars, strict=True)
        if patterns.reaches_through_mixing(y_var, out)
    ]
    for leaf, out in uncredited_states(graph):
        if patterns.reaches(y_var, out):
            losses.append(f"reaches {quoted(leaf.path)}, a state without credit")
    for group in relation.hidden_groups:
        losses += _leaks(graph, group, _touched(group, y_var, patterns))
    return losses


def _touched(group: HiddenGroup, y_var: Var, patterns: Patterns) -> set[int]:
    """The states of a group that `y` reaches, now or in later steps."""
    states = list(zip(group.hidden_invars, group.hidden_outvars, strict=True))
    touched = {k for k, (_, new) in enumerate(states) if patterns.reaches_directly(y_var, new)}
    while True:
        more = {k for k, (_, new) in enumerate(states) for j in touched if patterns.reaches_directly(states[j][0], new)}
        if more <= touched:
            return touched
        touched |= more


class Detour(enum.Enum):
    """What stands between an occurrence and the states where no direct path leads there."""

    WEIGHT = "another weight"
    INDEX = "an index that data decides"
    MIXING = "mixing"
    STEPS = "whole numbers, which have no derivative"


INDEXED = frozenset(
    "gather dynamic_slice scatter dynamic_update_slice scatter-add scatter_add scatter-sub scatter_sub scatter-mul "
    "scatter_mul scatter-min scatter_min scatter-max scatter_max".split()
)


def detour(graph: "ETraceGraph", occurrence: Occurrence) -> tuple[Detour, str]:
    """What keeps an occurrence from reaching a state directly, and the primitive that does it."""
    operators = {o.y_var for o in graph.occurrences if o.kind is OccurrenceKind.LINEAR}
    found: dict[Detour, str] = {}
    for eqn in graph.patterns.first_mixing(occurrence.y_var, graph.program.hidden_outvars):
        indexed = Detour.INDEX if eqn.primitive.name in INDEXED else Detour.MIXING
        found.setdefault(Detour.WEIGHT if operators & set(eqn.outvars) else indexed, eqn.primitive.name)
    return next(((kind, found[kind]) for kind in Detour if kind in found), (Detour.STEPS, occurrence.primitive.name))


def _untraced(graph: "ETraceGraph", occurrence: Occurrence) -> str:
    if occurrence.on_purpose:
        return "is kept out on purpose, by `untraced`"
    if occurrence.is_loop:
        return "acts from one sub-step of a loop to the next through mixing"
    if occurrence.kind is OccurrenceKind.OPAQUE:
        return f"enters `{occurrence.primitive.name}`, which is neither linear in it nor elementwise"
    if not occurrence.traced:
        return "enters through a plain operator of a model that marks others"
    if not any(graph.patterns.reaches(occurrence.y_var, out) for out in graph.program.hidden_outvars):
        return "reaches only states without credit"
    return f"reaches a state only through {detour(graph, occurrence)[0].value}"


def _leaks(graph: "ETraceGraph", group: HiddenGroup, touched: set[int]) -> list[str]:
    """The paths by which the past of some states reaches the future outside their group's direct transition."""
    own, patterns = set(group.hidden_outvars), graph.patterns
    losses = []
    for path, old in ((group.hidden_paths[k], group.hidden_invars[k]) for k in sorted(touched)):
        for leaf, out in zip(graph.program.hidden, graph.program.hidden_outvars, strict=True):
            if patterns.reaches_through_mixing(old, out):
                goes = "feeds back" if out in own else "passes on"
                losses.append(f"{quoted(path)} {goes} to {quoted(leaf.path)} through mixing")
            elif out not in own and patterns.reaches_directly(old, out):
                losses.append(f"{quoted(path)} passes on to {quoted(leaf.path)}, a group of another shape")
        for leaf, out in uncredited_states(graph):
            if patterns.reaches(old, out):
                losses.append(f"{quoted(path)} passes on to {quoted(leaf.path)}, a state without credit")
    if group.positions.kind is TransitionKind.COLLAPSED:
        losses.append(f"elements of {quoted(*group.hidden_paths)} reach several positions")
    return losses
