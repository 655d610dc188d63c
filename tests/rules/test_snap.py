"""SnAp: RTRL where everything is kept, a masked dense update in general, and little memory where weights are sparse."""

import functools
from typing import Any

import brainunit
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from foretrace.compiler.influence import find_influence
from foretrace.errors import NotSupportedError
from foretrace.rules import whole_step
from foretrace.rules.d_rtrl import Eligibility
from foretrace.rules.jacobian import Entries, JacobianRule
from foretrace.rules.kept_entries import lay_out
from foretrace.rules.rtrl import RTRL
from foretrace.rules.snap import SnAp
from whole import (
    Case,
    agree,
    block_gradients,
    case,
    case_of,
    credited,
    differ,
    gradients_of_two,
    in_step_gradient,
    signalled,
    small_rnn,
    whole_gradient,
)
from zoo.solved import BY_NAME, loss

ALL = SnAp(n=50)
SATURATED = [
    "LSTM, fused gates and a tuple of states",
    "rolled state",
    "permuted state of a recurrent network",
    "delay line that feeds a neuron",
    "plain sparse products",
]

OWN_POSITIONS = [
    "LSTM, fused gates and a tuple of states",
    "module: marked LSTM, separate gates",
    "module: marked GRU, reset after the matmul",
    "v, i and adaptation side by side",
    "brainpy: recurrent AlignPre Expon with STP and units",
    "marked conv LIF layer",
]
TOGETHER = ["GRU, reset before the matmul", "two layers of LIF", "lateral coupling by a roll"]
TABLE = [name if name in OWN_POSITIONS else pytest.param(name, marks=pytest.mark.slow) for name in BY_NAME]


@functools.cache
def ring(size: int = 12, steps: int = 5) -> Case:
    """Neurons that each drive the next one, by sparse weights."""
    order = jnp.arange(size)
    matrix = brainunit.sparse.COO((jnp.ones(size), order, (order + 1) % size), shape=(size, size))
    rng = np.random.default_rng(1)

    def step(params, h, x):
        h = jnp.tanh(params["gain"] * x + ft.sparse_matmul(h, params["w"], sparse_mat=matrix))
        return h, h

    params = {"gain": jnp.asarray(rng.normal(size=size)), "w": jnp.asarray(rng.normal(size=size))}
    return case_of(step, params, jnp.asarray(rng.normal(size=size)), jnp.asarray(rng.normal(size=(steps, size))))


def masked_dense(model: Case, n: int) -> list[np.ndarray]:
    """SnAp with whole matrices; what is other than zero is read off the first step's numbers."""
    program, (params, hidden, other, inputs) = model.plan.program, model.values
    sizes = np.cumsum([p.size for p in params])[:-1]

    def flat(values: Any) -> Any:
        return jnp.concatenate([v.reshape(-1) for v in values])

    @jax.jit
    def derivatives(hidden: Any, other: Any, x: Any) -> Any:
        matrix = lambda blocks: jnp.concatenate([b.reshape(b.shape[0], -1) for b in blocks], axis=1)
        new = lambda p, h: flat(program(p, h, other, x)[0])
        own = lambda p, h: loss(program(p, h, other, x)[2])
        by_params, by_hidden = jax.grad(own, argnums=(0, 1))(params, hidden)
        jacobians = jax.jacrev(new, argnums=(0, 1))(params, hidden)
        return flat(by_params), flat(by_hidden), *map(matrix, jacobians), program(params, hidden, other, x)[:2]

    total, jacobian, mask = 0.0, 0.0, None
    for x in inputs:
        by_params, by_hidden, direct, onward, (hidden, other) = derivatives(list(hidden), list(other), x)
        if mask is None:
            reached = [np.asarray(direct) != 0]
            for _ in range(n - 1):
                reached.append((np.asarray(onward) != 0).astype(int) @ reached[-1] > 0)
            mask = np.any(reached, axis=0)
            jacobian = np.zeros_like(direct)
        total = total + by_params + by_hidden @ jacobian
        jacobian = mask * (onward @ jacobian + direct)
    return [g.reshape(p.shape) for g, p in zip(np.split(total, sizes), params, strict=True)]


