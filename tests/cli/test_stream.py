"""`foretrace stream`: lines from files, pipes and ports; predictions, bad lines, resumption, and the page."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.chromium import BROWSER, Chromium
from foretrace.cli import main
from foretrace.cli.feed import Feed, connections, listening
from foretrace.cli.lines import LineError, Lines
from foretrace.cli.live import Board, LivePage
from foretrace.cli.live_page import live_page
from foretrace.train import StreamStep

SMALL = ["--cell", "RNN", "--hidden", "4", "--piece", "4", "--quiet"]
MODEL = """
import jax.numpy as jnp

params = {"w": jnp.zeros((3, 1))}
state = jnp.zeros(1)


def step(params, state, x):
    state = 0.5 * state + x @ params["w"]
    return state, state
"""


def record(k: int) -> dict[str, Any]:
    """A line: two inputs, and a target but for every fifth."""
    a, b = np.random.default_rng(k).normal(size=2)
    return {"a": a, "b": b, "y": None if k % 5 == 4 else a - b}


def write(path: Path, count: int, start: int = 0) -> Path:
    """A file of JSON lines."""
    path.write_text("".join(f"{json.dumps(record(k))}\n" for k in range(start, start + count)))
    return path


def predicted(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_every_line_is_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stream", "--input", str(write(tmp_path / "lines", 10)), *SMALL]) == 0
    out, err = capsys.readouterr()
    found = predicted(out)
    assert [line["step"] for line in found] == list(range(1, 11))
    assert [line["target"] for line in found] == pytest.approx([record(k)["y"] for k in range(10)], rel=1e-6)
    assert [line["loss"] is None for line in found] == [k % 5 == 4 for k in range(10)]
    losses = [(line["prediction"] - line["target"]) ** 2 for line in found if line["target"] is not None]
    assert [line["loss"] for line in found if line["loss"] is not None] == pytest.approx(losses, rel=1e-4)
    assert err == ""


def test_csv_and_a_step_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "my.py").write_text(MODEL)
    rows = ["a,power,b,c", "1,0.5,2,3", "1,,2,3", "2,0.1,1,1"]
    (tmp_path / "lines.csv").write_text("\n".join(rows))
    words = ["--input", str(tmp_path / "lines.csv"), "--format", "csv", "--target", "power", "--optimizer", "sgd"]
    assert main(["stream", f"{tmp_path / 'my.py'}:step", *words, "--lr", "0.1", "--piece", "4", "--quiet"]) == 0
    found = predicted(capsys.readouterr().out)
    assert [line["target"] for line in found] == [0.5, None, 0.1]
    weights = 0.1 * 2 * 0.5 * np.array([1.0, 2.0, 3.0])  # one step of gradient descent from zero
    assert [line["prediction"] for line in found[:2]] == pytest.approx([0.0, weights @ [1.0, 2.0, 3.0]])


def test_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [{"x": [1.0, 0.0], "y": 2}, {"x": [0.0, 1.0], "y": 0}] * 4
    (tmp_path / "lines").write_text("\n".join(map(json.dumps, lines)))
    assert main(["stream", "--input", str(tmp_path / "lines"), "--classes", "3", *SMALL]) == 0
    found = predicted(capsys.readouterr().out)
    assert {line["prediction"] for line in found} <= {0, 1, 2}
    assert [line["target"] for line in found[:2]] == [2, 0]
    (tmp_path / "lines").write_text(json.dumps({"x": [1.0], "y": 7}))
    assert main(["stream", "--input", str(tmp_path / "lines"), "--classes", "3", *SMALL]) == 1
    assert "a class from 0 to 2 is wanted" in capsys.readouterr().err


BAD = {
    "not json": "not JSON: 'not json'",
    "[1, 2]": "a list, where an object such as",
    '{"a": 1, "y": 2}': "no value for `b`",
    '{"a": "much", "b": 1}': "`a` is 'much', where a number is wanted",
    '{"a": NaN, "b": 1}': "`a` is 'nan', where a finite number is wanted",
    '{"a": [1, 2], "b": 1}': "3 numbers of the input, where the first line has 2",
    '{"a": 1, "b": 2, "y": [1, 2]}': "2 numbers of the target, where the first line has 1",
}


def test_bad_lines_are_told_by_number_and_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "lines", 2)
    good = file.read_text()
    file.write_text(good + "".join(f"{line}\n" for line in BAD) + "\n" + good)
    assert main(["stream", "--input", str(file), *SMALL]) == 0
    out, err = capsys.readouterr()
    assert len(predicted(out)) == 4
    for number, (line, said) in enumerate(BAD.items(), start=3):
        assert f"line {number} is left out: {said}" in err, line
    assert "7 bad lines were left out" in err


def test_a_bad_line_can_stop_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "lines", 3)
    file.write_text(file.read_text() + "oops\n")
    assert main(["stream", "--input", str(file), "--bad-lines", "stop", *SMALL]) == 1
    out, err = capsys.readouterr()
    assert len(predicted(out)) == 3
    assert "Line 4: not JSON: 'oops'" in err


@pytest.mark.parametrize(
    ("text", "said"),
    [("1,2\n3,4", "no header"), ("a,a\n1,2", "no header"), ("a,y\n1,2,3", "3 cells, where the header has 2")],
)
def test_csv_that_is_none(text: str, said: str) -> None:
    lines = Lines("csv")
    with pytest.raises(LineError, match=said):
        list(map(lines.item, text.encode().splitlines()))
    with pytest.raises(LineError, match="UTF-8"):
        lines.item(b"\xff\xfe")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--resume"], "say which with --folder"),
        (["--input", "nothing.csv"], "There is no file 'nothing.csv'"),
        (["--port", "0", "--input", "x"], "not from both"),
        (["--once"], "clients of a --port"),
        (["--target", ","], "names with commas"),
        (["--classes", "1"], "at least 2"),
    ],
)
def test_what_cannot_be_asked_for(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stream", *words]) == 2
    assert said in capsys.readouterr().err


def test_it_goes_on_from_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*SMALL, "--folder", str(tmp_path / "run")]
    whole = ["stream", "--input", str(write(tmp_path / "whole", 12)), *SMALL]
    assert main(whole) == 0
    expected = predicted(capsys.readouterr().out)
    assert main(["stream", "--input", str(write(tmp_path / "first", 6)), *words]) == 0
    assert main(["stream", "--input", str(write(tmp_path / "second", 6, start=6)), *words]) == 2
    assert "go on with it by --resume" in capsys.readouterr().err
    assert main(["stream", "--input", str(tmp_path / "second"), *words, "--resume"]) == 0
    found = predicted(capsys.readouterr().out)
    assert [line["step"] for line in found] == list(range(7, 13))
    assert [line["prediction"] for line in found] == pytest.approx([line["prediction"] for line in expected[6:]])


def test_lines_over_a_port_of_this_machine() -> None:
    server = listening("127.0.0.1", 0)
    told: list[tuple[int, str]] = []
    feed = Feed(connections(server, once=False), Lines("csv"), lambda *bad: told.append(bad), stops=False).start()
    for name in ("a", "b"):  # each client has a header of its own
        with socket.create_connection(server.getsockname()) as client:
            client.sendall(f"{name},y\n1,2\n3,{'x' if name == 'b' else ''}\n".encode())
        if name == "a":
            got = iter(feed)
            assert [[part and part.tolist() for part in next(got)] for _ in range(2)] == [[[1.0], [2.0]], [[3.0], None]]
    deadline = time.monotonic() + 60
    while len(told) < 2 and time.monotonic() < deadline:  # a client that still waits would be lost with the server
        time.sleep(0.01)
    server.close()
    assert told == [(2, "no value for `a`"), (3, "no value for `a`")]


def process(words: list[str], folder: Path, **pipes: Any) -> subprocess.Popen[str]:
    """`foretrace stream` in a process of its own."""
    command = [sys.executable, "-m", "foretrace", "stream", *words]
    root = Path(__file__).parent.parent.parent
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    return subprocess.Popen(command, cwd=folder, env=environment, text=True, stderr=subprocess.PIPE, **pipes)


def address_in(run: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    """Waits for a line on the standard error stream."""
    assert run.stderr is not None
    for line in run.stderr:
        if found := re.search(pattern, line):
            return found
    raise AssertionError("it ended before")


def test_a_stream_over_loopback_with_its_page(tmp_path: Path) -> None:
    words = [word for word in SMALL if word != "--quiet"]
    more = ["--port", "0", "--page", "--window", "20", "--folder", "run"]
    with process([*words, *more], tmp_path, stdout=subprocess.PIPE) as run:
        try:
            port = int(address_in(run, r"listening at 127\.0\.0\.1:(\d+)")[1])
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall("".join(f"{json.dumps(record(k))}\n" for k in range(30)).encode())
                page = int(address_in(run, r"look at http://127\.0\.0\.1:(\d+)/")[1])
                found = [json.loads(run.stdout.readline()) for _ in range(30)] if run.stdout else []
                assert [line["step"] for line in found] == list(range(1, 31))
                with contextlib.closing(events(page)) as seen:
                    assert next(seen)["steps"] == 30
                run.send_signal(signal.SIGTERM)
                assert run.wait(120) == 128 + signal.SIGTERM
            said = run.stderr.read() if run.stderr else ""
        finally:
            run.kill()
    assert "ended by SIGTERM after 30 steps. Go on with:" in said
    assert "--folder run --resume" in said
    assert (tmp_path / "run" / "checkpoint-00000030.safetensors").exists()


def events(port: int) -> Generator[dict[str, Any], None, None]:
    """The events of a page."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/events")
    with contextlib.closing(connection), connection.getresponse() as answer:
        assert answer.getheader("Content-Type") == "text/event-stream"
        for line in answer:
            if line.startswith(b"data: "):
                yield json.loads(line[6:])


