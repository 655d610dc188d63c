"""Relations: occurrences whose `y` reaches the next states of a group along direct paths.

For each group that an occurrence reaches, `Reach` names the position that every element of `y` goes to. Where an
element goes to several positions, these are told apart by colours, one position for each colour, so that a trace can
be kept for each. Nothing depends on how many there are: a gate that acts on a thousand positions is followed to all.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from foretrace._jax import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Primitive, Var, close_jaxpr, eval_jaxpr, new_jaxpr
from foretrace.compiler import sparse
from foretrace.compiler.axismaps import disjoint
from foretrace.compiler.groups import HiddenGroup
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
        eqn_params: The operator's own parameters.
        path_classification: For each state reached, `all_direct`, or `mixed` where some paths run through mixing.
        trainable_vars: The parameters that enter, by name in the operator.
        trainable_paths: Their paths.
        trainable_leaf_indices: Which array of a parameter that is a pytree; 0 for a plain array.
        trainable_param_states: The parameters as the model's library has them.
        reaches: Where the elements of `y` go, for each group.
        occurrence: The occurrence itself.
        program: The step program.
    """

    primitive: Primitive
    x_var: Var | None
    y_var: Var
    hidden_groups: tuple[HiddenGroup, ...]
    connected_hidden_paths: tuple[Path, ...]
    eqn_params: dict[str, Any]
    path_classification: dict[Path, str]
    trainable_vars: dict[str, Var]
    trainable_paths: dict[str, Path]
    trainable_leaf_indices: dict[str, int]
    trainable_param_states: dict[str, Any]
    reaches: tuple[Reach, ...] = field(repr=False)
    occurrence: Occurrence = field(repr=False)
    program: StepProgram = field(repr=False)

    @functools.cached_property
    def y_to_hidden_group_jaxprs(self) -> tuple[Jaxpr, ...]:
        """For each group, its next states by `y` along direct paths; the constvars are held constant."""
        return tuple(group.slicing.cut([self.y_var], group.hidden_outvars) for group in self.hidden_groups)

    @functools.cached_property
    def trainable_processing_chains(self) -> dict[str, ClosedJaxpr]:
        """For each value that the operator uses, the jaxpr that makes it of parameters."""
        return {weight.name: weight_chain(self.program, weight.var) for weight in self.occurrence.weights}

    @property
    def x(self) -> Var | None:
        return self.x_var

    @property
    def y(self) -> Var:
        return self.y_var

    @property
    def path(self) -> Path:
        """The path of the first parameter that enters."""
        return next(iter(self.trainable_paths.values()))

    def y_to_hidden_groups(
        self, y_val: jax.Array, const_vals: dict[Var, Any], concat_hidden_vals: bool = True
    ) -> list[Any]:
        """Next states of each group by `y`.

        Args:
            y_val: A value of `y`.
            const_vals: Values of the constvars of `y_to_hidden_group_jaxprs`.
            concat_hidden_vals: Whether to join a group's states along a last axis.

        Returns:
            One entry for each group.
        """
        results: list[Any] = []
        for group, jaxpr in zip(self.hidden_groups, self.y_to_hidden_group_jaxprs, strict=True):
            hidden = eval_jaxpr(jaxpr, [const_vals[var] for var in jaxpr.constvars], y_val)
            results.append(group.concat_hidden(hidden) if concat_hidden_vals else hidden)
        return results

    def dict(self) -> dict[str, Any]:
        """The attributes by name."""
        lazy = ("y_to_hidden_group_jaxprs", "trainable_processing_chains")
        return {name: getattr(self, name) for name in (*self.__dataclass_fields__, *lazy)}


def find_reach(group: HiddenGroup, y_var: Var, patterns: Patterns) -> Reach:
    """Where the elements of `y` go in a group."""
    positions, size = int(np.prod(group.varshape, dtype=int)), size_of(y_var)
    found = {k: patterns.of(out, y_var) for k, out in enumerate(group.hidden_outvars)}
    found = {k: block for k, block in found.items() if not block.is_empty}

    def edges() -> list[tuple[np.ndarray, np.ndarray]]:
        return [_edges(group, k, block) for k, block in found.items()]

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


