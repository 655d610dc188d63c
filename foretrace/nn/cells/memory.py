"""Cells with a memory of their own beside the output: the LSTM, and the LSTM with refined gates.

Memory `c` and output `h` form one hidden group with two values for each unit. Within a step `c` acts on `h`; the
engine counts that path once.
"""

from typing import Any, ClassVar

import brainstate
import jax
import jax.numpy as jnp
from jax.nn import sigmoid

from foretrace.nn.cells.base import XAVIER_NORMAL, Activation, Cell
from foretrace.nn.parameters import ZEROS, Initializer, Size
from foretrace.ops import element_wise
from foretrace.ops.units import ArrayLike


class LSTMCell(Cell):
    """Long short-term memory (Hochreiter and Schmidhuber 1997; forget gate: Gers et al. 2000).

    With `q = [x, h]`: `c' = sigmoid(Wf q + 1) c + sigmoid(Wi q) activation(Wg q)`,
    `h' = sigmoid(Wo q) activation(c')`. The 1 keeps the memory at the start of training (Jozefowicz et al. 2015).

    Args:
        in_size: The size of the input without batch axes. Of several axes the last one is mapped.
        out_size: The size of each state and the output; all axes but the last are those of `in_size`.
        w_init: The weight `(in + out, out)` of each layer: an initialiser, an array or a number.
        b_init: The bias `(out,)` of each layer, likewise; None for none.
        state_init: The initial value of both states, likewise.
        activation: A function, or the name of one in `brainstate.nn`.
        name: The name of the module.

    Raises:
        ValueError: Sizes that do not go together, an array that does not fit, or no activation of that name.
        TypeError: A size or an activation that is none.

    Attributes:
        c: The memory, after `init_state`.
        h: The output, likewise.

    Examples:
        >>> import brainstate, jax.numpy as jnp
        >>> cell = LSTMCell(3, 4)
        >>> _ = brainstate.nn.init_all_states(cell, batch_size=2)
        >>> cell(jnp.ones((2, 3))).shape, cell.c.value.shape
        ((2, 4), (2, 4))
    """

    starts: ClassVar = {"c": "state_init", "h": "state_init"}
    layers: ClassVar = {"Wi": "xh", "Wg": "xh", "Wf": "xh", "Wo": "xh"}

    def __init__(
        self,
        in_size: Size,
        out_size: Size,
        w_init: Initializer = XAVIER_NORMAL,
        b_init: Initializer | None = ZEROS,
        state_init: Initializer = ZEROS,
        activation: Activation = "tanh",
        name: str | None = None,
    ) -> None:
        super().__init__(in_size, out_size, w_init, b_init, state_init, activation, name)

    def update(self, x: ArrayLike) -> jax.Array:
        """The new output, for the input of one step."""
        xh = self.joined(x, self.h.value)
        added = sigmoid(self.Wi(xh)) * self.activation(self.Wg(xh))
        self.c.value = sigmoid(self.Wf(xh) + 1.0) * self.c.value + added
        self.h.value = sigmoid(self.Wo(xh)) * self.activation(self.c.value)
        return self.h.value


class URLSTMCell(Cell):
    """The LSTM with uniform initialisation and refined gates (UR-LSTM, Gu et al. 2020).

    With `q = [x, h]`: `f = sigmoid(Wf q + bias)`, `r = sigmoid(Wr q - bias)`, `g = 2 r f + (1 - 2 r) f^2`,
    `c' = g c + (1 - g) activation(Wu q)`, `h' = sigmoid(Wo q) activation(c')`. The bias is drawn so that the forget
    gates are uniform between `1 / out` and `1 - 1 / out`: the units begin with time scales from short to long.

    Args:
        in_size: The size of the input without batch axes. Of several axes the last one is mapped.
        out_size: The size of each state and the output; all axes but the last are those of `in_size`.
        w_init: The weight `(in + out, out)` of each layer: an initialiser, an array or a number.
        state_init: The initial value of both states, likewise.
        activation: A function, or the name of one in `brainstate.nn`.
        name: The name of the module.

    Raises:
        ValueError: Sizes that do not go together, an array that does not fit, or no activation of that name.
        TypeError: A size or an activation that is none.

    Attributes:
        bias: The bias `(out,)` of the forget gate and, with its sign changed, of the refining gate.
        c: The memory, after `init_state`.
        h: The output, likewise.

    Examples:
        >>> import brainstate, jax.numpy as jnp
        >>> cell = URLSTMCell(3, 4)
        >>> _ = brainstate.nn.init_all_states(cell)
        >>> cell(jnp.ones(3)).shape
        (4,)
    """

    starts: ClassVar = {"c": "state_init", "h": "state_init"}
    layers: ClassVar = {"Wu": "xh", "Wf": "xh", "Wr": "xh", "Wo": "xh"}

    def __init__(
        self,
        in_size: Size,
        out_size: Size,
        w_init: Initializer = XAVIER_NORMAL,
        state_init: Initializer = ZEROS,
        activation: Activation = "tanh",
        name: str | None = None,
    ) -> None:
        super().__init__(in_size, out_size, w_init, None, state_init, activation, name)
        self.bias = brainstate.ParamState(_spread_gates(self.out_size[-1]))

    def update(self, x: ArrayLike) -> jax.Array:
        """The new output, for the input of one step."""
        xh = self.joined(x, self.h.value)
        bias = element_wise(self.bias.value)
        f, r = sigmoid(self.Wf(xh) + bias), sigmoid(self.Wr(xh) - bias)
        g = 2 * r * f + (1 - 2 * r) * f**2
        self.c.value = g * self.c.value + (1 - g) * self.activation(self.Wu(xh))
        self.h.value = sigmoid(self.Wo(xh)) * self.activation(self.c.value)
        return self.h.value


def _spread_gates(units: int) -> Any:
    # Of a single unit the interval would be empty the wrong way round, (1, 0); its gate is drawn from all of (0, 1).
    edge = 1 / units if units > 1 else 1e-3
    gate = brainstate.random.uniform(edge, 1 - edge, (units,))
    return jnp.log(gate) - jnp.log1p(-gate)
