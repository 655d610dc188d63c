"""What a block of steps does to values on connections, visited by events.

The connections are those of a compressed matrix: the connections of one row stand together, `starts` says where, and
`columns` gives the column of each. `add_events` visits the connections of the rows that fired, and of no others. The
sums that it makes start from `no_sums`, where nothing is written: what they hold counts for the rows that were `seen`,
and is zero for all others. `carry_connections` then passes over all connections once: it contracts traces with a
signal, takes them through a transition, and adds the sums.

On a CPU these are kernels of numba, called through brainevent, which write over their operands where XLA allows it. On
other devices, without these packages, under `vmap` and for derivatives they are plain JAX, gathers over all
connections.
"""

import functools
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from foretrace._jax import Primitive, ShapedArray, ad, batching, mlir
from foretrace._optional import load

Entries = tuple[tuple[int, int], ...]


def no_sums(count: int, connections: int, rows: int, dtype: Any) -> tuple[list[jax.Array], jax.Array]:
    """Sums on connections before the first event, and which rows were seen: none."""
    sums = blank_p.bind(count=count, connections=connections, dtype=jnp.dtype(dtype))
    return list(sums), jnp.zeros(rows, bool)


def add_events(
    sums: Sequence[jax.Array],
    seen: jax.Array,
    fired: jax.Array,
    values: Sequence[jax.Array],
    columns: jax.Array,
    starts: jax.Array,
) -> tuple[list[jax.Array], jax.Array]:
    """Adds to the connections of each row that fired the values of their columns.

    Args:
        sums: Some arrays of values of the connections.
        seen: The rows for which these count.
        fired: Which rows fired in each of some steps, `(steps, rows)`.
        values: What is added to each of the arrays, `(steps, columns)`.
        columns: The column of every connection.
        starts: Where the connections of each row start, and where the last ones end.

    Returns:
        The sums with the values of all steps added, and the rows for which they count.
    """
    seen, *sums = events_p.bind(columns, starts, fired, *values, seen, *sums)
    return list(sums), seen


def carry_connections(
    traces: Sequence[jax.Array],
    sums: Sequence[jax.Array],
    seen: jax.Array,
    columns: jax.Array,
    starts: jax.Array,
    table: jax.Array,
    entries: Entries,
) -> tuple[jax.Array, list[jax.Array]]:
    """Contracts traces on connections with a signal, takes them through a transition, and adds sums to both.

    Args:
        traces: For each slot the values of the connections.
        sums: What is added to the contraction, and to each of the traces after the transition.
        seen: The rows for which these count.
        columns: The column of every connection.
        starts: Where the connections of each row start, and where the last ones end.
        table: For each column the signal on each slot, and then the entries of the transition.
        entries: Which entries of the transition there are, at least one: pairs of a new slot and an old one.

    Returns:
        The contraction and the traces, with the sums.
    """
    contracted, *carried = carry_p.bind(columns, starts, seen, table, *sums, *traces, entries=entries)
    return contracted, carried


def plain_blank(*, count: int, connections: int, dtype: Any) -> list[jax.Array]:
    """The sums of `no_sums` in plain JAX: zeros."""
    return [jnp.zeros(connections, dtype) for _ in range(count)]


def plain_events(columns: jax.Array, starts: jax.Array, fired: jax.Array, *arrays: jax.Array) -> list[jax.Array]:
    """`add_events` in plain JAX, of the values, the rows seen and the sums: all rows are seen afterwards."""
    count = len(arrays) // 2
    values, seen, sums = arrays[:count], arrays[count], arrays[count + 1 :]
    rows = _rows(columns, starts)

    def add(sums: list[jax.Array], step: Any) -> tuple[list[jax.Array], None]:
        fired, values = step
        active = _at(fired, rows)
        pairs = zip(sums, values, strict=True)
        return [jnp.where(active, total + _at(value, columns), total) for total, value in pairs], None

    begun = [jnp.where(_at(seen, rows), total, 0) for total in sums]
    return [jnp.ones_like(seen), *jax.lax.scan(add, begun, (fired, list(values)))[0]]


def plain_carry(
    columns: jax.Array, starts: jax.Array, seen: jax.Array, table: jax.Array, *arrays: jax.Array, entries: Entries
) -> list[jax.Array]:
    """`carry_connections` in plain JAX, of the sums and the traces: the contraction first, then the traces."""
    count = len(arrays) // 2
    counted, traces = _at(seen, _rows(columns, starts)), arrays[count + 1 :]
    contracted, *carried = [jnp.where(counted, total, 0) for total in arrays[: count + 1]]
    for slot, trace in enumerate(traces):
        contracted = contracted + _at(table[:, slot], columns) * trace
    for number, (new, old) in enumerate(entries, start=count):
        carried[new] = carried[new] + _at(table[:, number], columns) * traces[old]
    return [contracted, *carried]


def _at(array: jax.Array, index: jax.Array) -> jax.Array:
    return array.at[index].get(mode="promise_in_bounds")


def _rows(columns: jax.Array, starts: jax.Array) -> jax.Array:
    return jnp.repeat(jnp.arange(starts.size - 1), jnp.diff(starts), total_repeat_length=columns.size)


