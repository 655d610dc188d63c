"""The benchmark of several states: every case of a network runs, and its line says what misses a target."""

import several_states
from cases import Setting
from several_states import TITLES, Case


def test_all_cases_of_a_network_run_and_have_memory() -> None:
    states, found = several_states.cases(Setting("ALIF with synapse", 4, 2, steps=5), long=20)
    assert states == 3
    assert {name: case.steps for name, case in found.items()} == {"BPTT": 5, "block": 5, "long": 20, "pp_prop": 5}
    assert all(case.memory > 0 for case in found.values())
    assert all(seconds > 0 for seconds in several_states.measure(found, repeats=2, limit=60.0).values())


def test_what_misses_its_target_is_bold() -> None:
    found = {
        "BPTT": Case(None, 100, 5),
        "block": Case(None, 160, 5),
        "long": Case(None, 300, 20),
        "pp_prop": Case(None, 90, 5),
    }
    seconds = {"BPTT": 1.0, "block": 0.5, "long": 1.6, "pp_prop": 0.6}
    line = several_states.row(Setting("LIF", 4, 2, 5), 2, found, seconds)
    figures = ["1e+03", "0.50", "0.0001", "**1.60**", "**1.60** (<= 1.47)", "0.0003", "**0.60**"]
    assert line == [TITLES["LIF"], "2", "(4, 2)", *figures]
