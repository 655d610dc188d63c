"""Learning curves show what runs recorded, from wherever they recorded it."""

import json

import numpy as np
import pytest

from foretrace.train import Result
from foretrace.viz import learning_curves


def records(count=10, **more):
    return [{"iteration": k, "loss": 1 / k, "error": 0.5 / k, **more} for k in range(1, count + 1)]


def names(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_a_line_for_each_run_and_axes_for_each_metric():
    figure = learning_curves({"D_RTRL": records(), "BPTT": records(5)})
    loss, error = figure.axes
    assert [axes.get_ylabel() for axes in (loss, error)] == ["loss", "error (fraction of trials)"]
    assert {axes.get_xlabel() for axes in figure.axes} == {"iteration"}
    assert [len(line.get_xdata()) for line in error.lines] == [10, 5]
    np.testing.assert_allclose(loss.lines[0].get_ydata(), 1 / np.arange(1, 11))
    assert names(loss) == ["D_RTRL", "BPTT"]


def test_metrics_are_read_from_results_files_and_folders(tmp_path):
    own = records(4)
    (tmp_path / "metrics.jsonl").write_text(
        "".join(json.dumps(record) + "\n" for record in own) + '{"iteration": 5, "lo'
    )
    result = Result(params=None, metrics=own, state=None, stopped_because="iterations")
    runs = {"result": result, "file": tmp_path / "metrics.jsonl", "folder": str(tmp_path)}
    lines = learning_curves(runs, "loss").axes[0].lines
    assert [line.get_ydata().tolist() for line in lines] == [[1, 1 / 2, 1 / 3, 1 / 4]] * 3


def test_the_mean_is_drawn_beside_pale_single_values():
    values = [0.0, 3.0, 0.0, 3.0, 0.0]
    run = [{"loss": value} for value in values]
    axes = learning_curves({"a": run}, smooth=3).axes[0]
    raw, mean = axes.lines
    assert raw.get_ydata().tolist() == values
    assert raw.get_alpha() < 0.5
    assert mean.get_ydata().tolist() == [1.5, 1.0, 2.0, 1.0, 1.5]
    assert names(axes) == ["a", "pale: before the mean of 3"]


def test_a_mean_over_more_than_there_is_keeps_the_length():
    line = learning_curves({"a": records(4)}, "loss", smooth=99).axes[0].lines[1]
    assert len(line.get_ydata()) == 4


def test_a_goal_is_a_line_across_the_axes_of_its_metric():
    loss, error = learning_curves({"a": records()}, goal=("error", "<", 0.07)).axes
    assert len(loss.lines) == 1
    assert set(error.lines[1].get_ydata()) == {0.07}
    assert [text.get_text() for text in error.texts] == ["goal\n< 0.07"]


def test_validations_are_open_markers_where_they_were_made():
    run = records(4)
    run[1]["validation_loss"], run[3]["validation_loss"] = 0.9, 0.8
    axes = learning_curves({"a": run}, "loss").axes[0]
    marks = axes.lines[1]
    assert (marks.get_xdata().tolist(), marks.get_ydata().tolist()) == ([2, 4], [0.9, 0.8])
    assert marks.get_linestyle() == "None"
    assert names(axes) == ["a", "open marker: validation"]


def test_what_was_not_measured_leaves_a_gap():
    run = records(3)
    run[1]["loss"] = None
    assert learning_curves({"a": run}, "loss").axes[0].lines[0].get_xdata().tolist() == [1, 3]


def test_rates_have_their_unit():
    assert learning_curves({"a": records(rate=10.0)}, ["rate"]).axes[0].get_ylabel() == "rate (Hz)"


@pytest.mark.parametrize(
    ("runs", "options", "said"),
    [
        ({}, {}, "at least one"),
        ({"a": []}, {}, "`a` has no records"),
        ({"a": 3}, {}, "`a` is a int"),
        ({"a": "nowhere.jsonl"}, {}, "no file of metrics at `nowhere.jsonl`"),
        ({"a": records()}, {"metrics": "accuracy"}, "No run has the metric `accuracy`. There are `loss`, `error`"),
        ({"a": records()}, {"metrics": []}, "No metrics were asked for"),
        ({"a": records()}, {"goal": ("error", 0.07)}, "A goal is"),
        ({"a": records()}, {"smooth": 0}, "`smooth`"),
    ],
)
def test_what_cannot_be_drawn_is_named(runs, options, said):
    with pytest.raises(ValueError, match=said):
        learning_curves(runs, **options)


def test_a_broken_line_is_named(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"loss": 1}\nno json\n{"loss": 2}\n')
    with pytest.raises(ValueError, match=r"Line 2 of .*metrics\.jsonl"):
        learning_curves({"a": file})