def step(number: int, target: Any = 1.0) -> StreamStep:
    loss = None if target is None else 1.0 / number
    return StreamStep(number, np.full((1, 2), 0.25 * number), target, loss, {}, np.arange(70) % 2)


@pytest.fixture
def board() -> Board:
    made = Board("<b>GRU</b></script>", 10)
    for number in range(1, 41):
        made.see(step(number, None if number == 40 else np.array([number, 0])))
    return made


@pytest.fixture
def page(board: Board) -> Iterator[LivePage]:
    made = LivePage(board, 0)
    yield made
    made.close()


def test_a_snapshot_has_the_last_steps_in_bounded_length(board: Board) -> None:
    found = board.snapshot()
    assert found["recent"][-2:] == [[39, 9.75, 39.0], [40, 10.0, None]]
    assert found["loss"] == pytest.approx(np.mean([1 / k for k in range(31, 40)]))
    assert found["curve"][0] == [1, 1.0]
    assert found["memory"] > 1e7
    for number in range(41, 5000):
        board.see(step(number))
    found = board.snapshot()
    assert found["steps"] == 4999
    assert (len(found["recent"]), len(found["activity"]), len(found["activity"][0])) == (200, 120, 64)
    assert len(found["curve"]) < 600


def test_page_has_all_it_needs_and_is_for_this_machine_alone(page: LivePage) -> None:
    port = page.server.server_address[1]
    assert page.server.server_address[0] == "127.0.0.1"
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/")
    answer = connection.getresponse()
    text, policy = answer.read().decode(), answer.getheader("Content-Security-Policy") or ""
    assert answer.status == 200
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert re.findall(r"https?://|//[a-z]|@import|url\(|src=", text) == []
    assert "<b>GRU" not in text
    for path, host, status in (("/", "elsewhere.example", 403), ("/other", f"localhost:{port}", 404)):
        connection.request("GET", path, headers={"Host": host})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == status


