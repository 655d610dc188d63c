"""What the report says, as facts: names, words, numbers and filters, never whole texts."""

import io
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from foretrace.compiler.reporting.report import CompilationReport
from foretrace.compiler.reporting.tables import WIDTH, table, wrap
from foretrace.compiler.reporting.text import _letters, _ranges
from foretrace.entry import compile_etrace_graph
from foretrace.program.diagnostics import CompilationRecord, DiagnosticKind, DiagnosticLevel

BATCH, INPUT, UNITS = 2, 3, 5
LEVELS = (0, 1, 2, 3)


@jax.custom_jvp
def spike(potential):
    return (potential > 0).astype(potential.dtype)


@spike.defjvp
def _spike_jvp(primals, tangents):
    return spike(*primals), tangents[0] / (1.0 + primals[0] ** 2)


def drawn(*shape):
    return jnp.asarray(np.random.default_rng(len(shape)).normal(size=shape))


def compiled(step, state, x=None, **shapes):
    params = {name: drawn(*shape) for name, shape in shapes.items()}
    return compile_etrace_graph(step, drawn(BATCH, INPUT) if x is None else x, params=params, state=state)


def gru(params, state, x):
    def gate(name, h):
        return x @ params[f"w_{name}"] + h @ params[f"u_{name}"]

    h = state["h"]
    z, r = jax.nn.sigmoid(gate("z", h)), jax.nn.sigmoid(gate("r", h))
    h = (1.0 - z) * h + z * jnp.tanh(gate("n", r * h))
    return {"h": h}, h @ params["w_out"] + 0.0 * params["unused"].shape[0]


@pytest.fixture(scope="module")
def gated():
    """A GRU with a readout and a parameter that is never used: every kind of history but `all`."""
    shapes = {f"w_{gate}": (INPUT, UNITS) for gate in "zrn"} | {f"u_{gate}": (UNITS, UNITS) for gate in "zrn"}
    return compiled(gru, {"h": drawn(BATCH, UNITS)}, **shapes, w_out=(UNITS, 2), unused=(4,))


@pytest.fixture(scope="module")
def stack():
    """Two layers of spiking neurons, the states and parameters in trees."""

    def step(params, state, x):
        v0 = 0.9 * state["layers"][0]["v"] + x @ params["layers"][0]["w"]
        v1 = params["layers"][1]["decay"] * state["layers"][1]["v"] + spike(v0) @ params["layers"][1]["w"]
        return {"layers": [{"v": v0}, {"v": v1}]}, v1

    params = {"layers": [{"w": drawn(INPUT, UNITS)}, {"w": drawn(UNITS, 4), "decay": drawn(4)}]}
    state = {"layers": [{"v": drawn(BATCH, UNITS)}, {"v": drawn(BATCH, 4)}]}
    return compile_etrace_graph(step, drawn(BATCH, INPUT), params=params, state=state)


@pytest.fixture(scope="module")
def leaky():
    """A leaky integrator with a readout: everything is exact."""

    def step(params, state, x):
        v = jax.nn.sigmoid(params["decay"]) * state + x @ params["w"]
        return v, v @ params["w_out"]

    return compiled(step, drawn(BATCH, UNITS), w=(INPUT, UNITS), decay=(UNITS,), w_out=(UNITS, 2))


def row_of(graph, name, level=1):
    """The line of the parameters' table that begins with a name."""
    return next(line for line in graph.explain(level).to_str().split("\n") if line.split()[:1] == [name])


def test_every_parameter_and_state_is_named(gated, stack):
    for graph in (gated, stack):
        text = str(graph.explain(level=2))
        leaves = (*graph.program.params, *graph.program.hidden)
        assert all(leaf.name in text for leaf in leaves)


def test_each_parameter_has_one_row_with_its_shape(gated):
    for parameter in gated.parameters:
        shape = str(gated.program.params[parameter.index].aval.shape)
        assert shape in row_of(gated, parameter.name)


@pytest.mark.parametrize(
    ("name", "words"),
    [("u_z", "direct paths"), ("u_r", "in-step only"), ("w_out", "no history needed")],
)
def test_history_is_said_in_words(gated, name, words):
    assert words in row_of(gated, name)


def test_whole_history_is_called_all(leaky):
    assert " all " in row_of(leaky, "w")


def test_states_reached_are_said(gated, stack):
    assert "none directly" in row_of(gated, "u_r")
    assert " none " in row_of(gated, "w_out")
    assert row_of(stack, "layers[0].w").split().count("layers[0].v") == 1


