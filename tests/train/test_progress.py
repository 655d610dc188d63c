"""Progress is one line on a terminal, and a few lines elsewhere."""

import io
from typing import Any

from foretrace.train.progress import Progress, clock
from train.small_task import fit


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(stream: io.StringIO, total: int = 100) -> str:
    progress = Progress(total, "task rule", stream)
    for done in range(1, total + 1):
        record: dict[str, Any] = {"iteration": done, "loss": 1 / done, "accuracy": 0.5, "rate": 12.34, "seconds": 1.0}
        progress.update(record | ({"validation_accuracy": 0.25} if done == 7 else {}))
    progress.close("done")
    return stream.getvalue()


def test_plain_lines_now_and_then() -> None:
    lines = shown(io.StringIO()).splitlines()
    assert len(lines) == 22
    assert lines[0].startswith("task rule  5/100  loss 0.2  accuracy 0.5  rate 12.34 Hz  0:00 < ")
    assert "7/100" in lines[1]
    assert "(validation: accuracy 0.25)" in lines[1]
    assert lines[-1] == "done"


def test_one_line_on_a_terminal(monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    text = shown(Terminal())
    assert text.count("\n") == 2
    assert text.count("\r") >= 100
    said = "loss 0.02  accuracy 0.5  rate 12.34 Hz  (validation: accuracy 0.25)  0:00 < 0:00"
    assert f"[##########..........]  task rule  50/100  {said}" in text


def test_narrow_terminal_shows_the_metrics(monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = shown(Terminal()).split("\r")
    assert "[#####.....]  50/100  loss 0.02  accuracy 0.5  rate 12.34 Hz  0:00 < 0:00" in map(str.strip, lines)
    assert max(len(line.split("\n")[0]) for line in lines) < 80


def test_terminal_says_what_takes_so_long() -> None:
    stream = Terminal()
    Progress(100, "task rule", stream).wait(50, "compiling")
    assert stream.getvalue() == "\r[##########..........]  task rule  50/100  compiling"


def test_plain_lines_say_it_too() -> None:
    stream = io.StringIO()
    Progress(100, "task rule", stream).wait(0, "compiling")
    assert stream.getvalue() == "task rule  0/100  compiling ...\n"


def test_many_validations_are_not_many_plain_lines() -> None:
    stream = io.StringIO()
    progress = Progress(5000, "task rule", stream)
    for done in range(1, 5001):
        progress.update({"iteration": done, "loss": 1.0, "validation_loss": 1.0})
    assert 50 < len(stream.getvalue().splitlines()) <= 120
    assert "\r" not in stream.getvalue()


def test_quiet(capsys: Any) -> None:
    fit(iterations=1)
    found = capsys.readouterr()
    assert found.out == found.err == ""


def test_clock() -> None:
    assert [clock(t) for t in (5.9, 65, 3700)] == ["0:05", "1:05", "1:01:40"]
