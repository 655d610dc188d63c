"""A model of the table with its gradients: by the dense oracle and by BPTT, worked out once in a process."""

import functools
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import pytest

import foretrace as ft
from oracle import Oracle, bptt

from . import MODELS
from .compiled import compiled
from .flat import flat_values

STEPS = 7
BY_NAME = {model.name: model for model in MODELS}
# What takes a second for each model, nearly all to compile, is tried quickly on every other one and slowly on all.
QUICK = frozenset(list(BY_NAME)[::2])


def solved_names(also: Collection[str] = ()) -> list[Any]:
    """Every model as an argument of a test that solves it: slow but for every other one, and for some named ones."""
    slow = {name: [] if name in QUICK or name in also else [pytest.mark.slow] for name in BY_NAME}
    return [pytest.param(name, marks=[pytest.mark.xdist_group(name), *slow[name]]) for name in BY_NAME]


@dataclass(frozen=True)
class Solved:
    """What is known of a model over `STEPS` steps.

    Attributes:
        graph: The compiled model.
        values: Flat parameters, hidden states, other states, and the inputs of each step.
        online: The D-RTRL gradient by the dense oracle.
        first: That of the first step alone, which is `jax.grad` of the step's loss.
        whole: The gradient by BPTT.
        states: The flat states after each step.
    """

    graph: ft.ETraceGraph
    values: tuple[Any, Any, Any, Any]
    online: list[Any]
    first: list[Any]
    whole: list[Any]
    states: list[list[Any]]


@functools.cache
def solved(name: str) -> Solved:
    """The model of this name, solved."""
    model = BY_NAME[name]
    graph, built = compiled(model)
    values = flat_values(graph, model, built, STEPS)
    online, states = zip(*Oracle(graph, loss).steps(*values), strict=True)
    return Solved(graph, values, online[-1], online[0], bptt(graph, loss, *values), list(states))


def loss(outputs: list[Any]) -> Any:
    """Any loss does that every output enters."""
    weights = [jnp.cos(jnp.arange(out.size)).reshape(out.shape) for out in outputs]
    return sum(jnp.sum(w * out + 0.5 * out**2) for w, out in zip(weights, outputs, strict=True))
