"""The benchmark of connectomes: wirings are what they are said to be, and students learn."""

from typing import Any

import numpy as np
import pytest

import connectome

RECORD = {
    "nodes": [{"name": "R1", "pattern": ["stride", [1, 1]]}, {"name": "L1", "pattern": ["stride", [2, 1]]}],
    "edges": [
        {"src": "R1", "tar": "L1", "alpha": -1, "offsets": [[[0, 0], 4], [[1, 0], 2.5], [[9, 0], 1]]},
        {"src": "L1", "tar": "R1", "alpha": 1, "offsets": [[[0, 0], 3]]},
    ],
    "input_units": ["R1"],
}


def test_types_are_expanded_over_columns() -> None:
    found = connectome.expanded(RECORD, 1)
    assert np.bincount(found.regions).tolist() == [7, 3]  # columns of a hexagon, and those with an even u
    rows = np.repeat(np.arange(10), np.diff(found.starts))
    # Three columns have an L1 of their own, two have one at the next u, and no offset of 9 stays inside.
    assert sorted(found.strengths.tolist()) == [-4.0] * 3 + [-2.5] * 2 + [3.0] * 3
    assert np.all(rows[found.strengths < 0] < 7)
    assert np.all(found.columns[found.strengths < 0] >= 7)
    assert found.pairs[found.strengths > 0].tolist() == [1] * 3
    assert [found.names[k] for k in found.inner] == ["L1"]


def test_whole_brain_has_the_published_statistics() -> None:
    found = connectome.whole_brain(20_000, 2_000_000)
    degrees = np.diff(found.starts)
    assert (degrees.size, found.columns.size) == (20_000, 2_000_000)
    assert found.columns.min() >= 0
    assert found.columns.max() < 20_000
    assert np.mean(found.strengths > 0) == pytest.approx(0.6, abs=0.1)
    assert np.mean(np.abs(found.strengths)) == pytest.approx(3.61, rel=0.01)
    assert degrees.max() > 10 * degrees.mean()
    assert np.unique(found.regions).size == 70


def test_correlation_of_what_does_not_change_is_zero() -> None:
    wanted = np.random.default_rng(0).normal(size=(50, 3))
    found = np.stack([2 * wanted[:, 0] + 1, -wanted[:, 1], np.ones(50)], axis=1)
    assert connectome.correlations(found, wanted).tolist() == pytest.approx([1.0, -1.0, 0.0])


def test_teacher_keeps_wiring_and_signs() -> None:
    wiring = connectome.whole_brain(200, 4_000, regions=10)
    start = connectome.starting_weights(wiring, 1.0)
    taught = connectome.teaching_weights(wiring, start, 0)
    assert np.array_equal(np.sign(start), np.sign(taught))
    assert np.corrcoef(np.abs(start), np.abs(taught))[0, 1] < 0.9


def learned(method: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(connectome, "PIECE", 100)
    monkeypatch.setattr(connectome, "HELD", 200)
    monkeypatch.setattr(connectome, "WARM", 50)
    monkeypatch.setattr(connectome, "make", lambda _: connectome.whole_brain(300, 6_000, regions=12))
    return connectome.learn(connectome.Setting("brain", method, 0, 300, 400, 0.02))


@pytest.mark.parametrize("method", connectome.METHODS)
def test_every_method_runs(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = learned(method, monkeypatch)
    assert -1 <= found["score"] <= 1
    assert len(found["losses"]) == (4 if method in connectome.TRIED else 0)
    assert np.all(np.isfinite(found["losses"]))
    assert "| **" in connectome.table({method: [found]})


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connectome.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SystemExit, match="pip install --no-deps flyvis"):
        connectome.published_record()
