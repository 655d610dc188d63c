"""Checks of what users give: each names the option, says what was found, and what to give instead.

A value of the wrong kind is a `TypeError`, one of the right kind that is out of range a `ValueError`. A bool is no
number here, although Python counts with it. The checks stand below all layers, so that one question has one answer.
"""

import inspect
import math
import numbers
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

BELOW_ONE = math.nextafter(1.0, 0.0)
"""The largest float below 1."""


def is_whole(value: Any) -> bool:
    """Whether a value is an integer of Python or NumPy; a bool is none."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool | np.bool_)


def is_number(value: Any) -> bool:
    """Whether a value is a real number of Python or NumPy; a bool and an array are none."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_)


def require_count(name: str, value: Any, what: str = "steps", least: int = 1, or_else: str = "") -> int:
    """A number of things as a Python int, checked.

    Args:
        name: The option.
        value: What was given.
        what: What is counted.
        least: The smallest number that has a meaning.
        or_else: What else the option may be, for the message.
    """
    wanted = f"`{name}` is a number of {what} from {least} on{or_else}"
    if not is_whole(value):
        raise TypeError(f"{wanted}; got {_shown(value)}, no Python int.")
    if value < least:
        raise ValueError(f"{wanted}; got {value!r}.")
    return int(value)


def require_index(name: str, value: Any) -> int:
    """A place in a list, from its start or, where negative, from its end; checked."""
    if not is_whole(value):
        raise TypeError(f"`{name}` is an index, a Python int; got {_shown(value)}.")
    return int(value)


def optional_count(name: str, value: Any, what: str = "steps", least: int = 1) -> int | None:
    """As `require_count`, with None for none."""
    return None if value is None else require_count(name, value, what, least, ", or None")


def require_number(name: str, value: Any, accepted: str, low: float = -math.inf, high: float = math.inf) -> float:
    """A finite real number between two bounds, these included, checked.

    Args:
        name: The option.
        value: What was given.
        accepted: What to give, as in "a number in [0, 1]".
        low: The smallest that is accepted.
        high: The largest that is accepted.
    """
    if not is_number(value):
        raise TypeError(f"`{name}` is {_shown(value)}. Give {accepted}, a plain Python number.")
    if not math.isfinite(value) or not low <= value <= high:
        raise ValueError(f"`{name}` is {value!r}. Give {accepted}.")
    return float(value)


def require_positive(name: str, value: Any, accepted: str) -> float:
    """A finite number above zero, checked."""
    return require_number(name, value, accepted, low=math.nextafter(0.0, 1.0))


_UNITS = {"": 1} | {
    f"{prefix}{ending}".lower(): base**power
    for base, ending in ((1000, "B"), (1024, "iB"))
    for power, prefix in enumerate(("", "k", "M", "G", "T"))
}


