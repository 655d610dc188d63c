"""Some steps in a row as one linear map: what cotangents of the states after them ask of weights and of earlier states.

Reverse mode over the steps, at the values that a forward pass has left: the outputs of linear operators are known, so a
cotangent costs one transposed product for each of them, and many cotangents are pulled side by side. What an operator's
weight gets is added up over the steps at the end, in one product of matrices.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from foretrace._jax import Literal, is_float
from foretrace.engine.evaluate import Step, run_perturbed, zero_shifts
from foretrace.engine.in_step import in_step_gradient
from foretrace.engine.linearise import Cotangents, Linearised, Signals, fitting
from foretrace.engine.plan import Plan
from foretrace.engine.sweep import credit
from foretrace.rules.whole_step import Weights, join_hidden, split_hidden


class Arriving(NamedTuple):
    """What arrives at the weights.

    Attributes:
        y: Cotangents of the output of each linear operator at each step.
        weights: Gradients of the weights that act otherwise than by such an operator, summed over the steps.
    """

    y: list[jax.Array]
    weights: list[jax.Array]


class Window:
    """The derivatives of some steps under constant weights.

    Args:
        plan: The plan.
        weights: Its weights.
        steps: The values that each step starts from, stacked.

    Attributes:
        linearised: The derivatives of each step by itself.
        used_otherwise: The places of the weights that act otherwise than as the weight of a linear operator.
    """

    def __init__(self, plan: Plan, weights: Weights, steps: Step) -> None:
        self.plan, self.weights, self.steps = plan, weights, steps
        self.linearised = Linearised(plan, [*weights.values, *weights.marks], steps)
        self.used_otherwise = used_otherwise(plan)

    def pull(self, end: jax.Array, cotangents: Cotangents | None = None) -> tuple[list[jax.Array], jax.Array]:
        """Pulls back a cotangent of the hidden states after the last step, one vector.

        Args:
            end: The cotangent.
            cotangents: Derivatives of each step's loss, which are pulled back too; None for none.

        Returns:
            One gradient for each weight, and the cotangent of the hidden states before the first step.
        """
        arriving, start = self.arriving(end, cotangents)
        return self.gradients(arriving), start

    def gradients(self, arriving: "Arriving") -> list[jax.Array]:
        """One gradient for each weight."""
        by_weights = self.plan.zero_gradients()
        for place, found in zip(self.used_otherwise, arriving.weights, strict=True):
            by_weights[place] = found
        signals = Signals([], [], arriving.y, by_weights)
        return in_step_gradient(self.plan, self.linearised, signals, [None] * len(self.plan.links))

    def arriving(self, end: jax.Array, cotangents: Cotangents | None = None) -> tuple["Arriving", jax.Array]:
        """As `pull`, with what arrives at the weights not yet made gradients."""

        def back(carry: Any, item: Any) -> tuple[Any, Any]:
            later, total = carry
            step, given = item
            own = [self.weights.values[place] for place in self.used_otherwise]
            ys = zero_shifts(self.plan.saved_vars)
            (outputs, new), pullback = jax.vjp(
                functools.partial(self._run, step), own, ys, join_hidden(step.hidden).astype(later.dtype)
            )
            if given is None:
                arriving = [_zeros(out) for out in outputs], later
            else:
                by_outputs, by_hidden = fitting(outputs, given)
                arriving = by_outputs, later + join_hidden(by_hidden)
            by_weights, by_y, before = pullback((arriving[0], arriving[1].astype(new.dtype)))
            return (before, [a + b for a, b in zip(total, by_weights, strict=True)]), by_y

        zeros = [jnp.zeros_like(self.weights.values[place]) for place in self.used_otherwise]
        (start, others), by_y = jax.lax.scan(back, (end, zeros), (self.steps, cotangents), reverse=True)
        return Arriving(by_y, others), start

    def mixing(self, end: jax.Array) -> tuple["Arriving", jax.Array]:
        """As `arriving`, without what arrives along direct paths alone, of which traces of D-RTRL tell."""
        plan, lin = self.plan, self.linearised
        found, start = self.arriving(end)
        by_y, by_weights = list(found.y), list(found.weights)
        states = split_hidden(plan, end)
        for key, link in {(link.y_var, link.group.index): link for link in plan.links}.items():
            group = link.group
            later = group.cotangent_slots(plan.of_group(group, states))
            nothing = [jnp.zeros((lin.count, *group.varshape), group.dtype)] * group.num_state
            after, _ = credit(group, lin.transition(group), nothing, None, later)
            direct = lin.pull(link, after)
            if key[0] in plan.saved_vars:
                place = plan.saved_vars.index(key[0])
                by_y[place] = by_y[place] - direct
            elif link.weight_index in self.used_otherwise:
                place = self.used_otherwise.index(link.weight_index)
                by_weights[place] = by_weights[place] - direct.sum(axis=0).reshape(by_weights[place].shape)
        return Arriving(by_y, by_weights), start

    def _run(self, step: Step, own: Sequence[Any], ys: Sequence[Any], hidden: jax.Array) -> tuple[list[Any], jax.Array]:
        weights = list(self.weights.values)
        for place, value in zip(self.used_otherwise, own, strict=True):
            weights[place] = value
        start = Step(split_hidden(self.plan, hidden), step.other, step.inputs, step.saved)
        shifts = zero_shifts(self.plan.program.hidden_outvars)
        found, _ = run_perturbed(self.plan, [*weights, *self.weights.marks], start, ys, shifts, by_previous=True)
        return found[0], join_hidden(found[1])


def _zeros(value: Any) -> Any:
    return jnp.zeros(value.shape, value.dtype if is_float(value) else jax.dtypes.float0)


def used_otherwise(plan: Plan) -> list[int]:
    """The places of the weights that act otherwise than as the weight of a linear operator."""
    used = {atom for atom in plan.jaxpr.outvars if not isinstance(atom, Literal)}
    for eqn in plan.jaxpr.eqns:
        known = {w.index for w in plan.linear[id(eqn)].weights} if id(eqn) in plan.linear else set()
        used |= {a for i, a in enumerate(eqn.invars) if not isinstance(a, Literal) and i not in known}
    return [place for place, var in enumerate(plan.weight_vars) if var in used]
