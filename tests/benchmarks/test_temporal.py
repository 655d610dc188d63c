"""Cases that need credit over time: Lorenz is the system it says, memory is counted, and a cut recording goes on."""

import dataclasses

import jax
import numpy as np
import pytest

import temporal
from temporal import CASES, Lorenz, Recording


def test_lorenz_follows_its_equations_and_asks_for_a_later_state() -> None:
    task = Lorenz(n_steps=300, ahead=4, interval=0.002)
    trial = task.sample(jax.random.key(0), 2)
    assert np.allclose(trial.inputs[4:], trial.targets[:-4])
    x, y, z = np.moveaxis(np.asarray(trial.inputs) * 8.0 + [0.0, 0.0, 23.5], -1, 0)
    slopes = np.gradient(np.stack([x, y, z]), 0.002, axis=1)[:, 1:-1]
    right = np.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z])[:, 1:-1]
    assert np.abs(slopes - right).max() < 2e-2 * np.abs(right).max()


def test_record_grows_with_the_window_and_traces_do_not() -> None:
    case = dataclasses.replace(CASES["copy 20, GRU"], units=4, batch=2)
    kept = {
        (rule, window): case.kept_bytes(case.learner(rule, window=window))
        for rule in ("BPTT", "D_RTRL")
        for window in (None, 1, 5, 10)
    }
    assert kept["BPTT", 1] == 0
    assert kept["BPTT", 10] == 2 * kept["BPTT", 5]
    assert kept["BPTT", None] == case.record_bytes(case.task.n_steps)
    assert kept["D_RTRL", 5] == kept["D_RTRL", None] + kept["BPTT", 5]
    states = 8 * 4 * 2  # bytes of four units of two samples
    assert case.kept_bytes(case.learner("BPTT", segment=9)) == case.record_bytes(9) + 3 * states
    wide = dataclasses.replace(case, units=40)
    assert abs(wide.record_bytes(wide.equal_window()) - wide.kept_bytes(wide.learner("D_RTRL"))) <= wide.record_bytes(1)


def test_mean_has_students_interval() -> None:
    assert temporal.spread([1.0, 2.0, 3.0, 4.0, 5.0]) == "3.00 ± 1.96"  # 2.776 times the standard error of the mean


def test_recording_that_was_cut_goes_on(tmp_path) -> None:
    path, sizes = tmp_path / "rows.json", {"seeds": (1, 2)}
    measured = lambda labels: {"score": (3,), "entries": dict.fromkeys(labels, 4)}
    assert Recording(path).row("a", sizes, ["x"], measured) == {"score": [3], "entries": {"x": 4}}
    again = Recording(path)
    assert again.missing("a", sizes, ["x", "y"]) == ["y"]
    assert again.row("a", sizes, ["x"], lambda _: 1 / 0)["entries"] == {"x": 4}
    new = again.row("a", sizes, ["x", "y"], lambda labels: {"entries": {"x": 9, "y": 5}})
    assert new["entries"] == {"x": 4, "y": 5}  # what was measured before stays
    assert again.missing("a", {"seeds": (1,)}, ["x"]) == ["x"]  # other sizes are another measurement


def test_guide_has_a_place_for_figures() -> None:
    text = "a <!-- credit: written by benchmarks/credit.py --> old <!-- credit: end --> b"
    assert "\n\nnew\n\n<!-- credit: end --> b" in temporal.inserted(text, "credit", "new")
    with pytest.raises(ValueError, match="no place for the figures of credit"):
        temporal.inserted("nothing", "credit", "new")
