"""All derivatives that a block of steps needs, from one evaluation of its steps side by side.

`Linearised` takes the values from which each of `K` steps starts, and gives per step what the operators multiply and
the transition `D` of each group; from the cotangents of the steps' outputs also the partial derivatives `l` and `b` of
the loss, and the in-step cotangent of every `y`. Every array has a leading axis of steps.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from foretrace._jax import Literal, Var, eval_jaxpr, is_float
from foretrace.compiler.groups import HiddenGroup
from foretrace.compiler.occurrences import Occurrence
from foretrace.engine.edges.base import Edges, operator_of
from foretrace.engine.evaluate import Step, fixed_values, from_states, run_perturbed, zero_shifts
from foretrace.engine.places import each_color
from foretrace.engine.plan import Link, Plan
from foretrace.engine.slots import Matrix, Vector, identity, scale, subtract, total
from foretrace.engine.transition import UNROLLED, jacobian_entries, unit_slots


@dataclass(frozen=True)
class Cotangents:
    """The derivatives of the steps' losses, with a leading axis of steps.

    Attributes:
        outputs: By what each step returns; None where it is not floating.
        hidden: By the new hidden states themselves, for losses that read them.
    """

    outputs: list[Any]
    hidden: list[Any]


jax.tree_util.register_dataclass(Cotangents, ["outputs", "hidden"], [])


@dataclass(frozen=True)
class Signals:
    """The derivatives of the losses of a block, where its steps meet traces and weights.

    Attributes:
        partial: For each group `l`: losses by its new states, each a variable of its own, by slot.
        bypass: For each group `b`: losses by its previous states, the new ones held fixed; None where it is zero.
        y: In-step cotangents of the output of each linear operator.
        weights: In-step gradients of the weights by all other uses, summed over the steps.
    """

    partial: list[Vector]
    bypass: list[Vector | None]
    y: list[jax.Array]
    weights: list[jax.Array]


@dataclass(frozen=True)
class Product:
    """A part of a weight's gradient that is yet to be multiplied out: it is larger than what makes it.

    Attributes:
        weight_index: The place of the weight.
        edges: How it meets `y`.
        data: What it is multiplied with at each of some steps.
        cotangents: Those of `y`.
    """

    weight_index: int
    edges: Edges
    data: Any
    cotangents: jax.Array

    def added_to(self, total: jax.Array) -> jax.Array:
        """A gradient of the weight, with this part added."""
        return self.edges.add_gradient(total, self.data, self.cotangents)


jax.tree_util.register_dataclass(Product, ["data", "cotangents"], ["weight_index", "edges"])


class Linearised:
    """The derivatives of `K` steps at the values that they have.

    Args:
        plan: The plan.
        weights: Its weights.
        steps: The values that each step starts from, stacked.
        postpones: The kinds of edges whose in-step gradients wait to be multiplied out, in `waiting`.

    Attributes:
        waiting: Those gradients, by the number of the product among those of the plan.
    """

    def __init__(
        self, plan: Plan, weights: Sequence[Any], steps: Step, postpones: Collection[type[Edges]] = ()
    ) -> None:
        self.postpones = postpones
        self.waiting: dict[int, Product] = {}
        self.plan, self.weights, self.steps = plan, list(weights), steps
        self.count = jax.tree.leaves(steps)[0].shape[0]
        self._fixed = fixed_values(plan, weights)
        self._batched: dict[Var, Any] = dict(zip(plan.needed_vars, jax.vmap(self._needed)(steps), strict=True))

    def _needed(self, step: Step) -> list[Any]:
        shifts = zero_shifts(self.plan.saved_vars), zero_shifts(self.plan.program.hidden_outvars)
        return run_perturbed(self.plan, self.weights, step, *shifts)[1]

    def take_waiting(self, kind: type[Edges]) -> list[Product]:
        """Those in-step gradients of one kind of edges that wait, which then wait no more."""
        chosen = [number for number, product in self.waiting.items() if type(product.edges) is kind]
        return [self.waiting.pop(number) for number in chosen]

    def over_steps(self, function: Callable[..., Any], variables: Sequence[Any], *stacked: Any) -> Any:
        """Maps a function of the values of some variables (and further stacked arrays) over the steps."""
        own = list(dict.fromkeys(v for v in variables if not isinstance(v, Literal) and v in self._batched))

        def at(values: Sequence[Any], *rest: Any) -> Any:
            known = {**self._fixed, **dict(zip(own, values, strict=True))}
            return function([v.val if isinstance(v, Literal) else known[v] for v in variables], *rest)

        return jax.vmap(lambda _, values, rest: at(values, *rest))(
            jnp.arange(self.count), [self._batched[v] for v in own], stacked
        )

    def fixed(self, var: Var) -> Any:
        """A value that is the same in every step, such as a weight."""
        return self._fixed[var]

    def new_states(self) -> list[jax.Array]:
        """The hidden states after each step."""
        return self.over_steps(list, self.plan.program.hidden_outvars)

    def transition(self, group: HiddenGroup) -> Matrix:
        """`D` of a group, an array `(K, *varshape)` for each entry."""

        def jacobian(constants: Any, *values: Any) -> Matrix:
            return jacobian_entries(group, lambda states: group.transition(states, constants), values)

        hidden = self.plan.of_group(group, self.steps.hidden)
        return self.over_steps(jacobian, group.transition_jaxpr_constvars, *hidden)

    def identity(self, group: HiddenGroup) -> Matrix:
        """The identity at each step and position of a group."""
        return identity(group.num_state, (self.count, *group.varshape), group.dtype)

    def data(self, link: Link) -> Any:
        """What the operator of a link multiplies."""
        linear = id(link.relation.occurrence.eqn) in self.plan.linear
        operands = link.relation.occurrence.eqn.invars if linear else []
        return self.over_steps(link.edges.data, operands)

    def pull(self, link: Link, cotangents: Vector) -> jax.Array:
        """Cotangents of a group's new states, by slot, along direct paths to `y`."""
        return self._pulled(link, lambda pullback, c: pullback(link.group.cotangent_states(c)), cotangents)

    def push(self, link: Link, factors: Matrix) -> dict[int, jax.Array]:
        """`F`, multiplied from the left by factors at each step.

        Returns:
            For each slot that the link keeps, `(K, places, *y_shape)`.
        """

        return dict(zip(link.slots, self._pushed(link, [factors[slot] for slot in link.slots]), strict=True))

    def entering(self, link: Link) -> dict[int, jax.Array]:
        """`F` itself, for each slot that the link keeps."""
        if link.by_tangents or len(link.slots) <= UNROLLED:
            return self.push(link, self.identity(link.group))

        def together(pullback: Callable[..., Any], _: Any) -> jax.Array:
            # One pass mapped over the slots, so that the program does not grow with them.
            units = unit_slots(link.group, link.slots)
            return jax.vmap(lambda row: _entered(link, pullback, row))(units)

        found = self._pulled(link, together, ())
        return {slot: found[:, row] for row, slot in enumerate(link.slots)}

    def push_row(self, link: Link, row: Vector) -> jax.Array:
        """`F`, multiplied from the left by one row at each step: `(K, places, *y_shape)`."""
        return self._pushed(link, [row])[0]

    def _pushed(self, link: Link, rows: Sequence[Sequence[jax.Array | None]]) -> list[jax.Array]:
        if link.by_tangents:
            return self._by_y(link, lambda states, y, given: _spread_out(link, states, y, given), rows)
        return self._pulled(link, lambda pullback, given: [_entered(link, pullback, row) for row in given], rows)

    def _pulled(self, link: Link, use: Callable[..., Any], stacked: Any) -> Any:
        def at(states: Callable[..., Any], y: jax.Array, given: Any) -> Any:
            new, pullback = jax.vjp(states, y)

            def cast(cotangents: Sequence[Any]) -> Any:
                return pullback([c.astype(v.dtype) for c, v in zip(cotangents, new, strict=True)])[0]

            return use(cast, given)

        return self._by_y(link, at, stacked)

    def _by_y(self, link: Link, use: Callable[..., Any], stacked: Any) -> Any:
        """Maps over the steps what uses the group's new states as a function of `y`."""

        def at(values: Any, given: Any) -> Any:
            *constants, y = values
            return use(lambda value: eval_jaxpr(link.y_jaxpr, constants, value), y, given)

        return self.over_steps(at, [*link.y_jaxpr.constvars, link.y_var], stacked)

    def signals(self, cotangents: Cotangents) -> Signals:
        """The derivatives of the losses, given those by outputs and new states."""
        plan = self.plan
        lam, y, weights = self._in_step(cotangents)
        partial: list[Vector] = []
        bypass: list[Vector | None] = []
        for group in plan.graph.hidden_groups:
            own = plan.of_group(group, lam)
            partial.append(group.cotangent_slots(self._uncoupled(group, own) if group.coupled else own))
            bypass.append(self._bypass(group, cotangents) if group.index in plan.bypassed else None)
        return Signals(partial, bypass, y, weights)

    def _uncoupled(self, group: HiddenGroup, lam: Sequence[jax.Array]) -> list[jax.Array]:
        """`l = lam - K^T lam`: without what a new state does by direct paths through others of its group, which their
        own traces tell. What it does through mixing no trace tells, and it stays."""
        jaxpr, targets = group.coupling
        states = group.hidden_outvars

        def at(values: Sequence[Any], *lam: jax.Array) -> list[jax.Array]:
            constants = values[len(states) :]
            new, pullback = jax.vjp(lambda *own: eval_jaxpr(jaxpr, constants, *own), *values[: len(states)])
            through = pullback([lam[k].astype(value.dtype) for k, value in zip(targets, new, strict=True)])
            return subtract(lam, through)

        return self.over_steps(at, [*states, *jaxpr.constvars], *lam)

    def _in_step(self, cotangents: Cotangents) -> tuple[list[Any], list[Any], list[Any]]:
        plan = self.plan
        states = zero_shifts(plan.program.hidden_outvars, self.count)
        ys = zero_shifts(plan.saved_vars, self.count)

        own, marks = self.weights[: len(plan.weight_vars)], self.weights[len(plan.weight_vars) :]

        def run(weights: Any, ys: Any, states: Any) -> Any:
            def one(step: Step, y: Any, shifts: Any) -> Any:
                return run_perturbed(plan, [*weights, *marks], step, y, shifts)[0]

            return jax.vmap(one)(self.steps, ys, states)

        (outputs, _), pullback = jax.vjp(run, own, ys, states)
        weights, y, lam = pullback(fitting(outputs, cotangents))
        return lam, y, weights

    def _bypass(self, group: HiddenGroup, cotangents: Cotangents) -> Vector:
        plan = self.plan
        shifts = zero_shifts(plan.saved_vars), zero_shifts(plan.program.hidden_outvars)

        def run(previous: Any) -> Any:
            def one(step: Step, old: Any) -> Any:
                step = from_states(plan, step, group, old)
                return run_perturbed(plan, self.weights, step, *shifts, held=group.hidden_outvars)[0]

            return jax.vmap(one)(self.steps, previous)

        (outputs, _), pullback = jax.vjp(run, plan.of_group(group, self.steps.hidden))
        return group.cotangent_slots(pullback(fitting(outputs, cotangents))[0])

    def operator_gradient(self, occurrence: Occurrence, weight_index: int, cotangents: jax.Array) -> jax.Array:
        """The gradient of one weight of a linear operator by cotangents `(K, *y_shape)`, summed over the steps."""
        eqn = occurrence.eqn
        operator = operator_of(eqn, eqn.outvars.index(occurrence.y_var))

        def outputs(weight: Any) -> Any:
            def y(operands: Any) -> Any:
                return operator(*(weight if i == weight_index else o for i, o in enumerate(operands)))

            return self.over_steps(y, eqn.invars)

        weight = self._fixed[eqn.invars[weight_index]]
        _, pullback = jax.vjp(outputs, weight)
        return pullback(cotangents)[0]


