"""What an object says of itself in one line, for a prompt, a debugger or a cell of a notebook.

A line names the kind of thing, what it is of, and how large it is. It reads shapes and sizes alone, so that it is the
same for values and for what stands for them while JAX traces a function; nothing is computed.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax

LONGEST = 160
"""Characters of what stands between the brackets, at most."""


def one_line(parts: Callable[[Any], Iterable[str]]) -> Callable[[Any], str]:
    """Makes a `__repr__` of a method that gives the parts of the line.

    A debugger shows objects that are half made, so what fails is left out instead of raised.

    Examples:
        >>> class Pair:
        ...     @one_line
        ...     def __repr__(self):
        ...         yield "2 numbers"
        >>> Pair()
        Pair(2 numbers)
    """

    @functools.wraps(parts)
    def line(self: Any) -> str:
        found: list[str] = []
        try:
            for part in parts(self):
                found.append(part)
        except Exception:  # an attribute that is not there yet, or a value of another library that has no size
            found.append("...")
        return f"{type(self).__name__}({shortened(', '.join(filter(None, found)))})"

    return line


def shortened(text: str, longest: int = LONGEST) -> str:
    """A text in one line that is not too long.

    Examples:
        >>> shortened("a very long name", 11)
        'a very l...'
    """
    text = " ".join(text.split())
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def counted(count: int, noun: str) -> str:
    """`1 state`, `2 states`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def listed(names: Iterable[str], most: int = 4) -> str:
    """Names with commas between them, and how many more there are."""
    found = list(names)
    more = len(found) - most
    return ", ".join([*found[:most], *([f"{more} more"] if more > 0 else [])])


def shape_text(shape: Iterable[int]) -> str:
    """A shape as people write it; that of a single number is `scalar`."""
    sizes = list(map(str, shape))
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})" if sizes else "scalar"


def arrays_text(tree: Any) -> str:
    """How many arrays a pytree has, and how large they are together.

    Examples:
        >>> import jax.numpy as jnp
        >>> arrays_text({"w": jnp.ones((3, 4), "float32"), "b": jnp.ones(4, "float32")})
        '2 arrays, 64 B'
        >>> arrays_text(None)
        'nothing'
    """
    leaves = jax.tree.leaves(tree)
    if not leaves:
        return "nothing"
    sizes = [_bytes(leaf) for leaf in leaves]
    known = [size for size in sizes if size is not None]
    return ", ".join([counted(len(leaves), "array"), *([bytes_text(sum(known))] if len(known) == len(sizes) else [])])


def _bytes(leaf: Any) -> int | None:
    size, dtype = getattr(leaf, "size", None), getattr(leaf, "dtype", None)
    return None if size is None or dtype is None else int(size) * int(dtype.itemsize)


def bytes_text(size: float | None) -> str:
    """A number of bytes for people.

    Examples:
        >>> [bytes_text(size) for size in (None, 0, 96, 15_400, 7_259_000_000)]
        ['-', '0 B', '96 B', '15.4 kB', '7.26 GB']
    """
    if size is None:
        return "-"
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB" if size < 1000 else f"{size:,.0f} GB"
