"""Axis maps say the same as the matrices they stand for."""

import jax.numpy as jnp
import numpy as np
import pytest

import foretrace.compiler.pattern_rules  # noqa: F401  (registers the rules)
from foretrace._jax import make_jaxpr_of
from foretrace.compiler.pattern import Pattern, empty, identity
from foretrace.compiler.patterns import analyse

SHAPE = (2, 3, 4)

RELABELLINGS = {
    "itself": lambda x: x,
    "transpose": lambda x: jnp.transpose(x, (2, 0, 1)),
    "slice": lambda x: x[:, 1:, ::2],
    "reverse": lambda x: x[::-1, :, ::-1],
    "roll": lambda x: jnp.roll(x, 1, axis=2),
    "repeat": lambda x: jnp.tile(x, (1, 2, 1)),
    "pad": lambda x: jnp.pad(x, ((0, 1), (2, 0), (0, 0))),
    "cut": lambda x: x[:, :1],
    "squeeze": lambda x: x[:, 1],
    "expand": lambda x: x[:, None] * jnp.ones((2, 5, 3, 4)),
    "concatenate": lambda x: jnp.concatenate([x[..., 2:], x[..., :3]], axis=-1),
    "stack": lambda x: jnp.stack([x[0], x[1], x[0]], axis=1),
    "merge axes": lambda x: x.reshape(6, 4),
    "sum of two": lambda x: x[..., :2] + x[..., 2:],
}


def pattern_of(function, shape):
    closed = make_jaxpr_of(function, [jnp.zeros(shape)])
    (source,), (out,) = closed.jaxpr.invars, closed.jaxpr.outvars
    return analyse(closed.jaxpr, [source], consts=closed.consts).of(out, source)


def as_matrix(pattern: Pattern) -> Pattern:
    """The same pattern without its maps."""
    return Pattern(pattern.out_shape, pattern.source_shape, matrix=pattern.matrix)


def structure(function, shape):
    """Which element of the input each element of the output holds, by distinct powers of two."""
    size = int(np.prod(shape))
    basis = np.eye(size).reshape(size, *shape)
    return np.stack([np.asarray(function(jnp.asarray(one))).reshape(-1) != 0 for one in basis], axis=1)


@pytest.mark.parametrize("name", RELABELLINGS)
def test_pattern_is_the_structure_of_the_function(name):
    function = RELABELLINGS[name]
    np.testing.assert_array_equal(pattern_of(function, SHAPE).matrix.toarray(), structure(function, SHAPE))


@pytest.mark.parametrize("first", RELABELLINGS)
@pytest.mark.parametrize("second", ["itself", "slice 0", "reverse", "concatenate"])
def test_composing_maps_is_multiplying_matrices(first, second):
    inner = pattern_of(RELABELLINGS[first], SHAPE)
    then = {
        "itself": lambda x: x,
        "slice 0": lambda x: x[1:],
        "reverse": lambda x: x[::-1],
        "concatenate": lambda x: jnp.concatenate([x, x[:1]]),
    }[second]
    outer = pattern_of(then, inner.out_shape)
    found = outer.after(inner).matrix.toarray()
    expected = (outer.matrix.toarray().astype(int) @ inner.matrix.toarray().astype(int)) > 0
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(as_matrix(outer).after(as_matrix(inner)).matrix.toarray(), expected)


@pytest.mark.parametrize("name", RELABELLINGS)
def test_union_of_maps_is_union_of_matrices(name):
    one = pattern_of(RELABELLINGS[name], SHAPE)
    two = pattern_of(lambda x: RELABELLINGS[name](x[::-1]), SHAPE)
    expected = one.matrix.toarray() | two.matrix.toarray()
    np.testing.assert_array_equal(one.union(two).matrix.toarray(), expected)
    np.testing.assert_array_equal(as_matrix(one).union(two).matrix.toarray(), expected)


def test_only_the_identity_is_the_identity():
    found = {name for name in RELABELLINGS if pattern_of(RELABELLINGS[name], SHAPE).is_identity}
    assert found == {"itself"}


def test_nothing_is_empty():
    assert empty((3,), (4,)).is_empty
    assert pattern_of(lambda x: x[:0], SHAPE).is_empty
    assert not identity((3,)).is_empty


def test_a_large_layer_costs_no_matrix():
    """Fused gates at batch 128 and 1024 units are told by four maps."""

    def gates(y):
        i, f, g, o = jnp.split(y, 4, axis=-1)
        return jnp.tanh(i) * g + f * o

    pattern = pattern_of(gates, (128, 4096))
    assert pattern.maps is not None
    assert len(pattern.maps) == 4
