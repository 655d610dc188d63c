"""The page of recorded runs is made of what their folders hold; each of the commands reaches a goal in a short form."""

import json
from pathlib import Path

import pytest

import tables
import training


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run that reached its goal, one that did not, and one that has not ended."""
    monkeypatch.setattr(training, "RUNS", tmp_path)
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    for name, stopped, error in (("evidence", "goal", 0.06), ("store-recall", "iterations", 0.2)):
        folder = tmp_path / name
        folder.mkdir()
        records = [{"iteration": k, "loss": 1 / k, "error": 0.5 / k} for k in range(1, 5)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        facts = dict(
            rule={"name": "D_RTRL"},
            network={"cell": "ALIF"},
            task={"name": name, "delay": 100.0},
            training={"seed": 0},
            iterations=4,
            seconds=1.5,
            validation={"error": error},
        )
        (folder / "result.json").write_text(json.dumps({**facts, "stopped_because": stopped}))
    (tmp_path / "pattern").mkdir()
    return tmp_path


def test_the_page_lists_the_runs_that_have_ended(recorded: Path) -> None:
    ended = {name: found for name in training.RECORDED if (found := training.outcome(name)) is not None}
    page = training.page(ended)
    assert "| evidence | ALIF | D_RTRL | error below 0.07 | error 0.06 | yes | 4 | 2 |" in page
    assert "| store-recall | ALIF | D_RTRL | error below 0.05 | error 0.2 | **no** (iterations) | 4 | 2 |" in page
    assert "pattern" not in page
    assert "the task with delay 100.0" in page
    assert "foretrace train evidence --rule D_RTRL --stop" in page
    assert {path.name for path in recorded.glob("*.svg")} == {"training_evidence.svg", "training_store-recall.svg"}


@pytest.mark.parametrize(("accuracy", "said"), [(0.95, "yes (1.0 points)"), (0.93, "**no** (3.0 points)")])
def test_a_goal_beside_bptt_is_held_against_its_run(accuracy: float, said: str) -> None:
    ended = {"mnist": {"validation": {"accuracy": accuracy}}, "mnist-bptt": {"validation": {"accuracy": 0.96}}}
    assert training.reached("mnist", ended) == said


def test_a_run_that_has_ended_is_not_repeated(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(training.subprocess, "run", lambda command, **_: commands.append(command))
    for name in ("evidence", "pattern"):
        training.train(name)
    assert [command[3:5] for command in commands] == [["train", "pattern"]]


@pytest.mark.parametrize("name", training.RECORDED)
def test_the_commands_can_be_run(name: str) -> None:
    from foretrace.cli.frame import make_parser

    options = make_parser().parse_args(training.command(name)[1:])
    assert options.task == training.RECORDED[name].task


SHORT = [name for name, run in training.RECORDED.items() if run.short]


@pytest.mark.parametrize("name", [SHORT[0], *(pytest.param(name, marks=pytest.mark.slow) for name in SHORT[1:])])
def test_a_shortened_run_reaches_its_goal(name: str) -> None:
    from foretrace.cli import main

    assert main(training.shortened(name)) == 0
