"""The result pages show the figures that were measured, and say plainly which targets hold."""

import pytest

import memory
import speed
from turns import Measured, take_turns


class ScriptedWorker:
    """Answers with given seconds, and keeps what it was asked."""

    def __init__(self, package, answers, asked):
        self.package, self.answers, self.asked = package, answers, asked
        self.setting = speed.Setting("GRU", 4, 2, steps=10)

    def ask(self, case):
        self.asked.append(case)
        return self.answers[case]


@pytest.fixture
def results():
    ours = {"BPTT": [2.0, 3.0, 4.0], "D_RTRL/sequence": [1.0, 3.0, 9.0], "D_RTRL/step": [1.0]}
    ours |= {"D_RTRL/same-step": [1.0], "pp_prop/same-step": [4.0]}
    times = {("foretrace", case): Measured(seconds) for case, seconds in ours.items()}
    times["braintrace", "D_RTRL/module"] = Measured([7.0])
    times["braintrace", "pp_prop/module"] = Measured([3.0])
    return {("GRU", speed.Size(512, 32)): times}


def test_ratios_are_of_medians_and_of_minima(results):
    times = results["GRU", speed.Size(512, 32)]
    assert speed.ratio(times["foretrace", "D_RTRL/sequence"], times["foretrace", "BPTT"]) == (1.0, 0.5)


def test_targets_hold_by_the_measured_figure(results):
    found = {target.what: (target.figure, target.limit, target.holds) for target in speed.targets(results)}
    assert found["D_RTRL by sequence / BPTT"] == (1.0, 1.1, True)
    assert found["braintrace D_RTRL / D_RTRL step by step, the same parameters"] == (7.0, 8.0, False)
    assert found["braintrace pp_prop / pp_prop step by step, the same parameters"] == (0.75, 1.0, False)


def test_a_target_without_a_figure_is_not_held(results):
    (target,) = (t for t in speed.targets(results) if t.what == "pp_prop by sequence / BPTT")
    assert not target.holds
    assert target.row()[-1] == "not measured"


def test_table_has_a_line_for_every_case(results):
    lines = speed.table(results, "GRU").splitlines()
    assert "| D_RTRL, by sequence | 3e+03 | 1.00 | 0.50 |" in lines
    assert len(lines) == 2 + 7


def test_another_checkout_is_compared_case_by_case(results):
    times = results["GRU", speed.Size(512, 32)]
    times["elsewhere", "D_RTRL/sequence"], times["elsewhere", "D_RTRL/step"] = Measured([6.0, 6.0]), Measured([1.0])
    text = speed.against(results, "elsewhere")
    assert "| D_RTRL, by sequence | GRU | (512, 32) | 0.50 | 0.17 |" in text.splitlines()
    assert text.startswith("Over 2 cases the ratio of medians is 0.75 in the median and 0.71 in the geometric mean")


def test_cases_that_fail_are_told():
    failed = {("GRU", speed.Size(4, 2)): {("foretrace", "RTRL/step"): Measured(error="ValueError: too large")}}
    assert speed.failures(failed) == ["- RTRL, step by step, GRU (4, 2): ValueError: too large"]


def test_cases_take_turns_and_the_first_call_does_not_count():
    asked = []
    worker = ScriptedWorker("foretrace", {"a": {"seconds": 1.0}, "b": {"seconds": 5.0}}, asked)
    found = take_turns([(worker, "a"), (worker, "b")], repeats=2, case_seconds=100.0)
    assert asked == ["a", "b", "a", "b", "b", "a"]
    assert found["foretrace", "b"].seconds == [0.5, 0.5]


def test_slow_cases_are_called_no_more():
    worker = ScriptedWorker("foretrace", {"a": {"seconds": 8.0}}, [])
    found = take_turns([(worker, "a")], repeats=5, case_seconds=10.0)
    assert len(found["foretrace", "a"].seconds) == 2


def memory_of(compiled, after=1000):
    return memory.Memory(0, 0, 0, compiled, 40, 10, 60, before=900, after=after, versions="")


def test_memory_is_flat_without_the_sequence_itself():
    results = {("D_RTRL", steps): memory_of(10_000 + 8 * steps) for steps in (100, 1000)}
    rows = {row[0]: row[2:] for row in memory.checks(results)}
    assert rows["D_RTRL, compiled, without the sequence"] == ["1.000", "yes"]
    assert rows["D_RTRL, compiled, with it"] == ["1.667", "**no**"]


def test_memory_that_was_not_run_has_no_ratio():
    results = {("D_RTRL", 100): memory_of(1), ("D_RTRL", 1000): memory_of(1, after=None)}
    assert memory.checks(results)[-1][2:] == ["nan", "**no**"]


def test_peak_is_compared_with_traces_and_one_block():
    rows = memory.by_block({10: memory_of(130), None: memory_of(131)})
    assert [row[0] for row in rows] == ["10", "10, automatic"]
    assert [row[-2:] for row in rows] == [["1.300", "yes"], ["1.310", "**no**"]]
