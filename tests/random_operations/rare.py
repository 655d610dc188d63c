"""Equations that an analysis may know nothing about."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from random_operations.draft import Draft, Operation, family, fit, squash, to_index

RARE: dict[str, Callable[[Any, Any], Any]] = {
    "complex": lambda a, b: jnp.imag(jax.lax.complex(a, b) * jnp.exp(0.4j * a)),
    "complex_parts": lambda a, b: jnp.real(jax.lax.complex(a, jnp.sin(b))) + jnp.abs(jax.lax.complex(a, b + 1.5)),
    "fft": lambda a, b: jnp.abs(jnp.fft.rfft(fit(a, (2, 4)))) * 0.3 + 0.1 * jnp.sum(b),
    "solve": lambda a, b: jnp.linalg.solve(2.5 * jnp.eye(3) + 0.5 * squash(fit(a, (3, 3))), fit(b, (3,))),
    "cholesky": lambda a, b: jnp.linalg.cholesky(jnp.eye(2) + fit(a, (2, 2)) @ fit(a, (2, 2)).T) * fit(b, (2,)),
    "determinant": lambda a, b: squash(jnp.linalg.det(jnp.eye(2) + 0.4 * fit(a, (2, 2)))) * fit(b, (2,)),
    "logsumexp_pairs": lambda a, b: jax.nn.logsumexp(jnp.stack([a, b]), axis=0),
    "inner_gradient": lambda a, b: jax.grad(lambda c: jnp.sum(jnp.tanh(fit(c, (2, 3)) @ fit(b, (3, 2)))))(a),
    "barrier": lambda a, b: jax.lax.optimization_barrier((a, b))[0] * b,
    "reduce_precision": lambda a, b: jax.lax.reduce_precision(a, 8, 20) * b,
    "window_sum": lambda a, b: jax.lax.reduce_window(fit(a, (2, 5)), 0.0, jax.lax.add, (1, 3), (1, 2), "SAME"),
    "window_mean": lambda a, b: jax.lax.reduce_window(fit(b, (6,)), 0.0, jax.lax.add, (2,), (2,), "VALID") / 2.0,
    "searchsorted": lambda a, b: 0.2 * jnp.searchsorted(jnp.sort(a.reshape(-1)), b.reshape(-1)) + b.reshape(-1),
    "reduce": lambda a, b: jax.lax.reduce(squash(a), 0.1, lambda c, d: c + d, (0,)),
    "integer_chain": lambda a, b: (to_index(a, 5) << 1).astype(a.dtype) * b,
    "random": lambda a, b: a * jax.random.normal(jax.random.key(3), a.shape) + b,
    "digamma": lambda a, b: jax.scipy.special.digamma(1.5 + squash(a)) * b,
    "polynomial": lambda a, b: jnp.polyval(fit(b, (3,)), squash(a)),
    "interpolate": lambda a, b: jnp.interp(fit(a, (3,)), np.array([-1.0, 0.0, 1.0]), fit(b, (3,))),
    "kron": lambda a, b: jnp.kron(fit(a, (2, 2)), fit(b, (1, 2))),
}


@family("rare")
def rare(draft: Draft) -> Operation:
    name = draft.choose(RARE)
    first, second = draft.pick(2), draft.pick()
    shape = draft.shapes[first] or (1,)
    return Operation(
        name, lambda a, b: RARE[name](fit(a, shape), fit(b, shape)), (first, second), exact=False, growth="product"
    )
