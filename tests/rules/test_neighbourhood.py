"""`group.snap`: the positions that each one reaches within n steps, where a learner of SnAp-n needs them."""

from typing import Any

import brainstate
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from foretrace.compiler.neighbourhood import SnapPattern


class Ring(brainstate.nn.Module):
    """Neurons that each drive the next one in a ring, and a second state behind each; `layers` of them."""

    def __init__(self, size: int = 5) -> None:
        super().__init__()
        self.w = brainstate.ParamState(jnp.ones((3, size)))
        self.r = brainstate.ParamState(jnp.ones(size))
        self.size = size

    def init_state(self, **_: Any) -> None:
        self.v, self.a = (brainstate.HiddenState(jnp.zeros(self.size)) for _ in range(2))

    def update(self, x: Any) -> Any:
        v, a = self.v.value, self.a.value
        drive = ft.matmul(x, self.w.value) + jnp.take(v * self.r.value, (jnp.arange(self.size) - 1) % self.size)
        self.v.value = 0.5 * v - a + drive
        self.a.value = 0.9 * a + v
        return self.v.value


def snap_of(model: Any, n: int) -> Any:
    return [group.snap for group in ft.compile(model, "SnAp", jnp.ones(3), n=n).graph.hidden_groups]


@pytest.mark.parametrize("n", [2, 3, 5, 9])
def test_neighbours_on_a_ring(n: int) -> None:
    (snap,) = snap_of(Ring(), n)
    assert isinstance(snap, SnapPattern)
    reached = min(n, 5)
    wanted = [[p, *sorted((p + k) % 5 for k in range(1, reached))] for p in range(5)]
    assert snap.neighbours.tolist() == wanted
    assert snap.valid.all()
    assert (snap.n, snap.varshape, snap.num_position, snap.num_neighbour) == (n, (5,), 5, reached)
    assert (snap.is_degenerate, snap.is_saturated) == (False, reached == 5)


def test_all_to_all_is_saturated() -> None:
    (snap,) = snap_of(ft.nn.GRUCell(3, 4), 2)
    assert snap.is_saturated
    assert snap.matrix.toarray().all()


class Open(Ring):
    """A chain: the first neuron is driven by none, so that rows are of different lengths; and a readout behind it."""

    def init_state(self, **_: Any) -> None:
        super().init_state()
        self.out = brainstate.HiddenState(jnp.zeros((1, 2)))

    def update(self, x: Any) -> Any:
        v = self.v.value
        self.v.value = 0.5 * v + ft.matmul(x, self.w.value) + jnp.pad(v[:-1] * self.r.value[:-1], (1, 0))
        self.out.value = 0.9 * self.out.value + jnp.sum(v)
        return self.out.value


def test_shorter_rows_are_padded_with_the_position_itself() -> None:
    chain, readout = snap_of(Open(), 2)
    assert chain.neighbours.tolist() == [[0, 1], [1, 2], [2, 3], [3, 4], [4, 4]]
    assert chain.valid.tolist() == [[True, True]] * 4 + [[True, False]]
    assert readout.is_degenerate
    assert readout.neighbours.tolist() == [[0], [1]]


def test_a_position_reaches_others_by_way_of_another_group() -> None:
    class Detour(Ring):
        def init_state(self, **_: Any) -> None:
            super().init_state()
            self.total = brainstate.HiddenState(jnp.zeros(1))

        def update(self, x: Any) -> Any:
            v = self.v.value
            self.v.value = 0.5 * v + ft.matmul(x, self.w.value) + self.total.value
            self.total.value = jnp.sum(v, keepdims=True)
            return self.v.value

    (after_two, _), (after_three, _) = (snap_of(Detour(), n) for n in (2, 3))
    assert np.array_equal(after_two.matrix.toarray(), np.eye(5, dtype=bool))
    assert after_three.is_saturated


def test_other_rules_know_nothing_of_it() -> None:
    assert snap_of(Ring(), 1) == [None]
    learner = ft.compile(Ring(), "D_RTRL", jnp.ones(3))
    assert [group.snap for group in learner.graph.hidden_groups] == [None]
    learner.replace_rule(ft.SnAp(n=2))
    assert learner.graph.hidden_groups[0].snap.n == 2
    learner.replace_rule(ft.D_RTRL())
    assert learner.graph.hidden_groups[0].snap is None
    assert ft.compile_etrace_graph(learner.model, jnp.ones(3)).hidden_groups[0].snap is None
