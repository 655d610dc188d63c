"""The page of differences: what it measures of this package is right, and refusals are shown as such."""

import pytest

import differences
import foretrace


@pytest.mark.slow
@pytest.mark.parametrize("case", differences.CASES, ids=lambda case: case.measure.__name__)
def test_figure_of_this_package_is_the_right_one(case):
    assert case.measure(foretrace) == pytest.approx(float(case.right), abs=1e-5)


def test_page_shows_figures_and_refusals():
    right = {case.what: float(case.right) for case in differences.CASES}
    refused = dict.fromkeys(right, "CompilationError")
    results = {"one": {"figures": right, "versions": "1"}, "other": {"figures": refused, "versions": "2"}}
    lines = differences.page(results).splitlines()
    assert "| case | right | one | other |" in lines
    rows = [line for line in lines if line.endswith("| `CompilationError` |")]
    assert len(rows) == len(differences.CASES)
    assert all(f"| {case.right} | {case.right} |" in row for case, row in zip(differences.CASES, rows, strict=True))


def test_rounding_is_shown_as_zero():
    assert [differences.shown(figure) for figure in (3e-8, 0.12345, 2.0)] == ["0", "0.123", "2"]
