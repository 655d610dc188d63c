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


batches = [(X[:4], pair[1][:4]), (X[4:8], pair[1][4:8])]


def generated():
    yield from batches


nothing = 3
"""
MODEL = """
import jax, jax.numpy as jnp
import brainstate


def step(params, h, x):
    h = 0.9 * h + jnp.tanh(x @ params["w"])
    return h, h @ params["out"]


def params():
    return {"w": jnp.ones((2, 3)), "out": 0.1 * jnp.ones((3, 2))}


def state(batch_size):
    return jnp.zeros((batch_size, 3))


four = jnp.zeros((4, 3))


class Net(brainstate.nn.Module):
    def __init__(self, units=3):
        super().__init__()
        self.cell, self.out = brainstate.nn.GRUCell(2, units), brainstate.nn.Linear(units, 2)

    def update(self, x):
        return self.out(self.cell(x))
"""
REST = "--quiet --folder run".split()
SMALL = "--cell GRU --hidden 4 --batch 2 --iterations 1 --quiet --folder run".split()


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(SOURCE)
    (tmp_path / "model.py").write_text(MODEL)
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


@pytest.mark.parametrize(
    ("words", "iterations", "batch"),
    [
        ("own.py:pair --model model.py:step --batch 2", 2, 2),
        ("own.py:pair --model model.py:step --state four", 2, 4),
        ("own.py:made --model model.py:Net --model-args units=4 --rule pp_prop --batch 2", 2, 2),
        ("own.py:batches --model model.py:step", 2, 4),
        ("own.py:generated --cell GRU --hidden 3 --iterations 9", 2, 4),
    ],
)
def test_trains_a_model_of_a_file(source: Path, words: str, iterations: int, batch: int) -> None:
    assert main(["train", *words.split(), *("" if "--iter" in words else "--iterations 2").split(), *REST]) == 0
    outcome = json.loads((source / "run" / "result.json").read_text())
    assert outcome["iterations"] == iterations
    assert outcome["training"]["batch_size"] == batch
    if "--model" in words:
        assert outcome["network"]["model"] == words.split()[2]


def test_a_run_with_a_model_of_a_file_goes_on(source: Path) -> None:
    command = ["train", "own.py:pair", "--model", "model.py:step", "--batch", "2", *REST]
    assert main([*command, "--iterations", "1"]) == 0
    assert main([*command, "--iterations", "2", "--resume"]) == 0
    assert len((source / "run" / "metrics.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("own.py:pair --model model.py:step --cell GRU", 2, "leave them out with --model"),
        ("own.py:pair --model model.py:step --state four --batch 3", 2, "--batch 4"),
        ("own.py:pair --model model.py:absent", 2, "has no `absent`"),
        ("own.py:Short --set n_steps=6 --model model.py:step --batch 2", 1, "wants (2, 1)"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(
    source: Path, words: str, code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *words.split(), "--iterations", "1", *REST]) == code
    assert says in capsys.readouterr().err
