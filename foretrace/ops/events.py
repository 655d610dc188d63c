"""What a block of steps does to values on connections, visited by events.

The connections are those of a compressed matrix: the connections of one row stand together, `starts` says where, and
`columns` gives the column of each. There are two operations. `carry_connections` passes over all connections once: it
contracts traces with a signal and takes them through a transition. `add_events` visits the connections of the rows that
fired, and of no others.

On a CPU both are kernels of numba, called through brainevent, which write over their operands where XLA allows it. On
other devices, without these packages, under `vmap` and for derivatives they are plain JAX, `plain_carry` and
`plain_events`: gathers over all connections.
"""

import functools
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from foretrace._jax import Primitive, ShapedArray, ad, batching, mlir
from foretrace._optional import load

Entries = tuple[tuple[int, int], ...]
CACHE_LINE = 64  # bytes


def carry_connections(
    traces: Sequence[jax.Array], sums: Sequence[jax.Array], columns: jax.Array, table: jax.Array, entries: Entries
) -> tuple[jax.Array, list[jax.Array]]:
    """Contracts traces on connections with a signal, takes them through a transition, and adds sums to both.

    Args:
        traces: For each slot the values of the connections.
        sums: What is added to the contraction, and to each of the traces after the transition.
        columns: The column of every connection.
        table: For each column the signal on each slot, and then the entries of the transition.
        entries: Which entries of the transition there are, at least one: pairs of a new slot and an old one.

    Returns:
        The contraction and the traces, with the sums.
    """
    contracted, *carried = carry_p.bind(columns, table, *sums, *traces, entries=entries)
    return contracted, carried


def add_events(
    totals: Sequence[jax.Array], fired: jax.Array, values: jax.Array, columns: jax.Array, starts: jax.Array
) -> list[jax.Array]:
    """Adds to the connections of each row that fired the values of their columns.

    Args:
        totals: Some arrays of values of the connections.
        fired: Which rows fired in each of some steps, `(steps, rows)`.
        values: What is added to each of the arrays, `(steps, columns, arrays)`.
        columns: The column of every connection.
        starts: Where the connections of each row start, and where the last ones end.

    Returns:
        The arrays with the values of all steps added.
    """
    return list(events_p.bind(columns, starts, fired, values, *totals))


def plain_carry(columns: jax.Array, table: jax.Array, *arrays: jax.Array, entries: Entries) -> list[jax.Array]:
    """`carry_connections` in plain JAX, of the sums and the traces: the contraction first, then the traces."""
    count = len(arrays) // 2
    (contracted, *carried), traces = arrays[: count + 1], arrays[count + 1 :]
    at = lambda number: table[:, number].at[columns].get(mode="promise_in_bounds")
    for slot, trace in enumerate(traces):
        contracted = contracted + at(slot) * trace
    for number, (new, old) in enumerate(entries, start=count):
        carried[new] = carried[new] + at(number) * traces[old]
    return [contracted, *carried]


def plain_events(
    columns: jax.Array, starts: jax.Array, fired: jax.Array, values: jax.Array, *totals: jax.Array
) -> list[jax.Array]:
    """`add_events` in plain JAX."""
    rows = jnp.repeat(jnp.arange(starts.size - 1), jnp.diff(starts), total_repeat_length=columns.size)

    def add(totals: list[jax.Array], step: tuple[jax.Array, jax.Array]) -> tuple[list[jax.Array], None]:
        fired, values = step
        active = fired.at[rows].get(mode="promise_in_bounds")
        return [
            jnp.where(active, total + values[:, number].at[columns].get(mode="promise_in_bounds"), total)
            for number, total in enumerate(totals)
        ], None

    return jax.lax.scan(add, list(totals), (fired, values))[0]


def _kernel_carry(columns: jax.Array, table: jax.Array, *arrays: jax.Array, entries: Entries) -> list[jax.Array]:
    count = len(arrays) // 2
    outs = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays[: count + 1]]
    aliases = {2: 0} | {3 + count + slot: 1 + slot for slot in range(count)}
    return _call(_carry_kernel(count, entries), outs, aliases, columns, table, *arrays)


def _kernel_events(
    columns: jax.Array, starts: jax.Array, fired: jax.Array, values: jax.Array, *totals: jax.Array
) -> list[jax.Array]:
    outs = [jax.ShapeDtypeStruct(total.shape, total.dtype) for total in totals]
    aliases = {4 + number: number for number in range(len(totals))}
    return _call(_events_kernel(len(totals)), outs, aliases, columns, starts, fired, values, *totals)


