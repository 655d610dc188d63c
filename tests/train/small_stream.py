"""A small network and a stream of items for it that is the same from any step on."""

import functools
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

import foretrace as ft
from foretrace import train
from train.small_task import make_params, step

ADAM = optax.adam(1e-2)


@functools.cache
def learner(rule: str = "D_RTRL", **options: Any) -> Any:
    """A learner of leaky units, without a batch."""
    return ft.compile(step, rule, jnp.ones(2), params=make_params(), state=jnp.zeros(5), **options)


def arrays(count: int, start: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Inputs of some steps, and the mean of the last two first inputs."""
    xs = np.stack([np.random.default_rng(k).normal(size=2) for k in range(start, start + count)])
    before = np.random.default_rng(start - 1).normal(size=2) if start else np.zeros(2)
    return xs, (xs[:, :1] + np.concatenate([before[None, :1], xs[:-1, :1]])) / 2


def items(start: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The items from a step on, without end."""
    while True:
        yield from zip(*arrays(50, start), strict=True)
        start += 50


def loss(out: Any, y: Any) -> Any:
    """The squared error."""
    return jnp.sum((out - y) ** 2)


def stream(source: Any, by: Any = None, optimizer: Any = None, **settings: Any) -> Any:
    """`train.stream` of the small network, quietly."""
    settings = {"loss": loss, "progress": False} | settings
    return train.stream(by or learner(), source, optimizer or ADAM, **settings)