@pytest.mark.parametrize(
    ("name", "formula"),
    [("w_z", "input @ w_z"), ("u_z", "h @ u_z"), ("w_out", "new h @ w_out"), ("u_n", "f(h, input) @ u_n")],
)
def test_where_a_parameter_enters_is_a_formula(gated, name, formula):
    assert formula in row_of(gated, name)


def test_functions_of_one_value_are_written_out(leaky):
    assert "sigmoid(decay) * state" in row_of(leaky, "decay")


def test_unused_parameter_enters_nowhere(gated):
    assert "nowhere" in row_of(gated, "unused")


def test_spikes_are_called_spikes(stack):
    assert "spikes(layers[0].v) @ w" in row_of(stack, "layers[1].w")


def test_spikes_of_one_group_need_no_state():
    def step(params, state, x):
        v = 0.9 * state["v"] + x @ params["w"] + (state["v"] > 1.0).astype(x.dtype) @ params["u"]
        return {"v": v}, v

    graph = compiled(step, {"v": drawn(BATCH, UNITS)}, w=(INPUT, UNITS), u=(UNITS, UNITS))
    assert "spikes @ u" in row_of(graph, "u")


@pytest.mark.parametrize(
    ("enter", "shape", "formula"),
    [
        (lambda w, v, x: jnp.tanh(x) @ jnp.abs(w), (INPUT, UNITS), "tanh(input) @ abs(w)"),
        (lambda w, v, x: x @ w.T, (UNITS, INPUT), "input @ w"),
        (lambda w, v, x: x @ (w / jnp.sum(w)), (INPUT, UNITS), "input @ f(w)"),
        (lambda w, v, x: w + v, (UNITS,), "v + w"),
        (lambda w, v, x: v - w, (UNITS,), "v - w"),
        (lambda w, v, x: v / w, (UNITS,), "v / w"),
        (lambda w, v, x: jnp.maximum(v, w), (UNITS,), "elementwise w, in `max`"),
        (lambda w, v, x: jnp.where(v > 0, w, v), (UNITS,), "elementwise w, in `where`"),
        (lambda w, v, x: w[jnp.argmax(x, -1)], (INPUT, UNITS), "embedding w[input]"),
    ],
)
def test_ways_to_enter(enter, shape, formula):
    def step(params, state, x):
        v = 0.5 * state["v"] + enter(params["w"], state["v"], x)
        return {"v": v}, v

    assert formula in row_of(compiled(step, {"v": drawn(BATCH, UNITS)}, w=shape), "w")


def test_convolution_is_called_so():
    def step(params, state, x):
        v = 0.5 * state["v"] + jax.lax.conv(x, params["kernel"], (1,), "SAME")
        return {"v": v}, v

    graph = compiled(step, {"v": drawn(BATCH, 4, 6)}, x=drawn(BATCH, 2, 6), kernel=(4, 2, 3))
    assert "convolution of input" in row_of(graph, "kernel")


def test_repeated_entries_are_counted():
    def step(params, state, x):
        v = jax.lax.fori_loop(0, 3, lambda _, v: 0.9 * v + x @ params["w"], state)
        return v, v

    assert "input @ w (3 times)" in row_of(compiled(step, drawn(BATCH, UNITS), w=(INPUT, UNITS)), "w")


def test_exact_model_equals_bptt(leaky):
    assert "equals BPTT" in leaky.explain(0).to_str()


def test_approximate_parameters_are_named(stack):
    verdict = stack.explain(0).to_str().split("\n")[1]
    assert "equals BPTT" not in verdict
    assert "layers[0].w" in verdict
    assert "layers[1].w" not in verdict


def test_shared_reasons_stand_below_the_table_once(gated):
    lines = gated.explain().to_str().split("\n")
    notes = [line for line in lines if line.startswith("(")]
    reasons = {reason for parameter in gated.parameters for reason in parameter.reasons}
    assert {note.split(") ")[1] for note in notes} == reasons
    for letter in "abcdefgh"[: len(notes)]:
        assert any(f"({letter})" in line and line not in notes for line in lines)


def test_marks_of_notes_are_no_indices_of_parameters():
    def step(params, state, x):
        state = 0.9 * state + jnp.tanh(x @ params[0] + state @ params[1])
        return state, state

    params = (drawn(INPUT, UNITS), drawn(UNITS, UNITS))
    text = compile_etrace_graph(step, drawn(BATCH, INPUT), params=params, state=drawn(BATCH, UNITS)).explain().to_str()
    assert "(a) `state` feeds back to `state` through mixing" in text
    assert {line.split()[0] for line in text.split("\n") if "[1]" in line} == {"params[1]"}


