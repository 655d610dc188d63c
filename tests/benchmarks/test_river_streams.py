"""The benchmark of river's streams: every model is scored on them, and has a line on the page."""

import pytest

pytest.importorskip("river", reason="the extra `river` is not installed")

import river_streams
from river_streams import STREAMS, Score


def test_the_target_is_the_sine_of_the_next_sample():
    samples = list(river_streams.next_sine(40, seed=0))
    assert [y for _, y in samples[:-1]] == [x["sine"] for x, _ in samples[1:]]
    assert len(samples) == 39


def test_lags_put_the_last_samples_side_by_side():
    lagged = list(river_streams.with_lags(iter([({"a": 1}, 5), ({"a": 2}, 6)])))
    assert lagged == [({"a-0": 1}, 5), ({"a-0": 2, "a-1": 1}, 6)]


@pytest.mark.parametrize("stream", STREAMS, ids=lambda stream: stream.data.__name__)
def test_a_model_of_river_is_scored(stream):
    score = river_streams.measure(stream, stream.rows[0], samples=200, seed=0)
    assert 0.3 < score.value < 1.0


def test_page_has_a_line_for_every_model():
    found = {stream.name: {row.name: [Score(0.5, 1.0), Score(0.7, 3.0)] for row in stream.rows} for stream in STREAMS}
    tables = {stream.name: river_streams.table(stream, found[stream.name]) for stream in STREAMS}
    lines = river_streams.page(tables, 10, 2).splitlines()
    for stream in STREAMS:
        for row in stream.rows:
            assert f"| {row.name} | 0.600 | 0.500 to 0.700 | 2.00 |" in lines
