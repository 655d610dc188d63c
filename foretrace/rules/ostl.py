"""OSTL: online spatio-temporal learning, for recurrent and for feed-forward networks.

The recurrent form carries its traces by what a state does to itself in one step *altogether*: the leak and the reset,
and also the way out through the recurrent weights and back to the same neuron. That is the block diagonal of the
Jacobian of the whole step, where D-RTRL takes the diagonal with mixing held constant.

The diagonal is read off pulled-back cotangents of ones. Positions that cannot act on one another within a step, such as
those of different batch elements, share a cotangent.
"""

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from foretrace.compiler import sparse
from foretrace.compiler.graph import ETraceGraph
from foretrace.compiler.groups import HiddenGroup
from foretrace.compiler.pattern import Pattern
from foretrace.compiler.patterns import analyse
from foretrace.compiler.positions import TransitionKind, slot_patterns
from foretrace.engine.evaluate import Step, run_forward
from foretrace.engine.linearise import Linearised
from foretrace.engine.plan import Link, Plan
from foretrace.engine.slots import Matrix, Vector, add, scale
from foretrace.rules.d_rtrl import D_RTRL, Eligibility
from foretrace.rules.pp_prop import pp_prop
from foretrace.rules.rule import Block


@dataclass(frozen=True)
class OSTLRecurrent(D_RTRL):
    """OSTL with recurrence: D-RTRL that also counts what returns to a neuron through the recurrent weights.

    Keeps: what D-RTRL keeps. Memory: parameters x batch x num_state. Time: D-RTRL's, and as many backward passes of one
    step as there are positions that act on one another (for a dense recurrent layer, its units) times num_state.
    Paper: Bohnstingl et al. 2022, "Online spatio-temporal learning in deep neural networks".

    In a group whose elements move to other positions, the direct transition of D-RTRL is kept.

    Examples:
        >>> from foretrace.rules import OSTLRecurrent
        >>> OSTLRecurrent().name
        'OSTL_recurrent'
    """

    name: ClassVar[str] = "OSTL_recurrent"

    def init(self, plan: Plan) -> Eligibility:
        return super().init(_widened(plan))

    def advance(
        self, plan: Plan, params: Sequence[Any], block: Block, trace: Eligibility
    ) -> tuple[list[jax.Array] | None, Eligibility]:
        return super().advance(_widened(plan), params, block, trace)

    def transitions(self, lin: Linearised) -> list[Matrix]:
        colors = _whole(lin.plan.graph).colors
        return [
            lin.transition(group) if color is None else _diagonal(lin, group, color)
            for group, color in zip(lin.plan.graph.hidden_groups, colors, strict=True)
        ]

    def credit(
        self, plan: Plan, params: Sequence[Any], trace: Eligibility, signal: Sequence[jax.Array]
    ) -> list[jax.Array]:
        return super().credit(_widened(plan), params, trace, signal)


@dataclass(frozen=True)
class OSTLFeedforward(pp_prop):
    """OSTL without recurrence, in factors: pp_prop with a decay of almost nothing.

    Keeps: what enters each operator and what its output does to the states, of the last step alone by default.
    Memory: (inputs + outputs x num_state) x batch, for every operator. Time: about half of BPTT, by sequence.
    Paper: Bohnstingl et al. 2022, "Online spatio-temporal learning in deep neural networks".

    Attributes:
        decay_or_rank: As in `pp_prop`.

    Examples:
        >>> from foretrace.rules import OSTLFeedforward
        >>> OSTLFeedforward().decay_or_rank
        1e-06
    """

    name: ClassVar[str] = "OSTL_feedforward"
    decay_or_rank: Any = 1e-6


class _Whole(NamedTuple):
    """The groups of a graph as the whole diagonal carries them.

    Attributes:
        groups: The groups, with every dependence of a position on itself.
        colors: For each group, the colour of each position; None where the direct transition is kept.
    """

    groups: list[HiddenGroup]
    colors: list[np.ndarray | None]


@functools.lru_cache(maxsize=8)
def _whole(graph: ETraceGraph) -> _Whole:
    groups: list[HiddenGroup] = []
    colors: list[np.ndarray | None] = []
    for group in graph.hidden_groups:
        patterns = None if group.positions.kind is TransitionKind.RELABELLED else _patterns(graph, group)
        colors.append(None if patterns is None else _colour(patterns))
        groups.append(group if patterns is None else _at_own_positions(group, patterns))
    return _Whole(groups, colors)


