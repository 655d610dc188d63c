"""Means and variances of what has been seen so far, to scale observations and rewards by (Welford 1962)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

SMALL = 1e-8


class Moments(NamedTuple):
    """What has been seen of an array.

    Attributes:
        number: How often it was seen.
        mean: Its mean.
        squares: The sum of squared distances from the mean.
    """

    number: jax.Array
    mean: jax.Array
    squares: jax.Array

    @classmethod
    def of(cls, shape: tuple[int, ...], dtype: Any) -> "Moments":
        """Nothing seen yet."""
        return cls(jnp.zeros((), dtype), jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))

    def seen(self, value: jax.Array) -> "Moments":
        """With one value more."""
        number, away = self.number + 1, value - self.mean
        mean = self.mean + away / number
        return Moments(number, mean, self.squares + away * (value - mean))

    @property
    def deviation(self) -> jax.Array:
        """The standard deviation; 1 before the second value."""
        variance = jnp.where(self.number < 2, 1.0, self.squares / jnp.maximum(self.number - 1, 1))
        return jnp.sqrt(variance + SMALL).astype(self.mean.dtype)


class Returns(NamedTuple):
    """The discounted return that rewards are scaled by.

    Attributes:
        value: The discounted sum of the episode's rewards up to now.
        moments: What has been seen of it.
    """

    value: jax.Array
    moments: Moments

    @classmethod
    def none(cls, dtype: Any) -> "Returns":
        """No reward yet."""
        return cls(jnp.zeros((), dtype), Moments.of((), dtype))

    def scaled(self, reward: jax.Array, ended: jax.Array, discount: float) -> tuple[jax.Array, "Returns"]:
        """A reward over the standard deviation of the discounted return, and what has been seen with it."""
        value = discount * self.value + reward
        moments = self.moments.seen(value)
        return reward / moments.deviation, Returns(jnp.where(ended, 0.0, value).astype(value.dtype), moments)
