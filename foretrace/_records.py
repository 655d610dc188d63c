"""Settings in frozen dataclasses: values that a user typed or gave, held against the types that the fields declare."""

import dataclasses
import math
import types
import typing
from typing import Any

import numpy as np

from foretrace._checks import is_number, is_whole

WORDS = {int: "a whole number", float: "a finite number", bool: "True or False", str: "a word"}


def require_declared(record: Any, what: str) -> None:
    """Raises `ValueError` where a setting is not what its field declares.

    Fields of other types than numbers, words, tuples of numbers, choices, and None beside them, are not looked at.

    Args:
        record: A dataclass.
        what: What it is called in messages.

    Examples:
        >>> @dataclasses.dataclass
        ... class Settings:
        ...     units: int = 3
        >>> require_declared(Settings("many"), "`Settings`")
        Traceback (most recent call last):
        ValueError: `Settings` has units='many'; give a whole number.
    """
    for field in dataclasses.fields(record):
        value, wanted = getattr(record, field.name), _wanted(field.type)
        if wanted and not any(_is(value, kind) for kind in wanted):
            raise ValueError(f"{what} has {field.name}={value!r}; give {' or '.join(map(_words, wanted))}.")


def _wanted(declared: Any) -> tuple[Any, ...]:
    """The types that a value may have; none where that cannot be told."""
    parts = typing.get_args(declared) if isinstance(declared, types.UnionType) else (declared,)
    return parts if all(part in WORDS or part is types.NoneType or _origin(part) for part in parts) else ()


def _origin(declared: Any) -> Any:
    origin = typing.get_origin(declared)
    return origin if origin is typing.Literal or (origin is tuple and typing.get_args(declared)[0] in WORDS) else None


def _is(value: Any, kind: Any) -> bool:
    if _origin(kind) is typing.Literal:
        return value in typing.get_args(kind)
    if _origin(kind) is tuple:
        return isinstance(value, tuple) and all(_is(part, typing.get_args(kind)[0]) for part in value)
    if kind is int:
        return is_whole(value)
    if kind is float:
        return _is_number(value) and math.isfinite(value)
    return isinstance(value, np.bool_) if kind is bool and isinstance(value, np.generic) else isinstance(value, kind)


def _is_number(value: Any) -> bool:
    """Whether it is a real number, or an array of one."""
    return is_number(value) or (getattr(value, "shape", None) == () and np.asarray(value).dtype.kind in "iuf")


def _words(kind: Any) -> str:
    if _origin(kind) is typing.Literal:
        return " or ".join(map(repr, typing.get_args(kind)))
    return "numbers in parentheses" if _origin(kind) is tuple else "none" if kind is types.NoneType else WORDS[kind]
