"""Rules that carry entries of the whole Jacobian: RTRL all that can be other than zero, SnAp-n the nearest of them.

With `J_t` the derivative of the hidden states after step `t` by the parameters, `J_t = H_t J_{t-1} + P_t`, where `H_t`
and `P_t` are the derivatives of the whole step by previous states and by parameters; entries that are not kept are held
at zero. Which entries those are follows from the structure of the step alone, and nothing else is ever stored: see
`compiler/influence.py` and `kept_entries.py`. `H_t` and `P_t` come from a few cotangents (or tangents) of ones, each of
which serves all states of one colour; the rest is products of matrices.
"""

import functools
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from foretrace._checks import require_count
from foretrace._jax import is_complex
from foretrace.compiler.influence import InfluencePattern, find_influence
from foretrace.engine.plan import Plan
from foretrace.rules.kept_entries import DirectOfEach, Layout, Shelf, Tables, lay_out
from foretrace.rules.rule import Block, Rule
from foretrace.rules.whole_step import (
    WholeStep,
    added,
    check_memory,
    hidden_dtype,
    in_chunks,
    in_step,
    join,
    join_cotangents,
    split,
    weights_of,
)


class Entries(NamedTuple):
    """The kept entries.

    Attributes:
        values: For each shelf, `(families, islands, states, elements)`.
        tables: The index tables. They never change; as constants of a compiled program they would be folded at length.
    """

    values: list[jax.Array]
    tables: Tables


class JacobianRule(Rule):
    """What the rules of the whole Jacobian share.

    Attributes:
        memory_limit: The most bytes that the entries may take.
    """

    memory_limit: int

    def __post_init__(self) -> None:
        require_count("memory_limit", self.memory_limit, "bytes")

    @property
    def steps(self) -> int | None:
        """Within how many steps a state is reached whose derivative is kept; None for any number."""
        raise NotImplementedError

    def refusal(self, plan: Plan, count: str) -> tuple[str, str]:
        """What would be kept, in words, and what to use instead."""
        raise NotImplementedError

    def kept(self, plan: Plan) -> int:
        """How many entries of the whole Jacobian are kept."""
        return self.influence(plan).count

    def influence(self, plan: Plan) -> InfluencePattern:
        """The states that parameter elements reach within the steps."""
        return _influence(plan, self.steps)

    def init(self, plan: Plan) -> Entries:
        self.check(plan, self.kept(plan))
        layout = _layout(plan, self.steps)
        self.check(plan, layout.size, " (with padding)")
        values = [jnp.zeros(shelf.shape, _dtype(plan)) for shelf in layout.tables.shelves]
        return Entries(values, jax.tree.map(jnp.asarray, layout.tables))

    def check(self, plan: Plan, count: int, remark: str = "") -> None:
        """Refuses to keep more entries than there is memory for."""
        dtype = jnp.dtype(_dtype(plan))
        kept, instead = self.refusal(plan, f"{count:,} derivatives of hidden states by parameters{remark} in {dtype}")
        check_memory(self.name, kept, count * dtype.itemsize, self.memory_limit, instead)

    def advance(
        self, plan: Plan, params: Sequence[Any], block: Block, trace: Entries
    ) -> tuple[list[jax.Array] | None, Entries]:
        weights = weights_of(plan, params)
        cotangents, layout, tables = in_step(plan, weights, block), _layout(plan, self.steps), trace.tables

        def one(carry: tuple[list[jax.Array], Any], item: tuple[Any, Any]) -> tuple[Any, None]:
            values, total = carry
            step, signal = item
            if signal is not None:
                total = [a + b for a, b in zip(total, _contract(tables, values, signal), strict=True)]
            whole = WholeStep(plan, weights, step)
            by_states = _by_states(layout, tables, whole)
            by_params = _by_params(layout, tables, whole)
            after = [_next(s, v, by_states, by_params) for s, v in zip(tables.shelves, values, strict=True)]
            return (after, total), None

        start = (trace.values, [jnp.zeros(shelf.members.shape, _dtype(plan)) for shelf in tables.shelves])
        (values, total), _ = jax.lax.scan(one, start, (block.steps, None if cotangents is None else cotangents[1]))
        after = Entries(values, tables)
        if cotangents is None:
            return None, after
        return added(weights.pull_back(cotangents[0]), _gradients(plan, tables, total)), after

    def credit(self, plan: Plan, params: Sequence[Any], trace: Entries, signal: Sequence[jax.Array]) -> list[jax.Array]:
        return _gradients(plan, trace.tables, _contract(trace.tables, trace.values, join_cotangents(signal)))


