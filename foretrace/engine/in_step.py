"""The exact gradient within each step, with whatever a rule adds to the cotangents of `y`."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from foretrace._jax import Var
from foretrace.engine.linearise import Linearised, Product, Signals
from foretrace.engine.plan import Plan


def add_at(gradients: list[jax.Array], place: int, part: jax.Array) -> None:
    """Adds a part to one gradient of a list."""
    gradients[place] = gradients[place] + part.astype(gradients[place].dtype).reshape(gradients[place].shape)


def product_number(plan: Plan, y_var: Var, weight_var: Var) -> int:
    """The number of a product among those of a plan."""
    return list(plan.products).index((y_var, weight_var))


def add_products(gradients: list[jax.Array], products: Iterable[Product]) -> None:
    """Adds to gradients those that waited to be multiplied out."""
    for product in products:
        gradients[product.weight_index] = product.added_to(gradients[product.weight_index])


def remainder_gradient(plan: Plan, lin: Linearised, signals: Signals) -> list[jax.Array]:
    """The in-step gradients of the weights without what acts directly through the new states of a link's group.

    That is the share of a step's gradient that a rule with a trace of its own does not replace: all of it for
    weights without a link, none for most weights with one.
    """
    whole = {link.y_var for link in plan.links if link.y_var not in plan.aside}
    history = [
        None if link.y_var in whole else -lin.pull(link, signals.partial[link.group.index]) for link in plan.links
    ]
    return in_step_gradient(plan, lin, signals, history, without=whole)


def in_step_gradient(
    plan: Plan,
    lin: Linearised,
    signals: Signals,
    history: Sequence[jax.Array | None],
    without: Collection[Var] = (),
) -> list[jax.Array]:
    """Gradients of the weights: within each step, plus what later steps add to the cotangent of `y`.

    Args:
        plan: The plan.
        lin: The derivatives of the block's steps.
        signals: The derivatives of the losses.
        history: For each link, further cotangents of its `y`, `(K, *y_shape)`; None for none.
        without: Outputs of operators whose weights are left out: the weights themselves where they enter elementwise.

    Returns:
        One gradient for each weight.
    """
    pairs = zip(plan.weight_vars, signals.weights, strict=True)
    gradients = [jnp.zeros_like(own) if var in without else own for var, own in pairs]
    further: dict[Any, jax.Array] = {}
    for link, part in zip(plan.links, history, strict=True):
        if part is not None:
            key = (link.weight.var, link.y_var)
            further[key] = further[key] + part if key in further else part
    for occurrence, own in zip(plan.linear.values(), signals.y, strict=True):
        if occurrence.y_var in without:
            continue
        for weight in occurrence.weights:
            if weight.var not in plan.weight_vars:
                continue
            part = further.pop((weight.var, occurrence.y_var), None)
            total = own if part is None else own + part
            edges, place = plan.products.get((occurrence.y_var, weight.var)), plan.weight_vars.index(weight.var)
            if edges is None:
                add_at(gradients, place, lin.operator_gradient(occurrence, weight.index, total))
                continue
            product = Product(place, edges, lin.over_steps(edges.data, occurrence.eqn.invars), total)
            if type(edges) in lin.postpones:
                lin.waiting[product_number(plan, occurrence.y_var, weight.var)] = product
            else:
                add_products(gradients, [product])
    for (var, _), part in further.items():  # elementwise: y is the weight itself
        add_at(gradients, plan.weight_vars.index(var), part.sum(axis=0))
    return gradients
