"""Traces in two factors: what entered an operator, and what its output did to the states.

The influence of a weight is estimated as `ehat = qhat (x) p`. `p <- a_x p + x` adds up what the operator multiplied,
`q <- a_f D q + (1 - a_f) F` averages what `y` does to the states, and `qhat = q / (1 - a_f^t)`, with `t` the number of
steps, takes the start of that average at zero back out. No array has the size of a weight. In a block the factors run
through one scan over elementwise quantities, and a weight takes one product of matrices for all steps together.

A factor is kept once for all links that share it: `p` for all weights that multiply the same values, `q` for a `y` and
a group.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from foretrace.engine.edges import Bilinear, Sparse
from foretrace.engine.in_step import add_at, add_products, remainder_gradient
from foretrace.engine.linearise import Linearised, Product, Signals
from foretrace.engine.plan import Link, Plan
from foretrace.engine.slots import Matrix, Vector, total
from foretrace.engine.sweep import backward_filter
from foretrace.engine.traces import Trace, zero_trace
from foretrace.rules.rule import Block, Rule

# The count of steps stops there and does not wrap: long before, `a_f^t` is zero and the average is not biased.
LAST_STEP = np.iinfo(np.int32).max


class Decays(NamedTuple):
    """What is left of each factor after one step.

    Attributes:
        entered: `a_x`, of what the operator multiplies.
        effect: `a_f`, of what `y` does to the states.
    """

    entered: float
    effect: float


class Factors(NamedTuple):
    """The factors of some links, each list in the order in which the links first use them.

    Attributes:
        entered: `p`, of the form of an operator's data.
        effect: `q`, for each slot `(places, *y_shape)`.
        steps: How many steps went in.
    """

    entered: list[Any]
    effect: list[Trace]
    steps: jax.Array


class _Sharing(NamedTuple):
    """The links that stand for what is shared, and for every link the number of its own."""

    chosen: list[Link]
    number: list[int]


def _entered(links: Sequence[Link]) -> _Sharing:
    return _sharing(links, lambda link: link.source)


def _entries(links: Sequence[Link]) -> _Sharing:
    """A weight where it enters, for all groups that it reaches from there: what one product gives a gradient for."""
    return _sharing(links, lambda link: (link.y_var, link.weight.index))


def _effect(links: Sequence[Link]) -> _Sharing:
    return _sharing(links, lambda link: (link.y_var, link.group.index))


def _sharing(links: Sequence[Link], key: Callable[[Link], Hashable]) -> _Sharing:
    first: dict[Hashable, Link] = {}
    for link in links:
        first.setdefault(key(link), link)
    order = list(first)
    return _Sharing(list(first.values()), [order.index(key(link)) for link in links])


def zero_factors(plan: Plan, links: Sequence[Link]) -> Factors:
    """The factors before the first step."""
    entered = [zero_data(plan, link) for link in _entered(links).chosen]
    effect = [_zero_effect(link) for link in _effect(links).chosen]
    return Factors(entered, effect, jnp.zeros((), jnp.int32))


def zero_data(plan: Plan, link: Link) -> Any:
    """Zeros of the form of what an operator multiplies."""
    eqn = link.relation.occurrence.eqn
    operands = [jax.ShapeDtypeStruct(a.aval.shape, a.aval.dtype) for a in eqn.invars] if id(eqn) in plan.linear else []
    shapes = jax.eval_shape(link.edges.data, operands)
    return jax.tree.map(lambda shape: jnp.zeros(shape.shape, link.dtype), shapes)


def _zero_effect(link: Link) -> Trace:
    return {slot: jnp.zeros((link.places.width, *link.places.y_shape), link.dtype) for slot in link.slots}


def entered_of(links: Sequence[Link], factors: Factors) -> list[Any]:
    """`p` of each link."""
    return [factors.entered[number] for number in _entered(links).number]


def effect_of(links: Sequence[Link], factors: Factors) -> list[Trace]:
    """`q` of each link."""
    return [factors.effect[number] for number in _effect(links).number]


def factors_size(plan: Plan, link: Link) -> int:
    """How many numbers the factors of a link hold; those of its full trace are `trace_size`."""
    return _count(jax.eval_shape(lambda: (zero_data(plan, link), _zero_effect(link))))


def trace_size(link: Link) -> int:
    """How many numbers the full trace of a link holds."""
    return _count(jax.eval_shape(lambda: zero_trace(link)))


def _count(shapes: Any) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


def advance_factors(
    links: Sequence[Link],
    lin: Linearised,
    transitions: Sequence[Matrix],
    factors: Factors,
    decays: Decays,
    signals: Signals | None,
) -> tuple[list[tuple[int, jax.Array]], list[Product], Factors]:
    """Takes factors through a block.

    Args:
        links: The links.
        lin: The derivatives of the block's steps.
        transitions: `D` of every group at each step; not needed where `a_f` is zero.
        factors: The factors before the block.
        decays: What is left of them after a step.
        signals: The derivatives of the losses; None where there are none.

    Returns:
        `sum_k l_k . ehat_k + b_k . ehat_{k-1}` as pairs of a weight's place and a part of its gradient, those parts of
        it that are plain products and not yet multiplied out, and the factors after the block.
    """
    entered, effect = _entered(links), _effect(links)
    groups = [link.group.index for link in effect.chosen]
    items = (
        [lin.data(link) for link in entered.chosen],
        [lin.push(link, lin.identity(link.group)) for link in effect.chosen],
        {g: transitions[g] for g in groups} if decays.effect else {},
        {} if signals is None else {g: (signals.partial[g], signals.bypass[g]) for g in groups},
    )

    def one(before: Factors, item: Any) -> tuple[Factors, Any]:
        data, pushed, matrices, given = item
        after = _stepped(effect.chosen, before, data, pushed, matrices, decays)
        if signals is None:
            return after, None
        now = _cotangents(effect.chosen, after, [given[g][0] for g in groups], decays)
        past = _cotangents(effect.chosen, before, [given[g][1] for g in groups], decays)
        return after, (after.entered, now, past)

    if lin.count == 1:
        after, found = one(factors, jax.tree.map(lambda a: a[0], items))
        found = jax.tree.map(lambda a: a[None], found)
    else:
        after, found = jax.lax.scan(one, factors, items, length=lin.count)
    if signals is None:
        return [], [], after
    sums, now, past = found
    number = dict(zip(links, entered.number, strict=True))
    gradients, products = [], []
    for link, part, before in zip(
        _entries(links).chosen, *(_by_entry(links, parts) for parts in (now, past)), strict=True
    ):
        n = number[link]
        data, start = items[0][n], factors.entered[n]
        if isinstance(link.edges, Sparse) and link.edges.visits(data, part.dtype):
            gradients.append((link.weight_index, _visited_gradient(link, data, start, part, before, decays.entered)))
            continue
        own = [(sums[n], part)] + ([] if before is None else [(_before(start, sums[n]), before)])
        if type(link.edges) is Bilinear:
            products += [Product(link.weight_index, link.edges, *pair) for pair in own]
        else:
            gradients += [(link.weight_index, link.edges.gradient(*pair)) for pair in own]
    return gradients, products, after


def _stepped(links: Sequence[Link], factors: Factors, data: Any, pushed: Any, matrices: Any, decays: Decays) -> Factors:
    entered = jax.tree.map(lambda p, x: (decays.entered * p + x).astype(p.dtype), factors.entered, list(data))
    effect = list(pushed)
    if decays.effect:
        carried = [
            link.places.carry(q, matrices[link.group.index], lambda values: values)
            for link, q in zip(links, factors.effect, strict=True)
        ]
        effect = jax.tree.map(lambda q, f: decays.effect * q + (1 - decays.effect) * f, carried, effect)
    effect = jax.tree.map(lambda new, old: new.astype(old.dtype), effect, factors.effect)
    return Factors(entered, effect, jnp.minimum(factors.steps, LAST_STEP - 1) + 1)


def _cotangents(
    links: Sequence[Link], factors: Factors, signals: Sequence[Vector | None], decays: Decays
) -> list[jax.Array | None]:
    """Cotangents of each `y` from signals on the states, through `qhat`."""
    scale = _unbiased(decays.effect, factors.steps)
    return [
        None if signal is None else scale.astype(signal[0].dtype) * _joined(link, effect, signal)
        for link, effect, signal in zip(links, factors.effect, signals, strict=True)
    ]


def _joined(link: Link, effect: Trace, signal: Vector) -> jax.Array:
    return total([jnp.sum(effect[slot] * link.places.at(signal[slot]), axis=0) for slot in effect])


def _unbiased(decay: float, steps: jax.Array) -> jax.Array:
    """`1 / (1 - decay^steps)`, and one before the first step, where all factors are zero."""
    if decay == 0:
        return jnp.ones(())
    return 1 / jnp.where(steps > 0, -jnp.expm1(steps * math.log(decay)), 1)


def _before(start: Any, stacked: Any) -> Any:
    """What stood before each step, of what stands after it."""
    return jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest[:-1]]), start, stacked)


def _by_entry(links: Sequence[Link], cotangents: Sequence[jax.Array | None]) -> list[jax.Array | None]:
    """The cotangents of `y`, for every weight that enters there, over all groups that it reaches; None for zero."""
    entries = _entries(links)
    summed: list[jax.Array | None] = [None] * len(entries.chosen)
    for n, effect_number in zip(entries.number, _effect(links).number, strict=True):
        part, known = cotangents[effect_number], summed[n]
        if part is not None:
            summed[n] = part if known is None else known + part
    return summed


def _visited_gradient(
    link: Link, fired: jax.Array, start: jax.Array, now: jax.Array, past: jax.Array | None, decay: float
) -> jax.Array:
    """`sum_k p_k now_k + p_{k-1} past_k` of events.

    In place of the events the cotangents are filtered, backward, so that connections are visited by events; what `p`
    was before the block meets what reaches its start.
    """
    if past is not None:
        now = now + jnp.concatenate([past[1:], jnp.zeros_like(past[:1])])
    filtered = backward_filter(now, decay, jnp.zeros_like(now[0]))
    first = decay * filtered[0] if past is None else decay * filtered[0] + past[0]
    return link.edges.gradient(fired, filtered) + link.edges.gradient(start[None], first[None])


def contract_factors(
    links: Sequence[Link], factors: Factors, decays: Decays, signals: Sequence[Vector]
) -> list[tuple[int, jax.Array]]:
    """The gradients by one signal for each group on its present states, through the past."""
    chosen = _effect(links).chosen
    found = _cotangents(chosen, factors, [signals[link.group.index] for link in chosen], decays)
    entered = dict(zip(links, entered_of(links, factors), strict=True))
    one = lambda link, part: link.edges.gradient(*jax.tree.map(lambda a: a[None], (entered[link], part)))
    pairs = zip(_entries(links).chosen, _by_entry(links, found), strict=True)
    return [(link.weight_index, one(link, part)) for link, part in pairs if part is not None]


def signals_of(plan: Plan, signal: Sequence[jax.Array]) -> list[Vector]:
    """One signal for each group, from one array for each state."""
    return [group.cotangent_slots(plan.of_group(group, signal)) for group in plan.graph.hidden_groups]


class FactoredRule(Rule):
    """A rule whose traces are two factors; see the module for the recursions."""

    @property
    def decays(self) -> Decays:
        """What is left of each factor after one step."""
        raise NotImplementedError

    def init(self, plan: Plan) -> Factors:
        return zero_factors(plan, plan.links)

    def traces(self, plan: Plan, trace: Factors) -> dict[str, list[Any]] | None:
        return {"entered": entered_of(plan.links, trace), "effect": effect_of(plan.links, trace)}

    @property
    def collects(self) -> bool:
        return type(self).advance is FactoredRule.advance  # a rule of one's own may change what `advance` gives

    def advance(
        self, plan: Plan, params: Sequence[Any], block: Block, trace: Factors
    ) -> tuple[list[jax.Array] | None, Factors]:
        gradients, products, after = self._collected(plan, params, block, trace)
        if gradients is None:
            return None, after
        add_products(gradients, products)
        return plan.pull_back(params, gradients), after

    def collect(
        self, plan: Plan, params: Sequence[Any], block: Block, trace: Factors
    ) -> tuple[list[jax.Array] | None, list[Product], Factors]:
        gradients, products, after = self._collected(plan, params, block, trace)
        return None if gradients is None else plan.pull_back(params, gradients), products, after

    def _collected(
        self, plan: Plan, params: Sequence[Any], block: Block, trace: Factors
    ) -> tuple[list[jax.Array] | None, list[Product], Factors]:
        """Gradients of the weights without those that are plain products, these, and the factors after a block."""
        lin = Linearised(plan, plan.weights(params), block.steps, postpones=[Bilinear])
        transitions = [lin.transition(group) for group in plan.graph.hidden_groups] if self.decays.effect else []
        signals = None if block.cotangents is None else lin.signals(block.cotangents)
        parts, products, after = advance_factors(plan.links, lin, transitions, trace, self.decays, signals)
        if signals is None:
            return None, [], after
        gradients = remainder_gradient(plan, lin, signals)
        for place, part in parts:
            add_at(gradients, place, part)
        return gradients, [*products, *lin.waiting.values()], after

    def credit(self, plan: Plan, params: Sequence[Any], trace: Factors, signal: Sequence[jax.Array]) -> list[jax.Array]:
        gradients = plan.zero_gradients()
        for place, part in contract_factors(plan.links, trace, self.decays, signals_of(plan, signal)):
            add_at(gradients, place, part)
        return plan.pull_back(params, gradients)
