"""The benchmark of devices: what a program exchanges is counted right, and the page says what was measured."""

import pytest

import scaling
from scaling import KINDS, Size

PROGRAM = """
%body.1 (arg: f32[4]) -> f32[4] {
  %all-gather.1 = f32[4,8]{1,0} all-gather(%a), dimensions={1}
}

ENTRY %main (x: f32[2]) -> f32[2] {
  %while.1 = f32[4] while(%x), body=%body.1, backend_config={"known_trip_count":{"n":"10"}}
  %all-reduce.2 = (f32[3,8]{1,0}, f32[10]{0}) all-reduce(%b, %c), to_apply=%add
  %all-to-all.1 = (f32[1,2,2]{2,1,0}, f32[1,2,2]{2,1,0}) all-to-all(%d, %e)
}
"""


@pytest.mark.parametrize("devices", [2, 4])
def test_bytes_are_those_of_a_ring(devices):
    share = (devices - 1) / devices
    sent = {"all-gather": 10 * 4 * 32 * share, "all-reduce": 2 * 4 * (24 + 10) * share, "all-to-all": 4 * 8 * share}
    assert scaling.bytes_sent(PROGRAM, devices) == pytest.approx(sent)


def test_page_has_times_and_how_many_times_as_fast():
    size = Size(8, 4)
    times = {(kind, size): 0.01 / (place + 1) for place, kind in enumerate(KINDS)}
    text = scaling.page([size], times, [["(8, 4)", "data", "2", "1", "0", "0", "1", "3"]], 5)
    assert "| (8, 4) | 10 | 5 | 3.33 | 2.5 | 2 |" in text
    assert "| (8, 4) | 2.00 | 3.00 | 4.00 | 5.00 |" in text


@pytest.mark.slow
def test_gradients_over_a_batch_are_exchanged_once_in_a_gradient():
    size = Size(8, 4, 10)
    (_, _, _, reduced, gathered, turned, _, traces), _ = scaling.exchange([size], [2])
    weights = (scaling.INPUTS + size.units) * size.units
    assert float(reduced) == pytest.approx((2 * weights + size.steps) * 4 / 1e3 / size.steps, rel=1e-2)
    assert (gathered, turned) == ("0", "0")
    assert float(traces) == pytest.approx(weights * size.batch / 2 * 4 / 1e6, rel=1e-2)
