"""Sparse weights that are visited by events learn as a dense matrix does, and as gathers over all connections do."""

from collections.abc import Callable
from typing import Any

import brainevent
import brainunit as u
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from foretrace.engine.edges import sparse
from foretrace.engine.events import event_links
from foretrace.ops.events import add_events, carry_connections, plain_carry, plain_events
from foretrace.rules import D_RTRL, EProp, OSTLRecurrent, pp_prop

UNITS, STEPS = 7, 8
RULES = {"D_RTRL": D_RTRL(), "pp_prop": pp_prop(decay_or_rank=(0.7, 0.9)), "EProp": EProp(kappa_filter_decay=0.8)}
RULES |= {"OSTL_recurrent": OSTLRecurrent(), "symmetric EProp": EProp()}
DRIVES = {"some fire": 0.0, "silent": -50.0, "all fire": 50.0}
RNG = np.random.default_rng(3)
MASK = RNG.random((UNITS, UNITS)) < 0.4
MASK[2] = False  # a neuron without connections
MASK[-1] = False
WEIGHT = RNG.normal(size=(UNITS, UNITS)) * MASK
SAMPLES = RNG.normal(size=(6, STEPS, UNITS))
INPUTS = SAMPLES[0]


@jax.custom_jvp
def spike(v: Any) -> Any:
    return (v > 0).astype(v.dtype)


@spike.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return spike(*primals), tangents[0] / (1 + jnp.abs(primals[0])) ** 2