@functools.lru_cache(maxsize=8)
def _widened(plan: Plan) -> Plan:
    """The plan with traces for every slot that is reached through the whole step."""
    groups = _whole(plan.graph).groups
    return dataclasses.replace(plan, links=tuple(_widened_link(link, groups[link.group.index]) for link in plan.links))


def _patterns(graph: ETraceGraph, group: HiddenGroup) -> list[list[Pattern]]:
    """Which positions of each new slot depend on which of each old one, by any path through the step."""
    found = analyse(graph.values.data_jaxpr, group.hidden_invars, cut=False, consts=graph.program.consts)
    states = [[found.of(new, old) for old in group.hidden_invars] for new in group.hidden_outvars]
    return slot_patterns(states, group.slots, group.positions.size)


def _colour(patterns: Sequence[Sequence[Pattern]]) -> np.ndarray:
    """Colours positions so that none of a colour acts on another within a step."""
    matrix = functools.reduce(sparse.union, [pattern.matrix for row in patterns for pattern in row])
    rivals = sparse.union(matrix, sparse.transpose(matrix))
    colors = np.full(matrix.shape[0], -1, dtype=np.int64)
    for position in range(matrix.shape[0]):
        taken = colors[rivals.indices[rivals.indptr[position] : rivals.indptr[position + 1]]]
        free = np.setdiff1d(np.arange(len(taken) + 1), taken)
        colors[position] = free[0]
    return colors


def _at_own_positions(group: HiddenGroup, patterns: Sequence[Sequence[Pattern]]) -> HiddenGroup:
    """The group as it passes from step to step when the whole diagonal carries it."""
    kept = tuple(tuple(_on_diagonal(pattern) for pattern in row) for row in patterns)
    return dataclasses.replace(group, positions=dataclasses.replace(group.positions, patterns=kept))


def _on_diagonal(pattern: Pattern) -> Pattern:
    rows, columns = pattern.pairs()
    own = rows[rows == columns]
    return Pattern((pattern.shape[0],), (pattern.shape[1],), matrix=sparse.from_pairs(own, own, pattern.shape))


def _widened_link(link: Link, group: HiddenGroup) -> Link:
    slots = set(link.slots)
    while more := {i for i, row in enumerate(group.positions.patterns) for j in slots if not row[j].is_empty} - slots:
        slots |= more
    places = dataclasses.replace(link.places, group=group)
    return dataclasses.replace(link, group=group, places=places, slots=tuple(sorted(slots)))


def _diagonal(lin: Linearised, group: HiddenGroup, colors: np.ndarray) -> Matrix:
    """The block diagonal of the Jacobian of a group's new states by its previous ones, at each step."""
    steps, plan = lin.steps, lin.plan
    old = [plan.program.hidden_invars.index(var) for var in group.hidden_invars]
    new = [plan.program.hidden_outvars.index(var) for var in group.hidden_outvars]

    def states(own: Any) -> list[jax.Array]:
        def one(step: Step, own: Any) -> list[jax.Array]:
            hidden = list(step.hidden)
            for place, value in zip(old, own, strict=True):
                hidden[place] = value
            after, *_ = run_forward(plan, lin.weights, Step(hidden, step.other, step.inputs, []))
            return group.value_slots([after[place] for place in new])

        return jax.vmap(one)(steps, own)

    after, pullback = jax.vjp(states, [steps.hidden[place] for place in old])

    zero = jnp.zeros_like(after[0])

    def add_color(total: list[Vector], color: jax.Array) -> tuple[list[Vector], None]:
        mask = (jnp.asarray(colors) == color).astype(zero.dtype).reshape(group.varshape)
        rows = [
            group.cotangent_slots(pullback([zero + mask if i == k else zero for k in range(group.num_state)])[0])
            for i in range(group.num_state)
        ]
        return [add(row, scale(more, mask)) for row, more in zip(total, rows, strict=True)], None

    start = [[zero] * group.num_state for _ in range(group.num_state)]
    found = jax.lax.scan(add_color, start, jnp.arange(int(colors.max(initial=0)) + 1))[0]
    return [list(row) for row in found]
