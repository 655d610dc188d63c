"""Products that leave a zero cotangent at zero, under the transformations of JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from foretrace.program.zero_safe import scale_p

FACTORS, VALUE = np.arange(1.0, 13.0).reshape(4, 3), np.array([2.0, -1.0, 0.5])


@pytest.mark.parametrize("axes", [(0, None), (None, 0)])
def test_either_operand_may_be_mapped_over(axes: tuple[int | None, int | None]) -> None:
    operands = (FACTORS, VALUE) if axes[0] == 0 else (VALUE, FACTORS)
    found = jax.jit(jax.vmap(scale_p.bind, axes))(*map(jnp.asarray, operands))
    np.testing.assert_array_equal(found, FACTORS * VALUE)


def test_a_mapped_derivative_is_that_of_a_product() -> None:
    def gradient(factor: jax.Array) -> jax.Array:
        return jax.grad(lambda value: jnp.sum(scale_p.bind(factor, value)))(jnp.asarray(VALUE))

    np.testing.assert_array_equal(jax.jit(jax.vmap(gradient))(jnp.asarray(FACTORS)), FACTORS)
