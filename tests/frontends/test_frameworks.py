"""Models of Flax, Equinox and spyx, unmodified: D-RTRL is the oracle's, and BPTT's where the report says so."""

from typing import Any

import jax
import numpy as np
import pytest

from foretrace.compiler.history import HistoryKind
from frameworks import ENTRIES, Entry, natural
from oracle import Oracle, bptt
from zoo.solved import loss

SHORT, LONG = 4, 50
QUICK = ["nnx.GRUCell", "nnx held state", "spyx.LIF", "linen.SimpleCell", "equinox.GRUCell"]
EXACT = (HistoryKind.ALL, HistoryKind.NONE_NEEDED)


def table(entries: list[Entry]) -> Any:
    """Entries as arguments of a test, slow but for a few."""
    marks = {entry.name: [] if entry.name in QUICK else [pytest.mark.slow] for entry in entries}
    return pytest.mark.parametrize("entry", [pytest.param(e, id=e.name, marks=marks[e.name]) for e in entries])


def online(model: Any, learner: Any, xs: jax.Array) -> list[Any]:
    """The gradient by the natural call, one array for each parameter."""
    grad = jax.jit(lambda xs: learner.grad(model, learner.init(), xs, loss=lambda out: loss(jax.tree.leaves(out)))[0])
    return jax.tree.leaves(grad(xs))


def flat(learner: Any, xs: jax.Array) -> Any:
    info = learner.model
    return (
        *[info.flatten_params(learner.params), *info.flatten_state(learner.state)],
        [info.flatten_inputs(x) for x in xs],
    )


def agree(one: Any, other: Any) -> bool:
    return np.allclose(one, other, rtol=1e-10, atol=1e-10 * max(1.0, float(np.max(np.abs(other)))))


def test_table_has_thirty_models_of_every_library():
    assert len({entry.name for entry in ENTRIES}) == len(ENTRIES) >= 30
    assert {entry.name for entry in ENTRIES} >= set(QUICK)


@table([entry for entry in ENTRIES if entry.real])
def test_gradient_is_that_of_the_oracle(entry: Entry):
    model, learner, xs = natural(entry, SHORT)
    wanted = Oracle(learner.graph, loss).gradient(*flat(learner, xs))
    for found, want in zip(online(model, learner, xs), wanted, strict=True):
        assert agree(found, want)


@table(ENTRIES)
def test_gradient_is_that_of_bptt_where_the_report_says_so(entry: Entry):
    model, learner, xs = natural(entry, SHORT if entry.name in QUICK else LONG)
    assert all(parameter.history in EXACT for parameter in learner.graph.parameters) == entry.exact
    whole = bptt(learner.graph, loss, *flat(learner, xs))
    for parameter, found, want in zip(learner.graph.parameters, online(model, learner, xs), whole, strict=True):
        assert agree(found, want) == (parameter.history in EXACT), parameter.name
