"""`foretrace compare` and `foretrace bench` put rules beside BPTT."""

import contextlib
import csv
import io
import json
from types import SimpleNamespace

import jax
import pytest

import foretrace as ft
from foretrace import train
from foretrace.cli import comparison, main
from foretrace.cli.comparison import PROBE, Compared, Comparison
from foretrace.cli.rules import RuleChoice
from foretrace.tasks import find_task

SETTINGS = {"n_samples": 5, "n_units": 6, "n_steps": 8, "n_classes": 2, "n_frequencies": 10}
TASK = ["randman", *(word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}"))]
SMALL = ["--hidden", "4", "--layers", "2", "--batch", "3", "--cell-set", "threshold=0.2", "--quiet"]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """What a comparison leaves and prints."""
    folder = tmp_path_factory.mktemp("compare")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["compare", *TASK, *SMALL, "--rules", "D_RTRL,BPTT", "--iterations", "2", "--folder", "it"]) == 0
    return folder / "it"


def test_table_has_a_row_for_each_rule(compared):
    rows = {row["rule"]: row for row in csv.DictReader((compared / "comparison.csv").read_text().splitlines())}
    assert list(rows) == ["D_RTRL", "BPTT"]
    for row in rows.values():
        assert 0 <= float(row["accuracy"]) <= 1
        assert float(row["gradient_seconds"]) > 0
        assert int(row["gradient_bytes"]) > 0
        assert float(row["training_seconds"]) > 0
    assert float(rows["BPTT"]["cosine before layer 1"]) == pytest.approx(1)
    assert float(rows["D_RTRL"]["cosine before layer 2"]) == pytest.approx(1)  # nothing mixes behind it
    assert float(rows["D_RTRL"]["cosine before layer 1"]) < 0.9999
    assert float(rows["D_RTRL"]["cosine after readout"]) == pytest.approx(1)


def test_cosine_is_that_of_compare_gradients(compared):
    facts = json.loads((compared / "comparison.json").read_text())["gradients"]["D_RTRL"]["before"]
    task = find_task("randman", **SETTINGS)
    network = dict(layers=2, recurrent=False, tau_m=10.0, tau_out=10.0, threshold=0.2, refractory=0.0)
    net = train.network("LIF", 6, 2, 4, surrogate="fast_sigmoid", slope=25.0, **network)
    trial = task.sample(jax.random.fold_in(jax.random.key(0), PROBE), 3)
    found = ft.compare_gradients(
        net.compile("D_RTRL", 3),
        trial.inputs,
        (trial.targets, trial.mask),
        loss=lambda out, y: task.loss(out.out, *y),
        params=net.params,
        state=net.init_state(3),
    )
    assert facts["overall"]["cosine"] == pytest.approx(found.overall.cosine, abs=1e-9)
    for row in found.rows:
        assert facts[row.name]["cosine"] == pytest.approx(row.cosine, abs=1e-9)
        assert facts[row.name]["norm_ratio"] == pytest.approx(row.norm_ratio, abs=1e-9)


def test_figure_is_drawn_and_every_run_is_saved(compared):
    for file in ("comparison.svg", "comparison.png", "D_RTRL/metrics.jsonl", "BPTT/metrics.jsonl"):
        assert (compared / file).stat().st_size
    drawn = (compared / "comparison.svg").read_text()
    for words in ("layer 1", "readout", "time of a gradient (ms)", "memory of a gradient (MB)", "iteration"):
        assert words in drawn


def test_gradients_alone_are_compared_without_iterations(tmp_path, capsys):
    arguments = ["--rules", "pp_prop:decay_or_rank=0.5", "--iterations", "0", "--folder", str(tmp_path)]
    assert main(["compare", *TASK, *SMALL, *arguments]) == 0
    said = capsys.readouterr().out
    assert "pp_prop-decay_or_rank=0.5" in said
    assert "layer 1  layer 2  readout  overall" in said
    assert "learned" not in said
    assert not list(tmp_path.rglob("metrics.jsonl"))


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    """The folder and the words of a comparison from two seeds."""
    folder, said = tmp_path_factory.mktemp("seeds"), io.StringIO()
    arguments = ["--rules", "BPTT:window=1,BPTT", "--iterations", "3", "--validate-every", "1", "--seeds", "2"]
    with contextlib.redirect_stdout(said):
        assert main(["compare", *TASK, *SMALL, *arguments, "--seed", "5", "--folder", str(folder)]) == 0
    return folder, said.getvalue()