def require_bytes(name: str, value: Any) -> int:
    """A number of bytes, checked: an int, or a text with a unit of 1000 (`"2GB"`) or of 1024 (`"64 MiB"`).

    Examples:
        >>> require_bytes("memory", "200MB"), require_bytes("memory", "1.5 KiB"), require_bytes("memory", 96)
        (200000000, 1536, 96)
    """
    wanted = f'`{name}` is a number of bytes, such as "2GB", "200MB", "64 MiB" or a whole number'
    if isinstance(value, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([a-z]*)\s*", value.lower())
        if found is None or found[2] not in _UNITS or (found[2] == "" and "." in found[1]):
            raise ValueError(f"{wanted}; got {value!r}.")
        value = int(float(found[1]) * _UNITS[found[2]])
    if not is_whole(value):
        raise TypeError(f"{wanted}; got {_shown(value)}.")
    if value < 1:
        raise ValueError(f"{wanted}, from 1 on; got {value!r}.")
    return int(value)


def require_flag(name: str, value: Any) -> bool:
    """True or False, checked."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"`{name}` is True or False; got {_shown(value)}.")
    return bool(value)


def require_choice(name: str, value: Any, allowed: Sequence[str], meanings: Sequence[str] = ()) -> None:
    """Refuses what is none of the allowed words."""
    if isinstance(value, str) and value in allowed:
        return
    notes = [f" ({meaning})" for meaning in meanings] or [""] * len(allowed)
    listed = [f"{word!r}{note}" for word, note in zip(allowed, notes, strict=True)]
    words = " or ".join([", ".join(listed[:-1]), listed[-1]] if len(listed) > 1 else listed)
    raise ValueError(f"`{name}` is {words}; got {_shown(value)}.")


def require_floating_dtype(name: str, value: Any) -> np.dtype[Any] | None:
    """A real floating dtype, checked; None stays None."""
    if value is None:
        return None
    wanted = f"`{name}` is a floating dtype, such as 'float32' or 'bfloat16', or None for that of the states"
    try:
        dtype = jnp.dtype(value)
    except TypeError as error:
        raise TypeError(f"{wanted}; got {_shown(value)}.") from error
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(f"{wanted}; got {dtype.name}, which cannot hold a trace.")
    return dtype


def require_numeric(name: str, value: Any, accepted: str) -> None:
    """Refuses what is neither a real number nor an array of them."""
    try:
        dtype = jnp.result_type(value) if hasattr(value, "dtype") else jnp.asarray(value).dtype
    except (TypeError, ValueError):
        dtype = None
    if dtype is None or not any(jnp.issubdtype(dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_)):
        raise TypeError(f"`{name}` is {_shown(value)}. Give {accepted}.")


def require_array_like(name: str, value: Any) -> None:
    """Refuses what is neither a number, nor an array, nor anything else with a shape and a numeric dtype."""
    try:
        jnp.result_type(value) if hasattr(value, "dtype") else jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"`{name}` is a tree of arrays and has {_shown(value)} in it.") from error


def require_list(name: str, value: Any, accepted: str) -> list[Any]:
    """The entries of a list, a tuple or an array, checked."""
    if isinstance(value, list | tuple) or (isinstance(value, np.ndarray | jax.Array) and value.ndim > 0):
        return list(value)
    raise TypeError(f"`{name}` is {_shown(value)}. Give {accepted}, in a list.")


def require_function(name: str, value: Any, form: str = "") -> None:
    """Refuses what cannot be called."""
    if not callable(value):
        raise TypeError(f"`{name}` is a function{f' {form}' if form else ''}; got {_shown(value)}.")


def call_problem(function: Any, count: int, **named: Any) -> str | None:
    """Why a function cannot be called with so many arguments; None where it can, or where that is not known.

    Args:
        function: The function.
        count: How many arguments it is given by position.
        **named: Arguments by name.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a function of C
        return None
    try:
        signature.bind(*[None] * count, **named)
    except TypeError as error:
        return str(error)
    return None


def require_parts(name: str, value: Any, parts: Sequence[str], example: str) -> None:
    """Refuses an object without some methods."""
    if isinstance(value, type) or not all(callable(getattr(value, part, None)) for part in parts):
        methods = " and ".join(f"`{part}`" for part in parts)
        raise TypeError(f"`{name}` is an object with {methods}, such as {example}; got {_shown(value)}.")


def require_optimizer(name: str, value: Any) -> None:
    """Refuses what has not the `init` and `update` of an optax transformation."""
    require_parts(name, value, ("init", "update"), "`optax.adam(1e-3)`")


def _shown(value: Any) -> str:
    """A value for a message: arrays and objects by their kind, which is what is wrong with them."""
    if isinstance(value, jax.Array | np.ndarray):
        return f"an array {value.dtype}{list(value.shape)}"
    if value is None or isinstance(value, str | numbers.Number | bool | type):
        return repr(value)
    return f"a {type(value).__name__}"