def _by_states(layout: Layout, tables: Tables, whole: WholeStep) -> jax.Array:
    """The derivatives of states by states, colour by colour, flat."""
    direction = (lambda c: whole.pull(c)[1]) if layout.by_rows else whole.push
    return join([_each_colour(direction, tables.states, layout.states_count, whole)])


def _by_params(layout: Layout, tables: Tables, whole: WholeStep) -> jax.Array:
    """The derivatives of states by parameters: parameter by parameter, colour by colour, flat."""
    found = []
    for places, colours, count in zip(layout.places, tables.params, layout.params_counts, strict=True):

        def rows(cotangent: jax.Array, places: list[int] = places) -> list[jax.Array]:
            by_params = whole.weights.pull_back(whole.pull(cotangent)[0])
            return [by_params[k] for k in places]

        found += _each_colour(rows, colours, count, whole)
    return join(found)


def _each_colour(function: Any, colours: jax.Array, count: int, whole: WholeStep) -> Any:
    """A linear map of the states at ones where a state has a colour, for every colour."""

    def of(colour: jax.Array) -> jax.Array:
        return function((colours == colour).astype(whole.hidden.dtype))

    return in_chunks(of, jnp.arange(count), colours.size)


def _next(shelf: Shelf, values: jax.Array, by_states: jax.Array, by_params: jax.Array) -> jax.Array:
    """One shelf after a step."""
    coupling = jnp.where(shelf.entries >= 0, by_states[shelf.entries], 0).astype(values.dtype)
    carried, direct = _carried(shelf, coupling, values), shelf.direct
    if isinstance(direct, DirectOfEach):
        entering = by_params[direct.found].astype(values.dtype)
        return carried.reshape(-1).at[direct.place].add(entering, unique_indices=True).reshape(values.shape)
    start, colour = direct.start[:, None, None, :], direct.colour[..., None]
    place = start + direct.stride[:, None, None, :] * colour
    return carried + jnp.where((colour >= 0) & (start >= 0), by_params[place], 0).astype(values.dtype)


def _carried(shelf: Shelf, coupling: jax.Array, values: jax.Array) -> jax.Array:
    """The entries of each island times its matrix."""
    width = coupling.shape[-1]
    if shelf.sources is None and width <= 4:  # too small for a matrix product to be worth its call
        parts = [coupling[..., w, None] * values[:, :, w : w + 1] for w in range(width)]
        return functools.reduce(jnp.add, parts)
    if shelf.sources is None:
        return jnp.einsum("uirw,uiwm->uirm", coupling, values)

    def add(w: jax.Array, total: jax.Array) -> jax.Array:
        source = jax.lax.dynamic_index_in_dim(shelf.sources, w, axis=-1)
        weight = jax.lax.dynamic_index_in_dim(coupling, w, axis=-1)
        return total + weight * jnp.take_along_axis(values, source, axis=2)

    return jax.lax.fori_loop(0, width, add, jnp.zeros_like(values))


def _contract(tables: Tables, values: Sequence[jax.Array], signal: jax.Array) -> list[jax.Array]:
    """What a signal on the hidden states is worth to the members of each shelf."""
    signal = jnp.append(signal, 0)
    return [
        jnp.einsum("uir,uirm->um", signal[shelf.states].astype(own.dtype), own)
        for shelf, own in zip(tables.shelves, values, strict=True)
    ]


def _dtype(plan: Plan) -> Any:
    return jnp.result_type(hidden_dtype(plan), *(leaf.aval.dtype for leaf in plan.program.params))


def _gradients(plan: Plan, tables: Tables, found: Sequence[jax.Array]) -> list[jax.Array]:
    """Values for the members of each shelf as one gradient for each parameter."""
    leaves = [leaf.aval for leaf in plan.program.params]
    total = jnp.zeros(sum(aval.size for aval in leaves), _dtype(plan))
    for shelf, own in zip(tables.shelves, found, strict=True):
        total = total.at[shelf.members].add(own, mode="drop")
    # Where some parameters are complex all values are, and those of real ones have no imaginary part.
    parts = zip(split(total, leaves), leaves, strict=True)
    return [part if is_complex(aval) else jnp.real(part).astype(aval.dtype) for part, aval in parts]


_found: weakref.WeakKeyDictionary[Plan, dict[Any, Any]] = weakref.WeakKeyDictionary()


def _influence(plan: Plan, n: int | None) -> InfluencePattern:
    own = _found.setdefault(plan, {})
    if ("influence", n) not in own:
        own["influence", n] = find_influence(plan.program, n)
    return own["influence", n]


def _layout(plan: Plan, n: int | None) -> Layout:
    own = _found.setdefault(plan, {})
    if ("layout", n) not in own:
        own["layout", n] = lay_out(_influence(plan, n))
    return own["layout", n]
