"""OTTT against its recursion in NumPy, and what its options may be."""

from typing import Any

import pytest

from foretrace.rules.ottt import OTTT
from recursions import NETWORKS, assert_same, blocks_of, in_factors

CASES = [*blocks_of("recurrent LIF", 0.9), pytest.param("vanilla RNN", 1.0, 3, marks=pytest.mark.slow)]


@pytest.mark.parametrize(("name", "leak", "block"), CASES)
def test_equals_its_recursion_in_any_block(name: str, leak: float, block: int) -> None:
    network = NETWORKS[name]()
    assert_same(network.gradient(OTTT(leak=leak), block), in_factors(network, leak, 0.0))


def test_the_mode_is_a_hint_for_the_training_loop() -> None:
    assert OTTT(leak=0.5).update_every is None
    assert OTTT(leak=0.5, mode="O").update_every == 1


@pytest.mark.parametrize(
    "bad", [{"leak": -0.1}, {"leak": 1.1}, {"leak": None}, {"leak": True}, {"leak": 0.5, "mode": "B"}]
)
def test_refuses_bad_options(bad: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=list(bad)[-1]):
        OTTT(**bad)


def test_asks_for_the_leak() -> None:
    with pytest.raises(TypeError, match="leak"):
        OTTT()  # type: ignore[call-arg]
