"""The benchmark of events: all forms learn the same, and the page says plainly what holds."""

from typing import Any

import pytest

import events


def setting(kind: str, rule: str = "D_RTRL") -> events.Setting:
    return events.Setting(kind, rule, neurons=60, connections=400, activity=0.1, steps=12, block=5, repeats=1)


@pytest.mark.parametrize("rule", events.BLOCKS)
def test_forms_agree(rule: str) -> None:
    assert events.by_connections(setting("connections", rule))["apart"] < 1e-12
    assert events.beside_dense(setting("dense", rule))["apart"] < 1e-12


def test_the_share_that_fires_is_that_of_the_drive() -> None:
    found = events.by_events(setting("events"))
    assert found["activity"] == pytest.approx(0.1, abs=0.03)
    assert min(found[name] for name in ("forward", "gradient", "peak")) > 0


def test_the_network_of_braintrace_runs_here_too() -> None:
    found = events.by_braintrace(setting("rival"), library="foretrace")
    assert min(found[name] for name in ("gradient", "compile", "peak")) > 0
    rows = events.rival_table({("D_RTRL", 400, 0.1): result(found["gradient"] / 2)}, {"D_RTRL": found}, 400)
    assert "| D_RTRL | 400 |" in rows
    assert "| 2.0 |" in rows


def result(gradient: float, **others: Any) -> dict[str, Any]:
    known = {"activity": 0.1, "forward": 1.0, "gradient": gradient, "connections": 90.0, "compile": 2.0, "peak": 1e9}
    return known | {"apart": 1e-7, "versions": "some"} | others


def test_what_does_not_hold_is_said() -> None:
    results = {("D_RTRL", 10, 0.1): result(6.0, compile=16.0), ("D_RTRL", 10, 0.01): result(3.0)}
    held = {row[0].partition(", ")[2]: row[3] for row in events.checks(results, {"D_RTRL": 1e-9})}
    assert [what for what, holds in held.items() if holds != "yes"] == [
        "gradient / forward",
        "seconds to compile",
        "apart from a dense matrix, float64",
    ]
    assert len(events.table(results).splitlines()) == 4
