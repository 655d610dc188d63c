"""Operators that are a product of `x` and `w`: dense, grouped, einsum, under any number of `vmap`s.

The operator is followed as a jaxpr of products and transpositions, and comes out as one einsum equation. From the axes
that `x`, `w` and `y` share follow all contractions. Traces have the axes that only `x` and `y` have (the batch) first,
then the contracted ones, then those that `w` and `y` share: `(batch, in, out)` for a dense product.
"""

import functools
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from foretrace._jax import Jaxpr, JaxprEqn, Literal, Var, make_jaxpr_of, mesh_devices, one_processor
from foretrace.engine.edges.base import Edges, operator_of

LETTERS = "abcdefghijlmnopqrstuvwxyz"  # k counts steps
STEP, PLACE = "k", "P"
UNROLLED = 16
NARROW, ALIASED = 4, 128
LARGE, SLAB = 2**22, 2**20  # bytes of a weight that no cache near a processor holds, and of rows that it does


@dataclass
class _Labels:
    """Names for axes; products merge the names of the axes that they pair."""

    merged: dict[int, int] = field(default_factory=dict)
    count: int = 0

    def fresh(self, number: int) -> list[int]:
        self.count += number
        return list(range(self.count - number, self.count))

    def find(self, label: int) -> int:
        while label in self.merged:
            label = self.merged[label]
        return label

    def merge(self, one: int, two: int) -> None:
        one, two = self.find(one), self.find(two)
        if one != two:
            self.merged[two] = one


