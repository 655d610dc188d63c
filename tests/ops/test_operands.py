"""Biases, transforms, units and wrong operands of the marked operators."""

import brainunit as u
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from foretrace import ops

X = jnp.arange(12.0).reshape(3, 4)
W = jnp.linspace(-1.0, 1.0, 8).reshape(4, 2)
B = jnp.array([0.5, -2.0])
XG, WG = jnp.ones((3, 2, 4)), jnp.linspace(-1.0, 1.0, 16).reshape(2, 4, 2)
XC, WC = jnp.linspace(-1.0, 1.0, 24).reshape(2, 3, 4), jnp.linspace(-1.0, 2.0, 18).reshape(2, 3, 3)

WITH_BIAS = {
    "matmul": (lambda b, **fn: ops.matmul(X, W, b, **fn), B, lambda b: b),
    "grouped_matmul": (lambda b, **fn: ops.grouped_matmul(XG, WG, b, **fn), jnp.eye(2), lambda b: b),
    "conv": (lambda b, **fn: ops.conv(XC, WC, b, **fn), B, lambda b: b[:, None]),
    "lora_matmul": (lambda b, **fn: ops.lora_matmul(X, W, jnp.eye(2), bias=b, **fn), B, lambda b: b),
}


@pytest.mark.parametrize("name", WITH_BIAS)
def test_bias_is_added_and_is_a_marked_occurrence_of_its_own(name):
    operator, bias, layout = WITH_BIAS[name]
    np.testing.assert_allclose(operator(bias), operator(None) + layout(bias), atol=1e-12)
    np.testing.assert_allclose(operator(bias, bias_fn=jnp.exp), operator(None) + layout(jnp.exp(bias)), atol=1e-12)
    found = [e.primitive.name for e in jax.make_jaxpr(operator)(bias).eqns if ops.is_etp_primitive(e.primitive)]
    assert found[1:] == ["etp_element_wise"]


@pytest.mark.parametrize("name", WITH_BIAS)
def test_bias_gradient_sums_over_positions(name):
    operator, bias, layout = WITH_BIAS[name]
    gradient = jax.grad(lambda b: jnp.sum(operator(b) ** 2))(bias)
    expected = jax.grad(lambda b: jnp.sum((operator(None) + layout(b)) ** 2))(bias)
    np.testing.assert_allclose(gradient, expected, rtol=1e-12)


def test_convolution_bias_follows_the_layout_and_keeps_higher_ranks():
    last = ("NWC", "WIO", "NWC")
    kernel = WC.transpose(2, 1, 0)
    y = ops.conv(XC.transpose(0, 2, 1), kernel, B, dimension_numbers=last)
    np.testing.assert_allclose(y, ops.conv(XC, WC, B).transpose(0, 2, 1), atol=1e-12)
    np.testing.assert_allclose(ops.conv(XC, WC, B[None, :, None]), ops.conv(XC, WC, B), atol=1e-12)


def test_one_stride_stands_for_all_axes():
    x, kernel = jnp.ones((1, 1, 6, 6)), jnp.ones((1, 1, 3, 3))
    assert ops.conv(x, kernel, strides=(2,)).shape == ops.conv(x, kernel, strides=2).shape == (1, 1, 3, 3)


def test_lora_transforms_and_scale():
    y = ops.lora_matmul(X, W, jnp.eye(2), alpha=3.0, b_fn=jnp.abs, a_fn=lambda a: a + 1)
    np.testing.assert_allclose(y, 3 * X @ jnp.abs(W) @ (jnp.eye(2) + 1), rtol=1e-12)


@pytest.mark.parametrize(
    ("result", "expected", "unit"),
    [
        (lambda: ops.matmul(X * u.mV, W * u.mS, B * u.nA), X @ W + 1e-3 * B, u.uA),
        (lambda: ops.matmul(X, W * u.mV, B * u.volt), X @ W + 1e3 * B, u.mV),
        (lambda: ops.matmul(X * u.mV, W / u.mV, B), X @ W + B, u.UNITLESS),
        (lambda: ops.matmul(X * u.mV, W / u.volt), 1e-3 * X @ W, u.UNITLESS),
        (lambda: ops.element_wise(B * u.ms, weight_fn=jnp.square), B**2, u.ms),
        (lambda: ops.embedding(jnp.array([1]), W * u.mV), W[1:2], u.mV),
        (lambda: ops.einsum("bi,io->bo", X * u.mV, W * u.mS), X @ W, u.uA),
        (lambda: ops.grouped_matmul(XG * u.mV, WG), jnp.einsum("bgi,gio->bgo", XG, WG), u.mV),
        (lambda: ops.lora_matmul(X * u.mV, W * u.mS, jnp.eye(2)), X @ W, u.uA),
        (lambda: ops.conv(XC * u.mV, WC, B * u.mV), ops.conv(XC, WC, B), u.mV),
    ],
)
def test_result_carries_the_product_of_the_units(result, expected, unit):
    np.testing.assert_allclose(u.get_mantissa(u.Quantity(result()).to(unit)), expected, rtol=1e-12, atol=1e-12)


