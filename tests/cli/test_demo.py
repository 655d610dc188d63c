"""The demonstration runs, says what it found, and leaves a picture where it was told to."""

import os
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest

import foretrace
from foretrace.cli.demo import PICTURE, compile_demo, main
from foretrace.compiler.history import HistoryKind


def test_demo_prints_the_step_and_the_report(tmp_path, capsys):
    main(["--output", str(tmp_path)])
    out = capsys.readouterr().out
    assert "def step(" in out
    assert str(compile_demo().explain()) in out
    assert out.strip().endswith(str(tmp_path / PICTURE))


def test_demo_draws_every_parameter(tmp_path):
    main(["--output", str(tmp_path)])
    root = xml.etree.ElementTree.parse(tmp_path / PICTURE).getroot()
    found = {element.text for element in root.iter()}
    assert {parameter.name for parameter in compile_demo().parameters} <= found


def test_demo_shows_learned_time_constants_and_a_readout():
    history = {parameter.name: parameter.history for parameter in compile_demo().parameters}
    assert history.pop("w_out") is HistoryKind.NONE_NEEDED
    assert set(history.values()) == {HistoryKind.DIRECT}
    assert {"tau_v", "tau_a", "w_in", "w_rec"} == set(history)


def test_demo_refuses_a_folder_that_is_not_there(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["--output", str(tmp_path / "nowhere")])
    assert "nowhere" in capsys.readouterr().err


def test_demo_runs_as_a_command(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(Path(foretrace.__file__).parent.parent)}
    command = [sys.executable, "-m", "foretrace.cli.demo"]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert PICTURE in run.stdout
    assert (tmp_path / PICTURE).stat().st_size > 0
