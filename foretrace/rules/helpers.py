"""Small pieces of online rules: a fixed random projection, random keys, and checks of options."""

import operator
from typing import Any

import jax
import jax.numpy as jnp

from foretrace._checks import require_count, require_number, require_numeric


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
        self.n_target = require_count("n_target", n_target, "elements")
        self.n_layer = require_count("n_layer", n_layer, "elements")
        init_scale = require_number("init_scale", init_scale, "the standard deviation of the entries", 0)
        with jax.ensure_compile_time_eval():  # a constant, also where it is made inside of a traced function
            self.B = init_scale * jax.random.normal(as_key(key), (self.n_target, self.n_layer))

    @property
    def value(self) -> jax.Array:
        """The matrix, `(n_target, n_layer)`."""
        return self.B

    def project(self, target: Any) -> jax.Array:
        """`B^T` times a vector `(..., n_target)`."""
        require_numeric("target", target, f"a vector of {self.n_target} numbers, or several of them")
        target = jnp.asarray(target)
        if target.shape[-1:] != (self.n_target,):
            raise ValueError(f"The feedback takes vectors of {self.n_target} elements, not an array of {target.shape}.")
        return target @ self.B

    def __call__(self, target: Any) -> jax.Array:
        return self.project(target)


def as_key(seed: Any, name: str = "key") -> jax.Array:
    """A JAX random key from a seed, a key, or the numbers that a key is made of."""
    if isinstance(seed, jax.Array) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        return seed
    whole = _whole_seed(seed)
    try:
        if whole is not None:
            return jax.random.key(whole)
        numbers = jnp.asarray(seed)
        if jnp.issubdtype(numbers.dtype, jnp.integer):
            return jax.random.wrap_key_data(numbers.astype(jnp.uint32))
    except (TypeError, ValueError, OverflowError):
        pass
    raise TypeError(f"`{name}` is a seed (an int of up to 64 bits) or a JAX random key; got {seed!r}.")


def key_numbers(name: str, seed: Any) -> int | tuple[int, ...]:
    """A seed, or the numbers of a random key: what a record of options can hold."""
    key, whole = as_key(seed, name), _whole_seed(seed)
    return tuple(jax.random.key_data(key).tolist()) if whole is None else whole


def _whole_seed(seed: Any) -> int | None:
    try:
        return None if isinstance(seed, bool) else operator.index(seed)
    except TypeError:
        return None


def unit_interval(name: str, value: float) -> float:
    """A number from 0 to 1, checked."""
    return require_number(name, value, "what a filter keeps at each step, from 0 to 1", 0, 1)
