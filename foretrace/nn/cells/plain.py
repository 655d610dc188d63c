"""Cells without memory beside their state: the plain recurrent network, and one with a single gate."""

from collections.abc import Callable
from typing import Any, ClassVar

import jax
from jax.nn import sigmoid

from foretrace.nn.cells.base import ORTHOGONAL, XAVIER_NORMAL, Activation, Cell
from foretrace.nn.linear import Linear
from foretrace.nn.parameters import ZEROS, Initializer, Size
from foretrace.ops.units import ArrayLike


class VanillaRNNCell(Cell):
    """The plain recurrent cell, `h' = activation(W [x, h])` (Elman 1990).

    Args:
        in_size: The size of the input without batch axes. Of several axes the last one is mapped.
        out_size: The size of the state and the output; all axes but the last are those of `in_size`.
        state_init: The initial state: an initialiser, an array or a number.
        w_init: The weight `(in + out, out)`, likewise.
        b_init: The bias `(out,)`, likewise; None for none.
        activation: A function, or the name of one in `brainstate.nn`.
        name: The name of the module.

    Raises:
        ValueError: Sizes that do not go together, an array that does not fit, or no activation of that name.
        TypeError: A size or an activation that is none.

    Attributes:
        h: The state, after `init_state`.

    Examples:
        >>> import brainstate, jax.numpy as jnp
        >>> cell = VanillaRNNCell(3, 4)
        >>> _ = brainstate.nn.init_all_states(cell, batch_size=2)
        >>> cell(jnp.ones((2, 3))).shape
        (2, 4)
    """

    layers: ClassVar = {"W": "xh"}

    def __init__(
        self,
        in_size: Size,
        out_size: Size,
        state_init: Initializer = ZEROS,
        w_init: Initializer = XAVIER_NORMAL,
        b_init: Initializer | None = ZEROS,
        activation: Activation = "relu",
        name: str | None = None,
    ) -> None:
        super().__init__(in_size, out_size, w_init, b_init, state_init, activation, name)

    def update(self, x: ArrayLike) -> jax.Array:
        """The new state, for the input of one step."""
        self.h.value = self.activation(self.W(self.joined(x, self.h.value)))
        return self.h.value


ValinaRNNCell = VanillaRNNCell
"""The name that this cell has in brainstate and braintrace."""


class MinimalRNNCell(Cell):
    """A gate between the old state and an embedding of the input (MinimalRNN, Chen 2017).

    `z = phi(x)`, `f = sigmoid(W_u [z, h])`, `h' = f h + (1 - f) z`.

    Args:
        in_size: The size of the input without batch axes. Of several axes the last one is mapped.
        out_size: The size of the state and the output; all axes but the last are those of `in_size`.
        w_init: The weights of both layers: an initialiser, an array or a number.
        b_init: The biases of both layers, likewise; None for none.
        state_init: The initial state, likewise.
        phi: The embedding, a function or a module that gives `(..., out)`; None for a linear layer.
        name: The name of the module.

    Raises:
        ValueError: Sizes that do not go together, or an array that does not fit.
        TypeError: A size that is none, or a `phi` that cannot be called.

    Attributes:
        h: The state, after `init_state`.

    Examples:
        >>> import brainstate, jax.numpy as jnp
        >>> cell = MinimalRNNCell(4, 4, phi=jnp.tanh)
        >>> _ = brainstate.nn.init_all_states(cell)
        >>> cell(jnp.ones(4)).shape
        (4,)
    """

    def __init__(
        self,
        in_size: Size,
        out_size: Size,
        w_init: Initializer = ORTHOGONAL,
        b_init: Initializer | None = ZEROS,
        state_init: Initializer = ZEROS,
        phi: Callable[..., Any] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(in_size, out_size, state_init=state_init, name=name)
        if phi is not None and not callable(phi):
            raise TypeError(f"MinimalRNNCell: `phi` must be a function or a module, got {phi!r}.")
        inputs, units = self.in_size[-1], self.out_size[-1]
        self.phi = Linear(inputs, units, w_init, b_init) if phi is None else phi
        self.W_u = Linear(2 * units, units, w_init, b_init)

    def update(self, x: ArrayLike) -> jax.Array:
        """The new state, for the input of one step."""
        h = self.h.value
        self.check_input(x, h)
        z = self.phi(x)
        if z.shape != h.shape:
            raise ValueError(f"MinimalRNNCell: `phi` gives the shape {z.shape}, and the state has {h.shape}.")
        f = sigmoid(self.W_u(jax.numpy.concatenate([z, h], axis=-1)))
        self.h.value = f * h + (1 - f) * z
        return self.h.value
