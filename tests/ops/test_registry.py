"""The registry, the facts that the compiler reads, and operators that users add."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from foretrace import ops

BUILT_IN = {"matmul", "grouped_matmul", "conv", "sparse_matmul", "element_wise", "embedding", "einsum"}


def _product(x, weight, *, scale=1.0):
    return scale * (x @ weight)


def _pair(x, weight):
    return jnp.sum(x), x @ weight


def test_built_in_operators_are_listed_by_name():
    assert {f"etp_{name}" for name in BUILT_IN} <= set(ops.etp_primitives)
    assert all(ops.is_etp_primitive(p) and p.name == name for name, p in ops.etp_primitives.items())


def test_only_element_wise_works_position_by_position():
    direct = [f"etp_{name}" for name in sorted(BUILT_IN) if not ops.get_etp_primitive(f"etp_{name}").mixing]
    assert direct == ["etp_element_wise"]


def test_trained_operands_by_default():
    assert ops.get_etp_primitive("etp_matmul").trainable_invars({}) == {"weight": 1}
    assert ops.get_etp_primitive("etp_element_wise").trainable_invars({}) == {"weight": 0}


def test_trained_operands_of_an_equation_follow_its_parameters():
    primitive = ops.register_primitive(
        "test_two_weights",
        lambda x, first, second, *, both: x @ first + both * (x @ second),
        trainable_invars_fn=lambda params: {"first": 1, "second": 2} if params["both"] else {"first": 1},
    )
    assert primitive.trainable_invars({"both": True}) == {"first": 1, "second": 2}
    assert primitive.trainable_invars({"both": False}) == {"first": 1}


def test_plain_function_of_an_equation_equals_the_equation_and_is_unmarked():
    xs, weights = jnp.arange(24.0).reshape(2, 3, 4), jnp.ones((4, 2, 5))
    mapped = jax.vmap(jax.vmap(ops.matmul, (0, None)), (None, 2))
    jaxpr = jax.make_jaxpr(mapped)(xs, weights)
    (eqn,) = [eqn for eqn in jaxpr.eqns if ops.is_etp_primitive(eqn.primitive)]
    assert eqn.params["vmap_axes"] == ((0, None), (None, 2))
    plain = lambda *args: eqn.primitive.plain(*args, **eqn.params)
    np.testing.assert_allclose(plain(xs, weights), mapped(xs, weights))
    assert "etp" not in str(jax.make_jaxpr(plain)(xs, weights))


def test_repeated_registration_gives_the_same_primitive():
    first = ops.register_primitive("test_repeated", _product, batched=True)
    assert ops.register_primitive("test_repeated", _product, batched=True) is first


def test_a_name_is_given_once():
    ops.register_primitive("test_taken", _product)
    with pytest.raises(ValueError, match="test_taken"):
        ops.register_primitive("test_taken", _pair)
    with pytest.raises(ValueError, match="test_taken"):
        ops.register_primitive("test_taken", _product, gradient_enabled=True)


def test_unknown_name_lists_the_known():
    with pytest.raises(KeyError, match="etp_matmul"):
        ops.get_etp_primitive("test_nowhere")


@pytest.mark.parametrize(
    ("error", "arguments"),
    [
        (TypeError, {"impl_fn": 3}),
        (TypeError, {"name": ""}),
        (TypeError, {"name": 7}),
        (TypeError, {"trainable_invars_fn": {"weight": 1}}),
        (ValueError, {"x_invar_index": -1}),
        (ValueError, {"y_outvar_index": None}),
    ],
)
def test_wrong_registration_is_refused_and_leaves_no_entry(error, arguments):
    with pytest.raises(error, match="register_primitive: "):
        ops.register_primitive(**({"name": "test_wrong", "impl_fn": _product} | arguments))
    assert "test_wrong" not in ops.etp_primitives


def test_parameters_reach_the_implementation():
    primitive = ops.register_primitive("test_parameters", _product)
    x, weight = jnp.ones((2, 3)), jnp.ones((3, 2))
    assert float(primitive.bind(x, weight, scale=2.0)[0, 0]) == 6.0
    assert float(jax.jit(primitive.bind)(x, weight)[0, 0]) == 3.0


def test_y_may_be_one_of_several_outputs():
    primitive = ops.register_primitive("test_pair", _pair, y_outvar_index=1)
    x, weight = jnp.arange(6.0).reshape(2, 3), jnp.linspace(0.0, 1.0, 12).reshape(3, 4)
    second = lambda function: lambda x, w: jnp.sum(jnp.sin(function(x, w)[1]))
    for transform in (jax.grad, jax.hessian):
        actual, expected = (jax.jit(transform(second(f), (0, 1)))(x, weight) for f in (primitive.bind, _pair))
        for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, e, atol=1e-12)
    total, y = jax.vmap(primitive.bind, (None, 1))(x, weight)
    assert total.shape == (4,)
    np.testing.assert_allclose(y, (x @ weight).T)
    transposed = jax.linear_transpose(lambda w: primitive.bind(x, w)[1], weight)(jnp.ones((2, 4)))
    np.testing.assert_allclose(transposed[0], x.T @ jnp.ones((2, 4)))


def test_wrong_number_of_outputs_is_refused_by_name():
    one = ops.register_primitive("test_claims_one", _pair)
    two = ops.register_primitive("test_claims_two", _product, y_outvar_index=1)
    for primitive in (one, two):
        with pytest.raises(TypeError, match=primitive.name):
            jax.jit(primitive.bind)(jnp.ones(3), jnp.ones((3, 2)))