class Bilinear(Edges):
    """A product given by the axes of its operands.

    Args:
        x: The letters of the axes of `x`.
        w: Those of the weight.
        y: Those of the result.
        sizes: The size of each.
        x_index: Which operand is `x`.

    Attributes:
        rows: How many rows a product has for each step: the size of the batch.
    """

    def __init__(self, x: str, w: str, y: str, sizes: dict[str, int], x_index: int) -> None:
        self.x, self.w, self.y, self.x_index, self.sizes = x, w, y, x_index, sizes
        self.batch = "".join(axis for axis in y if axis not in w)
        self.inner = "".join(axis for axis in w if axis not in y)
        self.rest = "".join(axis for axis in y if axis in w)
        self.axes = self.batch + self.inner + self.rest
        self.shape = tuple(sizes[axis] for axis in self.axes)
        self.rows = math.prod(sizes[axis] for axis in self.batch)
        self.data_size = math.prod(sizes[axis] for axis in x)
        self.sample_size = math.prod(self.shape[1:]) if self.batch and self.shape[0] > 1 else 0

    def spread(self, values: Any) -> Any:
        order = [self.y.index(axis) for axis in self.batch + self.rest]
        ordered = values.transpose(0, *(1 + place for place in order))
        places, split = ordered.shape[0], 1 + len(self.batch)
        return ordered.reshape(places, *ordered.shape[1:split], *(1,) * len(self.inner), *ordered.shape[split:])

    def data(self, operands: Sequence[Any]) -> jax.Array:
        return operands[self.x_index]

    def source(self, operands: Sequence[Any]) -> Hashable:
        x = operands[self.x_index]
        return x if isinstance(x, Var) else None

    def gradient(self, data: jax.Array, cotangents: jax.Array) -> jax.Array:
        data = data.astype(cotangents.dtype)
        if any(axis in self.x for axis in self.rest):
            return jnp.einsum(f"{STEP}{self.x},{STEP}{self.y}->{self.w}", data, cotangents)
        if len(data) * self.rows == 1:
            # A single row is multiplied out, so that what it is added to takes it up in the same pass.
            rows, columns = data.reshape(-1, 1), cotangents.reshape(1, -1)
            return self._as_weight((rows * columns).reshape([self.sizes[axis] for axis in self.inner + self.rest]))
        if self._sums_in_front:
            product = outer_products(self._rows(data), self._rows(cotangents))
        else:
            summed = [[0, *(1 + axes.index(axis) for axis in self.batch)] for axes in (self.x, self.y)]
            product = jax.lax.dot_general(data, cotangents, ((summed[0], summed[1]), ((), ())))
        return jnp.transpose(product, [self._made.index(axis) for axis in self.w])

    def add_gradient(self, total: jax.Array, data: jax.Array, cotangents: jax.Array) -> jax.Array:
        plain = not any(axis in self.x for axis in self.rest) and self._sums_in_front
        plain = plain and self.w in (self._made, self.rest + self._kept)
        if not (plain and len(data) * self.rows > 1 and one_processor() and total.nbytes > LARGE):
            return super().add_gradient(total, data, cotangents)
        factors = [self._rows(data.astype(cotangents.dtype)), self._rows(cotangents)]
        return add_outer_products(total, *(factors if self.w == self._made else factors[::-1]))

    @property
    def _kept(self) -> str:
        """The axes of `x` that the weight has and `y` has not, in their order there."""
        return "".join(axis for axis in self.x if axis in self.inner)

    @property
    def _made(self) -> str:
        """The axes of a product that is summed over the batch."""
        return self._kept + self.rest

    @property
    def _sums_in_front(self) -> bool:
        """Whether steps and batch can be summed over as one axis, which XLA takes as it stands where it would transpose
        both operands for several. On many devices each stays an axis of its own: so a batch that is sharded stays so.
        """
        batch = len(self.batch)
        return mesh_devices() == 1 and self.x[:batch] == self.y[:batch] == self.batch

    def _rows(self, array: jax.Array) -> jax.Array:
        """An array with steps and batch as one axis."""
        return array.reshape(-1, *array.shape[1 + len(self.batch) :])

    def accumulate(self, data: jax.Array, values: jax.Array) -> jax.Array:
        data = data.astype(values.dtype)
        if data.shape[0] == 1:  # one step: an outer product, which is best left to a fused loop
            order = [self.x.index(axis) for axis in self.axes if axis in self.x]
            missing = [i for i, axis in enumerate(self.axes) if axis not in self.x]
            return jnp.expand_dims(jnp.transpose(data[0], order), missing)[None] * self.spread(values[0])
        if values.shape[1] > 1 or any(axis in self.x for axis in self.rest):
            return jnp.einsum(f"{STEP}{self.x},{STEP}{PLACE}{self.y}->{PLACE}{self.axes}", data, values)
        # `einsum` may swap its operands and then transpose a result of the size of the trace.
        left, right = STEP + self.x, STEP + self.y
        pairs = [[text.index(axis) for axis in self.batch] for text in (left, right)]
        found = jax.lax.dot_general(data, values[:, 0], (((0,), (0,)), (tuple(pairs[0]), tuple(pairs[1]))))
        return jnp.transpose(found, [(self.batch + self._made).index(axis) for axis in self.axes])[None]

    def of_sample(self) -> "Bilinear":
        """The edges of one sample."""
        x, y = (axes.replace(self.batch[0], "") for axes in (self.x, self.y))
        return Bilinear(x, self.w, y, self.sizes, self.x_index)

    def cut_sample(self, data: jax.Array, values: dict[int, jax.Array], number: jax.Array) -> Any:
        """The data and values of one sample."""
        cut = lambda array, axis: jax.lax.dynamic_index_in_dim(array, number, axis, keepdims=False)
        x, y = 1 + self.x.index(self.batch[0]), 2 + self.y.index(self.batch[0])
        return cut(data, x), {slot: cut(array, y) for slot, array in values.items()}

    def connecting(self, weight: jax.Array, sources: np.ndarray) -> jax.Array:
        """The element of the weight by which an element of `x` acts on each element of `y`, zero where none does.

        Args:
            weight: The weight.
            sources: The number of an element of `x`, for each element of `y`, flat.
        """
        sizes = {letters: [self.sizes[axis] for axis in letters] for letters in (self.x, self.y)}
        of_y = dict(zip(self.y, np.unravel_index(np.arange(len(sources)), sizes[self.y]), strict=True))
        of_x = dict(zip(self.x, np.unravel_index(np.maximum(sources, 0), sizes[self.x]), strict=True))
        met = np.all([of_x[axis] == of_y[axis] for axis in self.x if axis in of_y] or [sources >= 0], axis=0)
        return jnp.where(met, weight[tuple((of_y | of_x)[axis] for axis in self.w)], 0)

    def _as_weight(self, summed: jax.Array) -> jax.Array:
        kept = self.inner + self.rest
        return jnp.transpose(summed, [kept.index(axis) for axis in self.w])

    def contract(self, trace: jax.Array, values: jax.Array) -> jax.Array:
        batch = 1 + len(self.batch)
        rows = lambda array: array.reshape(array.shape[0], -1, *array.shape[batch:])
        traces, factors = rows(trace), rows(self.spread(values)).astype(values.dtype)
        return self._as_weight(sum_of_products(traces, factors))

    def gradient_along(self, axis: int, data: jax.Array, cotangents: jax.Array) -> jax.Array:
        """As `gradient`, for each place along an axis of `y` that the weight does not have; it comes first."""
        equation = f"{STEP}{self.x},{STEP}{self.y}->{self.y[axis]}{self.w}"
        return jnp.einsum(equation, data.astype(cotangents.dtype), cotangents)

    def contract_along(self, axis: int, trace: jax.Array, values: jax.Array) -> jax.Array:
        """As `contract`, for each place along an axis of `y` that the weight does not have; it comes first."""
        kept = self.axes.index(self.y[axis])
        others = [0, *(1 + place for place in range(len(self.batch)) if place != kept)]
        found = jnp.sum(trace * self.spread(values).astype(values.dtype), axis=tuple(others))
        return jnp.transpose(found, [0, *(1 + (self.inner + self.rest).index(axis) for axis in self.w)])


