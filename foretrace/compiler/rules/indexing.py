"""Gathers, scatters and dynamic slices: relabellings where the indices are constant, mixing where data decides.

Data need not decide everything: in `table[arange(n), token]` the row is known, and any column may be meant. A lookup is
run on the numbers of its operand's elements once for every value that the undecided indices can have, which gives each
output element the elements that it may depend on.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from foretrace._jax import Atom, JaxprEqn, bind_eqn
from foretrace.compiler import sparse
from foretrace.compiler.rules.structural import along_axes
from foretrace.compiler.structure import (
    SAME,
    Known,
    Local,
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
    params = {**eqn.params, "fill_value": -1}
    indices = known.value(eqn.invars[1])
    if indices is not None:
        return [{0: from_rows(out, operand, lambda: _run(eqn, [index_array(operand), indices], params))}]
    columns, shape = index_columns(eqn.invars[1], known), shape_of(eqn.invars[1])[:-1]
    axes = eqn.params["dimension_numbers"].start_index_map

    def starts(values: Sequence[Any]) -> list[Any]:
        return [jnp.stack([jnp.broadcast_to(value, shape) for value in values], axis=-1)]

    return [{0: _any_of(eqn.replace(params=params), columns, axes, eqn.params["slice_sizes"], starts)}]


@rule_for("dynamic_slice")
def dynamic_slice(eqn: JaxprEqn, known: Known) -> Structure:
    """A window of the operand, moved inside it where it would stand out."""
    operand, out = eqn.invars[0], eqn.outvars[0]
    columns = [known.value(atom) for atom in eqn.invars[1:]]
    starts = _values(eqn, known, 1)
    if starts is None:
        return [{0: _any_of(eqn, columns, range(len(columns)), shape_of(out), list)}]
    sizes = list(zip(starts, shape_of(operand), shape_of(out), strict=True))
    index = [np.arange(length) + int(np.clip(start, 0, size - length)) for start, size, length in sizes]
    return [{0: along_axes(out, operand, index)}]


def index_columns(indices: Atom, known: Known) -> list[np.ndarray | None]:
    """The index for each axis that a gather takes one for; None where it is not known beforehand."""
    value = known.value(indices)
    if value is not None:
        return list(np.moveaxis(value, -1, 0))
    made = known.definition(indices)
    last = len(shape_of(indices)) - 1
    if made is None or made.primitive.name != "concatenate" or made.params["dimension"] != last:
        return [None] * shape_of(indices)[-1]
    return [column for part in made.invars for column in index_columns(part, known)]


def _any_of(
    eqn: JaxprEqn,
    columns: Sequence[np.ndarray | None],
    axes: Sequence[int],
    window: Sequence[int],
    starts: Callable[[Sequence[Any]], list[Any]],
) -> Local:
    """A lookup whose unknown indices may have any value that leaves the window inside the operand."""
    operand, out = eqn.invars[0], eqn.outvars[0]
    unknown = [k for k, column in enumerate(columns) if column is None]
    free = [range(shape_of(operand)[axes[k]] - window[axes[k]] + 1) for k in unknown]

    def sources() -> sparse.Matrix:
        def looked_up(chosen: Sequence[Any]) -> jax.Array:
            values = list(columns)
            for k, value in zip(unknown, chosen, strict=True):
                values[k] = value
            numbers = jnp.asarray(index_array(operand), np.int32)
            return bind_eqn(eqn, numbers, *(jnp.asarray(v, np.int32) for v in starts(values)))[0].reshape(-1)

        with jax.ensure_compile_time_eval():
            choices = [jnp.asarray(c.reshape(-1), np.int32) for c in np.meshgrid(*free, indexing="ij")]
            table = np.asarray(jax.vmap(looked_up)(choices))
        return sparse.from_lists(table.T, size_of(operand))

    return from_matrix(out, operand, sources, mixing=True)


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
