"""What recurrent modules have in common: their states, and the layers that a cell is made of.

A recurrent module says in `starts` which states it has and which of its attributes holds the initial value of each;
making and resetting them follows. A cell says in `layers` what each of its linear layers reads: the input, or the
input and the previous state side by side. So a cell is a table and an equation, and a cell of one's own is no more
than that (see the example of `Cell`). Each gate has a layer of its own, with the names and shapes that users of this
field have in their saved parameters.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import brainstate
import jax
import jax.numpy as jnp
from brainstate.nn.init import Orthogonal, XavierNormal

from foretrace.errors import StateNotInitializedError
from foretrace.nn.linear import Linear
from foretrace.nn.parameters import ZEROS, Initializer, Size, checked_sizes, whole
from foretrace.ops.units import ArrayLike

ORTHOGONAL = Orthogonal()
XAVIER_NORMAL = XavierNormal(distribution="normal")

Activation = str | Callable[..., Any]


class Recurrent(brainstate.nn.Module):
    """A module with hidden states that are made, and reset, from initial values it holds.

    Attributes:
        starts: The attribute that holds the initial value of each state, by the state's name. A value is an
            initialiser, a number, or an array that broadcasts to the state.
        state_size: The shape of each state without a batch axis.
    """

    starts: ClassVar[Mapping[str, str]] = {"h": "state_init"}
    state_size: tuple[int, ...]

    def init_state(self, batch_size: int | None = None, **_: Any) -> None:
        """Makes the states, for a batch where its size is given."""
        for name in self.starts:
            setattr(self, name, brainstate.HiddenState(self._start(name, batch_size)))

    def reset_state(self, batch_size: int | None = None, **_: Any) -> None:
        """Puts the states back to their initial values, for a batch where its size is given."""
        for name in self.starts:
            getattr(self, name).value = self._start(name, batch_size)

    def _start(self, name: str, batch_size: int | None) -> Any:
        attribute = self.starts[name]
        shape = self.state_size if batch_size is None else (batch_size, *self.state_size)
        return whole(type(self).__name__, attribute, getattr(self, attribute))(shape)

    def __getattr__(self, name: str) -> Any:
        owner = type(self).__name__
        if name in type(self).starts:
            raise StateNotInitializedError(
                f"The state `{name}` of {owner} does not exist yet. Call `brainstate.nn.init_all_states(model)`, with "
                "`batch_size=...` for batches, before the first step."
            )
        raise AttributeError(f"{owner!r} object has no attribute {name!r}")

    def check_input(self, x: ArrayLike, state: ArrayLike) -> None:
        """Refuses an input that does not go with the module or with the batch that its states were made for."""
        found, size, before = jnp.shape(x), self.in_size, jnp.shape(state)[:-1]
        if found != (*before, size[-1]):
            raise ValueError(
                f"{type(self).__name__}: the input has the shape {found}; by `in_size` {size} and states of shape "
                f"{jnp.shape(state)} it must be {(*before, size[-1])}. For another batch initialise the states anew: "
                "`brainstate.nn.init_all_states(model, batch_size=...)`."
            )


class Cell(Recurrent, brainstate.nn.RNNCell):
    """A recurrent cell: the base of those in this package, and of cells of one's own.

    Args:
        in_size: The size of the input without batch axes. Of several axes the last one is mapped.
        out_size: The size of the state and the output; all axes but the last are those of `in_size`.
        w_init: The weights of every layer, `(layer's inputs, units)`: an initialiser, an array or a number.
        b_init: The biases of every layer, likewise; None for none.
        state_init: The initial state: an initialiser, an array or a number.
        activation: A function, or the name of one in `brainstate.nn`.
        name: The name of the module.

    Raises:
        ValueError: Sizes that do not go together, an array that does not fit, or no activation of that name.
        TypeError: A size or an activation that is none.

    Attributes:
        layers: What each linear layer reads, by its name: `'x'` for the input, `'xh'` for input and state.

    Examples:
        >>> import brainstate, jax
        >>> class Forgetful(Cell):
        ...     layers = {"Wf": "xh", "Wh": "x"}
        ...
        ...     def update(self, x):
        ...         forget = jax.nn.sigmoid(self.Wf(self.joined(x, self.h.value)))
        ...         self.h.value = forget * self.h.value + self.activation(self.Wh(x))
        ...         return self.h.value
        >>> cell = Forgetful(3, 4)
        >>> _ = brainstate.nn.init_all_states(cell, batch_size=2)
        >>> cell(jax.numpy.ones((2, 3))).shape
        (2, 4)
    """

    layers: ClassVar[Mapping[str, str]] = {}

    def __init__(
        self,
        in_size: Size,
        out_size: Size,
        w_init: Initializer = ORTHOGONAL,
        b_init: Initializer | None = ZEROS,
        state_init: Initializer = ZEROS,
        activation: Activation = "tanh",
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self.in_size, self.out_size = checked_sizes(type(self).__name__, in_size, out_size)
        self.state_size = self.out_size
        self.state_init = state_init
        self.activation = find_activation(type(self).__name__, activation)
        inputs, units = self.in_size[-1], self.out_size[-1]
        for layer, reads in self.layers.items():
            setattr(self, layer, Linear(inputs + units * (reads == "xh"), units, w_init, b_init))

    def joined(self, x: ArrayLike, h: ArrayLike) -> jax.Array:
        """Input and state side by side: what an `'xh'` layer reads."""
        self.check_input(x, h)
        return jnp.concatenate([x, h], axis=-1)


def find_activation(layer: str, activation: Activation) -> Callable[..., Any]:
    """The function that an argument names or is."""
    if not isinstance(activation, str):
        if not callable(activation):
            raise TypeError(f"{layer}: `activation` must be a function or the name of one, got {activation!r}.")
        return activation
    found = getattr(brainstate.nn, activation, None)
    if not callable(found) or isinstance(found, type):
        raise ValueError(
            f"{layer}: there is no activation {activation!r} in `brainstate.nn`. Use 'tanh', 'relu', 'sigmoid', "
            "'gelu', ... or give a function."
        )
    return found
