"""Sparse products equal dense ones, for every form of matrix, for floats and for events."""

from functools import partial
from typing import Any

import brainevent
import brainunit as u
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from foretrace import ops

MASK = np.array([[1, 0, 1, 0], [0, 0, 1, 1], [1, 1, 0, 0], [0, 1, 1, 0], [0, 1, 0, 1]], dtype=bool)
FIXED_PRE = np.array([[0, 2], [2, 3], [0, 1], [1, 2], [1, 3]])
FIXED_POST = np.array([[0, 2], [3, 4], [0, 1], [1, 4]])
ROWS, COLUMNS = np.nonzero(MASK)
POINTERS = np.cumsum([0, *MASK.sum(1)])

FORMS: dict[str, tuple[Any, np.ndarray, np.ndarray]] = {}
_csr = brainevent.CSR.fromdense(jnp.asarray(MASK, float))
FORMS["csr"] = (_csr, ROWS, COLUMNS)
FORMS["csc"] = (brainevent.CSC.fromdense(jnp.asarray(MASK, float)), *np.nonzero(MASK.T)[::-1])
FORMS["coo"] = (_csr.tocoo(), ROWS, COLUMNS)
FORMS["unit_csr"] = (u.sparse.CSR((jnp.ones(ROWS.size), COLUMNS, POINTERS), shape=MASK.shape), ROWS, COLUMNS)
FORMS["fixed_pre"] = (
    brainevent.FixedNumPerPre((jnp.ones((5, 2)), jnp.asarray(FIXED_PRE)), shape=(5, 4)),
    np.repeat(np.arange(5), 2),
    FIXED_PRE.ravel(),
)
FORMS["fixed_post"] = (
    brainevent.FixedNumPerPost((jnp.ones((4, 2)), jnp.asarray(FIXED_POST)), shape=(5, 4)),
    FIXED_POST.ravel(),
    np.repeat(np.arange(4), 2),
)


def _setup(form: str, dtype: Any, *leading: int) -> tuple[Any, Any, jax.Array, jax.Array]:
    matrix, rows, columns = FORMS[form]
    rng = np.random.default_rng(len(leading))
    weight = jnp.asarray(rng.normal(size=matrix.data.shape), dtype)
    spikes = jnp.asarray(rng.random((*leading, 5)) < 0.5, dtype)

    def dense(x, values):
        return x @ jnp.zeros(matrix.shape, dtype).at[rows, columns].add(values.ravel())

    return matrix, dense, spikes, weight


def _gradients(function, x, weight):
    both = jax.value_and_grad(lambda x, w: jnp.sum(jnp.sin(function(x, w))), (0, 1))
    return jax.tree.leaves((function(x, weight), jax.jit(both)(x, weight)))


def _agree(actual, expected, tolerance):
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == e.dtype
        np.testing.assert_allclose(a, e, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("form", "events"),
    [(form, events) for form in FORMS for events in (False, True) if not (events and form == "unit_csr")],
)
def test_batched_product_and_gradients_equal_dense(form, events):
    matrix, dense, spikes, weight = _setup(form, jnp.float64, 3)
    x = spikes if events else spikes + 0.5
    wrap = brainevent.BinaryArray if events else lambda x: x
    product = lambda x, w: ops.sparse_matmul(wrap(x), w, sparse_mat=matrix)
    _agree(_gradients(product, x, weight), _gradients(dense, x, weight), 1e-12)


@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
def test_events_of_one_sample_in_float32_equal_dense(form):
    matrix, dense, spikes, weight = _setup(form, jnp.float32)
    product = lambda x, w: ops.sparse_matmul(brainevent.BinaryArray(x), w, sparse_mat=matrix)
    _agree(_gradients(product, spikes, weight), _gradients(dense, spikes, weight), 1e-6)


def test_leading_axes_of_any_number():
    matrix, dense, spikes, weight = _setup("csr", jnp.float64, 2, 3)
    y = ops.sparse_matmul(spikes, weight, sparse_mat=matrix)
    np.testing.assert_allclose(y, dense(spikes, weight), atol=1e-12)


@pytest.mark.parametrize("form", ["csr", "coo"])
def test_boolean_events_train_the_weight(form):
    matrix, dense, spikes, weight = _setup(form, jnp.float64, 2)
    fired = spikes > 0
    product = lambda w: ops.sparse_matmul(brainevent.BinaryArray(fired), w, sparse_mat=matrix)
    gradient = jax.grad(lambda w: jnp.sum(product(w) ** 2))(weight)
    np.testing.assert_allclose(gradient, jax.grad(lambda w: jnp.sum(dense(spikes, w) ** 2))(weight), atol=1e-12)


def test_value_and_weight_gradient_of_graded_events_agree():
    matrix, dense, spikes, weight = _setup("csr", jnp.float64, 2)
    product = lambda w: ops.sparse_matmul(brainevent.BinaryArray(3.0 * spikes), w, sparse_mat=matrix)
    np.testing.assert_allclose(product(weight), dense(spikes, weight), atol=1e-12)
    gradient = jax.grad(lambda w: jnp.sum(product(w)))(weight)
    np.testing.assert_allclose(gradient, jax.grad(lambda w: jnp.sum(dense(spikes, w)))(weight), atol=1e-12)


