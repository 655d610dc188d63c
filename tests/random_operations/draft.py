"""What a maker of operations gets and gives.

A maker takes a `Draft` (the shapes of the values made so far, and a random generator) and returns one `Operation`:
a function, the values it reads, and whether its Jacobian has exactly the structure of its equations at a generic
point. Exact operations avoid every cancellation: linear combinations have random coefficients, no factor is
identically zero, and sums of differences (variance, softmax) are weighted by random constants.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

Shape = tuple[int, ...]
LARGEST = 40  # elements of a value; keeps dense Jacobians small


@dataclass(frozen=True)
class Operation:
    """One instruction of a random program.

    Attributes:
        name: For the description of a program.
        function: From the operands to one array.
        operands: Which values it reads.
        exact: Its derivative is nonzero wherever its equations have a path.
        growth: How large the result can get: `bounded`, `linear` in the operands, or their `product`.
    """

    name: str
    function: Callable[..., Any]
    operands: tuple[int, ...]
    exact: bool = True
    growth: str = "linear"


@dataclass
class Draft:
    """The values that exist while a program is drawn.

    Attributes:
        rng: Where every choice comes from.
        values: What each value is, as far as its shape is known from it.
        params: Which values are parameters.
        degrees: How many factors of order one each value has at most.
        read: Which values some operation has read.
    """

    rng: np.random.Generator
    values: list[Any]
    params: list[int]
    degrees: list[int]
    read: set[int] = field(default_factory=set)

    @property
    def shapes(self) -> list[Shape]:
        """The shape of each value."""
        return [value.shape for value in self.values]

    def pick(self, size_at_least: int = 1) -> int:
        """A value of at least that many elements, mostly one that nothing has read; the largest where none is."""
        sizes = np.array([int(np.prod(shape)) for shape in self.shapes])
        interest = np.array([1.0 if value in self.read else 12.0 for value in range(len(sizes))])
        chances = np.where(sizes >= size_at_least, interest, 0.0)
        if not chances.any():
            return int(np.argmax(sizes))
        return int(self.rng.choice(len(sizes), p=chances / chances.sum()))

    def pick_param(self) -> int:
        """A parameter."""
        return int(self.rng.choice(self.params))

    def choose(self, names: Any) -> str:
        """One of several names."""
        names = list(names)
        return names[int(self.rng.integers(len(names)))]

    def integer(self, low: int, high: int) -> int:
        """A random integer of `low` up to and including `high`."""
        return int(self.rng.integers(low, high + 1))

    def coefficient(self) -> float:
        """A random factor that is neither small nor large, of either sign."""
        return float(self.rng.uniform(0.4, 0.9) * self.rng.choice([-1.0, 1.0]))

    def constant(self, shape: Shape) -> np.ndarray:
        """A random array without small elements."""
        return self.rng.uniform(0.4, 0.9, shape) * self.rng.choice([-1.0, 1.0], shape)

    def axis(self, value: int) -> int:
        """An axis of a value that has at least one."""
        return self.integer(0, len(self.shapes[value]) - 1)


Maker = Callable[[Draft], Operation]
FAMILIES: dict[str, dict[str, Maker]] = {}
WIDE_FAMILIES: dict[str, dict[str, Maker]] = {}  # of the wider programs alone
DIRECT_FAMILIES = ("binary", "nested", "smooth", "still", "structural", "structural")
EXACT_FAMILIES = ("binary", "marked", "mixing", "nested", "reduction", "smooth", "still", "structural", "weight")


def family(name: str, weight: int = 1, families: dict[str, dict[str, Maker]] = FAMILIES) -> Callable[[Maker], Maker]:
    """Registers a maker under a family, as often as its weight says; a second time changes nothing."""

    def register(maker: Maker) -> Maker:
        families.setdefault(name, {}).update({f"{maker.__name__}_{copy}": maker for copy in range(weight)})
        return maker

    return register


wide_family = functools.partial(family, families=WIDE_FAMILIES)


def fit(value: Any, shape: Shape) -> Any:
    """A value's elements in another shape, repeated or cut as needed."""
    size = int(np.prod(shape))
    flat = jnp.reshape(value, -1)
    if flat.size < size:
        flat = jnp.concatenate([flat] * -(-size // flat.size))
    return jnp.reshape(flat[:size], shape)


def squash(value: Any) -> Any:
    """A value between -1 and 1."""
    return jnp.tanh(0.5 * value)


def to_index(value: Any, length: int) -> Any:
    """Integers below `length` that depend on data."""
    return jnp.floor(jnp.abs(value) * 7.0).astype(jnp.int32) % length
