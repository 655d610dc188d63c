"""Which entries of the whole Jacobian SnAp keeps, worked out once from structure, and how they are laid out.

A parameter element reaches some states within the step that it acts in, and further ones in each later step. The
states reached within `n` steps are its *kept set*. Two facts make the layout small:

- Many elements share a kept set: all weights onto one neuron, from whatever input. They make a *bundle*.
- Within a kept set, states that never act on one another need no common matrix: batch elements, or, for `n = 1`,
  neurons that are coupled through others alone. The kept set falls into *islands*.

So a bundle of `M` elements holds an array `(islands, states of an island, M)`, and a step multiplies it with one small
matrix for each island. Bundles of about one size lie side by side in a `Shelf`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from foretrace.compiler import sparse
from foretrace.compiler.patterns import Patterns, analyse
from foretrace.compiler.sparse import Matrix
from foretrace.engine.plan import Plan

DENSE_WIDTH = 8


class Structure(NamedTuple):
    """What can be other than zero in one step.

    Attributes:
        states: New hidden state elements by previous ones.
        params: New hidden state elements by the elements of each parameter.
    """

    states: Matrix
    params: list[Matrix]


class Colours(NamedTuple):
    """Rows of a pattern told apart: rows of one colour share no column, so one cotangent serves them all.

    Attributes:
        of: The colour of each row.
        count: How many there are.
    """

    of: np.ndarray
    count: int


@dataclass(frozen=True)
class Shelf:
    """Bundles of about one size: `U` bundles of `I` islands of `R` states, each reached by `M` parameter elements.

    Attributes:
        states: `(U, I, R)`: the elements of an island; the number of all states stands for none.
        direct: `(U, I, R)`: the colour by which a state's derivative by the parameters is found; -1 for zero.
        members: `(U, M)`: parameter elements, counted over all parameters; their number stands for none.
        start, stride: `(U, M)`: where a member's derivative for colour 0 lies among all, and the way to the next colour.
        entries: `(U, I, R, W)`: where the derivative of a state by a previous one lies; -1 for zero.
        sources: `(U, I, R, W)`: which state of the island that previous one is; None if it is the `W`th itself.
    """

    states: np.ndarray
    direct: np.ndarray
    members: np.ndarray
    start: np.ndarray
    stride: np.ndarray
    entries: np.ndarray
    sources: np.ndarray | None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of the values that are kept."""
        return (*self.states.shape, self.members.shape[1])


@dataclass(frozen=True)
class Kept:
    """The tables of one plan.

    Attributes:
        by_rows: Whether previous states are reached by cotangents of coloured new states (else by tangents).
        states: The colours for the derivatives of states by states.
        params: For each parameter, the colours for the derivatives of states by it; None if it reaches no state.
        shelves: The layout.
        count: How many entries of the Jacobian are kept, without padding.
    """

    by_rows: bool
    states: Colours
    params: list[Colours | None]
    shelves: list[Shelf]
    count: int

    @property
    def size(self) -> int:
        """How many values are kept, with padding."""
        return sum(int(np.prod(shelf.shape)) for shelf in self.shelves)


def find_structure(plan: Plan) -> Structure:
    """What each step's derivatives can be other than zero at."""
    program = plan.program
    step = analyse(plan.jaxpr, [*program.hidden_invars, *plan.weight_vars], cut=False, consts=program.consts)
    made = analyse(plan.weights_jaxpr, program.param_invars, cut=False, consts=program.consts)
    weights = _table(step, program.hidden_outvars, plan.weight_vars)
    params = [
        sparse.multiply(weights, sparse.stack([made.of(weight, var).matrix for weight in plan.weight_vars]))
        for var in program.param_invars
    ]
    return Structure(_table(step, program.hidden_outvars, program.hidden_invars), params)


def _table(found: Patterns, rows: Sequence[Any], columns: Sequence[Any]) -> Matrix:
    blocks = [[found.of(row, column).matrix for column in columns] for row in rows]
    return sp.csr_array(sp.block_array(blocks, format="csr"))


def kept_sets(structure: Structure, n: int) -> Iterator[tuple[Matrix, Matrix]]:
    """For each parameter: the states that its elements reach at once, and those that they reach within `n` steps."""
    for direct in structure.params:
        columns, back = _distinct_columns(direct)
        reached = last = columns
        for _ in range(n - 1):
            last = sparse.multiply(structure.states, last)
            more = sparse.union(reached, last)
            if more.nnz == reached.nnz:
                break
            reached = more
        yield direct, sparse.take_rows(sparse.transpose(reached), back)


def _distinct_columns(matrix: Matrix) -> tuple[Matrix, np.ndarray]:
    """The different columns of a pattern, and which of them each column is: reaching is the same for the same."""
    rows = sparse.transpose(matrix)
    seen: dict[bytes, int] = {}
    back = np.array([seen.setdefault(own.tobytes(), len(seen)) for own in _rows(rows)], dtype=np.int64)
    first = np.zeros(len(seen), dtype=np.int64)
    first[back[::-1]] = np.arange(len(back))[::-1]
    return sparse.transpose(sparse.take_rows(rows, first)), back


def _rows(matrix: Matrix) -> list[np.ndarray]:
    matrix.sort_indices()
    return np.split(matrix.indices, matrix.indptr[1:-1])
