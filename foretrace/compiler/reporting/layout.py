"""The layout of the picture of a graph: boxes and arrows in inches, downwards from the upper left corner.

Parameters stand in the left column, operators in the middle one, groups of states on the right. The rows follow the
groups that the parameters reach, so that most arrows do not cross. A path that others imply is left out: where an
operator reaches one group, and that group the next, the arrow from the operator to the next group is not drawn.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from foretrace._jax import Var
from foretrace._repr import counted, shape_text
from foretrace.compiler.groups import HiddenGroup
from foretrace.compiler.history import HistoryKind, Parameter
from foretrace.compiler.occurrences import Occurrence
from foretrace.compiler.reporting.tables import wrap
from foretrace.compiler.reporting.words import HISTORY, POSITIONS, Wording, readable
from foretrace.program.records import path_name

if TYPE_CHECKING:
    from foretrace.compiler.graph import ETraceGraph

Measure = Callable[[str, float], float]  # a text and its size in points to its width in inches

FONT, SMALL = 9.0, 7.5  # points
LINE_HEIGHT, PADDING, ROW_GAP, GROUP_GAP, MARGIN = 0.16, 0.08, 0.1, 0.3, 0.25
FIRST_GAP, SECOND_GAP = 0.7, 1.5  # between the columns
PORT = 0.14  # between arrows that end at one box
BULGE, LOOP, PASS = 0.55, 0.32, 0.1  # how far arrows on the right swing out, and the places of their ends
MOST_LANES = 12
WIDE_TEXT = 36  # characters


@dataclass
class Box:
    """A box with lines of text, the last ones of them small."""

    lines: list[str]
    small: int = 0
    left: float = 0.0
    middle: float = 0.0
    width: float = 0.0
    height: float = 0.0
    history: HistoryKind | None = None

    def __post_init__(self) -> None:
        self.height = max(self.height, len(self.lines) * LINE_HEIGHT + 2 * PADDING)

    @property
    def right(self) -> float:
        return self.left + self.width

    def size_of(self, line: int) -> float:
        """The font size of a line."""
        return SMALL if line >= len(self.lines) - self.small else FONT


@dataclass
class Arrow:
    """An arrow from box to box; a loop leaves and enters on the right."""

    start: tuple[float, float]
    end: tuple[float, float]
    direct: bool
    history: HistoryKind | None = None
    bulge: float = 0.0
    label: str = ""
    head: bool = True


@dataclass
class Operator:
    """Occurrences of the same parameters that read the same and reach the same groups."""

    text: str
    parameters: tuple[int, ...]
    direct: list[int]
    mixed: list[int]
    box: Box


@dataclass
class Picture:
    """All boxes and arrows, and the size that holds them."""

    parameters: dict[int, Box]
    operators: list[Operator]
    groups: list[Box]
    output: Box | None
    titles: list[tuple[str, float]] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)
    width: float = 0.0
    height: float = 0.0


def make_picture(graph: "ETraceGraph", measure: Measure) -> Picture:
    """Places the boxes and arrows of a graph.

    Args:
        graph: The compiled graph.
        measure: The width of a text.

    Returns:
        The picture.
    """
    named = readable([*graph.program.params, *graph.program.hidden])
    parameters = sorted(graph.parameters, key=lambda parameter: _first_group(graph, parameter))
    operators = _operators(graph, parameters)
    picture = Picture(
        parameters={parameter.index: _parameter_box(graph, parameter, named) for parameter in parameters},
        operators=operators,
        groups=[_group_box(group, operators, _passed_on(graph), named) for group in graph.hidden_groups],
        output=Box(["no state:", "output only"]) if any(_is_readout(o) for o in operators) else None,
    )
    _place_rows(picture, parameters)
    _place_groups(picture)
    _place_columns(picture, measure)
    picture.arrows = [*_entries(picture), *_reaches(picture), *_loops(graph, picture)]
    picture.width = _right_end(picture, measure) + MARGIN
    return picture


def _first_group(graph: "ETraceGraph", parameter: Parameter) -> int:
    """The first group that a parameter reaches directly, or else at all; readouts come last."""
    reached = [_reached_groups(graph, occurrence) for occurrence in parameter.occurrences]
    direct = [index for groups, _ in reached for index in groups]
    return min(direct or [index for _, groups in reached for index in groups] or [len(graph.hidden_groups)])


def _reached_groups(graph: "ETraceGraph", occurrence: Occurrence) -> tuple[list[int], list[int]]:
    """The groups reached directly, and those reached through mixing that no other one leads to."""
    patterns, y = graph.patterns, [occurrence.y_var]
    direct = [g.index for g in graph.hidden_groups if _any(patterns.reaches_directly, y, g.hidden_outvars)]
    mixed = [g.index for g in graph.hidden_groups if _any(patterns.reaches_through_mixing, y, g.hidden_outvars)]
    own = [index for index in mixed if not any(_leads(graph, other, index) for other in {*direct, *mixed} - {index})]
    return direct, [index for index in own if not (index in direct and _leads(graph, index, index))]


def _leads(graph: "ETraceGraph", first: int, second: int) -> bool:
    """Whether new states of one group reach those of another through mixing within the step."""
    new, other = graph.hidden_groups[first].hidden_outvars, graph.hidden_groups[second].hidden_outvars
    return _any(graph.patterns.reaches_through_mixing, new, other)


def _any(reaches: Callable[[Var, Var], bool], sources: Sequence[Var], targets: Sequence[Var]) -> bool:
    return any(reaches(source, target) for source in sources for target in targets)


def _is_readout(operator: Operator) -> bool:
    return not operator.direct and not operator.mixed


def _operators(graph: "ETraceGraph", parameters: Sequence[Parameter]) -> list[Operator]:
    wording = Wording(graph)
    alike: dict[tuple[str, tuple[int, ...]], Counter[Any]] = {}
    for occurrence in {id(o): o for parameter in parameters for o in parameter.occurrences}.values():
        same = alike.setdefault((wording.occurrence(occurrence), occurrence.parameters), Counter())
        same[tuple(map(tuple, _reached_groups(graph, occurrence)))] += 1
    operators = []
    for (text, entering), same in alike.items():
        for (direct, mixed), times in same.items():
            box = Box(wrap(text + (f" ({times} times)" if times > 1 else ""), WIDE_TEXT))
            operators.append(Operator(text, entering, list(direct), list(mixed), box))
    return operators


def _parameter_box(graph: "ETraceGraph", parameter: Parameter, named: Callable[[str], str]) -> Box:
    shape = shape_text(graph.program.params[parameter.index].aval.shape)
    lines = [*wrap(named(parameter.name), WIDE_TEXT), f"{shape}   {HISTORY[parameter.history]}"]
    return Box(lines, small=1, history=parameter.history)


def _group_box(
    group: HiddenGroup, operators: Sequence[Operator], passed_on: Sequence[tuple[int, int]], named: Callable[[str], str]
) -> Box:
    states = [line for path in group.hidden_paths for line in wrap(named(path_name(path)), WIDE_TEXT)]
    kind = POSITIONS[group.positions.kind].partition(":")[0]
    facts = [
        f"positions {shape_text(group.varshape)}, {kind}",
        f"{counted(group.num_state, 'value')} at each" + (", coupled in the step" if group.coupled else ""),
    ]
    arriving = sum((group.index in operator.direct) + (group.index in operator.mixed) for operator in operators)
    below = sum(group.index == min(pair) for pair in passed_on)
    above = sum(group.index == max(pair) for pair in passed_on)
    loops = 2 * (LOOP + 0.06 + PASS * max(above, below))
    return Box([f"group {group.index}", *states, *facts], small=2, height=max(arriving * PORT, loops))


def _place_rows(picture: Picture, parameters: Sequence[Parameter]) -> None:
    """Stacks parameters, each beside the operators that it is the first to enter."""
    top, placed = MARGIN + 2 * LINE_HEIGHT, set[int]()
    for parameter in parameters:
        box = picture.parameters[parameter.index]
        own = [o for k, o in enumerate(picture.operators) if parameter.index in o.parameters and k not in placed]
        placed |= {k for k, o in enumerate(picture.operators) if parameter.index in o.parameters}
        stack = sum(operator.box.height + ROW_GAP for operator in own) - ROW_GAP
        height = max(box.height, stack)
        box.middle = top + height / 2
        upper = box.middle - stack / 2
        for operator in own:
            operator.box.middle = upper + operator.box.height / 2
            upper += operator.box.height + ROW_GAP
        top += height + ROW_GAP
    picture.height = top


def _place_groups(picture: Picture) -> None:
    """Puts each group at the height of the operators that reach it, below the one before."""
    bottom = MARGIN + 2 * LINE_HEIGHT
    for index, box in enumerate(picture.groups):
        sources = [o for o in picture.operators if index in o.direct] or [
            o for o in picture.operators if index in o.mixed
        ]
        bottom = _below(box, [operator.box.middle for operator in sources], bottom)
    if picture.output is not None:
        sources = [operator for operator in picture.operators if _is_readout(operator)]
        bottom = _below(picture.output, [operator.box.middle for operator in sources], bottom)
    picture.height = max(picture.height, bottom)


def _below(box: Box, wanted: Sequence[float], bottom: float) -> float:
    middle = sum(wanted) / len(wanted) if wanted else bottom
    box.middle = max(middle, bottom + box.height / 2)
    return box.middle + box.height / 2 + GROUP_GAP


def _place_columns(picture: Picture, measure: Measure) -> None:
    outputs = [] if picture.output is None else [picture.output]
    columns = [list(picture.parameters.values()), [o.box for o in picture.operators], [*picture.groups, *outputs]]
    left = MARGIN
    for title, boxes, gap in zip(
        ("parameters", "where they enter", "groups of states"), columns, (FIRST_GAP, SECOND_GAP, 0.0), strict=True
    ):
        texts = [measure(line, box.size_of(k)) for box in boxes for k, line in enumerate(box.lines)]
        width = max([*texts, measure(title, FONT)]) + 3 * PADDING
        for box in boxes:
            box.left, box.width = left, width
        picture.titles.append((title, left + width / 2))
        left += width + gap


def _entries(picture: Picture) -> list[Arrow]:
    """Lines from parameters to the operators that they enter."""
    return [
        Arrow((box.right, box.middle), (operator.box.left, operator.box.middle), True, box.history, head=False)
        for operator in picture.operators
        for index in operator.parameters
        for box in [picture.parameters[index]]
    ]


def _reaches(picture: Picture) -> list[Arrow]:
    """Arrows from operators to the groups that they reach, spread over the side of the box in their own order."""
    arrows = []
    for index, box in enumerate(picture.groups):
        arriving = [(o, True) for o in picture.operators if index in o.direct]
        arriving += [(o, False) for o in picture.operators if index in o.mixed]
        arrows += _spread(picture, box, arriving)
    if picture.output is not None:
        arrows += _spread(picture, picture.output, [(o, True) for o in picture.operators if _is_readout(o)])
    return arrows


def _spread(picture: Picture, box: Box, arriving: Sequence[tuple[Operator, bool]]) -> list[Arrow]:
    ordered = sorted(arriving, key=lambda pair: (pair[0].box.middle, not pair[1]))
    distance = min(PORT * 1.5, (box.height - 2 * PADDING) / max(len(ordered), 1))
    first = box.middle - distance * (len(ordered) - 1) / 2
    return [
        Arrow(
            (operator.box.right, operator.box.middle),
            (box.left, first + k * distance),
            direct,
            picture.parameters[operator.parameters[0]].history,
        )
        for k, (operator, direct) in enumerate(ordered)
    ]


def _loops(graph: "ETraceGraph", picture: Picture) -> list[Arrow]:
    """Arrows of groups to themselves and to one another, on the right."""
    arrows, reaches = [], {True: graph.patterns.reaches_directly, False: graph.patterns.reaches_through_mixing}
    for group, box in zip(graph.hidden_groups, picture.groups, strict=True):
        for direct, side, label in ((True, -1, "direct"), (False, 1, "mixing")):
            if _any(reaches[direct], group.hidden_invars, group.hidden_outvars):
                near, far = box.middle + side * 0.06, box.middle + side * LOOP
                ends = (box.right, min(near, far)), (box.right, max(near, far))
                arrows.append(Arrow(*ends, direct=direct, bulge=BULGE, label=label))
    return arrows + _passes(graph, picture)


def _passes(graph: "ETraceGraph", picture: Picture) -> list[Arrow]:
    """Arrows between groups. Each ends at a place of its own, nearest to the other group, and runs in its own lane."""
    ends: dict[tuple[int, bool], int] = {}
    arrows = []
    for lane, (first, second) in enumerate(sorted(_passed_on(graph), key=lambda pair: abs(pair[0] - pair[1]))):
        down = second > first
        heights = []
        for group, below in ((first, down), (second, not down)):
            place = ends[group, below] = ends.get((group, below), -1) + 1
            box = picture.groups[group]
            offset = box.height / 2 - 0.06 - place * PASS
            heights.append(box.middle + (offset if below else -offset))
        right = picture.groups[first].right
        bulge = BULGE * (1.4 + 0.3 * min(lane, MOST_LANES))
        arrows.append(Arrow((right, heights[0]), (right, heights[1]), direct=False, bulge=bulge))
    return arrows


def _passed_on(graph: "ETraceGraph") -> list[tuple[int, int]]:
    """Pairs of groups of which one's past reaches the other's next states, without a third one in between."""
    groups, patterns = graph.hidden_groups, graph.patterns
    reached = [
        (a.index, b.index)
        for a in groups
        for b in groups
        if a is not b and _any(patterns.reaches, a.hidden_invars, b.hidden_outvars)
    ]
    return [
        (a, b)
        for a, b in reached
        if not any((a, k.index) in reached and _leads(graph, k.index, b) for k in groups if k.index not in (a, b))
    ]


def _right_end(picture: Picture, measure: Measure) -> float:
    boxes = [*picture.groups, *([] if picture.output is None else [picture.output])]
    ends = [arrow.end[0] + arrow.bulge + measure(arrow.label, SMALL) for arrow in picture.arrows if arrow.bulge]
    return max([box.right for box in boxes] + ends)
