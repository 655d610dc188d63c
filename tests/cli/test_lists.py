"""The lists of tasks and rules are whole."""

import json

import pytest

from foretrace.cli import main
from foretrace.cli.experiment import OURS
from foretrace.rules import RULES
from foretrace.tasks import TASKS


def test_every_task_is_listed(capsys):
    assert main(["tasks", "--format", "json"]) == 0
    assert [row["task"] for row in json.loads(capsys.readouterr().out)] == list(TASKS)


def test_every_rule_is_listed_with_its_cost(capsys):
    assert main(["rules", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {name for row in rows for name in row["rule"].split(", ")} == set(RULES)
    assert all(row["memory of traces"] and row["exact"] and row["what"] for row in rows)


def test_tables_keep_within_a_terminal(capsys):
    main(["tasks"])
    main(["rules"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 110


def test_every_task_has_settings_to_start_with():
    assert set(OURS) == set(TASKS)


def test_one_task_is_shown_with_its_settings(capsys):
    assert main(["tasks", "evidence", "--set", "n_cues=3"]) == 0
    said = capsys.readouterr().out
    assert "1650 steps" in said
    assert "goal: error < 0.07" in said
    assert "learning_rate 0.005" in said


def test_task_is_drawn(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "trial.svg"
    assert main(["tasks", "adding", "--set", "n_steps=20", "--plot", str(picture)]) == 0
    assert capsys.readouterr().out.strip().endswith(str(picture))
    assert picture.read_text().startswith("<?xml")
