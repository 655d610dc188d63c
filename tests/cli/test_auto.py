"""`foretrace train --rule auto --memory ...`."""

import json
from pathlib import Path

import pytest

from foretrace.cli import main

TINY = ["train", "adding", "--set", "n_steps=20", "--hidden", "4", "--batch", "2", "--iterations", "1"]


def test_trains_by_what_it_chose(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "--rule", "auto", "--memory", "1GB", "--folder", str(tmp_path / "run")]) == 0
    assert "auto      Choice(BPTT, " in capsys.readouterr().out
    assert json.loads((tmp_path / "run" / "result.json").read_text())["rule"] == {"name": "BPTT"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rule", "auto"], "needs --memory"),
        (["--rule", "auto", "--memory", "lots"], "number of bytes"),
        (["--memory", "1MB"], "leave it out with another rule"),
    ],
)
def test_refuses(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "--no-folder", *arguments]) == 2
    assert said in capsys.readouterr().err