@pytest.mark.parametrize("name", SATURATED)
def test_keeping_everything_equals_bptt(name: str) -> None:
    agree(whole_gradient(case(name), ALL), case(name).whole, 1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_NAME)
def test_keeping_everything_equals_bptt_on_every_model(name: str) -> None:
    agree(whole_gradient(case(name), ALL), case(name).whole, 1e-8)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_equals_the_masked_dense_update_on_a_ring(n: int) -> None:
    model = ring()
    found = whole_gradient(model, SnAp(n))
    agree(found, masked_dense(model, n))
    assert differ(found, model.whole)


@pytest.mark.parametrize("name", ["LSTM, fused gates and a tuple of states", "lateral coupling by a roll"])
def test_equals_the_masked_dense_update(name: str) -> None:
    found = whole_gradient(case(name), SnAp(1))
    agree(found, masked_dense(case(name), 1))
    assert differ(found, case(name).whole)


class ByEntries(SnAp):
    """SnAp by entries of the whole Jacobian, wherever parameters act."""

    init, advance, credit = JacobianRule.init, JacobianRule.advance, JacobianRule.credit


@pytest.mark.parametrize("name", TABLE)
def test_one_step_equals_the_update_of_its_entries(name: str) -> None:
    """Where parameter elements act on positions of their own, blocks are taken as D-RTRL takes them."""
    model = case(name)
    found, expected = SnAp(1), ByEntries(1)
    agree(whole_gradient(model, found), whole_gradient(model, expected))
    agree(block_gradients(model, found, [2])[0], whole_gradient(model, expected))
    agree(credited(model, found), credited(model, expected))


@pytest.mark.parametrize(("name", "alone"), [(name, name in OWN_POSITIONS) for name in (*OWN_POSITIONS, *TOGETHER)])
def test_positions_of_ones_own_are_told_by_structure(name: str, alone: bool) -> None:
    assert isinstance(SnAp(1).init(case(name).plan), Eligibility) == alone


def test_a_gate_keeps_the_slots_that_it_reaches_at_once() -> None:
    """The output gate of an LSTM acts on `h` alone within a step, so its derivatives of `c` are not kept."""
    model = case("module: marked LSTM, separate gates")
    kept = [sorted(e) for e in SnAp(1).init(model.plan).e]
    assert sorted(map(len, kept)) == [1, 1] + 6 * [2]  # its weight and its bias; those of the other gates


def test_a_parameter_of_all_positions_is_no_position_of_its_own() -> None:
    def step(params, h, x):
        h = jnp.tanh(params["gain"] * x + h @ params["w"])
        return h, h

    rng = np.random.default_rng(5)
    params = {"gain": jnp.asarray(0.7), "w": jnp.asarray(rng.normal(size=(3, 3)))}
    model = case_of(step, params, jnp.asarray(rng.normal(size=3)), jnp.asarray(rng.normal(size=(5, 3))))
    assert isinstance(SnAp(1).init(model.plan), Entries)
    agree(whole_gradient(model, SnAp(1)), masked_dense(model, 1))


def test_a_parameter_of_two_gates_keeps_what_both_reach() -> None:
    """`w` enters `c`, and by another way `h` alone: kept apart, the second way would lose its derivative of `c`."""

    def step(params, state, x):
        c = jnp.tanh(0.5 * state["c"] + state["h"] + params["w"] * x)
        h = jnp.tanh(c + params["w"] ** 2 * x)
        return {"c": c, "h": h}, h

    rng = np.random.default_rng(6)
    model = case_of(
        step, {"w": jnp.asarray(rng.normal(size=3))}, {"c": jnp.zeros(3), "h": jnp.zeros(3)}, jnp.ones((5, 3))
    )
    agree(whole_gradient(model, SnAp(1)), masked_dense(model, 1))


