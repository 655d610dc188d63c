"""The demonstration trains a network online, says how it went, and leaves a picture where it was told to."""

import os
import re
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import foretrace
from foretrace.cli.demo import BPTT, ONLINE, PICTURE, compile_demo, main
from foretrace.cli.network import CUE, RECALL, STEPS, make_sequences
from foretrace.cli.training import bptt_gradient, cosine, online_gradient, train
from foretrace.compiler.history import HistoryKind

pytestmark = pytest.mark.xdist_group("demo")  # one worker runs the demonstration for all


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """What a quick run in a process of its own prints, and the folder with its picture."""
    folder = tmp_path_factory.mktemp("demo")
    environment = os.environ | {"PYTHONPATH": str(Path(foretrace.__file__).parent.parent)}
    command = [sys.executable, "-W", "error", "-m", "foretrace.cli.demo", "--quick"]
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout, folder


def test_demo_prints_the_step_and_the_report(quick):
    printed, _ = quick
    assert "def step(" in printed
    assert "history keeps" in printed


def test_demo_shows_progress_and_compares_with_bptt(quick):
    printed, _ = quick
    assert len(re.findall(r"update +\d+ +loss \d\.\d+", printed)) == 6  # three updates each
    for name in (ONLINE, BPTT):
        assert re.search(rf"^  {re.escape(name)} +\d\.\d+ +\d+\.\d% +[01]\.\d+$", printed, re.MULTILINE)


def test_demo_names_its_picture_last(quick):
    printed, folder = quick
    assert printed.strip().endswith(PICTURE)
    root = xml.etree.ElementTree.parse(folder / PICTURE).getroot()
    assert {ONLINE, BPTT, "update", "neuron"} <= {element.text for element in root.iter()}


def test_demo_shows_learned_time_constants_and_a_readout():
    learner, _ = compile_demo()
    history = {parameter.name: parameter.history for parameter in learner.graph.parameters}
    assert history.pop("w_out") is HistoryKind.NONE_NEEDED
    assert set(history.values()) == {HistoryKind.DIRECT}
    assert {"tau_v", "tau_a", "w_in", "w_rec"} == set(history)


def test_demo_refuses_a_folder_that_is_not_there(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["--output", str(tmp_path / "nowhere")])
    assert "nowhere" in capsys.readouterr().err


def test_online_gradient_starts_close_to_that_of_bptt():
    learner, params = compile_demo()
    data = make_sequences(jax.random.key(0), 32)
    found = [jax.jit(gradient)(params, data)[1] for gradient in (online_gradient(learner), bptt_gradient)]
    assert 0.99 < cosine(*found) < 1


def test_online_training_lowers_the_loss():
    learner, params = compile_demo()
    losses = [p.loss for p in train(online_gradient(learner), params, updates=40, batch=32, rate=1.5e-3, seed=1)]
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])


def test_cue_is_shown_before_the_delay_alone():
    data = make_sequences(jax.random.key(0), 64)
    cues = jnp.stack([jnp.sum(data.inputs[:, :, 10 * k : 10 * k + 10], axis=-1) for k in (0, 1)], axis=-1)
    shown = jnp.argmax(jnp.sum(cues[:CUE], axis=0), axis=-1)
    assert jnp.array_equal(shown, data.targets[0])
    delay = cues[CUE : STEPS - RECALL].mean(axis=(0, 1))
    assert jnp.allclose(delay, 0.3, atol=0.05)  # ten channels at a rate of 0.03, whatever the cue was
