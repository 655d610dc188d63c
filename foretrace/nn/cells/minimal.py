"""Cells with linear candidates: the minimal GRU and the minimal LSTM.

They follow `MiniGRU` and `MiniLSTM` of braintrace, whose saved parameters fit: the candidate is a linear function of
the input alone, as Feng et al. (2024) propose, while the gates read the previous state too. With the rows of the gates
that belong to the state at zero they are the published cells, which have no recurrent mixing, and there D-RTRL equals
backpropagation through time.
"""

from typing import ClassVar

import jax
from jax.nn import sigmoid

from foretrace.nn.cells.base import ORTHOGONAL, Cell
from foretrace.nn.parameters import ZEROS, Initializer, Size
from foretrace.ops.units import ArrayLike


class _LinearCandidate(Cell):
    """A cell without an activation."""

    def __init__(
        self,
        in_size: Size,
        out_size: Size,
        w_init: Initializer = ORTHOGONAL,
        b_init: Initializer | None = ZEROS,
        state_init: Initializer = ZEROS,
        name: str | None = None,
    ) -> None:
        super().__init__(in_size, out_size, w_init, b_init, state_init, name=name)


class MiniGRU(_LinearCandidate):
    """The minimal GRU (Feng et al. 2024), with a gate that reads the state too.

    `z = sigmoid(W_z [x, h])`, `h' = (1 - z) h + z W_x x`.

    Args:
        in_size: The size of the input without batch axes. Of several axes the last one is mapped.
        out_size: The size of the state and the output; all axes but the last are those of `in_size`.
        w_init: The weights, `(in + out, out)` for gates and `(in, out)` for `W_x`: an initialiser or a number.
        b_init: The bias `(out,)` of each layer: an initialiser, an array or a number; None for none.
        state_init: The initial state, likewise.
        name: The name of the module.

    Raises:
        ValueError: Sizes that do not go together, or an array that does not fit.
        TypeError: A size that is none.

    Attributes:
        h: The state, after `init_state`.

    Examples:
        >>> import brainstate, jax.numpy as jnp
        >>> cell = MiniGRU(3, 4)
        >>> _ = brainstate.nn.init_all_states(cell, batch_size=2)
        >>> cell(jnp.ones((2, 3))).shape
        (2, 4)
    """

    layers: ClassVar = {"W_x": "x", "W_z": "xh"}

    def update(self, x: ArrayLike) -> jax.Array:
        """The new state, for the input of one step."""
        h = self.h.value
        z = sigmoid(self.W_z(self.joined(x, h)))
        self.h.value = (1 - z) * h + z * self.W_x(x)
        return self.h.value


class MiniLSTM(_LinearCandidate):
    """The minimal LSTM (Feng et al. 2024), with gates that read the state too, and not scaled to a sum of 1.

    `f = sigmoid(W_f [x, h])`, `i = sigmoid(W_i [x, h])`, `h' = f h + i W_x x`.

    Args:
        in_size: As for `MiniGRU`, like the arguments that follow.
        out_size: The size of the state and the output.
        w_init: The weights, `(in + out, out)` for gates and `(in, out)` for `W_x`.
        b_init: The bias `(out,)` of each layer; None for none.
        state_init: The initial state.
        name: The name of the module.

    Attributes:
        h: The state, after `init_state`.

    Examples:
        >>> import brainstate, jax.numpy as jnp
        >>> cell = MiniLSTM(3, 4, state_init=0.5)
        >>> _ = brainstate.nn.init_all_states(cell)
        >>> cell.h.value.tolist()
        [0.5, 0.5, 0.5, 0.5]
    """

    layers: ClassVar = {"W_x": "x", "W_f": "xh", "W_i": "xh"}

    def update(self, x: ArrayLike) -> jax.Array:
        """The new state, for the input of one step."""
        h = self.h.value
        xh = self.joined(x, h)
        f, i = sigmoid(self.W_f(xh)), sigmoid(self.W_i(xh))
        self.h.value = f * h + i * self.W_x(x)
        return self.h.value