def test_one_step_on_a_vanilla_rnn_by_hand() -> None:
    model = small_rnn()
    bias, out, u, w = map(np.asarray, model.values[0])
    h, traces = np.asarray(model.values[1][0]), [np.zeros((2, 2, 3)), np.zeros((2, 3, 3))]
    expected = [np.zeros((2, 3)), np.zeros((3, 3))]
    for x in map(np.asarray, (flat[0] for flat in model.values[3])):
        new = np.tanh(x @ u + h @ w + bias)
        read, cosine = new @ out, lambda a: np.cos(np.arange(a.size)).reshape(a.shape)
        slope = 1 - new**2
        by_pre = ((cosine(read) + read) @ out.T) * slope
        by_past = by_pre @ w.T + cosine(h) + h
        for k, data in enumerate([x, h]):
            expected[k] += data.T @ by_pre + np.einsum("bj,bij->ij", by_past, traces[k])
            traces[k] = slope[:, None] * (np.diag(w) * traces[k] + data[:, :, None])
        h = new
    agree(whole_gradient(model, SnAp(n=1))[2:], expected)


def test_blocks_change_nothing() -> None:
    model = small_rnn()
    for found in block_gradients(model, SnAp(1), [1, 3]):
        agree(found, whole_gradient(model, SnAp(1)))


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_step, "CHUNK_VALUES", 14)
    model = small_rnn(steps=3)  # another one than elsewhere, so that it is compiled here
    agree(whole_gradient(model, ALL), model.whole)


def test_credit_is_what_later_losses_ask_of_the_past() -> None:
    model = small_rnn()
    agree(credited(model, ALL), signalled(model))


def test_maps_over_parameter_sets() -> None:
    agree(*gradients_of_two(small_rnn(), SnAp(1)))


def test_single_precision_stays_single() -> None:
    model = small_rnn(jnp.float32)
    found = whole_gradient(model, ALL)
    assert {g.dtype for g in found} == {np.dtype(np.float32)}
    agree(found, model.whole, 1e-5)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_sparse_weights_keep_few_entries(n: int) -> None:
    model = ring()
    assert SnAp(n).kept(model.plan) == 2 * 12 * n
    assert sum(v.size for v in SnAp(n).init(model.plan).values) == 2 * 12 * n
    assert RTRL().kept(model.plan) == 2 * 12 * 12


def test_large_sparse_islands_are_followed_along_their_couplings() -> None:
    model = ring(size=20)
    (shelf,) = lay_out(find_influence(model.plan.program, 50)).tables.shelves
    assert shelf.sources.shape == (1, 1, 20, 1)
    agree(whole_gradient(model, ALL), model.whole)


def test_batch_elements_never_share_a_matrix() -> None:
    layout = lay_out(find_influence(small_rnn(batch=(5,)).plan.program, 50))
    assert [shelf.entries.shape for shelf in layout.tables.shelves] == [(1, 5, 3, 3)]
    assert layout.states_count == 3


def test_a_state_that_feeds_all_costs_one_tangent() -> None:
    def step(params, state, x):
        drive = jnp.tanh(params["slow"] * state["drive"] + jnp.sum(x))
        h = jnp.tanh(params["leak"] * state["h"] + drive * params["w"] + x)
        return {"drive": drive, "h": h}, h

    rng = np.random.default_rng(2)
    params = {"leak": jnp.asarray(rng.normal(size=6)), "slow": jnp.asarray(0.9), "w": jnp.asarray(rng.normal(size=6))}
    state = {"drive": jnp.asarray(0.3), "h": jnp.asarray(rng.normal(size=6))}
    model = case_of(step, params, state, jnp.asarray(rng.normal(size=(4, 6))))
    layout = lay_out(find_influence(model.plan.program, 50))
    assert (layout.by_rows, layout.states_count) == (False, 2)
    agree(whole_gradient(model, ALL), model.whole)


def test_one_step_keeps_more_than_nothing() -> None:
    model = small_rnn()
    assert differ(whole_gradient(model, SnAp(1)), in_step_gradient(model))


def test_refuses_past_the_limit_with_the_numbers() -> None:
    plan = ring().plan
    assert sum(v.nbytes for v in SnAp(2, memory_limit=384).init(plan).values) == 384
    with pytest.raises(NotSupportedError, match=r"48 derivatives.*n = 2: 384 bytes.*383 bytes.*smaller `n`"):
        SnAp(2, memory_limit=383).init(plan)


@pytest.mark.parametrize("n", [0, -1, 1.5, True])
def test_refuses_what_is_no_number_of_steps(n: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="`n` is a number of steps"):
        SnAp(n)
