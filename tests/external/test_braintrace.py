"""Gradients against braintrace: the same models and numbers, rule by rule; where the two differ, the reason has a name.

`FORETRACE_BRAINTRACE_PYTHON=/path/to/python pytest -m slow tests/external` runs it, with an interpreter in which
`import braintrace` works (`pip install braintrace==0.2.6`). Each cell of the table models x rules is taken in two
modes: in windows of three steps (`vjp_method='multi-step'`), and step by step, which is the default of both packages.
`DIFFERENCES` lists every parameter that may differ, and why; all others agree to `TOLERANCE`, in double precision. A
listed difference that is gone fails as well.
"""

import enum
import os
import subprocess
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import brainstate
import brainunit as u
import numpy as np
import pytest
import rival_models as models
from rival_gradients import CELLS, gradients

import foretrace as ft

INTERPRETER = os.environ.get("FORETRACE_BRAINTRACE_PYTHON")
TOLERANCE = 1e-5


class Reason(enum.Enum):
    """Why the two packages give different gradients."""

    REFUSED = "braintrace refuses the rule for this model or mode, or fails"
    ZERO = "step by step, braintrace gives zero to weights that reach no state except through another weight"
    DETOUR = "step by step, braintrace drops what a weight does through another weight within the step"
    TWICE = "step by step, braintrace counts what one state of a group does to another within the step twice"
    WARM_UP = "the start of pp_prop's average is corrected by the number of steps here, of calls there"
    BIAS = "pp_prop gathers the constant input of a bias here, as that of any weight; there it counts as one"
    LAST_STEP = "the last step is whole in SnAp here; there it is cut to the kept entries as well"
    REACH = "SnAp follows a parameter to all states that it reaches; there, the weight of a product to its own group"
    SAME_SIZE = "OSTLRecurrent takes neurons of one index in two layers of one size for one neuron in braintrace"
    READOUT = "e-prop does not filter a group that the outputs read without weights: it is the readout itself"
    OUTPUT = "with several states in a group, filter and modulator act here on what the group sends out, there on each"


class Difference(NamedTuple):
    """Parameters that differ in some cells, by patterns: of models, modes, rules and leaves, each a list of words."""

    reason: Reason
    model: str
    mode: str
    rule: str
    leaf: str

    def in_cell(self, model: str, mode: str, rule: str) -> bool:
        return is_one_of(self.model, model) and is_one_of(self.mode, mode) and is_one_of(self.rule, rule)


def is_one_of(words: str, name: str) -> bool:
    return any(fnmatch(name, word) for word in words.split())


REFUSED = "(refused)"  # stands for a leaf where a package gives no gradient at all
# What has no relation to a state: readouts, and weights whose output enters another product.
UNTRACED = {"gru": "Wr.*", "rnn_with_readout": "part1.*", "lru": "C_* D"}
# The other weights of these models.
TRACED = {"gru": "Wz.* Wh.*", "rnn_with_readout": "part0.*", "lru": "B_* *_log"}
# Weights that act on the state directly and through a second weight.
DETOURS = {"mgu": "Wf.*", "minimal_rnn": "phi.*", "rnn_with_readout": "part0.phi.*"}
# Layers whose states feed another one.
LOWER = {"two_layers": "part0.*", "two_equal_layers": "part0.*", "leaky_readout": "part0.*"}
# Weights that reach the second state of a group after the first one, within the step.
FIRST_STATE = {"lif_with_synapse": "*", "brainpy_lif": "*", "lstm": "Wf.* Wi.* Wg.*"}
MIXING = "leaky_rnn vanilla_rnn gru mgu minimal_rnn mini_gru cfn signed_weights sparse lora rnn_with_readout mini_lstm"
OTHERS = " ".join(name for name in models.MODELS if name not in UNTRACED)

