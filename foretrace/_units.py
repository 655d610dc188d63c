"""Physical units, without importing the package that makes them.

A value can be a quantity only where `brainunit` (or `saiunit`, whose classes those are) was imported already: it is
looked up among the loaded modules and never loaded from here. A plain array has the unit None, and so has a quantity
whose unit is one.
"""

import sys
from typing import Any

Unit = Any  # of brainunit, or None for no unit


def unit_package() -> Any:
    """The package of units where it is loaded, else None."""
    return sys.modules.get("brainunit") or sys.modules.get("saiunit")


def is_quantity(value: Any) -> bool:
    """Whether a value carries a physical unit."""
    return isinstance(value, getattr(unit_package(), "Quantity", ()))


def unit_of(value: Any) -> Unit:
    """The unit of a value; None for a plain one."""
    return known_unit(value.unit) if is_quantity(value) else None


def known_unit(unit: Any) -> Unit:
    """A unit of brainunit, with None in the place of one that is none."""
    return None if unit == unit_package().UNITLESS else unit


def without_unit(value: Any) -> Any:
    """The array of a quantity; any other value as it is."""
    return value.mantissa if is_quantity(value) else value


def with_unit_of(like: Any, value: Any) -> Any:
    """A value in the unit that another one has."""
    return type(like)(value, unit=like.unit) if is_quantity(like) else value


def unit_text(unit: Unit) -> str:
    """A unit in words."""
    return "1" if unit is None else str(unit)


def unit_errors() -> tuple[type[Exception], ...]:
    """What is raised over units that do not go together."""
    package = unit_package()
    return () if package is None else (package.UnitMismatchError, package.DimensionMismatchError)
