"""Without the optional packages every command works, or says in a sentence which one to install."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import foretrace

# Answers each command that it is given, in a Python that does not have some packages.
PROGRAM = """
import contextlib, io, json, shlex, sys

missing, commands = json.loads(sys.stdin.read())

class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, *rest):
        return None if name.split(".")[0] in missing else self.finder.find_spec(name, *rest)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
from foretrace.cli import main

for command in commands:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(shlex.split(command))
    print(json.dumps([code, out.getvalue(), err.getvalue()]), flush=True)
"""
EXTRAS = ["matplotlib", "optax", "safetensors", "brainpy", "brainpy_state", "sklearn", "mlxtend", "sktime"]
EXTRAS += ["brainstate", "brainunit", "saiunit", "brainevent", "numba"]
SMALL = "adding --set n_steps=6 --set n_test=4 --cell RNN --hidden 3 --batch 2 --iterations 1 --quiet"
BENCH = "bench --sizes 2 --inputs 2 --batch 1 --steps 2 --repeats 1 --rules BPTT"
STEP = "inspect model.py:step --input 3"
MODEL = """
import jax.numpy as jnp

params, state = {"w": jnp.ones((3, 4))}, jnp.zeros(4)


def step(params, state, x):
    state = 0.9 * state + x @ params["w"]
    return state, state


def layers():
    import foretrace

    return foretrace.nn.GRUCell(3, 4)
"""
WORKS = ""
ANSWERS = {
    "nothing": (
        EXTRAS,
        {
            "--version": WORKS,
            "--help": WORKS,
            "rules": WORKS,
            "tasks": WORKS,
            "tasks evidence": WORKS,
            "tasks evidence --plot trial.svg": "foretrace[viz]",
            STEP: WORKS,
            f"{STEP} --html page.html": WORKS,
            "inspect brainstate.nn:GRUCell": "`brainstate.nn` needs brainstate: pip install 'foretrace[brainstate]'",
            "inspect module.py:Net": "`module.py` needs brainstate: pip install 'foretrace[brainstate]'",
            "inspect model.py:layers": "`foretrace.nn` needs brainstate: pip install 'foretrace[brainstate]'",
            f"train {SMALL}": "foretrace[train]",
            f"compare {SMALL}": "foretrace[train]",
            "demo --quick": "foretrace[train]",
            BENCH: WORKS,
            f"{BENCH} --plot memory.svg": "needs matplotlib: pip install 'foretrace[viz]'",
        },
    ),
    "an optimizer alone": (
        [name for name in EXTRAS if name != "optax"],
        {
            f"train {SMALL} --folder run": "foretrace[train]",
            f"train {SMALL} --no-folder --rule BPTT": WORKS,
            "train digits --iterations 1 --no-folder": "foretrace[data]",
            "train mnist --iterations 1 --no-folder": "foretrace[data]",
            "train vowels --iterations 1 --no-folder": "foretrace[data]",
        },
    ),
}


@pytest.mark.parametrize("installed", ANSWERS)
def test_commands_work_or_name_the_package(installed, tmp_path):
    missing, wanted = ANSWERS[installed]
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "module.py").write_text("import brainstate\n\nNet = brainstate.nn.GRUCell(3, 4)\n")
    environment = os.environ | {"PYTHONPATH": str(Path(foretrace.__file__).parent.parent)}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps([missing, list(wanted)]),
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=400,
    )
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(answers) == len(wanted), run.stderr
    for (command, said), (code, out, err) in zip(wanted.items(), answers, strict=True):
        assert code == (1 if said else 0), (command, err)
        assert not (said and command.startswith("bench") and out), "it measures before it looks for what it needs"
        assert said in err
        assert ("pip install" in err) == bool(said), (command, err)
        assert "Traceback" not in err
        assert err.count("\n") <= 2, (command, err)
