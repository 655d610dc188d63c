"""What a layer's constructor does with its arguments: sizes, initial values and masks, checked and made whole.

The layers stand on brainstate's own, which bring the random initialisation. Three things are stricter here. A number
or a smaller array given as an initial value fills the whole parameter, so that every entry is trained by itself. An
initial value of integers becomes a floating array, since it is to be trained. And a value that does not fit is refused
when the layer is made, with its name, instead of at the first step.
"""

from collections.abc import Callable, Sequence
from typing import Any

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
from brainstate.nn.init import KaimingNormal, LecunNormal, LecunUniform, XavierNormal, ZeroInit

from foretrace.ops.units import ArrayLike, broadcasts, join_unit, split_unit

Size = int | Sequence[int]
Initializer = Callable[..., Any] | ArrayLike

KAIMING_NORMAL = KaimingNormal()
XAVIER_NORMAL = XavierNormal()
LECUN_NORMAL = LecunNormal()
LECUN_UNIFORM = LecunUniform()
ZEROS = ZeroInit()


def whole(layer: str, name: str, given: Initializer) -> Callable[[Size], Any]:
    """An initialiser that gives a whole floating array, with its unit.

    Args:
        layer: The name of the layer, for errors.
        name: The name of the argument.
        given: An initialiser, a number, or an array that broadcasts to the shape, with or without a unit.
    """

    def make(size: Size) -> Any:
        shape = checked_size(layer, name, size)
        array, unit = _array(layer, name, given, shape)
        dtype = array.dtype if jnp.issubdtype(array.dtype, np.inexact) else jnp.result_type(float)
        return join_unit(jnp.broadcast_to(array.astype(dtype), shape), unit)

    return make


def fixed(layer: str, name: str, given: Initializer | None, shape: Sequence[int], largest: Sequence[int]) -> Any:
    """An array that multiplies a weight and is not trained, such as a mask; None for none.

    Args:
        layer: The name of the layer, for errors.
        name: The name of the argument.
        given: An array that broadcasts to `largest`, or a function of `shape`.
        shape: What a function is called with.
        largest: The shape of the weight.
    """
    if given is None:
        return None
    made = given(tuple(shape)) if callable(given) else given
    return join_unit(*_array(layer, name, made, tuple(largest)))


def _array(layer: str, name: str, given: Initializer, shape: tuple[int, ...]) -> tuple[jax.Array, Any]:
    value = given(shape) if callable(given) else given
    if isinstance(value, brainstate.State):
        value = value.value
    if value is None:
        raise TypeError(f"{layer}: `{name}` must be an initialiser, a number or an array, got None.")
    array, unit = split_unit(layer, name, value)
    if not broadcasts(array.shape, shape):
        raise ValueError(f"{layer}: `{name}` of shape {array.shape} does not fit a weight of shape {shape}.")
    return array, unit


def checked_size(layer: str, name: str, size: Size) -> tuple[int, ...]:
    """A size as a tuple of positive numbers."""
    entries = (size,) if isinstance(size, (int, np.integer)) else size
    if not isinstance(entries, (tuple, list, np.ndarray)) or not len(entries):
        raise TypeError(f"{layer}: `{name}` must be a positive number or a tuple of them, got {size!r}.")
    for entry in entries:
        checked_count(layer, name, entry)
    return tuple(int(entry) for entry in entries)


def checked_count(layer: str, name: str, value: Any) -> int:
    """A positive whole number."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{layer}: `{name}` must be a positive whole number, got {value!r}.")
    if value < 1:
        raise ValueError(f"{layer}: `{name}` must be positive, got {value}.")
    return int(value)


def checked_sizes(layer: str, in_size: Size, out_size: Size) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The sizes of a layer that maps the last axis and leaves those before it."""
    before, after = checked_size(layer, "in_size", in_size), checked_size(layer, "out_size", out_size)
    if before[:-1] != after[:-1]:
        raise ValueError(
            f"{layer}: `in_size` {before} and `out_size` {after} differ before the last axis, which is the only one "
            "that the layer changes. Make the axes before it equal, or flatten them."
        )
    return before, after