def _edges(group: HiddenGroup, state: int, block: Pattern) -> tuple[np.ndarray, np.ndarray]:
    """Positions (of a state that may be packed) and the elements of `y` that reach them."""
    elements, sources = block.pairs()
    return group.placed[state][1][elements] if group.is_packed(state) else elements, sources


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
    Otherwise each row takes the first colour that is free in all of them.
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
    return _first_free(pattern)


def _first_free(pattern: sparse.Matrix) -> np.ndarray:
    colors = np.zeros(pattern.shape[0], np.int64)
    used = np.zeros((pattern.shape[1], 8), bool)
    for row in range(pattern.shape[0]):
        columns = pattern.indices[pattern.indptr[row] : pattern.indptr[row + 1]]
        taken = used[columns].any(axis=0)
        if taken.all():
            used, taken = np.pad(used, ((0, 0), (0, used.shape[1]))), np.pad(taken, (0, used.shape[1]))
        colors[row] = np.argmin(taken)
        used[columns, colors[row]] = True
    return colors


def make_relation(
    occurrence: Occurrence,
    reached: Sequence[tuple[HiddenGroup, Reach]],
    program: StepProgram,
    patterns: Patterns,
    param_states: Sequence[Any],
) -> HiddenParamOpRelation:
    """The record of an occurrence and the groups it reaches."""
    y_var, groups = occurrence.y_var, tuple(group for group, _ in reached)
    named = _trainable(occurrence, program)
    hidden = [
        (path, out) for group in groups for path, out in zip(group.hidden_paths, group.hidden_outvars, strict=True)
    ]
    connected = [(path, out) for path, out in hidden if not patterns.of(out, y_var).is_empty]
    leaves = {name: program.params[i] for name, i in named.items()}
    return HiddenParamOpRelation(
        primitive=occurrence.primitive,
        x_var=occurrence.x_var,
        y_var=y_var,
        hidden_groups=groups,
        connected_hidden_paths=tuple(path for path, _ in connected),
        eqn_params=dict(occurrence.eqn.params),
        path_classification={
            path: "mixed" if patterns.reaches_through_mixing(y_var, out) else "all_direct" for path, out in connected
        },
        trainable_vars={name: program.param_invars[i] for name, i in named.items()},
        trainable_paths={name: leaf.owner for name, leaf in leaves.items()},
        trainable_leaf_indices={name: _leaf_index(program, i) for name, i in named.items()},
        trainable_param_states={name: param_states[i] for name, i in named.items()},
        reaches=tuple(reach for _, reach in reached),
        occurrence=occurrence,
        program=program,
    )


def weight_chain(program: StepProgram, var: Var) -> ClosedJaxpr:
    """The jaxpr `w = g(theta)`: the parameters a value is made of (in the program's order) to that value."""
    needed: set[Any] = {var}
    kept: list[JaxprEqn] = []
    for eqn in reversed(program.jaxpr.eqns):
        if needed & set(eqn.outvars):
            kept.append(eqn)
            needed |= {atom for atom in eqn.invars if not isinstance(atom, Literal)}
    constants = [(v, c) for v, c in zip(program.jaxpr.constvars, program.consts, strict=True) if v in needed]
    invars = [v for v in program.param_invars if v in needed]
    return close_jaxpr(new_jaxpr([v for v, _ in constants], invars, [var], kept[::-1]), [c for _, c in constants])


def _trainable(occurrence: Occurrence, program: StepProgram) -> dict[str, int]:
    """Parameters by name: the operator's name for a weight, with the path behind it where a weight has several."""
    named: dict[str, int] = {}
    for weight in occurrence.weights:
        for i in weight.parameters:
            several = len(weight.parameters) > 1
            named[f"{weight.name}:{path_name(program.params[i].path)}" if several else weight.name] = i
    return named


def _leaf_index(program: StepProgram, param: int) -> int:
    owner = program.params[param].owner
    return [i for i, leaf in enumerate(program.params) if leaf.owner == owner].index(param)
