"""A run leaves all its files, whoever reads its output: streams that go away, links, numbers that are not finite."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import foretrace
from foretrace.cli import main
from foretrace.cli.output import Lasting

TASK = "adding --set n_steps=6 --set n_test=4 --cell RNN --hidden 3 --batch 2 --rule BPTT --validate-every 2".split()
FILES = [
    "best.safetensors",
    "checkpoint-00000002.safetensors",
    "curve.png",
    "curve.svg",
    "metrics.jsonl",
    "result.json",
]
# Each program begins as the command does, with standard streams of its own.
STREAMS = {
    "closed": "{command} >&- 2>&-",
    "full": "{command} >/dev/full 2>/dev/full",
    "left": "({command} 2>&1; echo $? >{code}) | true; test $(cat {code}) = 0",
}


def test_stream_that_breaks_goes_nowhere(tmp_path):
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no disk that is always full")
    with open("/dev/full", "w") as full:
        stream = Lasting(full)
        for _ in range(2):
            print("words", file=stream, flush=True)
        assert not stream.isatty()


@pytest.mark.parametrize("how", ["left", *(pytest.param(how, marks=pytest.mark.slow) for how in ("closed", "full"))])
def test_run_leaves_everything_though_nobody_reads(how, tmp_path):
    if os.name != "posix":
        pytest.skip("the shell is that of POSIX")
    folder = tmp_path / "run"
    words = ["-m", "foretrace", "train", *TASK, "--iterations", "2", "--folder", str(folder)]
    command = STREAMS[how].format(command='"$PYTHON" "$@"', code=tmp_path / "code")
    environment = os.environ | {"PYTHONPATH": str(Path(foretrace.__file__).parent.parent), "PYTHON": sys.executable}
    run = subprocess.run(["sh", "-c", command, "sh", *words], env=environment, capture_output=True, timeout=300)
    assert run.returncode == 0
    assert set(FILES) <= {file.name for file in folder.iterdir()}
    assert json.loads((folder / "result.json").read_text())["iterations"] == 2


def test_list_that_nobody_reads_is_a_failure(monkeypatch):
    class Left:
        def write(self, text):
            raise BrokenPipeError

        def flush(self):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Left())
    assert main(["rules"]) == 1


def test_numbers_that_are_not_finite_are_null_and_such_a_run_goes_on(tmp_path, capsys):
    words = ["train", *TASK, "--lr", "1e200", "--clip", "0", "--optimizer", "sgd", "--stop", "mse<-1", "--quiet"]
    words += ["--folder", str(tmp_path / "run"), "--iterations", "1", "--validate-every", "1"]

    def refuse(word):
        raise AssertionError(word)

    for more in ([], ["--resume"]):
        assert main([*words, *more]) == 1
        said = capsys.readouterr().err
        assert "the goal mse < -1 was not reached: mse " in said
        found = json.loads((tmp_path / "run" / "result.json").read_text(), parse_constant=refuse)
        assert found["validation"]["loss"] is None


def test_links_in_the_place_of_results_are_replaced(tmp_path):
    precious, folder = tmp_path / "precious", tmp_path / "run"
    precious.write_text("precious")
    words = ["train", *TASK, "--quiet", "--folder", str(folder)]
    assert main([*words, "--iterations", "1"]) == 0
    for name in ("result.json", "curve.svg", "curve.png"):
        (folder / name).unlink()
        (folder / name).symlink_to(precious)
    assert main([*words, "--iterations", "2", "--resume"]) == 0
    assert precious.read_text() == "precious"
    assert not any(file.is_symlink() for file in folder.iterdir())


def test_result_without_a_checkpoint_is_not_replaced(tmp_path, capsys):
    (tmp_path / "result.json").write_text("precious")
    assert main(["train", *TASK, "--folder", str(tmp_path)]) == 2
    assert "has result.json of a run, but no checkpoint" in capsys.readouterr().err
    assert (tmp_path / "result.json").read_text() == "precious"
