"""Relations: occurrences whose `y` reaches the next states of a group along direct paths.

For each group that an occurrence reaches, `Reach` names the position that every element of `y` goes to. Where an
element goes to several positions, these are told apart by colours, one position for each colour, so that a trace can
be kept for each. Nothing depends on how many there are: a gate that acts on a thousand positions is followed to all.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from foretrace._jax import Jaxpr, Primitive, Var
from foretrace._optional import view
from foretrace._repr import listed, one_line
from foretrace.compiler import sparse
from foretrace.compiler.axismaps import disjoint
from foretrace.compiler.groups import HiddenGroup
from foretrace.compiler.influence import colour_rows
from foretrace.compiler.occurrences import Occurrence
from foretrace.compiler.pattern import Pattern, identity
from foretrace.compiler.patterns import Patterns
from foretrace.compiler.structure import size_of
from foretrace.program.diagnostics import Path
from foretrace.program.records import StepProgram, path_name


@dataclass(frozen=True, eq=False)
class Reach:
    """Where the elements of `y` go in one group.

    Attributes:
        fan: How many positions an element of `y` reaches at most (by the colouring).
        positions: Number of positions of the group.
        size: Number of elements of `y`.
        edges: For each state, makes the positions and the elements of `y` that reach them.
        pattern: Positions by elements of `y`; None where each element reaches one position at most.
        pattern_colors: The colour of each position; None where there is only one.
    """

    fan: int
    positions: int
    size: int
    edges: Callable[[], list[tuple[np.ndarray, np.ndarray]]]
    pattern: sparse.Matrix | None = None
    pattern_colors: np.ndarray | None = None

    @functools.cached_property
    def colors(self) -> np.ndarray:
        """The colour of each position."""
        return np.zeros(self.positions, np.int64) if self.pattern_colors is None else self.pattern_colors

    @functools.cached_property
    def source_colors(self) -> np.ndarray:
        """A colour for each element of `y`, so that those which reach one position differ."""
        return np.zeros(self.size, np.int64) if self.pattern is None else colour(sparse.transpose(self.pattern))

    @functools.cached_property
    def targets(self) -> np.ndarray:
        """`targets[c, u]` is the position of colour `c` that element `u` of `y` reaches, -1 for none."""
        targets = np.full((self.fan, self.size), -1, dtype=np.int64)
        for positions, sources in self.edges():
            targets[self.colors[positions], sources] = positions
        return targets


@dataclass(frozen=True, eq=False)
class HiddenParamOpRelation:
    """An occurrence and the groups that its `y` reaches directly.

    Attributes:
        primitive: The operator.
        x_var: What it multiplies, if anything.
        y_var: Its output, or the parameter value itself where it enters elementwise.
        hidden_groups: The groups reached.
        connected_hidden_paths: The states reached.
        reaches: Where the elements of `y` go, for each group.
        occurrence: The occurrence itself.
        program: The step program.
        patterns: The direct dependency patterns of the step.
        owners: The parameters of the program as the model's library has them.
    """

    primitive: Primitive
    x_var: Var | None
    y_var: Var
    hidden_groups: tuple[HiddenGroup, ...]
    connected_hidden_paths: tuple[Path, ...]
    reaches: tuple[Reach, ...] = field(repr=False)
    occurrence: Occurrence = field(repr=False)
    program: StepProgram = field(repr=False)
    patterns: Patterns = field(repr=False)
    owners: Sequence[Any] = field(repr=False)

    @one_line
    def __repr__(self) -> Iterator[str]:
        reached = listed(map(path_name, self.connected_hidden_paths))
        yield f"{path_name(self.path)} -> {reached} by {self.primitive.name}"

    @functools.cached_property
    def y_to_hidden_group_jaxprs(self) -> tuple[Jaxpr, ...]:
        """For each group, its next states by `y` along direct paths; the constvars are held constant."""
        return tuple(group.slicing.cut([self.y_var], group.hidden_outvars) for group in self.hidden_groups)

    @functools.cached_property
    def path_classification(self) -> dict[Path, str]:
        """For each state reached, `all_direct`, or `mixed` where some paths run through mixing."""
        outs = {
            path: out for g in self.hidden_groups for path, out in zip(g.hidden_paths, g.hidden_outvars, strict=True)
        }
        mixed = self.patterns.reaches_through_mixing
        return {
            path: "mixed" if mixed(self.y_var, outs[path]) else "all_direct" for path in self.connected_hidden_paths
        }

    @property
    def path(self) -> Path:
        """The path of the first parameter that enters."""
        return next(self.program.params[i].owner for weight in self.occurrence.weights for i in weight.parameters)

    x = property(lambda self: self.x_var, doc="The same as `x_var`.")
    y = property(lambda self: self.y_var, doc="The same as `y_var`.")
    eqn_params = view("views:eqn_params", "The operator's own parameters.")
    trainable_vars = view(
        "views:trainable_vars", "The variables of the parameters that enter, by name in the operator."
    )
    trainable_paths = view("views:trainable_paths", "Their paths.")
    trainable_leaf_indices = view("views:trainable_leaf_indices", "Which array of a pytree each is; 0 for a plain one.")
    trainable_param_states = view("views:trainable_param_states", "The parameters as the model's library has them.")
    trainable_processing_chains = view("views:trainable_processing_chains", "The jaxpr that makes each weight.")
    y_to_hidden_groups = view("views:y_to_hidden_groups", "Next states of each group by `y`.", method=True)

    def dict(self) -> dict[str, Any]:
        """The attributes by name."""
        lazy = (
            "y_to_hidden_group_jaxprs path_classification eqn_params trainable_vars trainable_paths "
            "trainable_leaf_indices trainable_param_states trainable_processing_chains"
        )
        return {name: getattr(self, name) for name in (*self.__dataclass_fields__, *lazy.split())}


def find_relations(
    program: StepProgram,
    occurrences: Sequence[Occurrence],
    groups: Sequence[HiddenGroup],
    patterns: Patterns,
    owners: Sequence[Any],
) -> tuple[HiddenParamOpRelation, ...]:
    """The traced occurrences that reach states along direct paths, in their order."""
    relations = []
    for occurrence in (o for o in occurrences if o.traced):
        y_var, reached = occurrence.y_var, dict[HiddenGroup, list[Path]]()
        for group in groups:
            for path, out in zip(group.hidden_paths, group.hidden_outvars, strict=True):
                if not patterns.of(out, y_var).is_empty:
                    reached.setdefault(group, []).append(path)
        if reached:
            relations.append(
                HiddenParamOpRelation(
                    primitive=occurrence.primitive,
                    x_var=occurrence.x_var,
                    y_var=y_var,
                    hidden_groups=tuple(reached),
                    connected_hidden_paths=tuple(path for paths in reached.values() for path in paths),
                    reaches=tuple(find_reach(group, y_var, patterns) for group in reached),
                    occurrence=occurrence,
                    program=program,
                    patterns=patterns,
                    owners=owners,
                )
            )
    return tuple(relations)


def find_reach(group: HiddenGroup, y_var: Var, patterns: Patterns) -> Reach:
    """Where the elements of `y` go in a group."""
    positions, size = int(np.prod(group.varshape, dtype=int)), size_of(y_var)
    found = {k: patterns.of(out, y_var) for k, out in enumerate(group.hidden_outvars)}
    found = {k: block for k, block in found.items() if not block.is_empty}

    def edges() -> list[tuple[np.ndarray, np.ndarray]]:
        made = [(k, *block.pairs()) for k, block in found.items()]
        return [(group.placed[k][1][to] if group.is_packed(k) else to, sources) for k, to, sources in made]

    if _surely_single(list(found.values()), group.varshape) or _single(edges(), size):
        return Reach(1, positions, size, edges)
    rows, columns = (np.concatenate(parts) for parts in zip(*edges(), strict=True))
    pattern = sparse.from_pairs(rows, columns, (positions, size))
    colors = colour(pattern)
    return Reach(int(colors.max(initial=0)) + 1, positions, size, edges, pattern, colors)


def _surely_single(found: Sequence[Pattern], varshape: tuple[int, ...]) -> bool:
    """Whether axis maps tell at a glance that every element of `y` reaches one position at most."""
    if all(block is identity(varshape) for block in found):
        return True
    if any(block.maps is None or block.out_shape != varshape for block in found):
        return False
    maps = list({m.key(): m for block in found for m in block.maps or ()}.values())
    if not all(m.is_injective(varshape) for m in maps):
        return False
    return all(disjoint(one, two) for n, one in enumerate(maps) for two in maps[:n])


def _single(edges: Sequence[tuple[np.ndarray, np.ndarray]], size: int) -> bool:
    """Whether each element of `y` reaches one position at most, over all states."""
    targets = np.full(size, -1, dtype=np.int64)
    for positions, sources in edges:
        before = targets[sources]
        targets[sources] = positions
        if np.any((before >= 0) & (before != positions)) or np.any(targets[sources] != positions):
            return False
    return True


def colour(pattern: sparse.Matrix) -> np.ndarray:
    """Colours the rows of a pattern so that rows which share a column differ.

    Nearly always a column's rows can be numbered in order, and the number of a row is the same in each of its columns.
    Otherwise each row takes a colour that is free in all of them.
    """
    rows, columns = sparse.pairs(pattern)
    order = np.lexsort((rows, columns))
    starts = np.searchsorted(columns[order], np.arange(pattern.shape[1]))
    number = np.empty(len(rows), np.int64)
    number[order] = np.arange(len(rows)) - starts[columns[order]]
    for pick in (np.minimum, np.maximum):
        colors = np.full(pattern.shape[0], 0 if pick is np.maximum else len(rows), np.int64)
        pick.at(colors, rows, number)
        colors[np.diff(pattern.indptr) == 0] = 0
        if len(np.unique(columns * (colors.max(initial=0) + 1) + colors[rows])) == len(rows):
            return colors
    return colour_rows(pattern).of
