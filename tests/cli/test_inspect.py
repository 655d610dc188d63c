"""`foretrace inspect` finds models by name, and says what the compiler found in them."""

import json
from pathlib import Path

import pytest

from foretrace.cli import main
from foretrace.cli.loading import call_arguments, load, shape_of

MODELS = Path(__file__).parent / "models.py"


def inspected(capsys, name, *arguments):
    assert main(["inspect", f"{MODELS}:{name}", "--format", "json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def names(facts):
    return {parameter["name"] for parameter in facts["parameters"]}


STEP = {"<b>", 'w"</script>'}
NET = {"cell.W.weight.weight", "cell.W.weight.bias", "readout.weight.weight", "readout.weight.bias"}


@pytest.mark.parametrize(
    ("name", "arguments", "found"),
    [
        ("Net", ["--input", "2,3"], NET),
        ("Net", ["--args", "5, n_out=1", "--input", "2,5"], NET),
        ("Net", ["--input", "3", "--batch", "0"], NET),
        ("step", ["--input", "2,3"], STEP),
        ("step", ["--input", "2,3", "--state", "rest"], STEP),
        ("make", [], STEP),
        ("network", ["--args", "4"], {"w_in", "w_rec", "w_out", "b_out"}),
        ("learner", [], STEP),
    ],
    ids=["class", "args", "no batch", "step", "named state", "tuple", "record", "learner"],
)
def test_model_is_found(name, arguments, found, capsys):
    assert names(inspected(capsys, name, *arguments)) == found


def test_module_is_found_by_its_dotted_name(capsys):
    assert main(["inspect", "brainstate.nn:GRUCell", "--args", "3, 4", "--batch", "2", "--level", "0"]) == 0
    assert "4 parameters, 1 state in 1 group" in capsys.readouterr().out


def test_states_of_a_module_have_the_batch_of_its_input(capsys):
    assert inspected(capsys, "Net", "--input", "2,3")["groups"][0]["shape"] == [2, 4]


def test_traces_of_d_rtrl_are_counted_by_parameter(capsys):
    facts = inspected(capsys, "make")
    sizes = {p["name"]: p["trace_bytes"] for p in facts["parameters"]}
    assert sizes == {"<b>": 2 * 3 * 4 * 8, 'w"</script>': 2 * 4 * 4 * 8}  # batch x weights, float64
    assert facts["rule"] == {"name": "D_RTRL", "trace_bytes": sum(sizes.values())}


def test_factors_of_pp_prop_are_counted_by_parameter(capsys):
    facts = inspected(capsys, "make", "--rule", "pp_prop", "--rule-set", "decay_or_rank=0.5")
    sizes = {p["name"]: p["trace_bytes"] for p in facts["parameters"]}
    assert sizes == {"<b>": 2 * (3 + 4) * 8, 'w"</script>': 2 * (4 + 4) * 8}  # batch x (inputs + outputs)


def test_rule_with_one_trace_for_all_has_a_total_alone(capsys):
    facts = inspected(capsys, "make", "--rule", "uoro")
    assert {p["trace_bytes"] for p in facts["parameters"]} == {None}
    assert facts["rule"]["trace_bytes"] > 0


def test_text_is_the_report_and_the_cost(capsys):
    assert main(["inspect", f"{MODELS}:make", "--code"]) == 0
    said = capsys.readouterr().out
    for part in ("history keeps", "Traces of D_RTRL: 448 B (<b> 192 B", "def step(params, hidden, other, inputs):"):
        assert part in said


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("Nothing", [], "It has Net, step, state, make, network."),
        ("number", [], "The target is a int"),
        ("Net", ["--args", "1, 2, 3, 4"], "takes (n_in=3, n_out=2)"),
        ("network", [], "takes (n_hidden): give its arguments"),
        ("Net", [], "--input 16,3"),
        ("Net", ["--input", "2,3", "--batch", "4"], "the first axis is the batch"),
        ("make", ["--batch", "2"], "--batch is for modules"),
        ("step", ["--state", "nowhere"], "no `nowhere` beside it"),
    ],
)
def test_what_cannot_be_inspected_is_wrong_usage(name, arguments, said, capsys):
    assert main(["inspect", f"{MODELS}:{name}", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_file_that_fails_is_a_failure_with_its_error(tmp_path, capsys):
    (tmp_path / "wrong.py").write_text("import nothing_of_the_kind\n")
    assert main(["inspect", f"{tmp_path / 'wrong.py'}:Net"]) == 1
    assert "ModuleNotFoundError: No module named 'nothing_of_the_kind'" in capsys.readouterr().err


def test_file_may_import_files_beside_it(tmp_path):
    (tmp_path / "beside_it.py").write_text("value = 3\n")
    (tmp_path / "inspected_here.py").write_text("from beside_it import value\n")
    assert load(f"{tmp_path / 'inspected_here.py'}:value")[0] == 3


def test_shapes_and_arguments_are_read():
    assert shape_of("16,3:int32") == ((16, 3), "int32")
    assert call_arguments("1, [2], a='b'") == ([1, [2]], {"a": "b"})


@pytest.mark.parametrize(("option", "value"), [("--input", "3,x"), ("--input", "0"), ("--args", "open('x')")])
def test_values_that_are_none_are_wrong_usage(option, value, capsys):
    assert main(["inspect", "a:b", option, value]) == 2
    assert "is no" in capsys.readouterr().err
