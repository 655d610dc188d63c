"""Two ways to train the demonstration's network on the same data: online, and by backpropagation through time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from foretrace.cli.network import (
    Params,
    Sequences,
    bptt_loss,
    loss,
    make_sequences,
    make_state,
)
from foretrace.learners import FunctionLearner

Gradient = Callable[[Params, Sequences], tuple[jax.Array, Params]]
"""From parameters and a batch to the loss of the batch and its gradient."""


def online_gradient(learner: FunctionLearner) -> Gradient:
    """The learner's gradient: forward in time, whatever the length of the sequence."""

    def gradient(params: Params, data: Sequences) -> tuple[jax.Array, Params]:
        carry = learner.init(make_state(data.inputs.shape[1]))
        grads, _, (losses, _) = learner.grad(
            params, carry, data.inputs, data.targets, loss=loss, mask=data.mask, has_aux=True
        )
        return jnp.sum(losses * data.mask), grads

    return gradient


def bptt_gradient(params: Params, data: Sequences) -> tuple[jax.Array, Params]:
    """JAX's own gradient of the whole sequence, back through every step."""
    state = make_state(data.inputs.shape[1])
    (value, _), grads = jax.value_and_grad(bptt_loss, has_aux=True)(params, state, data)
    return value, grads


class Moments(NamedTuple):
    """What Adam keeps: running means of the gradient and of its square, and the number of updates."""

    first: Params
    second: Params
    updates: jax.Array


@dataclass(frozen=True)
class Adam:
    """Adam with a rate that falls to zero over a number of updates."""

    rate: float
    updates: int

    def init(self, params: Params) -> Moments:
        """Nothing seen yet."""
        zeros = jax.tree.map(jnp.zeros_like, params)
        return Moments(zeros, zeros, jnp.zeros((), jnp.int32))

    def update(self, grads: Params, kept: Moments, params: Params) -> tuple[Params, Moments]:
        """The change of the parameters, and what is kept."""
        count = kept.updates + 1
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, kept.first, grads)
        second = jax.tree.map(lambda m, g: 0.999 * m + 0.001 * g**2, kept.second, grads)
        rate = self.rate * jnp.maximum(0.0, 1 - kept.updates / self.updates)
        scale = rate * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
        change = jax.tree.map(lambda m, s: -scale * m / (jnp.sqrt(s) + 1e-8), first, second)
        return change, Moments(first, second, count)


class Progress(NamedTuple):
    """One update: the loss before it, and the parameters after it."""

    loss: float
    params: Params


def train(
    gradient: Gradient, params: Params, *, updates: int, batch: int, rate: float, seed: int
) -> Iterator[Progress]:
    """Trains on fresh sequences; those of one seed are the same for every kind of gradient."""
    optimizer = Adam(rate, updates)

    @jax.jit
    def one(params: Params, kept: Moments, key: jax.Array) -> Any:
        value, grads = gradient(params, make_sequences(key, batch))
        change, kept = optimizer.update(grads, kept, params)
        return value, jax.tree.map(jnp.add, params, change), kept

    kept = optimizer.init(params)
    for key in jax.random.split(jax.random.key(seed), updates):
        value, params, kept = one(params, kept, key)
        yield Progress(float(value), params)


class Score(NamedTuple):
    """How a network does on sequences that it was not trained on."""

    loss: float
    accuracy: float


def evaluate(params: Params, data: Sequences) -> Score:
    """Loss and accuracy on a batch."""
    value, accuracy = jax.jit(bptt_loss)(params, make_state(data.inputs.shape[1]), data)
    return Score(float(value), float(accuracy))


def cosine(first: Params, second: Params) -> float:
    """The cosine of the angle between two gradients: 1 where they point the same way."""
    a, b = (jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)]) for tree in (first, second))
    return float(a @ b / (jnp.linalg.norm(a) * jnp.linalg.norm(b)))


def working_memory(gradient: Gradient, params: Params, batch: int, steps: int) -> int | None:
    """Bytes that a gradient of a sequence of some length takes beside its inputs; None where XLA does not say."""
    data = jax.eval_shape(lambda key: make_sequences(key, batch), jax.random.key(0))
    longer = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((steps, *leaf.shape[1:]), leaf.dtype), data)
    found = jax.jit(gradient).lower(params, longer).compile().memory_analysis()
    return None if found is None else int(found.temp_size_in_bytes)
