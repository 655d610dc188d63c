"""Small pieces of online rules: a fixed random projection, random keys, and checks of options."""

import operator
from typing import Any

import jax
import jax.numpy as jnp


class FixedRandomFeedback:
    """A fixed random matrix that brings a target-side vector to a layer, in the place of the transposed weights.

    Args:
        n_target: Size of the target side (errors, targets).
        n_layer: Size of the layer.
        key: A seed or a JAX random key.
        init_scale: The standard deviation of its entries.

    Example:
        >>> feedback = FixedRandomFeedback(2, 3, key=0)
        >>> feedback(jnp.ones((5, 2))).shape
        (5, 3)
    """

    def __init__(self, n_target: int, n_layer: int, key: Any, init_scale: float = 0.1) -> None:
        self.n_target = _positive("n_target", n_target)
        self.n_layer = _positive("n_layer", n_layer)
        with jax.ensure_compile_time_eval():  # a constant, also where it is made inside of a traced function
            self.B = init_scale * jax.random.normal(as_key(key), (self.n_target, self.n_layer))

    @property
    def value(self) -> jax.Array:
        """The matrix, `(n_target, n_layer)`."""
        return self.B

    def project(self, target: Any) -> jax.Array:
        """`B^T` times a vector `(..., n_target)`."""
        target = jnp.asarray(target)
        if target.shape[-1:] != (self.n_target,):
            raise ValueError(f"The feedback takes vectors of {self.n_target} elements, not an array of {target.shape}.")
        return target @ self.B

    def __call__(self, target: Any) -> jax.Array:
        return self.project(target)


def as_key(seed: Any) -> jax.Array:
    """A JAX random key from a seed, a key, or the numbers that a key is made of."""
    if isinstance(seed, jax.Array) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        return seed
    try:
        return jax.random.key(operator.index(seed))
    except TypeError:
        return jax.random.wrap_key_data(jnp.asarray(seed, jnp.uint32))


def key_numbers(seed: Any) -> int | tuple[int, ...]:
    """A seed, or the numbers of a random key: what a record of options can hold."""
    try:
        return operator.index(seed)
    except TypeError:
        return tuple(jax.random.key_data(as_key(seed)).tolist())


def unit_interval(name: str, value: float) -> float:
    """A number from 0 to 1, checked."""
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"`{name}` is what a filter keeps at each step, from 0 to 1, not {value!r}.")
    return float(value)


def _positive(name: str, size: int) -> int:
    if operator.index(size) < 1:
        raise ValueError(f"`{name}` counts elements and is at least 1, not {size!r}.")
    return operator.index(size)