def test_the_last_event_says_that_it_ended(board: Board) -> None:
    page = LivePage(board, 0)
    stream = events(page.server.server_address[1])
    assert next(stream)["state"] == "learning"
    board.end("ended")
    threading.Timer(0.2, page.close).start()
    assert list(stream)[-1]["state"] == "ended"


def test_a_first_snapshot_cannot_end_its_element() -> None:
    text = live_page(Board("</script><script>alert(1)</script>", 10).snapshot())
    assert text.count("</script>") == 2
    assert "alert(1)" in text


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
@pytest.mark.parametrize("dark", [False, True])
def test_chromium_shows_a_stream_as_it_runs(page: LivePage, board: Board, dark: bool, tmp_path: Path) -> None:
    browser = Chromium(tmp_path, page.address, dark)
    try:
        browser.wait("document.body && Number(document.body.dataset.events) >= 1")
        assert browser.value("document.getElementById('steps').textContent") == "40"
        drawn = browser.value("document.querySelector('#beside polyline.two').getAttribute('points').split(' ').length")
        assert drawn == 40
        for number in range(41, 61):
            board.see(step(number, np.array([number, 0])))
        browser.wait("document.getElementById('steps').textContent === '60'")
        assert browser.value("document.querySelectorAll('svg polyline').length") == 3
        ink = "getComputedStyle(document.body).backgroundColor"
        assert browser.value(ink) == ("rgb(23, 23, 26)" if dark else "rgb(255, 255, 255)")
        marked = (
            "[...document.getElementById('raster').getContext('2d').getImageData(0, 0, 900, 300).data].some(v => v)"
        )
        assert browser.value(marked)
        assert len(browser.screenshot()) > 10_000
        board.end("ended")
        browser.wait("document.getElementById('state').textContent.startsWith('ended')")
        assert browser.problems == []
        assert {address.removeprefix(page.address) for address in browser.requests} <= {"", "events", "data:,"}
    finally:
        browser.close()
