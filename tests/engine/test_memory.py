"""Traces of values that act on many positions: followed at any size, said in bytes, refused past a limit."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from foretrace import DiagnosticKind, DiagnosticLevel
from foretrace.compiler import sparse
from foretrace.compiler.relations import colour
from foretrace.engine import memory, places
from foretrace.errors import NotSupportedError

UNITS = 12
PARAMS, STATE, XS = {"w": jnp.ones((3, UNITS))}, jnp.zeros((1, UNITS)), jnp.ones((4, 1, 3))


def ring(params: Any, v: Any, x: Any) -> tuple[Any, Any]:
    v = 0.9 * jnp.roll(v, 1, axis=-1) + x @ params["w"]
    return v, jnp.tanh(v)


def learner(rule: str = "D_RTRL", **options: Any) -> Any:
    return ft.compile(ring, rule, XS[0], params=PARAMS, state=STATE, **options)


def warnings_of(found: Any) -> list[Any]:
    records = [r for r in found.graph.diagnostics if r.kind is DiagnosticKind.TRACE_OF_MANY_POSITIONS]
    assert all(record.level is DiagnosticLevel.WARNING for record in records)
    return records


def test_a_small_trace_is_not_warned_of() -> None:
    assert warnings_of(learner()) == []


def test_a_large_trace_is_warned_of_with_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "LARGE_TRACE", 100)
    found = learner()
    (record,) = warnings_of(found)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(found.init(STATE).trace))
    assert record.context == {"bytes": size, "positions": UNITS}
    assert record.weight_path == ("w",)
    assert f"{size:,} bytes" in str(found.report)


def test_a_trace_past_the_limit_is_refused_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "LARGEST_TRACE", 100)
    with pytest.raises(NotSupportedError, match="pp_prop"):
        learner().init(STATE)
    learner("pp_prop", decay_or_rank=0.9).init(STATE)


def test_a_table_past_the_limit_is_refused_by_rules_that_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "LARGEST_PLACES", 100)
    found = learner()
    assert len(warnings_of(found)) == 1
    with pytest.raises(NotSupportedError, match="UORO"):
        found.init(STATE)
    other = learner("UORO")
    gradient = other.grad(PARAMS, other.init(STATE), XS, loss=jnp.sum)[0]["w"]
    assert bool(jnp.all(jnp.isfinite(gradient)))


@pytest.mark.parametrize("channels", [64, 65, 300])
def test_credit_does_not_depend_on_the_number_of_positions(channels: int) -> None:
    def gated(params: Any, v: Any, x: Any) -> tuple[Any, Any]:
        v = jax.nn.sigmoid(x @ params["gate"]) * v + x @ params["w"]
        return v, jnp.tanh(v)

    params = {"gate": jnp.ones((3, 1)), "w": jnp.ones((3, channels))}
    graph = ft.compile_etrace_graph(gated, XS[0], params=params, state=jnp.zeros((1, channels)))
    assert {parameter.name: parameter.history.value for parameter in graph.parameters} == {"gate": "all", "w": "all"}


@pytest.mark.parametrize("seed", range(6))
def test_rows_that_share_a_column_differ_in_colour(seed: int) -> None:
    generator = np.random.default_rng(seed)
    dense = generator.random((30, 12)) < 0.15
    colors = colour(sparse.from_dense(dense))
    for column in range(dense.shape[1]):
        own = colors[dense[:, column]]
        assert len(set(own.tolist())) == len(own)
