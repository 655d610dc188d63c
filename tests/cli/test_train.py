"""`foretrace train` trains, saves, resumes, stops at a goal, and says so by its exit code."""

import json
import re

import pytest

from foretrace import train
from foretrace.cli import main
from foretrace.cli.commands.train import goal_of
from foretrace.cli.experiment import defaults_of, make_experiment
from foretrace.cli.frame import make_parser
from foretrace.tasks import TASKS, find_task
from foretrace.train.lock import locked

SHORT = "n_cues=1 cue=6 gap=2 delay=2 recall=4 rate=400 n_test=8".split()
TASK = ["evidence", *(word for setting in SHORT for word in ("--set", setting))]
SMALL = [*TASK, "--hidden", "6", "--batch", "4", "--quiet"]


def chosen(*arguments):
    """What the options of a command come to."""
    return make_experiment(make_parser().parse_args(["train", *arguments]))


def test_run_leaves_metrics_checkpoint_result_and_curve_and_names_them_last(tmp_path, capsys):
    folder = tmp_path / "run"
    assert main(["train", *SMALL, "--iterations", "3", "--folder", str(folder)]) == 0
    said = capsys.readouterr().out.strip().splitlines()
    named = [line.split()[-1] for line in said[-6:]]
    files = ["metrics.jsonl", "result.json", "checkpoint-00000003.safetensors", "best.safetensors"]
    files += ["curve.svg", "curve.png"]
    assert named == [str(folder / file) for file in files]
    assert all((folder / file).stat().st_size for file in files)
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 3
    outcome = json.loads((folder / "result.json").read_text())
    assert outcome["rule"] == {"name": "D_RTRL"}
    assert outcome["stopped_because"] == "iterations"
    assert outcome["best"] == {"iteration": 3, **outcome["validation"]}
    assert outcome["command"].startswith("foretrace train evidence --set n_cues=1")
    resumed(folder, capsys)


def resumed(folder, capsys):
    """A run that is there is not written over, and goes on when asked to."""
    assert main(["train", *SMALL, "--iterations", "4", "--folder", str(folder)]) == 2
    assert "--resume" in capsys.readouterr().err
    assert main(["train", *SMALL, "--iterations", "4", "--folder", str(folder), "--resume"]) == 0
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["iteration"] for line in lines] == [1, 2, 3, 4]


@pytest.mark.parametrize(("goal", "code"), [("loss<1e9", 0), ("error<-1", 1)])
def test_goal_that_is_demanded_decides_the_exit_code(goal, code, capsys):
    arguments = ["--iterations", "2", "--validate-every", "1", "--no-folder", "--stop", goal, "--rule", "BPTT"]
    assert main(["train", *SMALL, *arguments]) == code
    said = capsys.readouterr()
    assert ("goal reached, loss < 1e+09" in said.out) == (code == 0)
    assert ("the goal error < -1 was not reached" in said.err) == (code == 1)
    assert len(re.findall(r"^\d+ ", said.out, re.MULTILINE)) == (2 if code == 0 else 3)  # rows, and the last line


def test_best_validation_is_named_where_it_is_not_the_last(capsys):
    arguments = "--iterations 3 --validate-every 1 --optimizer sgd --lr 1e3 --rule BPTT --cell RNN --no-folder".split()
    assert main(["train", *SMALL, *arguments]) == 0
    assert re.search(r"^best validation after 1: loss [\d.]+, error [\d.]+, accuracy", capsys.readouterr().out, re.M)


def test_run_that_diverges_is_a_failure_and_leaves_what_was_good(tmp_path, capsys):
    arguments = f"--iterations 9 --optimizer sgd --lr 1e308 --rule BPTT --cell RNN --folder {tmp_path}".split()
    assert main(["train", *SMALL, *arguments]) == 1
    said = capsys.readouterr()
    assert "iterations, " in said.out
    assert ": not finite any more\n" in said.out
    assert re.match(r"foretrace train: The .* not finite.*\. The run until then is in", said.err)
    assert json.loads((tmp_path / "result.json").read_text())["stopped_because"] == "not finite"


