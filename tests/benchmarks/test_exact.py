"""The benchmark of exact gradients: its cases run, and a line says what misses the target."""

import exact


def test_every_column_of_both_tables_has_a_figure() -> None:
    line = exact.exact_row(4, 2, 3, repeats=1, seconds=60.0)
    assert len(line) == len(exact.EXACT)
    assert all(float(figure.strip("*")) > 0 for figure in line[1:])
    line = exact.diagonal_row(4, 2, 3, repeats=1, seconds=60.0)
    assert len(line) == len(exact.DIAGONAL)
    assert all(float(figure) > 0 for figure in line[1:])


def test_products_are_those_of_rtrl() -> None:
    assert exact.products(4, 2, 3).run().shape == (2, 4, 4 * 4 + exact.INPUTS * 4)
