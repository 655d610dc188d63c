"""Every marked operator equals its plain JAX form in value and derivatives under every transformation."""

from collections.abc import Callable
from typing import Any, NamedTuple

import brainevent
import brainunit
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from foretrace import ops

TOLERANCE = 1e-12


class Case(NamedTuple):
    marked: Callable[..., Any]
    plain: Callable[..., Any]
    x: jax.Array
    weight: jax.Array


def _random(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def _scaled_outer(x, weight, *, scale):
    return scale * jnp.cumsum(x, axis=-1) @ weight


scaled_p = ops.register_primitive("test_scaled", _scaled_outer, batched=True)

INDICES = jnp.array([2, 0, 2, 4])
MASK = np.array([[1, 0, 1, 0], [0, 0, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0], [0, 1, 0, 1]])
ROWS, COLUMNS = np.nonzero(MASK)
CSR = brainevent.CSR.fromdense(jnp.asarray(MASK, float))
COO = brainunit.sparse.COO((jnp.ones(ROWS.size), ROWS, COLUMNS), shape=MASK.shape)
CONV = {"dimension_numbers": ("NWC", "WIO", "NWC"), "padding": "VALID"}
CONV2D = {"feature_group_count": 2, "rhs_dilation": (1, 2), "padding": ((1, 0), (2, 1)), "window_strides": (2, 2)}


def _dense(x, weight):
    return x @ jnp.zeros(MASK.shape).at[ROWS, COLUMNS].add(weight)


def _conv2d(x, kernel):
    options = dict(CONV2D)
    return ops.conv(x, kernel, strides=options.pop("window_strides"), **options)


CASES = {
    "matmul": Case(ops.matmul, jnp.matmul, _random(0, 3, 4), _random(1, 4, 2)),
    "matmul_vector": Case(ops.matmul, jnp.matmul, _random(2, 4), _random(3, 4, 2)),
    "matmul_rank3": Case(ops.matmul, jnp.matmul, _random(2, 2, 3, 4), _random(3, 4, 2)),
    "matmul_weight_fn": Case(
        lambda x, w: ops.matmul(x, w, weight_fn=jnp.tanh),
        lambda x, w: x @ jnp.tanh(w),
        _random(4, 3, 4),
        _random(5, 4, 2),
    ),
    "grouped_matmul": Case(
        ops.grouped_matmul,
        lambda x, w: jnp.stack([x[..., g, :] @ w[g] for g in range(2)], axis=-2),
        _random(6, 3, 2, 4),
        _random(7, 2, 4, 3),
    ),
    "conv": Case(
        lambda x, w: ops.conv(x, w, **CONV),
        lambda x, w: jax.lax.conv_general_dilated(x, w, (1,), **CONV),
        _random(8, 2, 6, 2),
        _random(9, 3, 2, 2),
    ),
    "conv2d": Case(
        _conv2d,
        lambda x, w: jax.lax.conv_general_dilated(x, w, **CONV2D),
        _random(10, 1, 2, 5, 4),
        _random(11, 2, 1, 2, 2),
    ),
    "sparse_csr": Case(
        lambda x, w: ops.sparse_matmul(x, w, sparse_mat=CSR), _dense, _random(12, 2, 5), _random(13, ROWS.size)
    ),
    "sparse_coo": Case(
        lambda x, w: ops.sparse_matmul(x, w, sparse_mat=COO), _dense, _random(14, 2, 5), _random(15, ROWS.size)
    ),
    "lora": Case(
        lambda x, w: ops.lora_matmul(x, w, w.T[:, :3], alpha=0.5),
        lambda x, w: 0.5 * x @ (w @ w.T[:, :3]),
        _random(16, 3, 4),
        _random(17, 4, 2),
    ),
    "element_wise": Case(
        lambda x, w: x * ops.element_wise(w, weight_fn=jnp.exp),
        lambda x, w: x * jnp.exp(w),
        _random(18, 3, 4),
        _random(19, 4),
    ),
    "embedding": Case(
        lambda x, w: x * ops.embedding(INDICES, w), lambda x, w: x * w[INDICES], _random(20, 4, 3), _random(21, 5, 3)
    ),
    "einsum": Case(
        lambda x, w: ops.einsum("bhi, hio -> bho", x, w),
        lambda x, w: jnp.einsum("bhi,hio->bho", x, w),
        _random(22, 2, 2, 3),
        _random(23, 2, 3, 2),
    ),
    "registered": Case(
        lambda x, w: scaled_p.bind(x, w, scale=1.5),
        lambda x, w: _scaled_outer(x, w, scale=1.5),
        _random(24, 3, 4),
        _random(25, 4, 2),
    ),
}
VARIANTS = ("matmul_rank3", "matmul_weight_fn", "conv2d", "lora")  # of primitives that another case stands for
LINEAR_IN_WEIGHT = [name for name in CASES if name not in ("matmul_weight_fn", "lora", "element_wise")]


@pytest.fixture(params=CASES)
def case(request) -> Case:
    return CASES[request.param]


def agree(actual: Any, expected: Any) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    leaves = zip(jax.tree_util.tree_leaves_with_path(actual), jax.tree.leaves(expected), strict=True)
    for (path, a), e in leaves:
        assert a.dtype == e.dtype
        np.testing.assert_allclose(a, e, rtol=TOLERANCE, atol=TOLERANCE, err_msg=jax.tree_util.keystr(path))


def loss(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: jnp.sum(jnp.sin(function(*args)))


def marks(function: Callable[..., Any], *args: Any) -> list[str]:
    """Names of the marked equations of a function, nested calls included."""
    return _marks(jax.make_jaxpr(function)(*args).jaxpr)


def _marks(jaxpr: Any) -> list[str]:
    found = []
    for eqn in jaxpr.eqns:
        if ops.is_etp_primitive(eqn.primitive):
            found.append(eqn.primitive.name)
        for value in eqn.params.values():
            inner = getattr(value, "jaxpr", None)
            found += _marks(getattr(inner, "jaxpr", inner)) if inner is not None else []
    return found


def mapped(case: Case) -> tuple[jax.Array, jax.Array]:
    return jnp.stack([case.x, case.x + 1, 2 * case.x]), jnp.stack([case.weight, case.weight - 1, -case.weight], axis=-1)


def derivatives(function: Callable[..., Any], case: Case) -> dict[str, Any]:
    """Value and derivatives, compiled as one function."""

    def compute(x, weight):
        return {
            "value": function(x, weight),
            "grad": jax.grad(loss(function), (0, 1))(x, weight),
            "jvp": jax.jvp(function, (x, weight), (jnp.cos(x), jnp.cos(weight))),
            "hessian": jax.hessian(loss(function), (0, 1))(x, weight),
        }

    return jax.jit(compute)(case.x, case.weight)


def vmapped(function: Callable[..., Any], case: Case, axes: list[tuple[int | None, int | None]]) -> dict[str, Any]:
    """Value, gradient inside and gradient outside of `vmap`, for each choice of mapped axes."""

    def compute(xs, weights):
        result = {}
        for x_axis, weight_axis in axes:
            args = (case.x if x_axis is None else xs, case.weight if weight_axis is None else weights)
            over = lambda f, chosen=(x_axis, weight_axis): jax.vmap(f, chosen)
            result[f"value {x_axis} {weight_axis}"] = over(function)(*args)
            result[f"inside {x_axis} {weight_axis}"] = over(jax.grad(loss(function), (0, 1)))(*args)
            result[f"outside {x_axis} {weight_axis}"] = jax.grad(loss(over(function)), (0, 1))(*args)
        nested = jax.vmap(jax.vmap(function, (0, None), out_axes=1), (None, -1))
        result["nested"] = nested(xs, weights)
        result["nested outside"] = jax.grad(loss(nested), (0, 1))(xs, weights)
        return result

    return jax.jit(compute)(*mapped(case))


def test_eager_value_and_gradient_equal_plain(case):
    args = (case.x, case.weight)
    agree(case.marked(*args), case.plain(*args))
    agree(jax.grad(loss(case.marked), (0, 1))(*args), jax.grad(loss(case.plain), (0, 1))(*args))


def test_derivatives_equal_plain(case):
    agree(derivatives(case.marked, case), derivatives(case.plain, case))


@pytest.mark.parametrize("name", [name for name in CASES if name not in VARIANTS])
def test_vmap_equals_plain(name):
    case, axes = CASES[name], [(0, None), (None, -1), (0, -1)]
    agree(vmapped(case.marked, case, axes), vmapped(case.plain, case, axes))


@pytest.mark.parametrize("name", LINEAR_IN_WEIGHT)
def test_linear_transpose_by_weight_equals_plain(name):
    case = CASES[name]
    cotangent = jnp.cos(case.plain(case.x, case.weight))
    for axes, weight in ((None, case.weight), (-1, mapped(case)[1])):
        results = []
        for function in (case.marked, case.plain):
            of_weight = lambda w, function=function: function(case.x, w)
            if axes is None:
                results.append(jax.linear_transpose(of_weight, weight)(cotangent))
            else:
                cotangents = jnp.stack([cotangent] * 3)
                results.append(jax.linear_transpose(jax.vmap(of_weight, axes), weight)(cotangents))
        agree(*results)


@pytest.mark.parametrize("name", ["matmul", "conv", "einsum", "registered"])
def test_linear_transpose_by_data_equals_plain(name):
    case = CASES[name]
    cotangent = jnp.cos(case.plain(case.x, case.weight))
    transposed = lambda function: jax.linear_transpose(lambda x: function(x, case.weight), case.x)(cotangent)
    agree(transposed(case.marked), transposed(case.plain))


def test_mark_survives_jit_vmap_and_grad(case):
    args, many = (case.x, case.weight), mapped(case)
    expected = marks(case.marked, *args)
    assert len(expected) == 1
    assert marks(jax.jit(case.marked), *args) == expected
    assert marks(jax.vmap(case.marked, (0, -1)), *many) == expected
    assert marks(jax.vmap(jax.vmap(case.marked, (0, None)), (None, -1)), *many) == expected
    assert marks(jax.value_and_grad(loss(case.marked), (0, 1)), *args) == expected
    assert marks(case.plain, *args) == []


def test_scan_over_marked_operator_differentiates():
    def run(product):
        def final(h, weight):
            return jnp.sum(jax.lax.scan(lambda h, _: (jnp.tanh(product(h, weight)), None), h, None, length=5)[0])

        return jax.grad(final, (0, 1))(_random(30, 4), _random(31, 4, 4))

    agree(run(ops.matmul), run(jnp.matmul))


def test_tangent_of_an_operand_without_derivative_is_left_out():
    spikes = jnp.array([True, False, True, True])
    weight = CASES["matmul_vector"].weight
    gradient = jax.grad(lambda w: jnp.sum(ops.matmul(spikes, w) ** 2))(weight)
    agree(gradient, jax.grad(lambda w: jnp.sum((spikes.astype(float) @ w) ** 2))(weight))


def test_weak_type_of_a_parameter_is_kept():
    assert (jnp.ones(2, jnp.float32) * jax.jit(lambda: ops.element_wise(0.5))()).dtype == jnp.float32