def test_gradient_by_a_quantity():
    loss = lambda w: jnp.sum(ops.matmul(X * u.mV, w).to_decimal(u.uA))
    gradient = jax.grad(lambda w: loss(w * u.mS))(W)
    np.testing.assert_allclose(gradient, jnp.broadcast_to(X.sum(0)[:, None], W.shape), rtol=1e-12)


def test_embedding_takes_indices_of_any_shape_and_flags_those_outside():
    assert ops.embedding(jnp.zeros((2, 3), int), W).shape == (2, 3, 2)
    assert ops.embedding(3, W).shape == (2,)
    assert np.isnan(ops.embedding(4, W)).all()


@pytest.mark.parametrize("array", [np.ones((4, 2)), [[1.0, 2.0]] * 4])
def test_numpy_arrays_and_lists_are_taken(array):
    np.testing.assert_allclose(ops.matmul(X, array), X @ jnp.asarray(array))


WRONG = [
    ("matmul", ValueError, lambda: ops.matmul(X, W.T)),
    ("matmul", ValueError, lambda: ops.matmul(X, W[0])),
    ("matmul", ValueError, lambda: ops.matmul(jnp.ones(()), W)),
    ("matmul", TypeError, lambda: ops.matmul(X, W.astype(int))),
    ("matmul", TypeError, lambda: ops.matmul(X, "weight")),
    ("matmul", TypeError, lambda: ops.matmul(object(), W)),
    ("matmul", TypeError, lambda: ops.matmul(X, W, weight_fn=2.0)),
    ("matmul", ValueError, lambda: ops.matmul(X, W, jnp.ones(3))),
    ("matmul", ValueError, lambda: ops.matmul(X, W, jnp.ones((2, 3, 2)))),
    ("matmul", TypeError, lambda: ops.matmul(X, W, jnp.ones(2, int))),
    ("matmul", ValueError, lambda: ops.matmul(X * u.mV, W, B)),
    ("matmul", ValueError, lambda: ops.matmul(X, W, B * u.mV)),
    ("matmul", ValueError, lambda: ops.matmul(X * u.mV, W, B * u.ms)),
    ("grouped_matmul", ValueError, lambda: ops.grouped_matmul(X, WG)),
    ("grouped_matmul", ValueError, lambda: ops.grouped_matmul(XG, W)),
    ("conv", ValueError, lambda: ops.conv(XC[0], WC)),
    ("conv", ValueError, lambda: ops.conv(X, W)),
    ("conv", ValueError, lambda: ops.conv(XC[:, :2], WC)),
    ("conv", ValueError, lambda: ops.conv(XC, WC, strides=(1, 1))),
    ("conv", ValueError, lambda: ops.conv(XC, WC, strides=0)),
    ("conv", ValueError, lambda: ops.conv(XC, WC, padding="HALF")),
    ("conv", ValueError, lambda: ops.conv(XC, WC, padding=1)),
    ("conv", ValueError, lambda: ops.conv(XC, WC, dimension_numbers=("NHWC", "HWIO", "NHWC"))),
    ("conv", ValueError, lambda: ops.conv(XC[:, :2].repeat(3, 1), WC[:1], feature_group_count=2)),
    ("conv", ValueError, lambda: ops.conv(XC, WC, jnp.ones(3))),
    ("lora_matmul", ValueError, lambda: ops.lora_matmul(X, W, jnp.eye(3))),
    ("lora_matmul", ValueError, lambda: ops.lora_matmul(X[:, :3], W, jnp.eye(2))),
    ("element_wise", TypeError, lambda: ops.element_wise(3)),
    ("embedding", TypeError, lambda: ops.embedding(jnp.ones(2), W)),
    ("embedding", ValueError, lambda: ops.embedding(jnp.array([0]), W[0])),
    ("einsum", TypeError, lambda: ops.einsum(X, "bi,io->bo", W)),
    ("einsum", ValueError, lambda: ops.einsum("bi,io", X, W)),
    ("einsum", ValueError, lambda: ops.einsum("bi,io,o->bo", X, W)),
    ("einsum", ValueError, lambda: ops.einsum("bti,io->bto", X, W)),
    ("einsum", ValueError, lambda: ops.einsum("bi,bo->bo", X, W)),
    ("einsum", ValueError, lambda: ops.einsum("bi,io->bz", X, W)),
    ("einsum", ValueError, lambda: ops.einsum("b1,1o->bo", X, W)),
]


@pytest.mark.parametrize("index", range(len(WRONG)))
def test_wrong_operand_is_refused_by_name(index):
    operator, error, call = WRONG[index]
    with pytest.raises(error, match=rf"^{operator}: "):
        call()
