"""Gathers, scatters and dynamic slices: relabellings where the indices are constant, and where whole numbers decide.

A pointer into a ring buffer, a token: which element is meant is known at run time alone, but it is one. The equation is
run on the numbers of its operand's elements once for every value that the undecided indices can have, which gives each
output element those that it may depend on. Not everything need be open: in `table[arange(n), token]` the row is known.

An index that is computed of floating values, or that can mean more than `MOST_CHOICES` elements, counts as mixing.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from foretrace._jax import Atom, JaxprEqn, bind_eqn
from foretrace.compiler import sparse
from foretrace.compiler.pattern import Pattern
from foretrace.compiler.pattern_rules.structural import along_axes
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

MOST_CHOICES = 64  # elements that an index which is open may mean
LARGEST_TABLE = 2**23  # entries that a table of all choices may have


@rule_for("gather")
def gather(eqn: JaxprEqn, known: Known) -> Structure:
    """Rows of the operand; an index out of bounds gives nothing."""
    operand, out = eqn.invars[0], eqn.outvars[0]
    params = {**eqn.params, "fill_value": -1}
    indices = known.value(eqn.invars[1])
    if indices is not None:
        return [{0: from_rows(out, operand, lambda: _run(eqn, [index_array(operand), indices], params))}]
    axes = eqn.params["dimension_numbers"].start_index_map
    sizes = [[shape[axis] for axis in axes] for shape in (shape_of(operand), eqn.params["slice_sizes"])]
    return [{0: _any_of(eqn.replace(params=params), 0, eqn.invars[1:], known, *sizes)}]


@rule_for("dynamic_slice")
def dynamic_slice(eqn: JaxprEqn, known: Known) -> Structure:
    """A window of the operand, moved inside it where it would stand out."""
    operand, out = eqn.invars[0], eqn.outvars[0]
    starts = _values(eqn, known, 1)
    if starts is None:
        return [{0: _any_of(eqn, 0, eqn.invars[1:], known, shape_of(operand), shape_of(out))}]
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
    numbered: int,
    indices: Sequence[Atom],
    known: Known,
    sizes: Sequence[int],
    windows: Sequence[int],
) -> Local:
    """A lookup or an update whose open indices may have any value that leaves a window inside.

    Args:
        eqn: The equation.
        numbered: The operand whose elements are followed; another one in front of the indices counts as nothing.
        indices: One operand for each index, or a single one with all of them along its last axis.
        known: Values that are known beforehand.
        sizes: How long the axes are that the indices are for.
        windows: How long the windows are.
    """
    source, out, shape = eqn.invars[numbered], eqn.outvars[0], shape_of(indices[0])
    columns = index_columns(indices[0], known) if shape else [known.value(atom) for atom in indices]
    ranges = [range(size - window + 1) for size, window in zip(sizes, windows, strict=True)]
    free = {k: ranges[k] for k, column in enumerate(columns) if column is None}
    choices = math.prod(map(len, free.values()))

    def sources() -> sparse.Matrix:
        def numbers(chosen: Sequence[Any]) -> jax.Array:
            opened = dict(zip(free, chosen, strict=True))
            values = [jnp.asarray(opened.get(k, column), np.int32) for k, column in enumerate(columns)]
            if shape:
                values = [jnp.stack([jnp.broadcast_to(value, shape[:-1]) for value in values], axis=-1)]
            given = {0: jnp.full(shape_of(eqn.invars[0]), -1, np.int32)}
            given[numbered] = jnp.asarray(index_array(source), np.int32)
            rest = iter(values)
            return bind_eqn(eqn, *(given[k] if k in given else next(rest) for k in range(len(eqn.invars))))[0].reshape(
                -1
            )

        with jax.ensure_compile_time_eval():
            every = [jnp.asarray(c.reshape(-1), np.int32) for c in np.meshgrid(*free.values(), indexing="ij")]
            table = np.asarray(jax.vmap(numbers)(every))
        return sparse.from_lists(table.T, size_of(source))

    counted = all(map(known.is_counted, indices))
    followed = counted and choices <= MOST_CHOICES and choices * size_of(out) <= LARGEST_TABLE
    return Local(
        lambda: Pattern(shape_of(out), shape_of(source), matrix=sources()), mixing=not followed, chosen=followed
    )


@rule_for("dynamic_update_slice")
def dynamic_update_slice(eqn: JaxprEqn, known: Known) -> Structure:
    """The operand with a window replaced."""
    starts = _values(eqn, known, 2)
    if starts is None:
        sizes, windows = (shape_of(atom) for atom in eqn.invars[:2])
        return [{0: SAME, 1: _any_of(eqn, 1, eqn.invars[2:], known, sizes, windows)}]
    return _replaced(eqn, 1, lambda operand, update: _run(eqn, [operand, update, *starts]))


@rule_for("scatter")
def scatter(eqn: JaxprEqn, known: Known) -> Structure:
    """The operand with some elements replaced by updates."""
    indices = known.value(eqn.invars[1])
    if indices is None:
        return [{0: SAME, 2: _scattered_anywhere(eqn, known)}]
    return _replaced(eqn, 2, lambda operand, updates: _run(eqn, [operand, indices, updates]))


def _scattered_anywhere(eqn: JaxprEqn, known: Known) -> Local:
    """Updates of a scatter whose indices are open; no two of them go to one place, if it is a plain `scatter`."""
    axes = eqn.params["dimension_numbers"].scatter_dims_to_operand_dims
    sizes = [shape_of(eqn.invars[0])[axis] for axis in axes]
    return _any_of(eqn, 2, eqn.invars[1:2], known, sizes, [1] * len(axes))


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
        return [{0: SAME, 2: _added_anywhere(eqn, known)}]
    targets = _targets(eqn, indices)
    valid = targets >= 0
    pattern = sparse.from_pairs(targets[valid], np.flatnonzero(valid), (size_of(out), size_of(updates)))
    return [{0: SAME, 2: from_matrix(out, updates, lambda: pattern, mixing=sparse.largest_count(targets[valid]) > 1)}]


def _added_anywhere(eqn: JaxprEqn, known: Known) -> Local:
    """Updates of which one alone can go to a place, as where one row is added at a pointer; others may meet there."""
    updates, out = eqn.invars[2], eqn.outvars[0]
    columns, shape = index_columns(eqn.invars[1], known), shape_of(eqn.invars[1])[:-1]
    first = [np.zeros(shape, int) if column is None else np.broadcast_to(column, shape) for column in columns]
    targets = _targets(eqn, np.stack(first, axis=-1))
    if sparse.largest_count(targets[targets >= 0]) > 1:
        return anything(out, updates)
    plain = eqn.replace(primitive=jax.lax.scatter_p, params={**eqn.params, "update_jaxpr": None, "update_consts": ()})
    return _scattered_anywhere(plain, known)


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
