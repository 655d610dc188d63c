"""Randman: which smooth random manifold does a pattern of spikes lie on? (Zenke & Vogels, Neural Computation 2021.)

Each class is a manifold of a few dimensions in the space of the inputs' spike times. A point of it has random
coordinates between 0 and 1; the time of unit `i` is a product over the coordinates of

    f(x) = sum over k of  a_k / (k + 1)^alpha  sin(2 pi (k b_k x + c_k)),    a_k, b_k, c_k uniform in [0, 1],

scaled so that the unit's times fill the trial over the examples of a class. Every unit spikes once, so all that tells
classes apart is the timing. The larger `alpha`, the smoother the manifold.

The sum has a thousand terms and is wanted at many points. Coordinates are therefore drawn from a grid of `SIDE` squared
values, where `exp(i w (p SIDE + q) / SIDE^2)` is a product of a function of `p` and one of `q`: the sum over `k` is
then a product of two small matrices. Nothing is interpolated.
"""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from foretrace.tasks.stored import Parts, Stored, hold_out
from foretrace.tasks.task import Span

SIDE = 32


@dataclass(frozen=True, kw_only=True)
class Randman(Stored):
    """Patterns of one spike per unit, on smooth random manifolds.

    Attributes:
        n_classes: Manifolds.
        n_units: Inputs, each with one spike.
        n_steps: Steps of a trial.
        dimension: Of the manifolds.
        alpha: Their smoothness: how fast the amplitudes of the frequencies fall.
        n_samples: Examples of each class; a fifth is held out.
        n_frequencies: Terms of the sum.
        seed: Of the manifolds and the points on them.
        counted: How many of the last steps count; all of them for None.
        dt: Milliseconds per step.

    Examples:
        >>> task = Randman()
        >>> task.n_steps, task.n_inputs, task.n_outputs
        (50, 50, 10)
    """

    name = "randman"

    n_classes: int = 10
    n_units: int = 50
    n_steps: int = 50
    dimension: int = 3
    alpha: float = 1.0
    n_samples: int = 1000
    n_frequencies: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_above(2, "n_classes", "n_steps", "n_frequencies", inclusive=True)
        self.require_above(0, "n_units", "dimension", "alpha")
        self.require_above(5, "n_samples", inclusive=True)

    @property
    def n_inputs(self) -> int:
        return self.n_units

    @property
    def n_outputs(self) -> int:
        return self.n_classes

    @property
    def populations(self) -> tuple[Span, ...]:
        return (("units", 0, self.n_units),)

    def load(self) -> Parts:
        sizes = (self.n_classes, self.n_units, self.dimension, self.n_frequencies)
        return _make(sizes, self.n_samples, self.n_steps, self.alpha, self.seed)

    def encode(self, values: jax.Array) -> jax.Array:
        return jnp.asarray(values == jnp.arange(self.n_steps)[:, None], float)


@functools.lru_cache(maxsize=8)
def _make(sizes: tuple[int, int, int, int], n_samples: int, n_steps: int, alpha: float, seed: int) -> Parts:
    """All examples, as the step at which each unit spikes."""
    n_classes, n_units, dimension, n_frequencies = sizes
    random = np.random.default_rng(seed)
    times = []
    for _ in range(n_classes):
        waves = random.random((3, n_units, dimension, n_frequencies))
        point = random.integers(SIDE**2, size=(n_samples, dimension))
        height = np.prod([tabulate(waves[:, :, axis], alpha)[:, point[:, axis]] for axis in range(dimension)], axis=0)
        low, high = height.min(axis=1, keepdims=True), height.max(axis=1, keepdims=True)
        times.append(np.rint((n_steps - 1) * (height - low) / (high - low)).T)
    labels = np.repeat(np.arange(n_classes, dtype=np.int32), n_samples)
    return hold_out(np.concatenate(times).astype(np.int32), labels, n_steps)


def tabulate(waves: np.ndarray, alpha: float) -> np.ndarray:
    """Evaluates random functions on the grid.

    Args:
        waves: Amplitudes, frequencies and phases, (3, functions, terms).
        alpha: How fast amplitudes fall.

    Returns:
        Values at 0, 1/SIDE^2, 2/SIDE^2, ..., of (functions, SIDE^2).
    """
    order = np.arange(waves.shape[-1])
    amplitude, frequency, phase = waves[0] / (order + 1) ** alpha, order * waves[1], waves[2]
    amplitude[:, 0] = 0  # a constant says nothing about a point
    start = amplitude * np.exp(2j * np.pi * phase)
    coarse = start[:, None] * _powers(np.exp(2j * np.pi * frequency / SIDE))
    fine = _powers(np.exp(2j * np.pi * frequency / SIDE**2))
    # Not `@`: the matrices are so small that the threads of a BLAS take longer to meet than to multiply.
    return np.einsum("npk,nqk->npq", coarse, fine).imag.reshape(len(start), SIDE**2)


def _powers(base: np.ndarray) -> np.ndarray:
    """0th to (SIDE - 1)th power of (functions, terms), along a new axis between them."""
    factors = np.repeat(base[:, None], SIDE, axis=1)
    factors[:, 0] = 1
    return np.cumprod(factors, axis=1)
