"""How much memory the traces take of values that act on many positions, and what is said or refused about it.

A trace has a value for every position that an element of a weight acts on. Usually that is one. A gate that is
broadcast over a thousand channels has a thousand, and in a state that is rolled as a ring every element comes by
everywhere: what a rule keeps is then that many times the weight. Nothing is left out for it, so it is said in bytes.
"""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from foretrace.errors import NotSupportedError
from foretrace.program.diagnostics import CompilationRecord, DiagnosticKind, DiagnosticLevel
from foretrace.program.records import path_name

if TYPE_CHECKING:
    from foretrace.engine.plan import Link

LARGE_TRACE = 2**26  # bytes from which a trace of many positions is warned of
LARGEST_TRACE = 2**32  # bytes past which it is refused
INSTEAD = "Use `pp_prop`, which keeps two factors in its place, or let it act on fewer positions."


def trace_bytes(link: "Link", dtype: Any = None) -> int:
    """The memory that the traces of a link take, one for each slot."""
    return len(link.slots) * math.prod(link.trace_shape) * jnp.dtype(dtype or link.dtype).itemsize


def trace_records(links: Iterable["Link"]) -> list[CompilationRecord]:
    """A warning for each link whose elements act on many positions and need much memory for it."""
    return [record for link in links for record in _records(link)]


def _records(link: "Link") -> list[CompilationRecord]:
    try:
        width, size = link.places.width, trace_bytes(link)
    except NotSupportedError as refusal:
        return [_record(link, str(refusal), {})]
    if width == 1 or size < LARGE_TRACE:
        return []
    return [_record(link, f"{_said(link, size)} {INSTEAD}", {"bytes": size, "positions": width})]


def _record(link: "Link", text: str, context: dict[str, Any]) -> CompilationRecord:
    kind, level = DiagnosticKind.TRACE_OF_MANY_POSITIONS, DiagnosticLevel.WARNING
    operator = link.relation.primitive.name
    return CompilationRecord(kind, level, text, operator, link.relation.path, link.group.hidden_paths, context)


def _said(link: "Link", size: int) -> str:
    states = ", ".join(f"`{path_name(path)}`" for path in link.group.hidden_paths)
    own = link.weight.var.aval.size * link.weight.var.aval.dtype.itemsize
    return (
        f"What `{path_name(link.relation.path)}` gives acts on {link.places.width:,} positions of {states}. "
        f"Its trace takes {size:,} bytes, {size / max(own, 1):,.0f} times the parameter."
    )


def check_trace(link: "Link", dtype: Any = None) -> None:
    """Refuses a trace of many positions that is past `LARGEST_TRACE`.

    Raises:
        NotSupportedError: With the size, and what to do.
    """
    size = trace_bytes(link, dtype)
    if link.places.width > 1 and size > LARGEST_TRACE:
        limit = f"That is past the {LARGEST_TRACE:,} bytes that such a trace may take."
        raise NotSupportedError(f"{_said(link, size)} {limit} {INSTEAD}")
