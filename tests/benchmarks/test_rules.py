"""The figures behind the guide to the rules are those of the gradients and times that were measured."""

import argparse

import numpy as np
import pytest

import rules
from cases import Setting
from foretrace.rules import BPTT, RULES, find_rule
from turns import Measured

ARGUMENTS = argparse.Namespace(repeats=1, case_seconds=10.0, size=(4, 2, 10), small=(3, 2, 5))


def gradients(recurrent, readout):
    gradient = {"w_in": np.array(recurrent), "w_readout": np.array(readout)}
    return rules.Gradients(gradient, gradient)


@pytest.fixture
def found():
    return {
        "BPTT": rules.Figures(50_000, Measured([2.0, 3.0, 4.0]), gradients([3.0, 0.0], [4.0])),
        "turned": rules.Figures(1_234, Measured([1.0, 6.0, 9.0]), gradients([0.0, 3.0], [4.0])),
        "refused": rules.Figures(seconds=Measured(error="NotSupportedError: no")),
    }


def test_line_has_time_memory_and_agreement(found):
    turned = rules.row("turned", found["turned"], found["BPTT"])
    assert turned[:4] == ["turned", "2.00", "0.50", "1.23"]
    assert turned[4:7] == turned[7:] == [f"{16 / 25:.3f}", "0.000", f"{np.sqrt(18) / 5:.3f}"]


def test_rule_that_cannot_be_run_is_told(found):
    lines = rules.table(found).splitlines()
    assert lines[-1] == "| refused |" + " - |" * 9
    assert "- refused, GRU: NotSupportedError: no" in rules.page({"GRU": found}, {}, ARGUMENTS)


def test_page_says_what_was_measured(found):
    page = rules.page({"GRU": found}, {"ALIF": found}, ARGUMENTS)
    assert "10 steps: 4 units, batch 2" in page
    assert "3 units, batch 2, 5 steps" in page
    assert page.count("| BPTT | 1.00 | 1.00 | 50 | 1.000 |") == 2


def test_guide_has_the_models_side_by_side(found):
    lines = rules.guide([rules.rows(found), rules.rows(found)]).splitlines()
    assert lines[3] == "| turned | 2.00 / 2.00 | 1.23 / 1.23 | 0.000 / 0.000 | 0.000 / 0.000 |"


def test_guide_has_a_place_for_the_table_and_the_figures_of_the_page():
    text = rules.GUIDE.read_text()
    assert rules.inserted(text, "new").count("new\n\n" + rules.END) == 1
    page = rules.RESULT.read_text().partition("## RTRL and SnAp")[0]
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| ")]
    of_rules = [line for line in lines if line[0] not in ("", "---")]
    count = len(rules.RULES) + 1
    by_model = [of_rules[start : start + count] for start in range(0, len(of_rules), count)]
    assert rules.guide(by_model) in text


def test_page_without_a_place_is_refused():
    with pytest.raises(ValueError, match="no place for the table"):
        rules.inserted("# The rules", "new")


def test_both_losses_weigh_alike():
    whole, last = rules.ends(Setting("GRU", 4, 2, steps=20))
    assert float(whole.sum()) == float(last.sum()) == 20
    assert np.flatnonzero(np.asarray(last)).tolist() == [18, 19]


def test_every_rule_is_measured_or_said_to_be_left_out():
    measured = {find_rule(choice.rule) for choice in (*rules.RULES, *rules.SMALL_RULES)}
    missing = set(RULES.values()) - measured - {BPTT}
    assert {rule.name for rule in missing} == {name for name in ("OSTTP", "ThreeFactor") if name in rules.LEFT_OUT}


def test_small_network_is_measured():
    window = rules.Choice("whole window", "D_RTRL", {"window": 6})
    strange = rules.Choice("strange", "no such rule")
    found = rules.measure(Setting("ALIF", units=3, batch=2, steps=6), [window, strange], ARGUMENTS)
    assert found["BPTT"].kept > 0
    assert len(found["BPTT"].seconds.seconds) == 1
    assert "no such rule" in found["strange"].seconds.error
    agreed = rules.row("whole window", found["whole window"], found["BPTT"])
    assert agreed[4:] == ["1.000", "1.000", "0.000"] * 2  # a window over the whole sequence is BPTT
