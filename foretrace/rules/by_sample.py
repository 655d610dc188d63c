"""What belongs to which sample of a batch, and what each sample's cotangents ask of the weights.

Samples never meet, so one reverse pass serves a vector of every sample. What it asks of a weight is then taken sample
by sample: a product keeps the axis of its batch, and an element of a weight that is one sample's own belongs to it.
Where some value belongs to several samples, or a weight does, each vector has a pass of its own.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from foretrace._jax import Var
from foretrace.compiler import HistoryKind
from foretrace.compiler.axismaps import along
from foretrace.compiler.batch import Samples, find_samples
from foretrace.compiler.occurrences import Occurrence, Weight
from foretrace.engine.edges import Bilinear
from foretrace.engine.plan import Link, Plan
from foretrace.engine.slots import total
from foretrace.engine.traces import Trace, contract
from foretrace.rules.d_rtrl import Eligibility
from foretrace.rules.whole_step import hidden_size, split_hidden
from foretrace.rules.window import Arriving, Window, used_otherwise


@dataclass(frozen=True, eq=False)
class BySample:
    """The states and the weights of each sample.

    Vectors of states come as `(samples, number, states)`, one for each sample and number. A pass takes `lanes` of them
    for each number, vectors of all states.

    Attributes:
        plan: The plan.
        elements: `(samples, states)`: the elements of each sample among all hidden state elements.
        places: The places of the weights that D-RTRL does not know whole.
        params: The places of the parameters that these are made of.
        of: The sample of each element, of outputs of linear operators and of weights; None where each vector has a pass
            of its own.
    """

    plan: Plan
    elements: np.ndarray
    places: list[int]
    params: list[int]
    of: dict[Var, np.ndarray] | None

    def spread(self, vectors: jax.Array) -> jax.Array:
        """Vectors of the states of each sample as vectors of all states, `(lanes, number, all)`."""
        samples, count = vectors.shape[:2]
        if self.of is not None:
            every = jnp.swapaxes(vectors, 0, 1).reshape(1, count, -1)
            return every[..., np.argsort(self.elements.reshape(-1))]
        zeros = jnp.zeros((samples, count, self.elements.size), vectors.dtype)
        at = (np.arange(samples)[:, None, None], np.arange(count)[:, None], self.elements[:, None, :])
        return zeros.at[at].set(vectors)

    def collect(self, vectors: jax.Array) -> jax.Array:
        """The states of each sample out of vectors of all, `(lanes, number, all)`."""
        if self.of is not None:
            return jnp.swapaxes(vectors[0][:, self.elements], 0, 1)
        return jnp.take_along_axis(vectors, self.elements[:, None, :], axis=-1)

    def parted(self, found: jax.Array) -> jax.Array:
        """What is found by pass and sample, `(lanes, number, samples of a pass, ...)`, as `(samples, number, ...)`."""
        return found[:, :, 0] if self.of is None else jnp.swapaxes(found[0], 0, 1)

    def of_steps(self, matrices: jax.Array, arriving: Sequence[jax.Array]) -> list[jax.Array]:
        """Matrices `(samples, steps, steps)` times cotangents `(lanes, number, steps, *y_shape)` of products."""
        if self.of is None:
            return [jnp.einsum("sab,skb...->ska...", matrices.astype(y.dtype), y) for y in arriving]
        found = []
        for var, y in zip(self.plan.saved_vars, arriving, strict=True):
            own = matrices.astype(y.dtype)[self.of[var].reshape(-1)]
            found.append(jnp.einsum("eab,skbe->skae", own, y.reshape(*y.shape[:3], -1)).reshape(y.shape))
        return found

    def gradients(self, window: Window, arriving: Arriving) -> list[jax.Array]:
        """What arrives in a pass as gradients of the weights at `places`, `(samples of a pass, *shape)`."""
        if self.of is None:
            found = window.gradients(arriving)
            return [found[place][None] for place in self.places]
        parts: dict[int, list[jax.Array]] = {place: [] for place in self.places}
        for place, part in zip(window.used_otherwise, arriving.weights, strict=True):
            if place in parts:
                parts[place].append(self._masked(self.plan.weight_vars[place], part))
        numbers = {self.plan.weight_vars[place]: place for place in self.places}
        for occurrence, y in zip(self.plan.linear.values(), arriving.y, strict=True):
            for weight in occurrence.weights:
                if weight.var in numbers:
                    parts[numbers[weight.var]].append(self._product(window, occurrence, weight, y))
        return [total(parts[place]) for place in self.places]

    def _product(self, window: Window, occurrence: Occurrence, weight: Weight, y: jax.Array) -> jax.Array:
        lin, edges = window.linearised, self.plan.products.get((occurrence.y_var, weight.var))
        axis = self._axis(occurrence.y_var, edges)
        if isinstance(edges, Bilinear) and axis is not None:
            return edges.gradient_along(axis, lin.over_steps(edges.data, occurrence.eqn.invars), y)
        take = lambda own: lin.operator_gradient(occurrence, weight.index, own)
        return jax.vmap(take)(self._masked(occurrence.y_var, y))

    def add_direct(self, direct: Eligibility, signal: jax.Array, gradients: list[jax.Array]) -> None:
        """Adds what traces of D-RTRL are worth to gradients as of `gradients`, by a signal on all states."""
        states = split_hidden(self.plan, signal)
        slots = [group.cotangent_slots(self.plan.of_group(group, states)) for group in self.plan.graph.hidden_groups]
        for link in self.plan.links:
            if link.weight_index in self.places:
                at, own = self.places.index(link.weight_index), slots[link.group.index]
                part = self._contracted(link, direct.e[link.index], own)
                gradients[at] = (gradients[at] + part).astype(gradients[at].dtype)

    def _contracted(self, link: Link, trace: Trace, signal: list[jax.Array]) -> jax.Array:
        if self.of is None:
            return contract(link, trace, signal)[None]
        values = {slot: link.places.at(signal[slot]) for slot in trace}
        axis = self._axis(link.y_var, link.edges)
        if isinstance(link.edges, Bilinear) and axis is not None:
            return total([link.edges.contract_along(axis, trace[slot], values[slot]) for slot in trace])
        each = lambda slot: jax.vmap(lambda own: link.edges.contract(trace[slot], own))
        return total([each(slot)(self._masked(link.y_var, values[slot])) for slot in trace])

    def _masked(self, var: Var, values: jax.Array) -> jax.Array:
        """Values `(..., *shape)` of a variable, for each sample those of its elements: `(samples, ..., *shape)`."""
        assert self.of is not None
        lead = values.ndim - self.of[var].ndim
        samples = np.arange(len(self.elements)).reshape(-1, *(1,) * values.ndim)
        return jnp.where(self.of[var].reshape(1, *(1,) * lead, *self.of[var].shape) == samples, values, 0)

    def _axis(self, y_var: Var, edges: Any) -> int | None:
        """The axis of `y` that is the batch, if a product keeps it apart."""
        assert self.of is not None
        own, axes = self.of[y_var], range(y_var.aval.ndim)
        kept = [axis for axis in axes if isinstance(edges, Bilinear) and edges.y[axis] in edges.batch]
        numbers = {axis: np.broadcast_to(along(np.arange(own.shape[axis]), axis, own.ndim), own.shape) for axis in kept}
        return next((axis for axis, number in numbers.items() if np.array_equal(number, own)), None)


@functools.lru_cache(maxsize=8)
def by_sample(plan: Plan) -> BySample:
    """The samples of a plan."""
    samples = find_samples(plan.graph) if plan.graph.hidden_groups else None
    of_states = np.zeros(hidden_size(plan), int)
    if samples is not None:
        of_states = np.concatenate([own.reshape(-1) for own in samples.states])
    counts = np.bincount(of_states, minlength=1)
    if np.any(counts != counts[0]):
        samples, of_states, counts = None, np.zeros_like(of_states), np.array([of_states.size])
    partly = {p.index for p in plan.graph.parameters if p.history in (HistoryKind.DIRECT, HistoryKind.IN_STEP)}
    made_of = plan.graph.values.parameters
    places = [k for k, var in enumerate(plan.weight_vars) if made_of[var] & partly & plan.learned]
    params = sorted(set().union(*(made_of[plan.weight_vars[k]] for k in places)) & plan.learned)
    elements = np.argsort(of_states, kind="stable").reshape(len(counts), -1)
    return BySample(plan, elements, places, params, None if samples is None else _of_values(plan, samples, places))


def _of_values(plan: Plan, samples: Samples, places: Sequence[int]) -> dict[Var, np.ndarray] | None:
    otherwise = [plan.weight_vars[place] for place in used_otherwise(plan) if place in places]
    found = {var: samples.of(var) for var in (*plan.saved_vars, *otherwise)}
    told = {var: own for var, own in found.items() if own is not None}
    return told if len(told) == len(found) else None