def step_with(product: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """A neuron with a synapse that decays: two states, of which the first is driven by the second."""

    def step(w: Any, state: Any, x: Any) -> tuple[Any, Any]:
        v, current = state
        spikes = spike(v - 1.0)
        current = 0.8 * current + product(spikes, w)
        v = 0.9 * v * (1 - spikes) + jnp.tanh(current) + x
        return (v, current), v

    return step


def events_of(matrix: Any, wrap: Any = brainevent.BinaryArray) -> Callable[[Any, Any], Any]:
    return lambda spikes, w: ft.sparse_matmul(wrap(spikes), w, sparse_mat=matrix)


def csr(dtype: Any = float) -> Any:
    return brainevent.CSR.fromdense(jnp.asarray(WEIGHT, dtype))


def gradient(
    product: Any, weight: Any, rule: Any, block: int | None, drive: str = "some fire", batch: tuple[int, ...] = ()
) -> tuple[Any, Any]:
    dtype = jnp.asarray(weight).dtype
    state = (jnp.zeros((*batch, UNITS), dtype),) * 2
    inputs = SAMPLES[: int(np.prod(batch, dtype=int))].reshape(*batch, STEPS, UNITS)
    xs = jnp.asarray(np.moveaxis(inputs, -2, 0) + DRIVES[drive], dtype)
    learner = ft.compile(step_with(product), rule, xs[0], params=weight, state=state, block=block)
    loss = lambda out: jnp.sum(jnp.sin(jnp.arange(UNITS, dtype=dtype)) * out + out**2)
    run = jax.jit(lambda w, carry, xs: learner.grad(w, carry, xs, loss=loss)[:2])
    carry = run(weight, learner.init(), xs)[1]
    found, carry = run(weight, carry, xs)  # traces that are not zero come in
    return found, carry.trace


def dense_gradient(*given: Any, **named: Any) -> np.ndarray:
    return np.asarray(gradient(lambda s, w: ft.matmul(s, w), jnp.asarray(WEIGHT), *given, **named)[0])[MASK]


def close(found: Any, expected: Any, tolerance: float = 1e-10) -> None:
    scale = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("drive", DRIVES)
@pytest.mark.parametrize("block", [1, 3, None])
@pytest.mark.parametrize("rule", ["D_RTRL", "pp_prop"])
def test_equals_the_dense_matrix(rule, block, drive):
    found, _ = gradient(events_of(csr()), jnp.asarray(WEIGHT[MASK]), RULES[rule], block, drive)
    close(found, dense_gradient(RULES[rule], block, drive))


@pytest.mark.parametrize("rule", RULES)
def test_equals_gathers_over_all_connections(rule, monkeypatch):
    weight = jnp.asarray(WEIGHT[MASK])
    found = gradient(events_of(csr()), weight, RULES[rule], 3)
    monkeypatch.setattr(sparse, "has_kernels", lambda: False)
    for one, other in zip(
        *map(jax.tree.leaves, (found, gradient(events_of(csr()), weight, RULES[rule], 3))), strict=True
    ):
        close(one, other, 1e-12)


def test_float32_keeps_its_dtype_and_its_digits():
    weight = jnp.asarray(WEIGHT[MASK], jnp.float32)
    found, trace = gradient(events_of(csr(jnp.float32)), weight, D_RTRL(), 3)
    assert {leaf.dtype for leaf in jax.tree.leaves((found, trace))} == {jnp.dtype(jnp.float32)}
    close(found, dense_gradient(D_RTRL(), 3), 1e-5)


def test_a_trace_of_another_dtype_is_gathered():
    rule = D_RTRL(trace_dtype=jnp.float32)
    found, _ = gradient(events_of(csr()), jnp.asarray(WEIGHT[MASK]), rule, 3)
    close(found, dense_gradient(rule, 3), 1e-6)


@pytest.mark.parametrize("batch", [(2,), (2, 3)])
@pytest.mark.parametrize("rule", ["D_RTRL", "pp_prop"])
def test_batches_equal_the_dense_matrix(rule, batch):
    found, _ = gradient(events_of(csr()), jnp.asarray(WEIGHT[MASK]), RULES[rule], 3, batch=batch)
    close(found, dense_gradient(RULES[rule], 3, batch=batch))


@pytest.mark.parametrize("form", ["csc", "coo", "floats"])
def test_other_forms_equal_the_dense_matrix(form):
    matrix = brainevent.CSC.fromdense(jnp.asarray(WEIGHT)) if form == "csc" else csr()
    order = np.nonzero(MASK.T)[::-1] if form == "csc" else np.nonzero(MASK)
    matrix, wrap = (matrix.tocoo() if form == "coo" else matrix), (lambda x: x)
    product = events_of(matrix, wrap if form == "floats" else brainevent.BinaryArray)
    found, _ = gradient(product, jnp.asarray(WEIGHT[order]), D_RTRL(), 3)
    whole, _ = gradient(lambda s, w: ft.matmul(s, w), jnp.asarray(WEIGHT), D_RTRL(), 3)
    close(found, np.asarray(whole)[order])


def of_inputs() -> Callable[..., Any]:
    """The gradient as a function of the inputs, from empty traces."""
    weight = jnp.asarray(WEIGHT[MASK])
    learner = ft.compile(
        step_with(events_of(csr())), "D_RTRL", INPUTS[0], params=weight, state=(jnp.zeros(UNITS),) * 2, block=3
    )
    return lambda xs: learner.grad(weight, learner.init(), xs, loss=lambda out: jnp.sum(out**2))[0]


def test_vmapped_over_inputs():
    one, several = jax.jit(of_inputs()), jnp.asarray(SAMPLES[:3])
    close(jax.jit(jax.vmap(of_inputs()))(several), jnp.stack([one(xs) for xs in several]), 1e-12)


def test_differentiated_again_as_gathers_are(monkeypatch):
    tangent = lambda one: jax.jit(lambda xs: jax.jvp(one, (xs,), (jnp.cos(xs),))[1])(jnp.asarray(INPUTS))
    found = tangent(of_inputs())
    monkeypatch.setattr(sparse, "has_kernels", lambda: False)
    assert np.any(found)
    close(found, tangent(of_inputs()), 1e-12)


def test_events_that_are_unbatched_and_compressed_by_rows_are_visited():
    weight = jnp.asarray(WEIGHT[MASK])
    compiled = lambda product, state: ft.compile(
        step_with(product), "D_RTRL", jnp.zeros(state.shape), params=weight, state=(state, state)
    )
    visited = lambda learner: len(event_links(learner.plan, learner.init().trace.e))
    one, batch = jnp.zeros(UNITS), jnp.zeros((2, UNITS))
    assert visited(compiled(events_of(csr()), one)) == 1
    assert visited(compiled(events_of(csr()), batch)) == 0
    assert visited(compiled(events_of(csr(), lambda x: x), one)) == 0
    assert visited(compiled(events_of(csr().tocoo()), one)) == 0


ROWS, COLUMNS, SLOTS = 6, 5, 3
STARTS = np.array([0, 2, 2, 5, 9, 9, 10])


def connections(dtype: Any) -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape), dtype)
    columns = jnp.asarray(rng.integers(0, COLUMNS, STARTS[-1]), jnp.int32)
    return rng, normal, columns, [normal(STARTS[-1]) for _ in range(SLOTS)]


