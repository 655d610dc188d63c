"""How far a parameter's influence spreads: the states that its elements reach at once, and within some steps.

All of it is structure, worked out once with NumPy: the patterns of one step's derivatives, colours that tell its rows
apart, and the kept set of every parameter element. Elements that reach the same states by the same colours are of one
*type*, and there are far fewer types than elements: all weights onto one neuron are of one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from foretrace._jax import is_complex
from foretrace.compiler import sparse
from foretrace.compiler.patterns import Patterns, analyse
from foretrace.compiler.sparse import Matrix
from foretrace.program.records import StepProgram


class StepPattern(NamedTuple):
    """Where one step's derivatives can be other than zero. A complex state is two: its real and its imaginary part.

    Attributes:
        states: New hidden state elements by previous ones.
        params: New hidden state elements by the elements of each parameter.
    """

    states: Matrix
    params: list[Matrix]


@dataclass(frozen=True, eq=False)
class Colours:
    """Rows of a pattern told apart: those of one colour share no column, so one cotangent serves them all.

    Attributes:
        of: The colour of each row.
        count: How many there are.
    """

    of: np.ndarray
    count: int


@dataclass(frozen=True, eq=False)
class InfluencePattern:
    """The states that all parameter elements reach: the kept sets of SnAp-n, and of RTRL.

    Types with one kept set are of one *family*: all weights of a dense recurrent layer are of one.

    Attributes:
        step: The pattern of one step's derivatives.
        colours: For each parameter, the colours of the states by its elements; None if it reaches no state.
        type_of: The type of every element, counted over all parameters; -1 for one that reaches no state.
        direct: Types by states: the colour, plus one, of a state that is reached at once.
        family_of: The family of every type.
        kept: Families by states: those reached within the steps.
    """

    step: StepPattern
    colours: list[Colours | None]
    type_of: np.ndarray
    direct: sp.csr_array
    family_of: np.ndarray
    kept: Matrix

    @property
    def families(self) -> np.ndarray:
        """The family of every parameter element; -1 for one that reaches no state."""
        return np.append(self.family_of, -1)[self.type_of]

    @property
    def count(self) -> int:
        """How many entries of the whole Jacobian are kept."""
        families = self.families
        members = np.bincount(families[families >= 0], minlength=self.kept.shape[0])
        return int(members @ np.diff(self.kept.indptr))


def find_influence(program: StepProgram, n: int | None) -> InfluencePattern:
    """The states that each parameter element reaches within `n` steps, the one that it acts in counted.

    Args:
        program: The step.
        n: How many steps; None for any number.
    """
    step = step_pattern(program)
    colours = [colour_rows(matrix) if matrix.nnz else None for matrix in step.params]
    type_of, direct = _types(step, colours)
    pattern, onward = sparse.from_parts(direct.indices, direct.indptr, direct.shape), sparse.transpose(step.states)
    reached = ever(pattern, onward) if n is None else within(pattern, onward, n)
    family_of, firsts = _families(reached)
    return InfluencePattern(step, colours, type_of, direct, family_of, sparse.take_rows(reached, firsts))


def step_pattern(program: StepProgram) -> StepPattern:
    """Where the derivatives of one step can be other than zero, by any path through it."""
    sources = [*program.hidden_invars, *program.param_invars]
    found = analyse(program.jaxpr, sources, cut=False, consts=program.consts)
    new, previous = both_parts(program.hidden_outvars), both_parts(program.hidden_invars)
    params = [_table(found, new, [var]) for var in program.param_invars]
    return StepPattern(_table(found, new, previous), params)


def both_parts(states: Sequence[Any]) -> list[Any]:
    """Every complex state twice: for its real part and for its imaginary part."""
    return [var for var in states for _ in range(1 + is_complex(var.aval))]


def _table(found: Patterns, rows: Sequence[Any], columns: Sequence[Any]) -> Matrix:
    blocks = [[found.of(row, column).matrix for column in columns] for row in rows]
    return sp.csr_array(sp.block_array(blocks, format="csr"))


def colour_rows(matrix: Matrix) -> Colours:
    """Colours the rows of a pattern, one by one, with the first colours that their columns leave free.

    Rows with the same columns are coloured together: the neurons of a dense layer, or the elements of a batch.
    """
    classes: dict[bytes, list[int]] = {}
    rows = _rows(matrix)
    for number, columns in enumerate(rows):
        if columns.size:
            classes.setdefault(columns.tobytes(), []).append(number)
    found = np.zeros(matrix.shape[0], dtype=np.int32)
    used = np.zeros((matrix.shape[1], 1), dtype=bool)
    for members in classes.values():
        columns = rows[members[0]]
        free = np.flatnonzero(~used[columns].any(axis=0))
        if free.size < len(members):
            used = np.pad(used, ((0, 0), (0, used.shape[1] + len(members))))
            free = np.flatnonzero(~used[columns].any(axis=0))
        found[members] = free[: len(members)]
        used[np.ix_(columns, free[: len(members)])] = True
    return Colours(found, int(found.max(initial=0)) + 1)


def _types(step: StepPattern, colours: Sequence[Colours | None]) -> tuple[np.ndarray, sp.csr_array]:
    """The type of every parameter element, and which states each type reaches at once, by which colour."""
    seen: dict[tuple[bytes, bytes], int] = {}
    reached: list[np.ndarray] = []
    colour: list[np.ndarray] = []
    type_of: list[np.ndarray] = []
    for matrix, own in zip(step.params, colours, strict=True):
        types = np.full(matrix.shape[1], -1, dtype=np.int64)
        for element, states in enumerate(_rows(sparse.transpose(matrix))):
            if own is not None and states.size:
                key = (states.tobytes(), own.of[states].tobytes())
                if key not in seen:
                    seen[key] = len(seen)
                    reached.append(states)
                    colour.append(own.of[states] + 1)
                types[element] = seen[key]
        type_of.append(types)
    indptr = np.cumsum([0, *map(len, reached)])
    parts = (np.concatenate([*colour, [0]])[:-1], np.concatenate([*reached, [0]])[:-1].astype(np.int32), indptr)
    return np.concatenate(type_of), sp.csr_array(parts, shape=(len(seen), step.states.shape[0]))


def within(direct: Matrix, onward: Matrix, n: int) -> Matrix:
    """States reached in one of the first `n` steps."""
    reached = last = direct
    for _ in range(n - 1):
        last = sparse.multiply(last, onward)
        more = sparse.union(reached, last)
        if more.nnz == reached.nnz:
            break
        reached = more
    reached.sort_indices()
    return reached


def ever(direct: Matrix, onward: Matrix) -> Matrix:
    """States reached in any number of steps.

    States that reach one another are reached together, so the search is among these sets of them, which are few: a
    dense layer is one for each sample.
    """
    from scipy.sparse.csgraph import connected_components  # slow to import, and few rules need it

    count, component = connected_components(onward, directed=True, connection="strong")
    members = sparse.from_pairs(np.arange(len(component)), component, (len(component), count))
    rows, columns = sparse.pairs(onward)
    between = sparse.from_pairs(component[rows], component[columns], (count, count))
    found = within(sparse.multiply(direct, members), between, count + 1)
    reached = sparse.multiply(found, sparse.transpose(members))
    reached.sort_indices()
    return reached


def _families(reached: Matrix) -> tuple[np.ndarray, np.ndarray]:
    """Types with the same row: the family of each, and the first type of every family."""
    seen: dict[bytes, int] = {}
    firsts: list[int] = []
    family_of = np.zeros(reached.shape[0], np.int64)
    for number, states in enumerate(_rows(reached)):
        family = seen.setdefault(states.tobytes(), len(seen))
        if family == len(firsts):
            firsts.append(number)
        family_of[number] = family
    return family_of, np.array(firsts, np.int64)


def _rows(matrix: Matrix) -> list[np.ndarray]:
    """The columns of each row, in order."""
    matrix.sort_indices()
    return np.split(matrix.indices, matrix.indptr[1:-1])[: matrix.shape[0]]
