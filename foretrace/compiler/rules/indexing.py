"""Gathers, scatters and dynamic slices: relabellings where the indices are constant, mixing where data decides."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from foretrace._jax import JaxprEqn, bind_eqn
from foretrace.compiler import sparse
from foretrace.compiler.rules.structural import along_axes
from foretrace.compiler.structure import (
    SAME,
    Known,
    Structure,
    anything,
    from_matrix,
    from_rows,
    index_array,
    rule_for,
    shape_of,
    size_of,
)


@rule_for("gather")
def gather(eqn: JaxprEqn, known: Known) -> Structure:
    """Rows of the operand; an index out of bounds gives nothing."""
    operand, out = eqn.invars[0], eqn.outvars[0]
    indices = known.value(eqn.invars[1])
    if indices is None:
        return [{0: anything(out, operand)}]
    filled = {**eqn.params, "fill_value": -1}
    return [{0: from_rows(out, operand, lambda: _run(eqn, [index_array(operand), indices], filled))}]


@rule_for("dynamic_slice")
def dynamic_slice(eqn: JaxprEqn, known: Known) -> Structure:
    """A window of the operand, moved inside it where it would stand out."""
    operand, out = eqn.invars[0], eqn.outvars[0]
    starts = _values(eqn, known, 1)
    if starts is None:
        return [{0: anything(out, operand)}]
    sizes = list(zip(starts, shape_of(operand), shape_of(out), strict=True))
    index = [np.arange(length) + int(np.clip(start, 0, size - length)) for start, size, length in sizes]
    return [{0: along_axes(out, operand, index)}]


@rule_for("dynamic_update_slice")
def dynamic_update_slice(eqn: JaxprEqn, known: Known) -> Structure:
    """The operand with a window replaced."""
    starts = _values(eqn, known, 2)
    if starts is None:
        return [{0: SAME, 1: anything(eqn.outvars[0], eqn.invars[1])}]
    return _replaced(eqn, 1, lambda operand, update: _run(eqn, [operand, update, *starts]))


@rule_for("scatter")
def scatter(eqn: JaxprEqn, known: Known) -> Structure:
    """The operand with some elements replaced by updates."""
    indices = known.value(eqn.invars[1])
    if indices is None:
        return [{0: SAME, 2: anything(eqn.outvars[0], eqn.invars[2])}]
    return _replaced(eqn, 2, lambda operand, updates: _run(eqn, [operand, indices, updates]))


def _replaced(eqn: JaxprEqn, updates: int, run: Any) -> Structure:
    """Both operands are numbered through, so an output element names both its operand and its element."""
    operand, update, out = eqn.invars[0], eqn.invars[updates], eqn.outvars[0]
    numbers = run(index_array(operand), index_array(update) + size_of(operand)).reshape(-1)
    kept = numbers < size_of(operand)
    return [
        {
            0: from_rows(out, operand, lambda: np.where(kept, numbers, -1)),
            updates: from_rows(out, update, lambda: np.where(kept, -1, numbers - size_of(operand))),
        }
    ]


@rule_for("scatter-add", "scatter_add", "scatter_sub", "scatter-sub", "scatter-mul", "scatter_mul", "scatter-min")
@rule_for("scatter_min", "scatter-max", "scatter_max")
def scatter_into(eqn: JaxprEqn, known: Known) -> Structure:
    """The operand combined with updates at their targets; several updates at one target mix."""
    updates, out = eqn.invars[2], eqn.outvars[0]
    indices = known.value(eqn.invars[1])
    if indices is None:
        return [{0: SAME, 2: anything(out, updates)}]
    targets = _targets(eqn, indices)
    valid = targets >= 0
    pattern = sparse.from_pairs(targets[valid], np.flatnonzero(valid), (size_of(out), size_of(updates)))
    return [{0: SAME, 2: from_matrix(out, updates, lambda: pattern, mixing=sparse.has_joins(pattern))}]


def _targets(eqn: JaxprEqn, indices: np.ndarray) -> np.ndarray:
    """The element of the output that each update goes to, or -1: an addition's transpose reads them off."""
    shape = shape_of(eqn.outvars[0])
    params = {**eqn.params, "update_jaxpr": None, "update_consts": ()}
    add = eqn.replace(primitive=jax.lax.scatter_add_p, params=params)

    def scattered(values: jax.Array) -> jax.Array:
        return bind_eqn(add, np.zeros(shape, np.float64), indices, values)[0]

    with jax.enable_x64(True), jax.ensure_compile_time_eval():
        numbers = np.arange(1, size_of(eqn.outvars[0]) + 1, dtype=np.float64).reshape(shape)
        (targets,) = jax.linear_transpose(scattered, np.zeros(shape_of(eqn.invars[2]), np.float64))(numbers)
        return np.asarray(targets).astype(int).reshape(-1) - 1


def _values(eqn: JaxprEqn, known: Known, start: int) -> list[np.ndarray] | None:
    values = [known.value(atom) for atom in eqn.invars[start:]]
    return None if any(value is None for value in values) else values  # type: ignore[return-value]


def _run(eqn: JaxprEqn, values: Sequence[np.ndarray], params: dict[str, Any] | None = None) -> np.ndarray:
    with jax.ensure_compile_time_eval():
        arrays = [np.asarray(value, np.int32) for value in values]
        return np.asarray(bind_eqn(eqn if params is None else eqn.replace(params=params), *arrays)[0])