DIFFERENCES = [
    Difference(Reason.REFUSED, "convolution", "steps", "D_RTRL EProp* OSTLRecurrent SnAp-* ThreeFactor", REFUSED),
    Difference(Reason.REFUSED, "embedded_words", "*", "SnAp-*", REFUSED),
    *(Difference(Reason.ZERO, model, "steps", "*", leaves) for model, leaves in UNTRACED.items()),
    *(Difference(Reason.DETOUR, model, "steps", "*", leaves) for model, leaves in DETOURS.items()),
    *(Difference(Reason.TWICE, model, "steps", "*", leaves) for model, leaves in FIRST_STATE.items()),
    Difference(Reason.TWICE, "lstm", "steps", "OSTLRecurrent SnAp-*", "Wo.*"),
    *(Difference(Reason.WARM_UP, model, "windows", "pp_prop", leaves) for model, leaves in TRACED.items()),
    Difference(Reason.WARM_UP, OTHERS, "windows", "pp_prop", "*"),
    Difference(Reason.BIAS, "*", "steps", "pp_prop", "*bias decay *_log"),
    Difference(Reason.LAST_STEP, MIXING, "steps", "SnAp-1", "*"),
    Difference(Reason.LAST_STEP, "two_layers two_equal_layers", "steps", "SnAp-1", "part1.*"),
    *(Difference(Reason.REACH, model, "windows", "SnAp-*", leaves) for model, leaves in DETOURS.items()),
    *(Difference(Reason.REACH, model, "*", "SnAp-*", leaves) for model, leaves in LOWER.items()),
    Difference(Reason.REACH, "gru", "windows", "SnAp-*", UNTRACED["gru"]),
    Difference(Reason.REACH, "lstm", "windows", "SnAp-1", "Wo.*"),
    Difference(Reason.REACH, "lru", "*", "SnAp-1", "B_*"),
    Difference(Reason.REACH, "lora", "windows", "SnAp-1", "first"),
    Difference(Reason.SAME_SIZE, "two_equal_layers", "*", "OSTLRecurrent", "part0.*"),
    Difference(Reason.READOUT, "two_layers two_equal_layers leaky_readout", "steps", "EProp-filtered", "part1.*"),
    Difference(Reason.OUTPUT, "lru", "steps", "EProp-filtered ThreeFactor", "B_* *_log"),
    *(Difference(Reason.OUTPUT, m, "steps", "EProp-filtered ThreeFactor", leaves) for m, leaves in FIRST_STATE.items()),
]


def reasons(model: str, mode: str, rule: str, leaf: str) -> set[Reason]:
    """Why a parameter differs in a cell; empty where it agrees."""
    return {one.reason for one in DIFFERENCES if one.in_cell(model, mode, rule) and is_one_of(one.leaf, leaf)}


def by_braintrace(model: str, path: Path) -> dict[str, np.ndarray]:
    script = Path(__file__).with_name("rival_gradients.py")
    command = [str(INTERPRETER), str(script), "braintrace", str(path), model]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    with np.load(path) as arrays:
        return dict(arrays)


def different(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray], cell: str) -> list[str]:
    """The leaves of a cell that do not agree; the mark for a refusal where there is nothing to compare."""
    if cell in theirs:
        return [REFUSED]
    assert ours.keys() == {key.removeprefix(f"{cell}/") for key in theirs if key.startswith(f"{cell}/")}
    return [leaf for leaf, value in ours.items() if not agree(value, theirs[f"{cell}/{leaf}"])]


def agree(ours: np.ndarray, theirs: np.ndarray) -> bool:
    return ours.shape == theirs.shape and bool(np.max(np.abs(ours - theirs)) <= TOLERANCE * np.max(np.abs(ours)))


@pytest.mark.slow
@pytest.mark.skipif(not INTERPRETER, reason="FORETRACE_BRAINTRACE_PYTHON names no interpreter that has braintrace")
@pytest.mark.parametrize("model", models.MODELS)
def test_gradients_agree_or_differ_for_a_named_reason(model: str, tmp_path: Path) -> None:
    theirs = by_braintrace(model, tmp_path / "theirs.npz")
    found, stated = {}, {}
    for mode, rule in CELLS:
        with brainstate.environ.context(dt=1.0 * u.ms):
            ours = gradients(ft, model, mode, rule)
        cell = f"{mode}/{rule}"
        found[cell] = different(ours, theirs, cell)
        refused = Reason.REFUSED in reasons(model, mode, rule, REFUSED)
        stated[cell] = [REFUSED] if refused else [leaf for leaf in ours if reasons(model, mode, rule, leaf)]
        for leaf in found[cell]:
            if Reason.ZERO in reasons(model, mode, rule, leaf):
                assert not np.any(theirs[f"{cell}/{leaf}"])
    assert found == stated


def agreeing(mode: str, rule: str) -> set[str]:
    """The models for which nothing is listed."""
    return {model for model in models.MODELS if not any(one.in_cell(model, mode, rule) for one in DIFFERENCES)}


def test_five_rules_agree_on_twelve_models() -> None:
    rules = ("D_RTRL", "EProp", "OSTLRecurrent", "OSTLFeedforward", "SnAp-2")
    shared = set.intersection(*(agreeing("windows", rule) for rule in rules))
    assert len(shared) >= 12


def test_every_reason_is_found() -> None:
    assert {one.reason for one in DIFFERENCES} == set(Reason)
