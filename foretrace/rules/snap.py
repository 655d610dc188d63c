"""SnAp-n: those entries of the whole Jacobian that a parameter's influence reaches within `n` steps.

The update is that of RTRL with all other entries held at zero: `J_t = mask * (H_t J_{t-1} + P_t)`. Which entries those
are follows from the structure of the step alone, and nothing else is ever stored: see `compiler/influence.py` and
`kept_entries.py`. The derivatives `H_t` and `P_t` come from a few cotangents (or tangents) of ones, each of which
serves all states of one colour.
"""

import functools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from foretrace._checks import require_count
from foretrace._jax import is_complex
from foretrace.compiler.influence import InfluencePattern, find_influence
from foretrace.compiler.neighbourhood import SnapPattern
from foretrace.engine.plan import Plan
from foretrace.errors import NotSupportedError
from foretrace.rules.kept_entries import Layout, Shelf, Tables, lay_out
from foretrace.rules.rule import Block, Rule
from foretrace.rules.whole_step import (
    WholeStep,
    added,
    check_memory,
    hidden_dtype,
    in_chunks,
    in_step,
    join,
    split,
    weights_of,
)


class Entries(NamedTuple):
    """The kept entries.

    Attributes:
        values: For each shelf, `(types, islands, states, elements)`.
        tables: The index tables. They never change; as constants of a compiled program they would be folded at length.
    """

    values: list[jax.Array]
    tables: Tables


@dataclass(frozen=True)
class SnAp(Rule):
    """Sparse n-step approximation: the entries of RTRL's matrix that fill within `n` steps.

    Keeps: for each parameter element, its derivatives of the states that it reaches within `n` steps. Memory and time
    grow with their number: for `n = 1` as D-RTRL, for a large `n` as RTRL; sparse weights keep it small in between.
    Paper: Menick et al. 2021, "Practical real time recurrent learning with a sparse approximation to the Jacobian".

    Attributes:
        n: Steps, the one that the parameter acts in counted.
        memory_limit: The most bytes that the entries may take.

    Examples:
        >>> from foretrace.rules import SnAp
        >>> SnAp(n=3).n
        3
    """

    name: ClassVar[str] = "SnAp"
    n: int = 2
    memory_limit: int = 2**31

    def __post_init__(self) -> None:
        require_count("n", self.n)
        require_count("memory_limit", self.memory_limit, "bytes")

    def kept(self, plan: Plan) -> int:
        """How many entries of the whole Jacobian are kept."""
        return _influence(plan, self.n).count

    def init(self, plan: Plan) -> Entries:
        _refuse_complex(plan)
        self._check(plan, self.kept(plan), "")
        layout = _layout(plan, self.n)
        self._check(plan, layout.size, " (with padding)")
        values = [jnp.zeros(shelf.shape, _dtype(plan)) for shelf in layout.tables.shelves]
        return Entries(values, jax.tree.map(jnp.asarray, layout.tables))

    def _check(self, plan: Plan, count: int, remark: str) -> None:
        dtype = jnp.dtype(_dtype(plan))
        kept = f"{count:,} derivatives of hidden states by parameters{remark} in {dtype} for n = {self.n}"
        instead = "a smaller `n`, `UORO`, or `D_RTRL`" if self.n > 1 else "`UORO` or `pp_prop`"
        check_memory(self.name, kept, count * dtype.itemsize, self.memory_limit, instead)

    def advance(
        self, plan: Plan, params: Sequence[Any], block: Block, trace: Entries
    ) -> tuple[list[jax.Array] | None, Entries]:
        weights = weights_of(plan, params)
        cotangents, layout, tables = in_step(plan, weights, block), _layout(plan, self.n), trace.tables

        def one(carry: tuple[list[jax.Array], Any], item: tuple[Any, Any]) -> tuple[Any, None]:
            values, total = carry
            step, signal = item
            if signal is not None:
                total = total + _contract(plan, tables, values, signal)
            whole = WholeStep(plan, weights, step)
            by_states = _by_states(layout, tables, whole)
            by_params = _by_params(layout, tables, whole)
            return (
                [_next(s, v, by_states, by_params) for s, v in zip(tables.shelves, values, strict=True)],
                total,
            ), None

        start = (trace.values, jnp.zeros(_param_count(plan), _dtype(plan)))
        (values, total), _ = jax.lax.scan(one, start, (block.steps, None if cotangents is None else cotangents[1]))
        after = Entries(values, tables)
        return None if cotangents is None else added(weights.pull_back(cotangents[0]), _gradients(plan, total)), after

    def credit(self, plan: Plan, params: Sequence[Any], trace: Entries, signal: Sequence[jax.Array]) -> list[jax.Array]:
        return _gradients(plan, _contract(plan, trace.tables, trace.values, join(signal)))


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
    place = shelf.start[:, None, None, :] + shelf.stride[:, None, None, :] * shelf.direct[..., None]
    present = (shelf.direct[..., None] >= 0) & (shelf.start[:, None, None, :] >= 0)
    direct = jnp.where(present, by_params[place], 0).astype(values.dtype)
    return _carried(shelf, coupling, values) + direct


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


def _contract(plan: Plan, tables: Tables, values: Sequence[jax.Array], signal: jax.Array) -> jax.Array:
    """What a signal on the hidden states is worth to every parameter element."""
    total = jnp.zeros(_param_count(plan), _dtype(plan))
    signal = jnp.append(signal, 0).astype(total.dtype)
    for shelf, own in zip(tables.shelves, values, strict=True):
        found = jnp.einsum("uir,uirm->um", signal[shelf.states], own)
        total = total.at[shelf.members].add(found, mode="drop")
    return total


def _param_count(plan: Plan) -> int:
    return sum(leaf.aval.size for leaf in plan.program.params)


def _refuse_complex(plan: Plan) -> None:
    found = [f"`{leaf.name}`" for leaf in plan.program.hidden if is_complex(leaf.aval)]
    if found:
        raise NotSupportedError(
            f"SnAp counts the elements of real states; {', '.join(found)} is complex. Keep the real and the imaginary "
            "part as two states, or use D_RTRL, RTRL or UORO, which take complex ones."
        )


def _dtype(plan: Plan) -> Any:
    return jnp.result_type(hidden_dtype(plan), *(leaf.aval.dtype for leaf in plan.program.params))


def _gradients(plan: Plan, vector: jax.Array) -> list[jax.Array]:
    return split(vector, [leaf.aval for leaf in plan.program.params])


_found: weakref.WeakKeyDictionary[Plan, dict[Any, Any]] = weakref.WeakKeyDictionary()


def _influence(plan: Plan, n: int) -> InfluencePattern:
    own = _found.setdefault(plan, {})
    if ("influence", n) not in own:
        own["influence", n] = find_influence(plan.program, n)
    return own["influence", n]


def _layout(plan: Plan, n: int) -> Layout:
    own = _found.setdefault(plan, {})
    if ("layout", n) not in own:
        own["layout", n] = lay_out(_influence(plan, n))
    return own["layout", n]


def note_neighbourhoods(plan: Plan, rule: Rule) -> None:
    """Tells every group of a compiled step what the rule knows of it: a pattern for SnAp-n with `n > 1`, else None."""
    n = rule.n if isinstance(rule, SnAp) else 1
    for group in plan.graph.hidden_groups:
        known = SnapPattern(n, group.varshape, plan.program, group) if n > 1 else None
        object.__setattr__(group, "snap", known)  # the group is this plan's own
