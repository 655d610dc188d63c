"""What SnAp-n knows of a hidden group: the positions that each one reaches within `n` steps, as `group.snap`.

The step that a parameter acts in counts as one. So for `n = 2` a position's neighbours are those that depend on it one
step later: through direct paths, through mixing, and through other groups.
"""

import functools
import math
from dataclasses import dataclass, field

import numpy as np

from foretrace.compiler import sparse
from foretrace.compiler.groups import HiddenGroup
from foretrace.compiler.influence import both_parts, step_pattern, within
from foretrace.compiler.sparse import Matrix
from foretrace.program.records import StepProgram


@dataclass(frozen=True, eq=False)
class SnapPattern:
    """The neighbourhoods of a group's positions, worked out when they are first looked at.

    Attributes:
        n: Steps, the one that a parameter acts in counted.
        varshape: The shape of the positions; a position is counted in its flat order.
        program: The step.
        group: The group.
    """

    n: int
    varshape: tuple[int, ...]
    program: StepProgram = field(repr=False)
    group: HiddenGroup = field(repr=False)

    @functools.cached_property
    def matrix(self) -> Matrix:
        """Positions by positions, a sparse boolean matrix: row `p` has the positions that `p` reaches."""
        own = dict(zip(self.group.hidden_invars, self.group.placed, strict=True))
        states = both_parts(self.program.hidden_invars)
        # The position of every element of all hidden states; -1 for those of other groups.
        place = np.concatenate([own[var][1] if var in own else np.full(var.aval.size, -1) for var in states])
        onward = sparse.transpose(step_pattern(self.program).states)
        elements = np.flatnonzero(place >= 0)
        inside = sparse.from_pairs(place[elements], elements, (self.num_position, len(place)))
        return sparse.multiply(within(inside, onward, self.n), sparse.transpose(inside))

    @functools.cached_property
    def neighbours(self) -> np.ndarray:
        """`(num_position, num_neighbour)`: each row begins with the position itself; padding repeats it."""
        found = np.repeat(np.arange(self.num_position)[:, None], self.num_neighbour, axis=1)
        for position, own in enumerate(self._others):
            found[position, 1 : 1 + len(own)] = own
        return found

    @functools.cached_property
    def valid(self) -> np.ndarray:
        """`(num_position, num_neighbour)`: False where a neighbour is padding."""
        counts = np.array([1 + len(own) for own in self._others])
        return np.arange(self.num_neighbour) < counts[:, None]

    @property
    def num_position(self) -> int:
        """How many positions the group has."""
        return math.prod(self.varshape)

    @property
    def num_neighbour(self) -> int:
        """The most neighbours of a position, itself counted."""
        return 1 + max((len(own) for own in self._others), default=0)

    @property
    def is_degenerate(self) -> bool:
        """Whether every position reaches itself alone."""
        return self.num_neighbour == 1

    @property
    def is_saturated(self) -> bool:
        """Whether some position reaches all."""
        return self.num_neighbour == self.num_position

    @functools.cached_property
    def _others(self) -> list[np.ndarray]:
        """The neighbours of each position, itself left out."""
        rows = np.split(self.matrix.indices, self.matrix.indptr[1:-1])
        return [np.sort(row[row != position]) for position, row in enumerate(rows)]