@pytest.mark.parametrize(
    "entries", [((0, 0), (0, 1), (1, 1), (2, 2)), ((1, 0),), tuple((i, j) for i in range(3) for j in range(3))]
)
@pytest.mark.parametrize("starts", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_kernels_equal_plain_operations(dtype, starts, entries):
    rng, normal, columns, traces = connections(dtype)
    index, tolerance = (columns, jnp.asarray(STARTS.astype(starts))), 1e-6 if dtype == jnp.float32 else 1e-14
    seen, sums = jnp.asarray(rng.random(ROWS) < 0.5), [normal(STARTS[-1]) for _ in range(1 + SLOTS)]
    table = normal(COLUMNS, SLOTS + len(entries))
    contracted, carried = jax.jit(lambda *a: carry_connections(*a, entries))(traces, sums, seen, *index, table)
    plain = plain_carry(*index, seen, table, *sums, *traces, entries=entries)
    for one, other in zip([contracted, *carried], plain, strict=True):
        close(one, other, tolerance)
    counted = lambda total, seen: np.where(np.repeat(seen, np.diff(STARTS)), total, 0)
    for share in (0.0, 0.3, 1.0):
        fired, values = jnp.asarray(rng.random((4, ROWS)) < share), [normal(4, COLUMNS) for _ in traces]
        added, after = jax.jit(add_events)(traces, seen, fired, values, *index)
        everywhere, *plain = plain_events(*index, fired, *values, seen, *traces)
        assert np.all(everywhere)
        np.testing.assert_array_equal(after, seen | fired.any(axis=0))
        for one, other in zip(added, plain, strict=True):
            close(counted(one, after), other, tolerance)


def test_kernels_leave_what_they_were_given():
    _, normal, columns, traces = connections(jnp.float64)
    before, seen = [np.array(trace) for trace in traces], jnp.ones(ROWS, bool)
    values, index = [normal(2, COLUMNS) for _ in range(SLOTS)], (columns, jnp.asarray(STARTS))
    add_events(traces, seen, jnp.ones((2, ROWS), bool), values, *index)
    carry_connections(traces, [traces[0], *traces], seen, *index, normal(COLUMNS, SLOTS + 1), ((0, 1),))
    for trace, old in zip(traces, before, strict=True):
        np.testing.assert_array_equal(trace, old)


@pytest.mark.parametrize(
    ("indices", "indptr", "word"), [([0, 9], [0, 1, 2], "columns from 0 to 9"), ([0, 1], [0, 1, 3], "rise from 0")]
)
def test_connections_outside_of_the_matrix_are_refused(indices, indptr, word):
    matrix = u.sparse.CSR((jnp.ones(2), jnp.asarray(indices), jnp.asarray(indptr)), shape=(2, 2))
    eqn = jax.make_jaxpr(lambda s, w: ft.sparse_matmul(s, w, sparse_mat=matrix))(jnp.ones(2), jnp.ones(2)).eqns[-1]
    with pytest.raises(ValueError, match=word):
        sparse.sparse(eqn, [np.asarray(indices), np.asarray(indptr)])
