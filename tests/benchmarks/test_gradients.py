"""The table of gradients: what it says of an agreement, of every rule, and of what was left out."""

import argparse
import dataclasses

import numpy as np
import pytest

import gradients
from foretrace.rules import RULES, find_rule
from gradients import Choice
from temporal import CASES

ARGUMENTS = argparse.Namespace(seeds=2, batches=2, draws=3, repeats=1)
SMALL = dataclasses.replace(CASES["copy 20, GRU"], units=3, batch=2, updates=2)


def test_agreement_is_of_directions_lengths_and_mean_errors() -> None:
    exact = np.array([[[2.0, 0.0]], [[0.0, 2.0]]])  # two batches, one seed
    mine = np.array([[[[0.0, 2.0]], [[4.0, 0.0]]], [[[0.0, 4.0]], [[2.0, 0.0]]]])  # two draws of each
    found = gradients.agreement(mine, exact)
    assert found["cosine"] == [0.5]
    assert found["norm"] == [1.5]
    assert found["bias"] == pytest.approx([0.5])  # (1.5, 1.5) on average against (1, 1)


def test_gradient_of_zero_points_nowhere() -> None:
    found = gradients.agreement(np.zeros((1, 1, 1, 2)), np.ones((1, 1, 2)))
    assert (found["cosine"], found["norm"], found["bias"]) == ([0.0], [0.0], [1.0])


def test_small_case_is_measured(monkeypatch) -> None:
    chosen = [
        Choice("BPTT", "BPTT"),
        Choice("whole window", "D_RTRL", {"window": SMALL.task.n_steps}, drawn=True),
        Choice("UORO", "UORO"),
        Choice("strange", "no such rule"),
    ]
    monkeypatch.setattr(gradients, "choices", lambda case: iter(chosen))
    row = gradients.measure(SMALL, ARGUMENTS, [one.label for one in chosen])
    rules = row["entries"]
    assert np.shape(row["score"]) == (3, 2)
    assert np.allclose(rules["whole window"]["cosine"], 1, atol=1e-5)
    assert np.allclose(rules["whole window"]["bias"], 0, atol=1e-4)
    assert np.shape(rules["UORO"]["cosine"]) == (3, 2)
    assert rules["BPTT"]["kept"] == SMALL.record_bytes(SMALL.task.n_steps)
    assert "no such rule" in rules["strange"]["error"]
    page = gradients.page({"copy 20, GRU": row}, ARGUMENTS)
    assert "| whole window | " in page
    assert "| strange |" + " - |" * 12 in page
    assert "- strange, copy 20, GRU: ValueError" in page
    assert "left out of this recording: Lorenz, tanh RNN; copy 20, LRU" in page


def test_figure_has_a_panel_for_each_case(tmp_path) -> None:
    one = {"drawn": True, "cosine": [[0.9, 0.8], [0.5, 0.4], [0.1, 0.3]]}
    rows = {name: {"entries": {"D_RTRL": one, "UORO": {"error": "no"}}} for name in list(CASES)[:5]}
    gradients.draw(rows, tmp_path / "it.svg")
    drawn = (tmp_path / "it.svg").read_text()
    assert all(name in drawn for name in rows)


def test_random_rule_is_drawn_anew_each_time() -> None:
    drawn = gradients.Gradients(SMALL, Choice("UORO", "UORO"), 2, 3)
    params, trial = SMALL.params(2), gradients.batch(SMALL, 2, 0)
    assert drawn.draws == 3
    assert not np.allclose(drawn(params, trial, 0), drawn(params, trial, 1))
    assert np.allclose(drawn(params, trial, 0), drawn(params, trial, 0))


def test_every_rule_is_measured_or_said_to_be_left_out() -> None:
    measured = {
        find_rule(one.rule) for name in (gradients.LORENZ, "randman, LIF") for one in gradients.choices(CASES[name])
    }
    missing = {rule.name for rule in set(RULES.values()) - measured}
    assert missing == {"OSTTP", "ThreeFactor", "DNI"}
    said = gradients.page({}, ARGUMENTS)
    assert all(name in said for name in missing)
