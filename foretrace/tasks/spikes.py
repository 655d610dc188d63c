"""Coins and spikes: random bits that are the same in single and in double precision."""

import jax
import jax.numpy as jnp


def toss(key: jax.Array, probability: jax.Array | float = 0.5, shape: tuple[int, ...] | None = None) -> jax.Array:
    """Tosses coins: true with a probability, in the shape of the probability unless told."""
    # JAX draws other numbers for other dtypes, and takes the dtype from the probability.
    return jax.random.bernoulli(key, jnp.asarray(probability, jnp.float32), shape)


def poisson_spikes(key: jax.Array, rates: jax.Array, dt: float) -> jax.Array:
    """Draws spikes of a Poisson process in steps of time: in each, a spike with probability rate times step.

    Args:
        key: A key of `jax.random`.
        rates: Rates in Hz, of any shape.
        dt: Milliseconds per step.

    Returns:
        Zeros and ones of that shape.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> spikes = poisson_spikes(jax.random.key(0), jnp.full((1000, 50), 40.0), 1.0)
        >>> bool(abs(spikes.mean() * 1000 - 40.0) < 3)
        True
    """
    return jnp.asarray(toss(key, rates * (dt / 1000)), float)
