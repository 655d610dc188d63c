"""What a group does to itself in one step altogether: directly, and out through recurrent weights and back."""

import dataclasses
from typing import NamedTuple

import numpy as np

from foretrace.compiler import sparse
from foretrace.compiler.graph import ETraceGraph
from foretrace.compiler.groups import HiddenGroup
from foretrace.compiler.pattern import Pattern
from foretrace.compiler.patterns import analyse
from foretrace.compiler.positions import TransitionKind, colour_positions, slot_patterns


class RecurrentGroup(NamedTuple):
    """A group as the block diagonal of the whole step's Jacobian carries it.

    Attributes:
        group: The group, with every dependence of a position on itself.
        colors: The colour of each position; none of a colour acts on another within a step.
    """

    group: HiddenGroup
    colors: np.ndarray


def recurrent_group(graph: ETraceGraph, group: HiddenGroup) -> RecurrentGroup | None:
    """A group with its dependence on itself by any path through the step; None where its elements move."""
    if group.positions.kind is TransitionKind.RELABELLED:
        return None
    found = analyse(graph.values.data_jaxpr, group.hidden_invars, cut=False, consts=graph.program.consts)
    states = [[found.of(new, old) for old in group.hidden_invars] for new in group.hidden_outvars]
    patterns = slot_patterns(states, group.slots, group.positions.size)
    kept = tuple(tuple(_on_diagonal(pattern) for pattern in row) for row in patterns)
    positions = dataclasses.replace(group.positions, patterns=kept)
    return RecurrentGroup(dataclasses.replace(group, positions=positions), colour_positions(patterns))


def _on_diagonal(pattern: Pattern) -> Pattern:
    rows, columns = pattern.pairs()
    own = rows[rows == columns]
    return Pattern((pattern.shape[0],), (pattern.shape[1],), matrix=sparse.from_pairs(own, own, pattern.shape))
