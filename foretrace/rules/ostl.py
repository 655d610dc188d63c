"""OSTL: online spatio-temporal learning, for recurrent and for feed-forward networks.

The recurrent form carries its traces by what a state does to itself in one step *altogether*: the leak and the reset,
and also the way out through the recurrent weights and back to the same neuron. That is the block diagonal of the
Jacobian of the whole step, where D-RTRL takes the diagonal with mixing held constant.

Where every way back runs through one product with a weight, as in a plain recurrent layer or an LSTM, its share of the
diagonal is the product of three: what the state does to what is multiplied, the weight's own element, and what the
product does to the new state. That costs as much as the direct transition. Elsewhere, as for a GRU whose reset gate
leads through two products, the diagonal is read off pulled-back cotangents of ones. Positions that cannot act on one
another within a step, such as those of different batch elements, share a cotangent.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from foretrace.compiler.graph import ETraceGraph
from foretrace.compiler.groups import HiddenGroup
from foretrace.compiler.paths import later_slots
from foretrace.compiler.recurrence import RecurrentGroup, Return, recurrent_group
from foretrace.engine.edges import Bilinear
from foretrace.engine.evaluate import Step, from_states, run_forward, run_returning
from foretrace.engine.linearise import Linearised
from foretrace.engine.plan import Link, Plan
from foretrace.engine.slots import Matrix, Vector, add, scale
from foretrace.engine.transition import jacobian_entries
from foretrace.rules.d_rtrl import D_RTRL, Eligibility
from foretrace.rules.pp_prop import pp_prop
from foretrace.rules.rule import Block


@dataclass(frozen=True)
class OSTLRecurrent(D_RTRL):
    """OSTL with recurrence: D-RTRL that also counts what returns to a neuron through the recurrent weights.

    Keeps: what D-RTRL keeps. Memory: parameters x batch x num_state. Time: D-RTRL's, where every way from
    a unit back to itself runs through one product; else also as many backward passes of one step as there are positions
    that act on one another (for a dense recurrent layer, its units) times num_state.
    Paper: Bohnstingl et al. 2022, "Online spatio-temporal learning in deep neural networks".

    In a group whose elements move to other positions, the direct transition of D-RTRL is kept.

    Attributes:
        trace_dtype: As in `D_RTRL`.

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

    def lasting(self, plan: Plan, trace: Eligibility) -> Eligibility:
        return super().lasting(_widened(plan), trace)

    def transitions(self, lin: Linearised) -> list[Matrix]:
        pairs = zip(lin.plan.graph.hidden_groups, _recurrent(lin.plan.graph), strict=True)
        return [lin.transition(group) if own is None else whole_transition(lin, group, own) for group, own in pairs]

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


@functools.lru_cache(maxsize=8)
def _recurrent(graph: ETraceGraph) -> list[RecurrentGroup | None]:
    return [recurrent_group(graph, group) for group in graph.hidden_groups]


@functools.lru_cache(maxsize=8)
def _widened(plan: Plan) -> Plan:
    """The plan with traces for every slot that is reached through the whole step."""
    found = _recurrent(plan.graph)
    return dataclasses.replace(plan, links=tuple(_widened_link(link, found[link.group.index]) for link in plan.links))


def _widened_link(link: Link, found: RecurrentGroup | None) -> Link:
    if found is None:
        return link
    places = dataclasses.replace(link.places, group=found.group)
    return dataclasses.replace(link, group=found.group, places=places, slots=later_slots(found.group, link.slots))


def whole_transition(lin: Linearised, group: HiddenGroup, own: RecurrentGroup) -> Matrix:
    """The block diagonal of the Jacobian of a group's new states by its previous ones, at each step."""
    back = {found.occurrence.y_var: _own_elements(lin, found) for found in own.returns or ()}
    if own.returns is None or None in back.values():
        return _diagonal(lin, group, own.colors)
    plan, steps = lin.plan, lin.steps

    def jacobian(step: Step) -> Matrix:
        transition = lambda states: run_returning(plan, lin.weights, step, group, states, back)
        return jacobian_entries(own.group, transition, plan.of_group(group, step.hidden))

    return jax.vmap(jacobian)(steps)


def _own_elements(lin: Linearised, found: Return) -> Callable[[jax.Array], jax.Array] | None:
    """The product of an operator, with the elements alone that lead back to the position of what is multiplied."""
    (weight,) = found.occurrence.weights
    edges = lin.plan.products.get((found.occurrence.y_var, weight.var))
    if not isinstance(edges, Bilinear):
        return None
    elements = jnp.where(found.sources >= 0, edges.connecting(lin.fixed(weight.var), found.sources), 0)
    shape = found.occurrence.y_var.aval.shape
    return lambda x: (elements * jnp.take(x.reshape(-1), np.maximum(found.sources, 0))).reshape(shape)


def _diagonal(lin: Linearised, group: HiddenGroup, colors: np.ndarray) -> Matrix:
    """The block diagonal of the Jacobian of a group's new states by its previous ones, at each step."""
    steps, plan = lin.steps, lin.plan

    def states(own: Any) -> list[jax.Array]:
        def one(step: Step, own: Any) -> list[jax.Array]:
            after, *_ = run_forward(plan, lin.weights, from_states(plan, step, group, own))
            return group.value_slots(plan.of_group(group, after))

        return jax.vmap(one)(steps, own)

    after, pullback = jax.vjp(states, plan.of_group(group, steps.hidden))
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