def outer_products(left: jax.Array, right: jax.Array) -> jax.Array:
    """`sum_k left[k] (x) right[k]`, one product of matrices: `(K, *a)` and `(K, *b)` give `(*a, *b)`.

    A processor reads the columns of the left one. Those of a matrix whose rows are a multiple of 512 bytes apart drive
    one another out of the cache, so it is transposed first, block by block; and where the right one is much narrower,
    that is the one whose columns are read. The barriers keep XLA from undoing either.
    """
    shape = left.shape[1:] + right.shape[1:]
    left, right = (array.reshape(len(array), -1) for array in (left, right))
    hold = jax.lax.optimization_barrier
    if one_processor() and NARROW * right.shape[1] <= left.shape[1]:
        return hold(hold(right.T) @ left).T.reshape(shape)
    if one_processor() and left.shape[1] % ALIASED == 0:
        return (hold(left.T) @ right).reshape(shape)
    return jax.lax.dot_general(left, right, (((0,), (0,)), ((), ()))).reshape(shape)


def add_outer_products(total: jax.Array, left: jax.Array, right: jax.Array) -> jax.Array:
    """`total + sum_k left[k] (x) right[k]`, some rows at a time, which are added while they are in the cache: the whole
    product would be one more array of the size of the total."""
    left, right = (array.reshape(len(array), -1) for array in (left, right))
    slabs = -(-total.nbytes // SLAB)
    size = -(-left.shape[1] // slabs)

    def added(flat: jax.Array, begin: jax.Array | int, size: int) -> jax.Array:
        part = outer_products(jax.lax.dynamic_slice_in_dim(left, begin, size, 1), right).astype(flat.dtype)
        own = jax.lax.dynamic_slice_in_dim(flat, begin, size)
        return jax.lax.dynamic_update_slice_in_dim(flat, own + part, begin, 0)

    full, last = divmod(left.shape[1], size)
    flat = total.reshape(left.shape[1], -1)
    flat = jax.lax.fori_loop(0, full, lambda number, flat: added(flat, number * size, size), flat)
    return (added(flat, full * size, last) if last else flat).reshape(total.shape)


def sum_of_products(traces: jax.Array, factors: jax.Array) -> jax.Array:
    """`sum_pb traces[p, b] * factors[p, b]`, written out so that it streams through all traces at once.

    XLA reduces over a leading axis an order of magnitude more slowly than it adds up separate arrays; and more than a
    few arrays at once, which often lie a multiple of a page apart, drive one another out of the cache. Where the rows
    `b` may be sharded, the rows of each device are added up by itself, side by side, and then those of the devices.
    """
    shards = math.gcd(mesh_devices(), traces.shape[1])
    traces, factors = (a.reshape(a.shape[0], shards, -1, *a.shape[2:]) for a in (traces, factors))
    count, left = divmod(traces.shape[2], UNROLLED)

    def added(total: jax.Array, rows: Sequence[Any]) -> jax.Array:
        # Each row is cut out by itself: a cut of several, used more than once, would be copied.
        cuts = [[jax.lax.dynamic_index_in_dim(a, row, 2, keepdims=False) for a in (traces, factors)] for row in rows]
        products = [trace * factor for cut in cuts for trace, factor in zip(*cut, strict=True)]
        return functools.reduce(jnp.add, products, total)

    total = jnp.zeros((shards, *traces.shape[3:]), jnp.result_type(traces, factors))
    if count:
        each = lambda number, total: added(total, [number * UNROLLED + row for row in range(UNROLLED)])
        total = jax.lax.fori_loop(0, count, each, total)
    total = added(total, range(count * UNROLLED, count * UNROLLED + left))
    return total[0] if shards == 1 else total.sum(axis=0)


def bilinear(eqn: JaxprEqn, y_index: int, x_index: int, w_index: int) -> Bilinear | None:
    """The product that an equation computes; None where it is not a plain product of two operands."""
    jaxpr = make_jaxpr_of(operator_of(eqn, y_index), [atom.aval for atom in eqn.invars]).jaxpr
    labels = _Labels()
    x_var, w_var = jaxpr.invars[x_index], jaxpr.invars[w_index]
    x_axes, w_axes = labels.fresh(x_var.aval.ndim), labels.fresh(w_var.aval.ndim)
    y_axes = _follow(jaxpr, {x_var: ("x", x_axes), w_var: ("w", w_axes)}, labels)
    if y_axes is None:
        return None
    found = [labels.find(label) for label in [*x_axes, *w_axes, *y_axes]]
    letters = {label: LETTERS[i] for i, label in enumerate(dict.fromkeys(found))}
    x, w, y = ("".join(letters[labels.find(label)] for label in axes) for axes in (x_axes, w_axes, y_axes))
    usual = len(set(x)) == len(x) and len(set(w)) == len(w) and len(set(y)) == len(y)
    if not usual or set(y) - set(x) - set(w) or (set(x) ^ set(w)) - set(y):
        return None
    sizes = dict(zip(x, x_var.aval.shape, strict=True)) | dict(zip(w, w_var.aval.shape, strict=True))
    return Bilinear(x, w, y, sizes, x_index)


def _follow(jaxpr: Jaxpr, known: dict[Any, tuple[str, list[int]]], labels: _Labels) -> Any:
    """The axes of the output, as products and transpositions leave them; None where there is anything else."""
    for eqn in jaxpr.eqns:
        ins = [None if isinstance(a, Literal) else known.get(a) for a in eqn.invars]
        if not any(ins):
            continue
        rule = _RULES.get(eqn.primitive.name)
        found = None if rule is None else rule(eqn, ins, labels)
        if found is None:
            return None
        known[eqn.outvars[0]] = found
    out = jaxpr.outvars[0]
    kind, axes = ("", None) if isinstance(out, Literal) else known.get(out, ("", None))
    return axes if kind == "y" else None


def _dot_general(eqn: JaxprEqn, ins: Any, labels: _Labels) -> Any:
    if None in ins or {kind for kind, _ in ins} != {"x", "w"}:
        return None
    (_, left), (_, right) = ins
    (left_sum, right_sum), (left_batch, right_batch) = eqn.params["dimension_numbers"]
    for one, two in [*zip(left_sum, right_sum, strict=True), *zip(left_batch, right_batch, strict=True)]:
        labels.merge(left[one], right[two])
    free = [label for i, label in enumerate(left) if i not in (*left_sum, *left_batch)]
    free += [label for i, label in enumerate(right) if i not in (*right_sum, *right_batch)]
    return "y", [left[i] for i in left_batch] + free


def _transpose(eqn: JaxprEqn, ins: Any, labels: _Labels) -> Any:
    kind, axes = ins[0]
    return kind, [axes[i] for i in eqn.params["permutation"]]


def _same(eqn: JaxprEqn, ins: Any, labels: _Labels) -> Any:
    return ins[0]


def _nested(eqn: JaxprEqn, ins: Any, labels: _Labels) -> Any:
    inner = eqn.params["jaxpr"].jaxpr
    known = {var: found for var, found in zip(inner.invars, ins, strict=True) if found}
    axes = _follow(inner, known, labels) if len(eqn.outvars) == 1 else None
    return None if axes is None else ("y", axes)


_RULES = {
    "dot_general": _dot_general,
    "transpose": _transpose,
    "convert_element_type": _same,
    "copy": _same,
    "jit": _nested,
    "pjit": _nested,
}
