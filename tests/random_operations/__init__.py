"""The operations that random programs are drawn from: one file per kind, each adding its makers to `FAMILIES`."""

from random_operations import choices, elementwise, marked, mixing, nested, rare, structural, wide
from random_operations.draft import (
    DIRECT_FAMILIES,
    EXACT_FAMILIES,
    FAMILIES,
    LARGEST,
    WIDE_FAMILIES,
    Draft,
    Maker,
    Operation,
    Shape,
    fit,
    squash,
)

__all__ = [
    "DIRECT_FAMILIES",
    "EXACT_FAMILIES",
    "FAMILIES",
    "LARGEST",
    "WIDE_FAMILIES",
    "Draft",
    "Maker",
    "Operation",
    "Shape",
    "choices",
    "elementwise",
    "fit",
    "marked",
    "mixing",
    "nested",
    "rare",
    "squash",
    "structural",
    "wide",
]
