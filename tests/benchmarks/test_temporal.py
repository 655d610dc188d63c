"""Cases that need credit over time: Lorenz is the system it says, memory is counted, and a cut recording goes on."""

import dataclasses

import jax
import numpy as np

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
    path = tmp_path / "rows.json"
    assert Recording(path).row("a", {"seeds": (1, 2)}, lambda: {"value": (3,)}) == {"value": [3]}
    again = Recording(path)
    assert again.known("a", {"seeds": (1, 2)})
    assert again.row("a", {"seeds": (1, 2)}, lambda: 1 / 0) == {"value": [3]}
    assert again.row("a", {"seeds": (1,)}, lambda: 5) == 5  # other sizes are another measurement
