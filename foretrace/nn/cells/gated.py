"""Cells whose gates act on the state itself: GRU, MGU and the chaos-free network.

In the GRU and the MGU a gate reaches the new state in two ways: directly, and through the matrix product of the
candidate, which reads the gated old state. A rule that keeps direct paths keeps the first for the steps to come; the
second counts within the step. The reset gate of a GRU has the second alone.
"""

from typing import ClassVar

import jax
from jax.nn import sigmoid

from foretrace.nn.cells.base import Cell
from foretrace.ops.units import ArrayLike


class GRUCell(Cell):
    """The gated recurrent unit (Cho et al. 2014).

    `z = sigmoid(Wz [x, h])`, `r = sigmoid(Wr [x, h])`, `h' = (1 - z) h + z activation(Wh [x, r h])`.

    Args:
        in_size: The size of the input without batch axes. Of several axes the last one is mapped.
        out_size: The size of the state and the output; all axes but the last are those of `in_size`.
        w_init: The weight `(in + out, out)` of each layer: an initialiser, an array or a number.
        b_init: The bias `(out,)` of each layer, likewise; None for none.
        state_init: The initial state, likewise.
        activation: A function, or the name of one in `brainstate.nn`.
        name: The name of the module.

    Raises:
        ValueError: Sizes that do not go together, an array that does not fit, or no activation of that name.
        TypeError: A size or an activation that is none.

    Attributes:
        h: The state, after `init_state`.

    Examples:
        >>> import jax.numpy as jnp
        >>> import foretrace as ft
        >>> learner = ft.compile(GRUCell(3, 4), "D_RTRL", jnp.ones((2, 3)), batch_size=2)
        >>> learner(jnp.ones((2, 3))).shape
        (2, 4)
    """

    layers: ClassVar = {"Wz": "xh", "Wr": "xh", "Wh": "xh"}

    def update(self, x: ArrayLike) -> jax.Array:
        """The new state, for the input of one step."""
        h = self.h.value
        xh = self.joined(x, h)
        z, r = sigmoid(self.Wz(xh)), sigmoid(self.Wr(xh))
        self.h.value = (1 - z) * h + z * self.activation(self.Wh(self.joined(x, r * h)))
        return self.h.value


class MGUCell(Cell):
    """The minimal gated unit: one gate is both gates of a GRU (Zhou et al. 2016).

    `f = sigmoid(Wf [x, h])`, `h' = (1 - f) h + f activation(Wh [x, f h])`.

    Args:
        in_size: As for `GRUCell`, like the arguments that follow.
        out_size: The size of the state and the output.
        w_init: The weight `(in + out, out)` of each layer.
        b_init: The bias `(out,)` of each layer; None for none.
        state_init: The initial state.
        activation: A function, or the name of one in `brainstate.nn`.
        name: The name of the module.

    Attributes:
        h: The state, after `init_state`.

    Examples:
        >>> import brainstate, jax.numpy as jnp
        >>> cell = MGUCell(3, 4, activation="relu", b_init=None)
        >>> _ = brainstate.nn.init_all_states(cell)
        >>> cell(jnp.ones(3)).shape
        (4,)
    """

    layers: ClassVar = {"Wf": "xh", "Wh": "xh"}

    def update(self, x: ArrayLike) -> jax.Array:
        """The new state, for the input of one step."""
        h = self.h.value
        f = sigmoid(self.Wf(self.joined(x, h)))
        self.h.value = (1 - f) * h + f * self.activation(self.Wh(self.joined(x, f * h)))
        return self.h.value


class CFNCell(Cell):
    """The chaos-free network: without input its state falls to zero (Laurent and von Brecht 2017).

    `f = sigmoid(Wf [x, h])`, `i = sigmoid(Wi [x, h])`, `h' = f activation(h) + i activation(Wh x)`.

    Args:
        in_size: As for `GRUCell`, like the arguments that follow.
        out_size: The size of the state and the output.
        w_init: The weights, `(in + out, out)` for the gates and `(in, out)` for `Wh`.
        b_init: The bias `(out,)` of each layer; None for none.
        state_init: The initial state.
        activation: A function, or the name of one in `brainstate.nn`.
        name: The name of the module.

    Attributes:
        h: The state, after `init_state`.

    Examples:
        >>> import brainstate, jax.numpy as jnp
        >>> cell = CFNCell(3, 4)
        >>> _ = brainstate.nn.init_all_states(cell, batch_size=2)
        >>> cell(jnp.zeros((2, 3))).tolist()
        [[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
    """

    layers: ClassVar = {"Wf": "xh", "Wi": "xh", "Wh": "x"}

    def update(self, x: ArrayLike) -> jax.Array:
        """The new state, for the input of one step."""
        h = self.h.value
        xh = self.joined(x, h)
        f, i = sigmoid(self.Wf(xh)), sigmoid(self.Wi(xh))
        self.h.value = f * self.activation(h) + i * self.activation(self.Wh(x))
        return self.h.value
