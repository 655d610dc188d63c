"""Does temporal credit pay? The page says what was trained, and whether no trace is enough, by the figures."""

import argparse
import dataclasses

import numpy as np
import pytest

import credit
from credit import Method
from temporal import CASES

NAME = "copy 20, GRU"
ARGUMENTS = argparse.Namespace(seeds=2, parts=2, rates=[1e-3, 1e-2])
SMALL = dataclasses.replace(CASES[NAME], units=3, batch=2, updates=4)


def trained(last, time=1.0, at_time=6):
    """Scores of two rates and five seeds after no to six parts; the second rate is the better one."""
    ends = np.asarray(last, float)
    scores = [np.full((2, 5), 0.5), *[np.full((2, 5), 0.6)] * 3, *[np.stack([np.full(5, 0.1), ends])] * 3]
    return {"scores": np.stack(scores).tolist(), "time": time, "kept": 5_000, "parts": 6, "at_time": at_time}


def row(nothing, online, exact):
    methods = {
        "no trace, Adam": trained(nothing),
        "no trace, RMSprop": trained(np.asarray(nothing) - 0.1),
        "D_RTRL": trained(online, time=2.0, at_time=3),
        "BPTT": trained(exact),
    }
    return {"window": 7, "entries": methods}


SPREAD = np.array([-0.01, 0.0, 0.01, 0.0, 0.0])


def test_rate_is_the_better_one_and_time_cuts_slow_methods() -> None:
    found = credit.outcomes(NAME, row(0.8 + SPREAD, 0.9 + SPREAD, 0.9 + SPREAD))
    assert found["D_RTRL"].rate == 1
    assert found["D_RTRL"].at_updates.mean() == pytest.approx(0.9)
    assert found["D_RTRL"].at_time.mean() == pytest.approx(0.6)
    assert found["D_RTRL"].factor == 0.5


@pytest.mark.parametrize(
    ("nothing", "online", "exact", "said"),
    [
        (0.895 + SPREAD, 0.9 + SPREAD, 0.9 + SPREAD, "**No trace is enough.**"),
        (0.7 + SPREAD, 0.9 + SPREAD, 0.8 + SPREAD, "**No trace fails**: 0.200 behind D_RTRL."),
        (0.7 + SPREAD, 0.7 + SPREAD, 0.9 + SPREAD, "**No trace fails**: 0.200 behind BPTT."),
        (0.8 + 20 * SPREAD, 0.85 + SPREAD, 0.8 + SPREAD, "**No trace is behind, within the spread of the seeds**"),
        (0.5 + SPREAD, 0.5 + SPREAD, 0.51 + SPREAD, "**BPTT has not learned it in these updates.**"),
    ],
)
def test_verdict_follows_the_figures(nothing, online, exact, said) -> None:
    assert credit.verdict(NAME, row(nothing, online, exact)).startswith(said)


def test_page_has_every_method_and_what_was_left_out() -> None:
    found = row(0.7 + SPREAD, 0.9 + SPREAD, 0.9 + SPREAD)
    found["entries"]["odd"] = {"error": "ValueError: no"}
    page = credit.page({NAME: found}, ARGUMENTS)
    assert "| D_RTRL | 5 | 0.900 ± 0.009 | 0.600 ± 0.000 | 0.50 | 0.890 | 2.00 | 0.01 |" in page
    assert "| odd |" + " - |" * 7 in page
    assert "- odd, copy 20, GRU: ValueError: no" in page
    assert "| D_RTRL | 1.00 |" in page  # the whole way from the first score to BPTT's
    assert "left out of this recording: Lorenz, tanh RNN" in page


def test_small_case_is_trained_and_drawn(monkeypatch, tmp_path) -> None:
    chosen = [
        Method("no trace, Adam", "BPTT", {"window": 1}),
        Method("no trace, RMSprop", "BPTT", {"window": 1}, "rmsprop"),
        Method("D_RTRL, window 27", "D_RTRL", {"window": SMALL.task.n_steps}),
        Method("strange", "no such rule"),
        Method("BPTT", "BPTT"),
    ]
    monkeypatch.setattr(credit, "methods", lambda case: iter(chosen))
    found = credit.measure(SMALL, ARGUMENTS, [one.label for one in chosen])["entries"]
    assert set(found) == {one.label for one in chosen}
    assert "no such rule" in found["strange"]["error"]
    assert np.shape(found["BPTT"]["scores"])[1:] == (2, 2)
    first = lambda label: np.asarray(found[label]["scores"])[:3]
    assert np.array_equal(first("D_RTRL, window 27"), first("BPTT"))  # a window over all steps is BPTT: the same curve
    credit.draw({NAME: {"entries": found}}, tmp_path / "it.svg")
    assert NAME in (tmp_path / "it.svg").read_text()