def test_there_are_marks_for_more_notes_than_letters():
    assert [_letters(number) for number in (1, 26, 27, 52, 53)] == ["a", "z", "aa", "az", "ba"]
    assert _ranges([5, 1, 2, 3]) == "(a-c) (e)"


def test_single_reason_stands_in_the_table(stack):
    text = stack.explain().to_str()
    assert "(a) " not in text
    assert "reaches `layers[1].v`" in text


def test_reasons_that_differ_in_the_last_name_are_merged():
    def step(params, state, x):
        z = x @ params["w"] + state["h"] @ params["u"]
        c = state["c"] + jnp.tanh(z)
        return {"c": c, "h": jnp.tanh(c)}, c

    state = {"c": drawn(BATCH, UNITS), "h": drawn(BATCH, UNITS)}
    graph = compiled(step, state, w=(INPUT, UNITS), u=(UNITS, UNITS))
    assert len(graph.parameters[0].reasons) == 2
    assert "(a) `h` feeds back to `c`, `h` through mixing" in graph.explain().to_str()
    assert "(b)" not in graph.explain().to_str()


def test_levels_nest(gated):
    texts = [gated.explain(level).to_str() for level in LEVELS]
    assert sorted(texts, key=len) == texts
    for lower, higher in itertools.pairwise(texts):
        assert set(lower.split("\n")) <= set(higher.split("\n"))


def test_summary_has_two_lines(gated, stack, leaky):
    for graph in (gated, stack, leaky):
        assert len(graph.explain(0).to_str().split("\n")) == 2


def test_lines_keep_within_the_width(gated, stack, leaky):
    lines = [line for graph in (gated, stack, leaky) for line in graph.explain(3).to_str().split("\n")]
    assert max(map(len, lines)) <= WIDTH


def test_long_names_keep_within_the_width():
    name = "a_layer_with_a_very_long_name." * 4 + "w"

    def step(params, state, x):
        v = 0.5 * state[name] + jnp.tanh(state[name]) @ params[name] + params["b"]
        return {name: v}, v

    graph = compiled(step, {name: drawn(BATCH, UNITS)}, **{name: (UNITS, UNITS), "b": (UNITS,)})
    assert all(len(line) <= WIDTH for level in LEVELS for line in graph.explain(level).to_str().split("\n"))


def test_warnings_are_counted_and_shown(gated):
    warnings = [record for record in gated.diagnostics if record.level is DiagnosticLevel.WARNING]
    assert len(warnings) > 1
    assert f"{len(warnings)} warnings" in gated.explain(0).to_str()
    shown = " ".join(gated.explain(1).to_str().split())
    assert all(record.message in shown for record in warnings)


def test_all_diagnostics_are_shown_at_the_last_level(gated):
    shown = " ".join(gated.explain(3).to_str().split())
    assert all(record.message in shown for record in gated.diagnostics)


def test_groups_are_described_at_level_two(stack):
    added = set(stack.explain(2).to_str().split("\n")) - set(stack.explain(1).to_str().split("\n"))
    rows = [line for line in added if "aligned" in line]
    assert len(rows) == len(stack.hidden_groups)
    assert all(any(str(group.varshape) in row for row in rows) for group in stack.hidden_groups)


def test_text_is_the_same_every_time(gated):
    assert str(gated.explain(3)) == str(gated.explain(3)) == gated.explain(0).to_str(3)


def test_report_is_the_sequence_of_diagnostics(gated):
    report = gated.explain()
    assert len(report) == len(gated.diagnostics)
    assert tuple(report) == gated.diagnostics == report.diagnostics
    assert report[0] is gated.diagnostics[0]
    assert report[-2:] == gated.diagnostics[-2:]
    assert gated.diagnostics[1] in report
    assert all(isinstance(record, CompilationRecord) for record in report)


def test_report_without_diagnostics_is_true(gated):
    report = gated.explain(kind=DiagnosticKind.COND_KEPT)
    assert len(report) == 0
    assert report


@pytest.mark.parametrize("path", [("u_r",), ["u_r"], "u_r"])
def test_weight_path_filters(gated, path):
    report = gated.explain(weight_path=path)
    assert {record.weight_path for record in report} == {("u_r",)}
    assert [parameter.name for parameter in report.parameters] == ["u_r"]
    assert "h @ u_z" not in str(report)