def test_folder_in_use_is_a_failure(tmp_path, capsys):
    with locked(tmp_path):
        assert main(["train", *SMALL, "--rule", "BPTT", "--cell", "RNN", "--folder", str(tmp_path)]) == 1
    assert re.fullmatch(r"foretrace train: A run is under way in `.*` \(process \d+ on .*\n", capsys.readouterr().err)


def test_interruption_says_how_to_go_on(monkeypatch, tmp_path, capsys):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "fit", interrupt)
    monkeypatch.chdir(tmp_path)
    assert main(["train", *SMALL]) == 130
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("  foretrace train evidence --set n_cues=1")
    assert said.endswith("--quiet --folder runs/evidence-D_RTRL --resume")


def test_new_runs_get_folders_of_their_own(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(train, "fit", lambda *_, folder, **__: print(folder) or exit(0))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "evidence-D_RTRL").mkdir(parents=True)
    assert main(["train", *SMALL]) == 0
    assert capsys.readouterr().out == "runs/evidence-D_RTRL-2\n"
    assert (tmp_path / "runs" / "evidence-D_RTRL-2").is_dir()  # it is there for the next one to see


@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_a_network_that_can_be_made(task):
    defaults = defaults_of(task)
    settings = {name: value for name, value in defaults.network.items() if name not in ("cell", "n_hidden", "d_model")}
    net = train.network(defaults.network["cell"], 2, 2, 3, **settings)
    assert net.params
    assert {"optimizer", "learning_rate", "batch_size", "iterations"} <= set(defaults.training)


def test_published_settings_hold_where_nothing_is_said():
    experiment = chosen("evidence")
    assert (experiment.network.cell, experiment.network.n_hidden) == ("ALIF", 100)
    assert experiment.network.settings["tau_a"] == 2000.0
    assert experiment.training == dict(batch_size=64, iterations=500, rate_target=10.0, rate_cost=1.0, seed=0)
    assert experiment.words["training"]["learning_rate"] == 5e-3
    assert experiment.task == find_task("evidence")


def test_what_is_said_takes_the_place_of_what_was_published():
    arguments = (
        "--cell LIF --hidden 7 --cell-set threshold=0.4 --lr 0.01 --optimizer sgd --rate-cost 0 --clip 2 --seed 3"
    )
    experiment = chosen("evidence", *arguments.split(), "--update-every", "5", "--iterations", "9")
    assert (experiment.network.cell, experiment.network.n_hidden) == ("LIF", 7)
    assert experiment.network.settings == {"tau_m": 20.0, "tau_out": 20.0, "threshold": 0.4, "refractory": 5.0}
    assert experiment.training == dict(batch_size=64, iterations=9, seed=3, clip=2.0, update_every=5)


def test_rates_of_a_network_without_spikes_are_not_pulled():
    assert "rate_target" not in chosen("evidence", "--cell", "GRU", "--hidden", "4").training


def test_rules_get_options_that_suit_the_network():
    experiment = chosen("randman")
    options = {rule.name: rule.options for rule in experiment.rules("OTTT,pp_prop,EProp,D_RTRL")}
    assert options["OTTT"]["leak"] == pytest.approx(2.718281828 ** (-1 / 10))
    assert options["pp_prop"] == {"decay_or_rank": 0.9}
    assert options["EProp"] == {"feedback": "random"}
    assert options["D_RTRL"] == {}
    assert chosen("dms").rules("pp_prop")[0].options == {"decay_or_rank": 0.99}


def test_goals_are_read():
    task = find_task("evidence")
    assert goal_of(True, task) == ("error", "<", 0.07)
    assert goal_of("accuracy >= 0.9", task) == ("accuracy", ">=", 0.9)
    assert goal_of(None, task) is None


def test_an_option_of_a_rule_that_is_out_of_range_is_said_in_a_sentence(capsys):
    arguments = ["--iterations", "1", "--no-folder", "--rule", "D_RTRL", "--rule-set", "trace_dtype=int32"]
    assert main(["train", *SMALL, *arguments]) != 0
    said = capsys.readouterr().err
    assert "`trace_dtype` is a floating dtype" in said
    assert "Traceback" not in said
