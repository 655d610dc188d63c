"""Tasks of a user's own on the command line: a class, a function, or arrays in a file."""

import json
from pathlib import Path

import pytest

from foretrace.cli import main

SOURCE = """
import numpy as np
from foretrace import tasks

X = np.random.default_rng(0).normal(size=(20, 5, 2))
pair = (X, X.sum((1, 2)) > 0)


def made(scale=1.0):
    return tasks.from_arrays(scale * X, pair[1])


class Short(tasks.Adding):
    name = "short"


nothing = 3
"""
SMALL = "--cell GRU --hidden 4 --batch 2 --iterations 1 --quiet --folder run".split()


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(SOURCE)
    return tmp_path


@pytest.mark.parametrize(
    ("target", "settings"),
    [("own.py:pair", []), ("own.py:made", ["--set", "scale=2.0"]), ("own.py:Short", ["--set", "n_steps=6"])],
)
def test_trains_on_a_task_of_a_file(source: Path, target: str, settings: list[str]) -> None:
    assert main(["train", target, *settings, *SMALL]) == 0
    outcome = json.loads((source / "run" / "result.json").read_text())
    assert outcome["iterations"] == 1
    assert outcome["task"]["name"] == ("short" if "Short" in target else "arrays")


@pytest.mark.parametrize(
    ("target", "settings", "word"),
    [
        ("own.py:nothing", [], "pair of arrays"),
        ("own.py:absent", [], "has no `absent`"),
        ("none.py:pair", [], "no file"),
        ("own.py:pair", ["--set", "scale=2.0"], "neither"),
    ],
)
def test_what_is_no_task_is_refused(
    source: Path, target: str, settings: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", target, *settings, *SMALL]) == 2
    assert word in capsys.readouterr().err