def test_path_of_a_branch_takes_everything_below(stack):
    report = stack.explain(weight_path="layers[1]")
    assert {parameter.name for parameter in report.parameters} == {"layers[1].w", "layers[1].decay"}


def test_hidden_path_filters(stack):
    report = stack.explain(hidden_path=("layers", 0, "v"))
    assert [parameter.name for parameter in report.parameters] == ["layers[0].w"]
    assert all(("layers", 0, "v") in record.hidden_paths for record in report)
    assert report.hidden_groups == [(0, [("layers", 0, "v")])]


@pytest.mark.parametrize("kind", [DiagnosticKind.PARAMETER_UNUSED, "parameter_unused"])
def test_kind_filters(gated, kind):
    report = gated.explain(kind=kind)
    assert [record.weight_path for record in report] == [("unused",)]


def test_diagnostics_asked_for_by_kind_are_listed(gated):
    report = gated.explain(kind="relation_included")
    assert "`u_z` reaches `h`" in str(report)
    assert "`u_z` reaches `h`" not in str(gated.explain())


def test_missing_path_names_the_nearest(gated, stack):
    with pytest.raises(ValueError, match="w_out"):
        gated.explain(weight_path="w_outt")
    with pytest.raises(ValueError, match=r"layers\[1\]\.v"):
        stack.explain(hidden_path=("layers", 1, "vv"))
    with pytest.raises(ValueError, match="parameter_unused"):
        gated.explain(kind="parameter_unusd")


@pytest.mark.parametrize("level", [-1, 4, 1.5, "all"])
def test_wrong_level_is_refused(gated, level):
    with pytest.raises(ValueError, match="level"):
        gated.explain(level)
    with pytest.raises(ValueError, match="level"):
        gated.explain().to_str(level)


def test_weights_are_either_traced_or_excluded(gated):
    report = gated.explain()
    traced, excluded = dict(report.etrace_weights), dict(report.excluded_weights)
    assert {path[0] for path in traced} == {"w_z", "u_z", "w_n", "u_n"}
    assert all(groups == [0] for groups in traced.values())
    assert {path[0]: kind for path, kind in excluded.items()} == {
        "w_r": DiagnosticKind.RELATION_EXCLUDED_WEIGHT_TO_WEIGHT,
        "u_r": DiagnosticKind.RELATION_EXCLUDED_WEIGHT_TO_WEIGHT,
        "w_out": DiagnosticKind.RELATION_EXCLUDED_NON_TEMPORAL,
        "unused": DiagnosticKind.PARAMETER_UNUSED,
    }


def test_counts(gated):
    counts = gated.explain().counts
    assert counts["hidden_groups"] == 1
    assert counts["etrace_weights"] + counts["excluded_weights"] == len(gated.parameters)
    assert counts["errors"] == 0
    assert counts[DiagnosticKind.RELATION_INCLUDED] == 4
    assert sum(counts.get(kind, 0) for kind in DiagnosticKind) == len(gated.diagnostics)


def test_states_without_credit_are_listed():
    def step(params, state, x):
        v = 0.9 * state["v"] + x @ params["w"]
        return {"v": v, "count": state["count"] + 1}, v

    state = {"v": drawn(BATCH, UNITS), "count": jnp.zeros((), int)}
    report = compiled(step, state, w=(INPUT, UNITS)).explain()
    assert report.dynamic_states == [("count",)]
    assert report.hidden_groups == [(0, [("v",)])]


def test_show_prints(gated, capsys):
    file = io.StringIO()
    report = gated.explain(2)
    report.show(file=file)
    report.show(0)
    assert file.getvalue() == report.to_str() + "\n"
    assert capsys.readouterr().out == report.to_str(0) + "\n"


def test_report_needs_no_more_than_a_graph(leaky):
    assert str(CompilationReport(leaky)) == str(leaky.explain())


def test_wrap_loses_no_character():
    text = "some.very_long.name and `others`, " * 5
    for width in (4, 9, 30):
        lines = wrap(text, width)
        assert max(map(len, lines)) <= width
        assert "".join("".join(lines).split()) == "".join(text.split())


def test_table_narrows_its_widest_columns():
    lines = table(["a", "b", "c"], [["x" * 60, "short", "word " * 40]], [80, 80, 200], width=50)
    assert max(map(len, lines)) <= 50
    assert any("short" in line for line in lines)