def _call(kernel: Any, outs: Sequence[Any], aliases: dict[int, int], *operands: jax.Array) -> list[jax.Array]:
    brainevent = load("brainevent", "foretrace.sparse_matmul")
    return list(brainevent.numba_kernel(kernel, outs, input_output_aliases=aliases)(*operands))


@functools.cache
def _carry_kernel(count: int, entries: Entries) -> Any:
    """One pass over all connections. `count` and `entries` are constants to numba, which unrolls loops over them."""
    new_slots, old_slots = (tuple(pair[side] for pair in entries) for side in (0, 1))
    number = len(entries)

    def carry(columns: Any, table: Any, *arrays: Any) -> None:
        # The arrays are the sums, the traces, and the results, in memory the first sum and the traces.
        before, after = np.empty(count, table.dtype), np.empty(count, table.dtype)
        for connection in range(columns.size):
            row = table[columns[connection]]
            total = arrays[0][connection]
            for slot in range(count):
                before[slot] = arrays[1 + count + slot][connection]
                after[slot] = arrays[1 + slot][connection]
                total += row[slot] * before[slot]
            for entry in range(number):
                after[new_slots[entry]] += row[count + entry] * before[old_slots[entry]]
            arrays[1 + 2 * count][connection] = total
            for slot in range(count):
                arrays[2 + 2 * count + slot][connection] = after[slot]

    return _compiled(carry)


@functools.cache
def _events_kernel(count: int) -> Any:
    def add(columns: Any, starts: Any, fired: Any, values: Any, *arrays: Any) -> None:
        # The first arrays are the operands, which are the results in memory.
        rows = starts.size - 1
        stride = max(1, CACHE_LINE // values.itemsize)
        for step in range(fired.shape[0]):
            here, active = values[step], fired[step]
            visits = 0
            for row in range(rows):
                if active[row]:
                    visits += starts[row + 1] - starts[row]
            if visits * 3 * stride > here.size:
                # Most of the values will be read, in any order: read in their own order they are in the cache then.
                flat, seen = here.ravel(), values.dtype.type(0)
                for place in range(0, here.size, stride):
                    seen = max(seen, flat[place])
                if seen == np.inf:
                    visits += 1
            if visits == 0:
                continue
            for row in range(rows):
                if active[row]:
                    for connection in range(starts[row], starts[row + 1]):
                        column = columns[connection]
                        for number in range(count):
                            arrays[count + number][connection] += here[column, number]

    return _compiled(add)


def _compiled(kernel: Callable[..., None]) -> Any:
    numba: Any = load("numba", "foretrace.sparse_matmul")
    return numba.njit(nogil=True)(kernel)


@functools.cache
def has_kernels() -> bool:
    """Whether the packages of the kernels are installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("numba", "brainevent"))


def _on_cpu(kernel: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *operands, **params: (kernel if has_kernels() else plain)(*operands, **params)


def _registered(name: str, plain: Callable[..., Any], kernel: Callable[..., Any]) -> Primitive:
    primitive = Primitive(name)
    primitive.multiple_results = True

    def avals(*operands: Any, **params: Any) -> list[ShapedArray]:
        specs = [jax.ShapeDtypeStruct(operand.shape, operand.dtype) for operand in operands]
        return [ShapedArray(out.shape, out.dtype) for out in jax.eval_shape(functools.partial(plain, **params), *specs)]

    def batched(operands: Sequence[Any], axes: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
        found = jax.vmap(functools.partial(plain, **params), in_axes=tuple(axes))(*operands)
        return found, [0] * len(found)

    def derivative(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        tangents = [ad.instantiate_zeros(tangent) for tangent in tangents]
        return jax.jvp(functools.partial(plain, **params), tuple(primals), tuple(tangents))

    primitive.def_impl(lambda *operands, **params: jax.jit(functools.partial(primitive.bind, **params))(*operands))
    primitive.def_abstract_eval(avals)
    mlir.register_lowering(primitive, mlir.lower_fun(plain, multiple_results=True))
    mlir.register_lowering(primitive, mlir.lower_fun(_on_cpu(kernel, plain), multiple_results=True), platform="cpu")
    batching.primitive_batchers[primitive] = batched
    ad.primitive_jvps[primitive] = derivative
    return primitive


carry_p = _registered("carry_connections", plain_carry, _kernel_carry)
events_p = _registered("add_events", plain_events, _kernel_events)
