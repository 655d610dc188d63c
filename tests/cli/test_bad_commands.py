"""Whatever is typed: a command that cannot be run says so in a sentence that names the word, without a traceback."""

import shlex

import pytest

from foretrace.cli import main

MODELS = """
import brainstate
import jax.numpy as jnp

number = 3
words = "words"
weights = {"w": jnp.ones((3, 3))}
rest = jnp.ones((2, 3))

def step(p, s, x): return s @ p["w"] + x, s
def grows(p, s, x): return jnp.concatenate([s, s]), s
def returns_nothing(p, s, x): pass
def makes_nothing(): return None
def breaks(): raise KeyError("inside")

class Net(brainstate.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.layer = brainstate.nn.Linear(n, n)

    def update(self, x): return self.layer(x)
"""
SMALL = "train adding --set n_steps=6 --set n_test=4 --cell RNN --hidden 3 --batch 2 --iterations 1"
STEP = "inspect models.py:step --params weights --state rest --input 2,3"
BAD = {  # what is typed, its exit code, and words of the answer
    "train": (2, "required: TASK"),
    "train nothing": (2, "no task 'nothing'"),
    "train evidence --set n_cues=many": (2, "n_cues='many'; give a whole number"),
    "train evidence --set n_cues=2.5": (2, "n_cues=2.5; give a whole number"),
    "train evidence --set n_cues=-1": (2, "n_cues=-1; give more than 0"),
    "train evidence --set n_cues=true": (2, "n_cues=True; give a whole number"),
    "train evidence --set n_cues=[1]": (2, "n_cues=(1,); give a whole number"),
    "train evidence --set delay=none": (2, "delay=None; give a finite number"),
    "train evidence --set delay=1e999": (2, "delay=inf; give a finite number"),
    "train evidence --set rate=-5": (2, "rate=-5 Hz"),
    "train evidence --set =3": (2, "not of the form NAME=VALUE"),
    "train evidence --set speed=3": (2, "no setting 'speed'"),
    "train pattern --set periods=3": (2, "give numbers in parentheses"),
    "train digits --set by=columns": (2, "give 'rows' or 'pixels'"),
    "train digits --set counted=x": (2, "give a whole number or none"),
    "train evidence --cell cortex": (2, "no cell 'CORTEX'"),
    "train evidence --cell-set threshold=high": (2, "threshold='high'; give a finite number"),
    "train evidence --cell-set tau_m=-3": (2, "`tau_m` is above 0"),
    "train evidence --cell-set refractory=-1": (2, "`refractory` is not negative"),
    "train evidence --cell-set recurrent=3": (2, "recurrent=3; give True or False"),
    "train evidence --cell-set layers=2.5": (2, "layers=2.5; give a whole number"),
    "train evidence --cell-set surrogate=box": (2, "`surrogate` is one of triangle"),
    "train evidence --cell GIF --cell-set tau_slow=3": (2, "`tau_slow` is a shortest and a longest time"),
    f"{SMALL} --hidden -3": (2, "--hidden: '-3'"),
    f"{SMALL} --lr 0": (2, "learning rate is above 0"),
    f"{SMALL} --lr inf": (2, "learning rate is above 0 and finite"),
    f"{SMALL} --clip -1": (2, "--clip is a number from 0 on"),
    f"{SMALL} --clip nan": (2, "--clip is a number from 0 on"),
    f"{SMALL} --rate-cost 1": (2, "--rate-cost needs a --rate-target"),
    f"{SMALL} --rate-cost 1 --rate-target 5": (2, "the cell has no spikes"),
    f"{SMALL} --rate-target -5": (2, "--rate-target is a number from 0 on"),
    f"{SMALL} --optimizer nothing": (2, "--optimizer: invalid choice: 'nothing'"),
    f"{SMALL} --seed x": (2, "--seed"),
    f"{SMALL} --seed 99999999999999999999": (2, "more than 64 bits"),
    f"{SMALL} --rule nothing": (2, "no rule `nothing`"),
    f"{SMALL} --rule D_RTRL,pp_prop": (2, "`foretrace compare` takes several"),
    f"{SMALL} --rule ''": (2, "no rule"),
    f"{SMALL} --rule pp_prop:decay_or_rank=2.5": (2, "`decay_or_rank` is 2.5"),
    f"{SMALL} --rule pp_prop:x": (2, "not of the form NAME=VALUE"),
    f"{SMALL} --rule BPTT --rule-set x=1": (2, "BPTT has no option `x`"),
    f"{SMALL} --stop soon": (2, "no goal such as"),
    f"{SMALL} --no-folder --resume": (2, "--no-folder saves nothing"),
    f"{SMALL} --folder ''": (2, "the name of the folder is empty"),
    f"{SMALL} --folder models.py": (2, "'models.py' is a file, not a folder"),
    f"{SMALL} --folder models.py/run": (1, "Cannot write `models.py/run`"),
    f"{SMALL} --iterations 0": (2, "--iterations is at least 1"),
    "compare adding --rules ''": (2, "Name at least one rule"),
    "compare adding --rules D_RTRL --resume": (2, "say which with --folder"),
    "inspect nothing": (2, "names no model"),
    "inspect nothing.py:Net": (2, "no file `nothing.py`"),
    "inspect syntax.py:f": (1, "`syntax.py` cannot be imported: SyntaxError"),
    "inspect exits.py:f": (1, "`exits.py` cannot be imported: SystemExit: bye"),
    "inspect models.py:other": (2, "`models.py` has no `other`. It has step"),
    "inspect models.py:number": (2, "is a int; name a module"),
    "inspect models.py:makes_nothing": (2, "is a NoneType; name a module"),
    "inspect models.py:breaks": (1, "`breaks` raised KeyError: 'inside'"),
    "inspect models.py:Net": (2, "`Net` takes (n)"),
    "inspect models.py:Net --args '[]' --input 2,3": (1, "`Net` raised "),
    "inspect models.py:Net --args 3 --input 2,3 --batch 5": (2, "the first axis is the batch"),
    "inspect models.py:step --params weights --state words --input 2,3": (2, "`words` beside `step` holds a str"),
    "inspect models.py:step --params nothing --state rest": (2, "no `nothing` beside it"),
    "inspect models.py:grows --params weights --state rest --input 2,3": (1, "leaves the step as"),
    "inspect models.py:returns_nothing --params weights --state rest --input 2,3": (1, "returns a pair"),
    "inspect models.py:step --params weights --state rest --input 7": (1, "cannot be traced with the example input"),
    f"{STEP} --input x": (2, "'x' is no shape"),
    f"{STEP} --html nowhere/x.html": (2, "there is no folder 'nowhere'"),
    f"{STEP} --rule nothing.py:Mine": (2, "There is no file `nothing.py`"),
    f"{STEP} --rule models.py:step": (2, "`models.py:step` is no rule"),
    f"{STEP} --level 9": (2, "(choose from 0, 1, 2, 3)"),
    "bench --sizes ''": (2, "--sizes"),
    "bench --cell nothing": (2, "no cell 'nothing'"),
    "bench --cell-set tau_m=x --sizes 2": (2, "tau_m='x'; give a finite number"),
    "bench --json nowhere/x.json": (2, "there is no folder 'nowhere'"),
    "bench --plot .": (2, "'.' is no name of a file"),
    "tasks evidence --plot x.doc": (1, "end the name in .svg"),
    "tasks --format xml": (2, "--format: invalid choice: 'xml'"),
    "rules D_RTRL": (2, "there is no argument D_RTRL"),
    "demo --output models.py/x": (2, "cannot make the folder `models.py/x`"),
}


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A folder with models, and with files that are none."""
    folder = tmp_path_factory.mktemp("here")
    (folder / "models.py").write_text(MODELS)
    (folder / "syntax.py").write_text("def f(:\n")
    (folder / "exits.py").write_text("raise SystemExit('bye')\n")
    return folder


@pytest.mark.parametrize("typed", BAD)
def test_bad_command_is_answered_in_a_sentence(typed, here, monkeypatch, capsys):
    monkeypatch.chdir(here)
    code, said = BAD[typed]
    assert main(shlex.split(typed)) == code
    answer = capsys.readouterr().err
    assert said in answer
    assert "Traceback" not in answer
    assert "[Errno" not in answer