def _kernel_blank(*, count: int, connections: int, dtype: Any) -> list[jax.Array]:
    outs = [jax.ShapeDtypeStruct((connections,), dtype)] * count
    return _call(_blank_kernel(count), outs, {})


def _kernel_events(columns: jax.Array, starts: jax.Array, fired: jax.Array, *arrays: jax.Array) -> list[jax.Array]:
    count = len(arrays) // 2
    outs = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays[count:]]
    aliases = {3 + count + number: number for number in range(count + 1)}
    values = [array.reshape(-1) for array in arrays[:count]]
    return _call(_events_kernel(count), outs, aliases, columns, starts, fired, *values, *arrays[count:])


def _kernel_carry(
    columns: jax.Array, starts: jax.Array, seen: jax.Array, table: jax.Array, *arrays: jax.Array, entries: Entries
) -> list[jax.Array]:
    count = len(arrays) // 2
    outs = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays[: count + 1]]
    aliases = {4: 0} | {5 + count + slot: 1 + slot for slot in range(count)}
    return _call(_carry_kernel(count, entries), outs, aliases, columns, starts, seen, table, *arrays)


def _call(kernel: Any, outs: Sequence[Any], aliases: dict[int, int], *operands: jax.Array) -> list[jax.Array]:
    brainevent = load("brainevent", "foretrace.sparse_matmul")
    return list(brainevent.numba_kernel(kernel, outs, input_output_aliases=aliases)(*operands))


@functools.cache
def _blank_kernel(count: int) -> Any:
    return _written("blank", _numbered("r", count), ["pass"])


@functools.cache
def _events_kernel(count: int) -> Any:
    """The connections of what fired, step by step: values `v` are added to `r`, which are the operands in memory."""
    indent = " " * 12
    body = [
        "width = v0.size // fired.shape[0]",
        "for step in range(fired.shape[0]):",
        "    begin = step * width",
        "    for row in fired[step].nonzero()[0]:",
        "        if not after[row]:",
        "            after[row] = True",
        "            for c in range(starts[row], starts[row + 1]):",
        *(f"{indent}    r{number}[c] = 0" for number in range(count)),
        "        for c in range(starts[row], starts[row + 1]):",
        "            j = begin + columns[c]",
        *(f"{indent}r{number}[c] += v{number}[j]" for number in range(count)),
    ]
    values, sums, results = (_numbered(letter, count) for letter in "vsr")
    return _written("add", ["columns", "starts", "fired", *values, "seen", *sums, "after", *results], body)


@functools.cache
def _carry_kernel(count: int, entries: Entries) -> Any:
    """One pass over all connections: of sums `s` and traces `e`, the results `r` are in memory `s0` and the traces."""
    slots = range(count)
    terms = ["".join(f" + table[j, {slot}] * x{slot}" for slot in slots), *[""] * count]
    for number, (new, old) in enumerate(entries, start=count):
        terms[new + 1] += f" + table[j, {number}] * x{old}"

    def loop(begin: str) -> list[str]:
        return [
            "        for c in range(starts[row], starts[row + 1]):",
            "            j = columns[c]",
            *(f"            x{slot} = e{slot}[c]" for slot in slots),
            *(f"            r{number}[c] = {begin.format(number)}{term}" for number, term in enumerate(terms)),
        ]

    head, other = ["for row in range(starts.size - 1):", "    if seen[row]:"], ["    else:"]
    sums, results = (_numbered(letter, count + 1) for letter in "sr")
    arguments = ["columns", "starts", "seen", "table", *sums, *_numbered("e", count), *results]
    return _written("carry", arguments, [*head, *loop("s{}[c]"), *other, *loop("table.dtype.type(0)")])


def _numbered(letter: str, count: int) -> list[str]:
    """Names for some arrays of one kind."""
    return [f"{letter}{number}" for number in range(count)]


def _written(name: str, arguments: Sequence[str], body: Sequence[str]) -> Any:
    """A kernel from its text: a loop over slots inside would cost half of its speed, so each is written out."""
    numba: Any = load("numba", "foretrace.sparse_matmul")
    text = "\n    ".join([f"def {name}({', '.join(arguments)}):", *body])
    made: dict[str, Any] = {"__name__": __name__}
    exec(text, made)
    return numba.njit(nogil=True)(made[name])


@functools.cache
def has_kernels() -> bool:
    """Whether the packages of the kernels are installed, in versions that take them."""
    installed = all(importlib.util.find_spec(name) is not None for name in ("numba", "brainevent"))
    return installed and hasattr(load("brainevent", "foretrace.sparse_matmul"), "numba_kernel")


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

    primitive.def_impl(jax.jit(primitive.bind, static_argnames=("entries", "count", "connections", "dtype")))
    primitive.def_abstract_eval(avals)
    mlir.register_lowering(primitive, mlir.lower_fun(plain, multiple_results=True))
    mlir.register_lowering(primitive, mlir.lower_fun(_on_cpu(kernel, plain), multiple_results=True), platform="cpu")
    batching.primitive_batchers[primitive] = batched
    ad.primitive_jvps[primitive] = derivative
    return primitive


blank_p = _registered("blank_connections", plain_blank, _kernel_blank)
events_p = _registered("add_events", plain_events, _kernel_events)
carry_p = _registered("carry_connections", plain_carry, _kernel_carry)
