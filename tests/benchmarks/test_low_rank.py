"""The page of low-rank RTRL counts what is above its bound, and says plainly which targets hold."""

import numpy as np

import low_rank
from low_rank import Checked, Cost, Size

SIZE = Size(units=6, rank=2, seeds=1, steps=3, updates=(1,), large=8, every=4, length=8, rounds=2)


def checked(error: list[float]) -> Checked:
    ones = np.ones(3)
    return Checked(0.95 * ones, 0.5 * ones, np.array(error), np.array([0.2, 0.4, 0.0]), ones)


def test_an_error_above_its_bound_is_counted() -> None:
    assert checked([0.1, 0.2, 1e-16]).violations == 0
    assert checked([0.1, 0.5, 1e-3]).violations == 2


def test_ratios_are_those_of_steps_with_an_error() -> None:
    np.testing.assert_allclose(checked([0.1, 0.2, 1e-16]).ratios, [2, 2])


def test_targets_hold_by_the_measured_figure() -> None:
    cost = {"D_RTRL": Cost(1, 1, [1.0, 1.0]), "LowRank": Cost(3, 20, [14.0, 15.0]), "RTRL": Cost(30, 100, [])}
    lines = low_rank.page(SIZE, {1: checked([0.1, 0.5, 0.0])}, cost).splitlines()
    assert "| cosine to exact RTRL, mean, update 1 | 0.95 | >= 0.92 | yes |" in lines
    assert "| violations of the certificate in 3 steps | 1 | 0 | no |" in lines
    assert "| planned memory / RTRL's | 0.2 | <= 0.1 | no |" in lines
    assert "| time per step / D-RTRL's, by sequence | 14.5 | <= 15 | yes |" in lines
