"""Tasks by name, and settings that make no sense."""

from typing import Any

import pytest

from foretrace import tasks
from foretrace.tasks import TASKS, find_task

NAMES = "evidence store-recall dms pattern copy adding randman digits mnist vowels".split()


def test_names() -> None:
    assert list(TASKS) == ["evidence", "store-recall", "dms", *NAMES[3:]]


@pytest.mark.parametrize("name", NAMES)
def test_name_makes_the_task_as_published(name: str) -> None:
    assert find_task(name) == TASKS[name]()


def test_name_in_another_spelling() -> None:
    assert find_task("Store_Recall", n_symbols=4) == tasks.StoreRecall(n_symbols=4)


def test_unknown_name_lists_the_known() -> None:
    with pytest.raises(ValueError, match=r"no task 'evidense'; there are evidence, .*vowels"):
        find_task("evidense")


def test_unknown_setting_lists_the_known() -> None:
    with pytest.raises(ValueError, match=r"'adding' has no setting 'steps'; it has dt, n_steps, n_test"):
        find_task("adding", steps=3)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("evidence", {"n_cues": 4}, "odd"),
        ("evidence", {"n_channels": 42}, "multiple of 4"),
        ("evidence", {"rate": 2000.0}, "0 to 1000"),
        ("evidence", {"recall": 0.2}, "less than a step"),
        ("evidence", {"minority": 1.2}, "probability"),
        ("store-recall", {"n_symbols": 2}, "at least 3"),
        ("store-recall", {"expected_delay": 1.0}, "more than 1"),
        ("store-recall", {"n_channels": 2}, "multiple of 4"),
        ("dms", {"n_directions": 1}, "at least 2"),
        ("dms", {"delay": -1.0}, "at least 0"),
        ("pattern", {"periods": ()}, "at least one"),
        ("copy", {"pattern": 0}, "more than 0"),
        ("adding", {"n_steps": 1}, "at least 2"),
        ("adding", {"dt": 0.0}, "more than 0"),
        ("adding", {"n_test": 0}, "more than 0"),
        ("randman", {"n_samples": 3}, "at least 5"),
        ("digits", {"by": "columns"}, "'rows' or 'pixels'"),
        ("vowels", {"counted": 0}, "more than 0"),
    ],
)
def test_setting_without_sense_is_refused(name: str, settings: dict[str, Any], words: str) -> None:
    (setting,) = settings
    with pytest.raises(ValueError, match=rf"has {setting}=.*{words}"):
        find_task(name, **settings)


def test_list_as_a_setting_is_as_good_as_a_tuple() -> None:
    assert hash(find_task("pattern", periods=[100.0, 50.0])) == hash(tasks.PatternGeneration(periods=(100.0, 50.0)))
