"""Pictures of tables: gradients beside BPTT, memory against length."""

import math

import numpy as np
import pytest

from foretrace import ComparedGradient, GradientComparison, HistoryKind
from foretrace.viz import gradient_agreement, memory_against_length


def comparison(rule, cosines, names=("w_in", "w_rec")):
    kinds = (HistoryKind.ALL, HistoryKind.DIRECT)
    rows = tuple(
        ComparedGradient(name, cosine, 2 * cosine, 1.0, 1.0, kind)
        for name, cosine, kind in zip(names, cosines, kinds, strict=True)
    )
    return GradientComparison(rule, rows, ComparedGradient("overall", 0.5, 1.0, 1.0, 1.0))


def written(axes, columns):
    """The texts of the cells, row by row."""
    texts = [text.get_text() for text in axes.texts if text.get_text() != "history keeps"]
    return [texts[at : at + columns] for at in range(0, len(texts), columns)]


def test_every_cell_has_its_number():
    figure = gradient_agreement([comparison("D_RTRL", (1.0, 0.9)), comparison("UORO", (-0.25, math.nan))])
    cosine, ratio = figure.axes
    assert written(cosine, 2) == [["1.000", "-0.250"], ["0.900", "-"], ["0.500", "0.500"]]
    assert written(ratio, 2) == [["2.000", "-0.500"], ["1.800", "-"], ["1.000", "1.000"]]
    assert [text.get_text() for text in cosine.get_xticklabels()] == ["D_RTRL", "UORO"]
    assert [text.get_text() for text in cosine.get_yticklabels()] == ["w_in", "w_rec", "overall"]
    assert [text.get_text() for text in ratio.get_yticklabels()] == ["all", "direct paths", ""]


def test_cells_are_darker_the_further_from_bptt():
    cosine, ratio = gradient_agreement([comparison("a", (1.0, 0.25)), comparison("b", (0.5, -0.5))]).axes
    shades = np.asarray(cosine.images[0].get_array())
    assert shades[0, 0] == 0 < shades[0, 1] < shades[1, 0] < shades[1, 1] == 1
    shades = np.asarray(ratio.images[0].get_array())
    assert shades[:, 0].tolist() == [1, 1, 0]  # twice the norm, half, the same


def test_a_single_comparison_and_names_of_ones_own():
    assert written(gradient_agreement(comparison("a", (1.0, 0.5))).axes[0], 1) == [["1.000"], ["0.500"], ["0.500"]]
    figure = gradient_agreement({"decay 0.9": comparison("a", (1.0, 1.0)), "decay $9$": comparison("a", (1.0, 1.0))})
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["decay 0.9", r"decay \$9\$"]


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ([], ValueError, "empty"),
        ({"a": 1}, TypeError, "compare_gradients.*got int"),
        ([comparison("a", (1.0, 1.0))] * 2, ValueError, "same rule"),
        ([comparison("a", (1.0, 1.0)), comparison("b", (1.0, 1.0), ("u", "v"))], ValueError, "different parameters"),
    ],
)
def test_comparisons_that_do_not_fit_are_refused(given, error, said):
    with pytest.raises(error, match=said):
        gradient_agreement(given)


def test_memory_is_drawn_on_logarithmic_axes_with_units():
    axes = memory_against_length({"D_RTRL": {1000: 2e6, 100: 1e6}, "BPTT": {100: 1e6, 1000: 1e8, 10_000: None}}).axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("length of the sequence (steps)", "memory (MB)")
    lines = {line.get_label(): (line.get_xdata().tolist(), line.get_ydata().tolist()) for line in axes.lines}
    assert lines == {"D_RTRL": ([100, 1000], [1, 2]), "BPTT": ([100, 1000], [1, 100])}
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["D_RTRL", "BPTT"]


@pytest.mark.parametrize(("size", "unit"), [(5, "B"), (5e3, "kB"), (5e6, "MB"), (5e9, "GB")])
def test_the_unit_fits_the_smallest_figure(size, unit):
    assert memory_against_length({"a": {10: size, 20: 100 * size}}).axes[0].get_ylabel() == f"memory ({unit})"


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({}, "at least one"),
        ({"a": [1, 2]}, "memory of `a`"),
        ({"a": {10: None}}, "`a` has no memory"),
        ({"a": {10: 0}}, "`a` has 0 bytes at 10 steps"),
        ({"a": {0: 10}}, "at 0 steps"),
    ],
)
def test_a_table_that_cannot_be_drawn_is_refused(table, said):
    with pytest.raises(ValueError, match=said):
        memory_against_length(table)
