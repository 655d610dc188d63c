"""What the compiler finds in every model of the table: groups, relations, and what each parameter's history keeps."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from foretrace.program.records import path_name
from zoo import MODELS, Model, backpropagated
from zoo.compiled import compiled
from zoo.solved import BY_NAME, solved

STEPS = 8

every_model = pytest.mark.parametrize("model", MODELS, ids=[model.name for model in MODELS])


@functools.cache
def graph_of(model: Model) -> ft.ETraceGraph:
    return compiled(model)[0]


def spelled(path: tuple[Any, ...]) -> str:
    """A path without the keys under which brainpy.state files merged synapses, which describe their options."""
    return path_name(tuple(key for key in path if not (isinstance(key, str) and (key[0] == "_" or " " in key))))


def named(paths: Any) -> frozenset[str]:
    return frozenset(spelled(path) for path in paths)


def test_table_is_wide_enough():
    assert len(MODELS) >= 25
    assert len({model.name for model in MODELS}) == len(MODELS)
    assert {(model.kind, model.marked) for model in MODELS} == {
        (kind, marked) for kind in ("function", "module") for marked in (True, False)
    }


@every_model
def test_groups(model):
    found = {(named(group.hidden_paths), group.num_state) for group in graph_of(model).hidden_groups}
    assert found == set(model.expected.groups)


@every_model
def test_relations(model):
    found = {
        spelled(parameter.path): frozenset().union(*(named(r.connected_hidden_paths) for r in parameter.relations))
        for parameter in graph_of(model).parameters
    }
    assert found == dict(model.expected.relations)


@every_model
def test_history(model):
    found = {spelled(parameter.path): parameter.history.value for parameter in graph_of(model).parameters}
    assert found == dict(model.expected.history)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in BY_NAME])
def test_every_state_changes(name):
    for over_time in zip(*solved(name).states, strict=True):
        if not jnp.issubdtype(over_time[0].dtype, jax.dtypes.prng_key):
            assert any(np.any(np.asarray(a) != np.asarray(b)) for a, b in itertools.pairwise(over_time))


@pytest.mark.slow
@every_model
def test_every_parameter_has_a_gradient(model):
    for gradient in jax.tree.leaves(backpropagated(model, STEPS)):
        assert bool(jnp.all(jnp.isfinite(gradient)))
        assert float(jnp.max(jnp.abs(gradient))) > 1e-6
