"""The demonstration trains a network online, says how it went, and leaves a table and a picture."""

import csv
import re
import xml.etree.ElementTree
from pathlib import Path

import pytest

from foretrace.cli.demo import BPTT, ONLINE, PICTURE, TABLE, main, make_demo
from foretrace.compiler.history import HistoryKind

SIZE = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}

pytestmark = pytest.mark.xdist_group("demo")  # one worker runs the demonstration for all


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What a quick run prints, and the folder with its files."""
    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        printed: list[str] = []
        patch.setattr("builtins.print", lambda *words, **_: printed.append(" ".join(map(str, words))))
        main(["--quick", "--output", str(folder)])
    return "\n".join(printed), folder


def test_it_prints_the_report(quick: tuple[str, Path]) -> None:
    assert "history keeps" in quick[0]


def test_it_names_its_table_and_its_picture_last(quick: tuple[str, Path]) -> None:
    printed, folder = quick
    assert [line.split()[-1] for line in printed.splitlines()[-2:]] == [str(folder / TABLE), str(folder / PICTURE)]


def test_the_table_compares_with_bptt(quick: tuple[str, Path]) -> None:
    with (quick[1] / TABLE).open() as file:
        rows = {row["rule"]: row for row in csv.DictReader(file)}
    assert list(rows) == [ONLINE, BPTT]
    assert float(rows[BPTT]["cosine before overall"]) == pytest.approx(1)
    assert -1 < float(rows[ONLINE]["cosine before overall"]) < 1
    assert all(0 <= float(row["error"]) <= 1 for row in rows.values())


def test_the_picture_names_what_it_shows(quick: tuple[str, Path]) -> None:
    root = xml.etree.ElementTree.parse(quick[1] / PICTURE).getroot()
    texts = " ".join(filter(None, (element.text for element in root.iter())))
    for word in (ONLINE, BPTT, "iteration", "ALIF", "recall", "time (ms)", "steps"):
        assert re.search(re.escape(word), texts), word


def test_it_says_its_speed_beside_bptt(quick: tuple[str, Path]) -> None:
    assert re.search(rf"A gradient of {ONLINE} took [\d.]+ of the time of {BPTT}", quick[0])


def test_memory_of_the_online_rule_does_not_grow(quick: tuple[str, Path]) -> None:
    table = quick[0].partition("Memory of one gradient")[2]
    found = {
        rule: [float(x) * SIZE[unit] for x, unit in re.findall(r"([\d.]+) (\w+)", line)]
        for rule, line in [
            (line.split()[0], line) for line in table.splitlines() if line.split()[:1] in ([ONLINE], [BPTT])
        ]
    }
    assert found[ONLINE][-1] < 2 * found[ONLINE][0]
    assert found[BPTT][-1] > 50 * found[BPTT][0]


def test_the_network_is_adaptive_and_recurrent() -> None:
    experiment, _ = make_demo(quick=True)
    learner = experiment.learner(experiment.rules(ONLINE)[0])
    history = {parameter.name: parameter.history for parameter in learner.graph.parameters}
    assert history["w_in"] is history["w_rec"] is HistoryKind.DIRECT
    assert history["w_out"] is HistoryKind.NONE_NEEDED
    assert {leaf.name for leaf in learner.graph.program.hidden} == {"a", "trace", "v"}


def test_it_makes_its_folder_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretrace.cli.demo.make_demo", lambda quick: (_ for _ in ()).throw(InterruptedError))
    with pytest.raises(InterruptedError):
        main(["--output", str(tmp_path / "new" / "folder")])
    assert (tmp_path / "new" / "folder").is_dir()


def test_it_refuses_a_folder_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit):
        main(["--output", str(tmp_path / "file" / "folder")])
    assert "cannot make the folder" in capsys.readouterr().err
