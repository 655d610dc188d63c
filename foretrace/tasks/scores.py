"""Losses of one step and measures of whole trials, as functions of arrays.

Losses give one number per trial of the batch; `weighted` puts them together with the mask. Measures look at where the
mask is above zero and leave out trials that have no such step.
"""

import jax
import jax.numpy as jnp


def weighted(losses: jax.Array, mask: jax.Array) -> jax.Array:
    """The step's share of the loss: losses (B,) times mask (B,), over the batch."""
    return jnp.sum(losses * mask) / mask.shape[0]


def cross_entropy(logits: jax.Array, target: jax.Array) -> jax.Array:
    """Softmax cross-entropy of class indices (B,), in nats."""
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), target[:, None], axis=-1)[:, 0]


def bit_cross_entropy(logits: jax.Array, bits: jax.Array) -> jax.Array:
    """Cross-entropy of independent bits (B, n), their mean, in nats."""
    return jnp.mean(jax.nn.softplus(logits) - bits * logits, axis=-1)


def squared_error(output: jax.Array, target: jax.Array) -> jax.Array:
    """The squared error, its mean over the outputs."""
    return jnp.mean((output - target) ** 2, axis=-1)


def counted_trials(mask: jax.Array) -> jax.Array:
    """Which trials (B,) of a mask (T, B) have a step that counts."""
    return jnp.any(mask > 0, axis=0)


def fraction(hits: jax.Array, counted: jax.Array) -> jax.Array:
    """The part of what counts that is a hit; none where nothing counts."""
    return jnp.sum(hits & counted) / jnp.maximum(jnp.sum(counted), 1)


def accuracy_and_error(hits: jax.Array, counted: jax.Array) -> dict[str, jax.Array]:
    """Both ways to say it."""
    accuracy = fraction(hits, counted)
    return {"accuracy": accuracy, "error": 1 - accuracy}


def mean_over_steps(values: jax.Array, mask: jax.Array) -> jax.Array:
    """The mean of (T, B, ...) over the steps that count, (B, ...)."""
    counted = jnp.expand_dims(mask > 0, tuple(range(mask.ndim, values.ndim)))
    return jnp.sum(jnp.where(counted, values, 0), axis=0) / jnp.maximum(jnp.sum(counted, axis=0), 1)


def decisions(outputs: jax.Array, targets: jax.Array, mask: jax.Array) -> dict[str, jax.Array]:
    """Accuracy and error of one decision per trial, by the softmax averaged over the steps that count."""
    decided = jnp.argmax(mean_over_steps(jax.nn.softmax(outputs), mask), axis=-1)
    label = jnp.max(jnp.where(mask > 0, targets, -1), axis=0)
    return accuracy_and_error(decided == label, counted_trials(mask))


def squared_errors(outputs: jax.Array, targets: jax.Array, mask: jax.Array) -> dict[str, jax.Array]:
    """The mean squared error, and that over the variance of the target over time, means over trials and outputs."""
    error = mean_over_steps((outputs - targets) ** 2, mask)
    spread = mean_over_steps((targets - mean_over_steps(targets, mask)) ** 2, mask)
    counted = counted_trials(mask)[:, None]
    total = jnp.maximum(jnp.sum(counted), 1) * error.shape[-1]
    floor = jnp.finfo(error.dtype).tiny  # a target that does not move has no normalised error to speak of
    return {
        "mse": jnp.sum(jnp.where(counted, error, 0)) / total,
        "nmse": jnp.sum(jnp.where(counted, error / jnp.maximum(spread, floor), 0)) / total,
    }