def _entered(link: Link, pullback: Callable[..., Any], row: Sequence[jax.Array | None]) -> jax.Array:
    """One row of factors pulled to `y`, at the places where `y` enters: one reverse pass for each colour."""
    known = next(entry for entry in row if entry is not None)
    whole = [jnp.zeros_like(known) if entry is None else entry for entry in row]

    def of(mask: jax.Array) -> jax.Array:
        return pullback(link.group.cotangent_states(scale(whole, mask)))

    return link.places.enter(each_color(of, link.places.reach.colors, link.group.varshape, known.dtype))


def _spread_out(
    link: Link, states: Callable[..., Any], y: jax.Array, rows: Sequence[Sequence[jax.Array | None]]
) -> list[jax.Array]:
    """Rows of factors times `F` where one element of `y` reaches many positions.

    A forward pass gives each position its derivative by the one element of a colour that reaches it, so few passes
    cover all positions, however many an element has.
    """

    def of(tangent: jax.Array) -> jax.Array:
        derivatives = link.group.value_slots(jax.jvp(states, (y,), (tangent,))[1])
        products = [
            [factor * slot for factor, slot in zip(row, derivatives, strict=True) if factor is not None] for row in rows
        ]
        return jnp.stack([total(parts) for parts in products])

    found = each_color(of, link.places.reach.source_colors, y.shape, y.dtype)
    return [link.places.enter(link.places.taken(found[:, number])) for number in range(len(rows))]


def fitting(outputs: Sequence[Any], cotangents: Cotangents) -> tuple[list[Any], list[Any]]:
    """The cotangents in the form that a pullback takes: nothing where an output is not floating."""
    fitted = [
        c.astype(out.dtype) if is_float(out) else jnp.zeros(out.shape, jax.dtypes.float0)
        for out, c in zip(outputs, cotangents.outputs, strict=True)
    ]
    return fitted, list(cotangents.hidden)