def test_every_seed_is_trained_and_told(seeds):
    folder, said = seeds
    lines = list(csv.DictReader((folder / "comparison.csv").read_text().splitlines()))
    assert [(line["seed"], line["rule"]) for line in lines] == [
        (seed, rule) for seed in ("5", "6") for rule in ("BPTT-window=1", "BPTT")
    ]
    assert (folder / "seed-6" / "BPTT" / "metrics.jsonl").stat().st_size
    assert (folder / "comparison.svg").stat().st_size
    assert lines[0]["loss"] != lines[2]["loss"]
    assert " ± " in said


def test_means_have_their_intervals(seeds):
    folder, _ = seeds
    lines = list(csv.DictReader((folder / "comparison.csv").read_text().splitlines()))
    losses = [float(line["loss"]) for line in lines if line["rule"] == "BPTT"]
    found = json.loads((folder / "comparison.json").read_text())["over_seeds"]["BPTT"]["loss"]
    assert found["mean"] == pytest.approx(sum(losses) / 2)
    assert found["interval"] == pytest.approx(12.7062 * abs(losses[0] - losses[1]) / 2, rel=1e-4)  # Student's t, one


def test_truncated_bptt_is_not_taken_for_the_measure(seeds):
    folder, _ = seeds
    found = json.loads((folder / "comparison.json").read_text())["over_seeds"]
    assert found["BPTT"]["cosine before overall"]["mean"] == pytest.approx(1)
    assert found["BPTT-window=1"]["cosine before layer 1"]["mean"] < 0.99


def record(iteration, accuracy, seconds):
    return {"iteration": iteration, "validation_accuracy": accuracy, "seconds": seconds}


def test_rules_are_held_against_each_other_at_equal_time():
    def trained(name, seconds):
        metrics = [record(k + 1, 0.1 * (k + 1), 9.0 if k == 0 else seconds) for k in range(4)]
        return Compared(RuleChoice(name), {"accuracy": 0.4}, metrics, 20.0, 0.1, 1, {}, {})

    both = Comparison(SimpleNamespace(network=SimpleNamespace(params={}, settings={})))
    both.rows += [trained("quick", 1.0), trained("slow", 2.0)]
    assert both.equal_seconds == 4.0  # four iterations of a second; the first one was compiled
    assert [both.at_equal_time(row) for row in both.rows] == [{"accuracy": 0.4}, {"accuracy": 0.2}]
    assert "accuracy in 4 s" in both.table()


def ended(reason):
    """A result without an iteration."""
    return train.Result({}, [], SimpleNamespace(iteration=0), reason)


def test_interruption_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(train, "fit", lambda *_, **__: ended("interrupted"))
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *TASK, *SMALL, "--rules", "BPTT"]) == 130
    said = capsys.readouterr().err.splitlines()
    assert said[-2].startswith("  foretrace compare randman --set n_samples=5")
    assert said[-2].endswith("--rules BPTT --folder runs/compare-randman --resume")
    assert said[-1] == "foretrace compare: interrupted"


def test_rule_that_diverges_does_not_end_the_comparison(tmp_path, monkeypatch, capsys):
    def diverge(*_, **__):
        raise train.DivergedError("The loss of iteration 1 is not finite.", ended("not finite"))

    monkeypatch.setattr(train, "fit", diverge)
    monkeypatch.setattr(Comparison, "add", lambda *_: None)
    monkeypatch.setattr(Comparison, "table", lambda _: "the table")
    monkeypatch.setattr(comparison, "write_comparison", lambda *_: [])
    assert main(["compare", *TASK, *SMALL, "--rules", "BPTT,D_RTRL", "--folder", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert "the table" in said.out
    assert "D_RTRL: The loss of iteration 1 is not finite." in said.err
    assert said.err.endswith("foretrace compare: BPTT, D_RTRL diverged, see above\n")


def test_bench_measures_time_and_memory(tmp_path, capsys):
    figures, picture = tmp_path / "bench.json", tmp_path / "memory.svg"
    arguments = "--sizes 3 --batch 2 --inputs 2 --steps 4 --repeats 1 --rules D_RTRL,BPTT --cell RNN".split()
    assert main(["bench", *arguments, "--json", str(figures), "--plot", str(picture)]) == 0
    said = capsys.readouterr().out
    assert "3 units" in said
    assert said.strip().endswith(str(picture))
    online, exact = json.loads(figures.read_text())["results"]
    assert (online["rule"], exact["rule"]) == ("D_RTRL", "BPTT")
    assert exact["longer_bytes"] > 4 * exact["bytes"]
    assert picture.stat().st_size
