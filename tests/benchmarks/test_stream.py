"""The benchmark of streams: both loops learn the same, and the page says plainly what holds."""

import stream
from stream import Size


def test_both_loops_learn_the_same_and_memory_is_read() -> None:
    size = Size(units=3, inputs=2, steps=40, settled=10, piece=4)
    found, apart = stream.rates(size, {4: 20}, repeats=1)
    assert apart < 1e-6
    assert set(found) == {4}
    seen, result = stream.memory(size)
    assert [step for step, _ in seen] == [4, 8, 10, *range(12, 41, 4)]
    assert result.steps == 40
    text = stream.page(size, found, apart, seen, result, 1)
    assert "A stream of 40 items" in text


def test_what_does_not_hold_is_said() -> None:
    assert stream.growth([(10, 100), (20, 101), (30, 103)]) == 103 / 100 - 1
    lines = stream.rate_table({1: (100.0, 79.0), 8: (100.0, 81.0)}).splitlines()
    assert [line.split(" | ")[-1] for line in lines[2:]] == ["**no** |", "yes |"]