@pytest.mark.parametrize("form", ["csr", "coo"])
def test_one_weight_for_all_connections(form):
    matrix, dense, spikes, weight = _setup(form, jnp.float64, 2)
    product = lambda x, w: ops.sparse_matmul(x, w, sparse_mat=matrix)
    spread = lambda x, w: dense(x, jnp.broadcast_to(w, weight.shape))
    _agree(_gradients(product, spikes, jnp.asarray(0.7)), _gradients(spread, spikes, jnp.asarray(0.7)), 1e-12)


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)])
def test_events_vmapped_equal_dense_and_stay_marked(axes):
    matrix, dense, spikes, weight = _setup("csr", jnp.float64, 2)
    weights = jnp.stack([weight, -2 * weight])
    args = (spikes if axes[0] == 0 else spikes[0], weights if axes[1] == 0 else weight)
    product = lambda x, w: ops.sparse_matmul(brainevent.BinaryArray(x), w, sparse_mat=matrix)
    gradients = lambda f: jax.vmap(jax.grad(lambda x, w: jnp.sum(jnp.sin(f(x, w))), (0, 1)), axes)(*args)
    _agree(gradients(product), gradients(dense), 1e-12)
    names = [eqn.primitive.name for eqn in jax.make_jaxpr(jax.vmap(product, axes))(*args).eqns]
    assert names.count("etp_sparse_matmul") == 1


@pytest.mark.xfail(
    tuple(map(int, brainevent.__version__.split(".")[:2])) >= (0, 3),
    reason="brainevent 0.3 holds events constant in second derivatives",
    strict=True,
)
def test_hessian_of_an_event_product_equals_dense():
    matrix, dense, spikes, weight = _setup("csc", jnp.float64, 2)
    product = lambda x, w: ops.sparse_matmul(brainevent.BinaryArray(x), w, sparse_mat=matrix)
    hessian = lambda f: jax.jit(jax.hessian(lambda x, w: jnp.sum(jnp.sin(f(x, w))), (0, 1)))(spikes, weight)
    _agree(jax.tree.leaves(hessian(product)), jax.tree.leaves(hessian(dense)), 1e-12)


def test_index_arrays_are_operands():
    def product(x, weight, indices, indptr):
        matrix = brainevent.CSR((weight, indices, indptr), shape=MASK.shape, check_structure=False)
        return ops.sparse_matmul(brainevent.BinaryArray(x), weight, sparse_mat=matrix)

    _, dense, spikes, weight = _setup("csr", jnp.float64)
    args = (spikes, weight, _csr.indices, _csr.indptr)
    jaxpr = jax.make_jaxpr(product)(*args)
    assert not jaxpr.consts
    np.testing.assert_allclose(jax.jit(product)(*args), dense(spikes, weight), atol=1e-12)


@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
def test_connection_indices_give_row_and_column_of_every_weight(form):
    matrix, rows, columns = FORMS[form]
    index = (matrix.row, matrix.col) if form == "coo" else (matrix.indices, matrix.indptr)
    found = jax.jit(partial(ops.connection_indices, form=form, shape=matrix.shape))(index)
    assert np.array_equal(found[0], rows)
    assert np.array_equal(found[1], columns)


def test_brainevent_dense_is_a_matmul_with_events():
    weight = jnp.arange(20.0).reshape(5, 4)
    _, _, spikes, _ = _setup("csr", jnp.float64, 2)
    y = ops.sparse_matmul(brainevent.BinaryArray(2 * spikes), weight, sparse_mat=brainevent.Dense(weight))
    np.testing.assert_allclose(y, spikes @ weight)


def test_units_bias_and_transform():
    matrix, dense, spikes, weight = _setup("csr", jnp.float64, 2)
    bias = jnp.arange(4.0)
    y = ops.sparse_matmul(
        spikes * u.mV, weight * u.siemens, sparse_mat=matrix, bias=bias * u.uA, weight_fn=jnp.abs, bias_fn=jnp.square
    )
    expected = dense(spikes, jnp.abs(weight)) + 1e-3 * bias**2
    np.testing.assert_allclose(y.to_decimal(u.mA), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("error", "arguments"),
    [
        (TypeError, {"sparse_mat": jnp.ones((5, 4))}),
        (TypeError, {"sparse_mat": brainevent.JITCScalarR((1.0, 0.5, 0), shape=(5, 4))}),
        (ValueError, {"x": jnp.ones(4)}),
        (ValueError, {"x": jnp.ones(())}),
        (ValueError, {"weight": jnp.ones(3)}),
        (TypeError, {"weight": jnp.ones(ROWS.size, int)}),
        (TypeError, {"weight": jnp.ones(ROWS.size, complex)}),
        (ValueError, {"bias": jnp.ones(5)}),
    ],
)
def test_wrong_operand_is_refused_by_name(error, arguments):
    arguments = {"x": jnp.ones(5), "weight": jnp.ones(ROWS.size), "sparse_mat": _csr} | arguments
    with pytest.raises(error, match="sparse_matmul: "):
        ops.sparse_matmul(arguments.pop("x"), arguments.pop("weight"), **arguments)
