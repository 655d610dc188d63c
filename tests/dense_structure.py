"""Which elements of a function's results depend on which elements of its arguments, found from dense Jacobians.

The reverse-mode Jacobian of JAX is traced to a jaxpr once and run with NumPy at several random points: compiling it
would take most of a second for each of thousands of small programs. Primitives without an entry in the table below
run in JAX itself, one by one.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import scipy.special

from foretrace._jax import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, bind_eqn, held_jaxprs, scan_counts

Array = np.ndarray


def dense_jacobian_structure(
    fun: Callable[..., Any], args: Sequence[Any], wrt: Sequence[int], n_points: int = 3, seed: int = 0
) -> list[list[np.ndarray]]:
    """Where the Jacobian of a function is nonzero at one of several random points.

    Args:
        fun: A function of arrays that returns a sequence of arrays.
        args: The first point.
        wrt: The positions of the arguments to differentiate by.
        n_points: How many points to look at; the others are random, of the same shapes.
        seed: What the other points are drawn from.

    Returns:
        For each result, for each argument in `wrt`, a boolean matrix (elements of the result, elements of the
        argument). NaN counts as nonzero.

    Raises:
        ValueError: A result is not finite at one of the points.

    Example:
        >>> dense_jacobian_structure(lambda a: [a[::-1] ** 2], [np.array([1.0, 2.0])], wrt=[0])
        [[array([[False,  True],
               [ True, False]])]]
    """
    derivative = jax.jacrev(lambda *values: (fun(*values),) * 2, argnums=tuple(wrt), has_aux=True)
    closed = jax.make_jaxpr(derivative)(*args)
    sizes = [int(np.size(args[i])) for i in wrt]
    rng = np.random.default_rng(seed)
    found: list[np.ndarray] = []
    for point in range(n_points):
        values = args if point == 0 else [_like(rng, value) for value in args]
        flat = run(closed, values)
        blocks = len(flat) * len(wrt) // (len(wrt) + 1)  # per result one block for each argument, and its value
        if not all(np.isfinite(value).all() for value in flat[blocks:]):
            raise ValueError(f"The function is not finite at point {point}; its structure cannot be seen there.")
        nonzero = [np.asarray(block) != 0 for block in flat[:blocks]]
        found = nonzero if not found else [a | b for a, b in zip(found, nonzero, strict=True)]
    rows = [found[i : i + len(wrt)] for i in range(0, len(found), len(wrt))]
    return [[block.reshape(-1, size) for block, size in zip(row, sizes, strict=True)] for row in rows]


def _like(rng: np.random.Generator, value: Any) -> Array:
    return np.asarray(0.8 * rng.standard_normal(np.shape(value)))


def in_numpy(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is traced once for each form of its arguments, as by `jax.jit`, and run without compiling it."""
    traced: dict[Any, Any] = {}

    def called(*args: Any) -> Any:
        leaves, tree = jax.tree.flatten(args)
        form = (tree, *((np.shape(leaf), jax.numpy.result_type(leaf)) for leaf in leaves))
        if form not in traced:
            traced[form] = jax.make_jaxpr(function, return_shape=True)(*args)
        closed, shape = traced[form]
        return jax.tree.unflatten(jax.tree.structure(shape), run(closed, leaves))

    return called


def run(closed: ClosedJaxpr, args: Sequence[Any]) -> list[Array]:
    """Runs a closed jaxpr with NumPy."""
    with np.errstate(all="ignore"):
        return _run(closed.jaxpr, closed.consts, args)


def _run(jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Any]) -> list[Array]:
    values: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else values[atom]

    for eqn in jaxpr.eqns:
        outputs = _run_eqn(eqn, [read(atom) for atom in eqn.invars])
        values.update(zip(eqn.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _run_eqn(eqn: JaxprEqn, inputs: list[Any]) -> list[Any]:
    name = eqn.primitive.name
    if name in NESTED:
        return NESTED[name](eqn.params, inputs)
    rule = RULES.get(name)
    if rule is None or any(np.size(value) == 0 for value in inputs):  # NumPy reduces nothing to no number
        return [_to_numpy(value) for value in bind_eqn(eqn, *inputs)]
    outputs = rule(eqn.params, *map(np.asarray, inputs))
    outputs = outputs if eqn.primitive.multiple_results else [outputs]
    return [np.asarray(y).astype(v.aval.dtype, copy=False) for y, v in zip(outputs, eqn.outvars, strict=True)]


def _to_numpy(value: Any) -> Any:
    return value if jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended) else np.asarray(value)


# --- calls and control flow ----------------------------------------------------------------------------------------


def _call(params: dict[str, Any], inputs: list[Any]) -> list[Any]:
    (inner,) = held_jaxprs(params.get("jaxpr") or params["call_jaxpr"])
    return _run(inner.jaxpr, inner.consts, inputs)


def _cond(params: dict[str, Any], inputs: list[Any]) -> list[Any]:
    branches = params["branches"]
    chosen = branches[int(np.clip(inputs[0], 0, len(branches) - 1))]
    return _run(chosen.jaxpr, chosen.consts, inputs[1:])


def _while(params: dict[str, Any], inputs: list[Any]) -> list[Any]:
    test, body = params["cond_jaxpr"], params["body_jaxpr"]
    first = params["cond_nconsts"]
    second = first + params["body_nconsts"]
    carry = inputs[second:]
    while _run(test.jaxpr, test.consts, [*inputs[:first], *carry])[0]:
        carry = _run(body.jaxpr, body.consts, [*inputs[first:second], *carry])
    return carry


def _scan(params: dict[str, Any], inputs: list[Any]) -> list[Any]:
    body, length = params["jaxpr"], params["length"]
    first, num_carry = scan_counts(params)
    second = first + num_carry
    carry = inputs[first:second]
    rows: list[list[Any]] = [[]] * length
    for step in reversed(range(length)) if params["reverse"] else range(length):
        slices = [np.asarray(xs)[step] for xs in inputs[second:]]
        outputs = _run(body.jaxpr, body.consts, [*inputs[:first], *carry, *slices])
        carry, rows[step] = outputs[: len(carry)], outputs[len(carry) :]
    return [*carry, *(np.stack(column) for column in zip(*rows, strict=True))]


NESTED: dict[str, Callable[[dict[str, Any], list[Any]], list[Any]]] = {
    "jit": _call,
    "pjit": _call,
    "closed_call": _call,
    "core_call": _call,
    "checkpoint": _call,
    "remat2": _call,
    "custom_jvp_call": _call,
    "custom_vjp_call": _call,
    "cond": _cond,
    "while": _while,
    "scan": _scan,
}

# --- single equations ----------------------------------------------------------------------------------------------

RULES: dict[str, Callable[..., Any]] = {}


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda params, *inputs: function(*inputs)


PLAIN: dict[str, Callable[..., Any]] = {
    "neg": operator.neg,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "exp": np.exp,
    "log": np.log,
    "log1p": np.log1p,
    "expm1": np.expm1,
    "sqrt": np.sqrt,
    "rsqrt": lambda v: 1.0 / np.sqrt(v),
    "abs": np.abs,
    "sign": np.sign,
    "floor": np.floor,
    "ceil": np.ceil,
    "logistic": scipy.special.expit,
    "erf": scipy.special.erf,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "square": np.square,
    "is_finite": np.isfinite,
    "not": np.invert,
    "real": np.real,
    "imag": np.imag,
    "complex": lambda a, b: a + 1j * b,
    "copy": np.asarray,
    "stop_gradient": np.asarray,
    "optimization_barrier": lambda *values: values,
    "add": operator.add,
    "add_any": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "max": np.maximum,
    "min": np.minimum,
    "pow": np.power,
    "atan2": np.arctan2,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "clamp": lambda low, v, high: np.clip(v, low, high),
    "shift_left": np.left_shift,
    "shift_right_arithmetic": np.right_shift,
    "conj": np.conj,
    "select_n": lambda which, *cases: np.choose(np.broadcast_to(which, cases[0].shape).astype(int), cases),
}
RULES.update({name: _plain(function) for name, function in PLAIN.items()})

REDUCTIONS: dict[str, Callable[..., Any]] = {
    "reduce_sum": np.sum,
    "reduce_max": np.max,
    "reduce_min": np.min,
    "reduce_prod": np.prod,
    "reduce_and": np.all,
    "reduce_or": np.any,
}


def _reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda params, v: function(v, axis=tuple(params["axes"]))


RULES.update({name: _reduction(function) for name, function in REDUCTIONS.items()})


def rule(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers the rule of a primitive."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        RULES[name] = function
        return function

    return register


@rule("div")
def _div(params: dict[str, Any], a: Array, b: Array) -> Array:
    return a / b if np.issubdtype(a.dtype, np.inexact) else np.trunc(a / b)


@rule("rem")
def _rem(params: dict[str, Any], a: Array, b: Array) -> Array:
    return np.fmod(a, b)


@rule("integer_pow")
def _integer_pow(params: dict[str, Any], v: Array) -> Array:
    return v ** float(params["y"]) if params["y"] < 0 else v ** params["y"]


@rule("convert_element_type")
def _convert(params: dict[str, Any], v: Array) -> Array:
    real = np.issubdtype(v.dtype, np.complexfloating) and not np.issubdtype(params["new_dtype"], np.complexfloating)
    return (v.real if real else v).astype(params["new_dtype"])


@rule("iota")
def _iota(params: dict[str, Any]) -> Array:
    shape, dimension = params["shape"], params["dimension"]
    aligned = [n if i == dimension else 1 for i, n in enumerate(shape)]
    return np.broadcast_to(np.arange(shape[dimension]).reshape(aligned), shape)


@rule("broadcast_in_dim")
def _broadcast(params: dict[str, Any], v: Array) -> Array:
    shape = params["shape"]
    aligned = [1] * len(shape)
    for source, target in enumerate(params["broadcast_dimensions"]):
        aligned[target] = v.shape[source]
    return np.broadcast_to(v.reshape(aligned), shape)


@rule("reshape")
def _reshape(params: dict[str, Any], v: Array) -> Array:
    order = params["dimensions"]
    return (v if order is None else np.transpose(v, order)).reshape(params["new_sizes"])


@rule("squeeze")
def _squeeze(params: dict[str, Any], v: Array) -> Array:
    return np.squeeze(v, tuple(params["dimensions"]))


@rule("transpose")
def _transpose(params: dict[str, Any], v: Array) -> Array:
    return np.transpose(v, params["permutation"])


@rule("rev")
def _rev(params: dict[str, Any], v: Array) -> Array:
    return np.flip(v, tuple(params["dimensions"]))


@rule("slice")
def _slice(params: dict[str, Any], v: Array) -> Array:
    strides = params["strides"] or (1,) * v.ndim
    spans = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return v[tuple(slice(*span) for span in spans)]


@rule("tile")
def _tile(params: dict[str, Any], v: Array) -> Array:
    return np.tile(v, params["reps"])


@rule("round")
def _round(params: dict[str, Any], v: Array) -> Array:
    away = np.sign(v) * np.floor(np.abs(v) + 0.5)
    return away if params["rounding_method"].name == "AWAY_FROM_ZERO" else np.round(v)


@rule("concatenate")
def _concatenate(params: dict[str, Any], *parts: Array) -> Array:
    return np.concatenate(parts, params["dimension"])


@rule("stack")
def _stack(params: dict[str, Any], *parts: Array) -> Array:
    return np.stack(parts, params["axis"])


@rule("split")
def _split(params: dict[str, Any], v: Array) -> list[Array]:
    return np.split(v, np.cumsum(params["sizes"])[:-1], params["axis"])


@rule("pad")
def _pad(params: dict[str, Any], v: Array, fill: Array) -> Array:
    for axis, (low, high, interior) in enumerate(params["padding_config"]):
        n = v.shape[axis]
        target = np.arange(n) * (interior + 1) + low
        length = (max(n - 1, 0) * (interior + 1) + (1 if n else 0)) + low + high
        kept = (target >= 0) & (target < length)
        v = np.moveaxis(v, axis, 0)
        wide = np.full((length, *v.shape[1:]), fill, v.dtype)
        wide[target[kept]] = v[kept]
        v = np.moveaxis(wide, 0, axis)
    return v


@rule("dot_general")
def _dot_general(params: dict[str, Any], a: Array, b: Array) -> Array:
    (sum_a, sum_b), (batch_a, batch_b) = params["dimension_numbers"]
    names_a = list(range(a.ndim))
    names_b = list(range(a.ndim, a.ndim + b.ndim))
    for i, j in [*zip(sum_a, sum_b, strict=True), *zip(batch_a, batch_b, strict=True)]:
        names_b[j] = names_a[i]
    free_a = [names_a[i] for i in range(a.ndim) if i not in (*sum_a, *batch_a)]
    free_b = [names_b[j] for j in range(b.ndim) if j not in (*sum_b, *batch_b)]
    return np.einsum(a, names_a, b, names_b, [names_a[i] for i in batch_a] + free_a + free_b)


@rule("dynamic_slice")
def _dynamic_slice(params: dict[str, Any], v: Array, *starts: Array) -> Array:
    sizes = params["slice_sizes"]
    firsts = [int(np.clip(s, 0, n - k)) for s, n, k in zip(starts, v.shape, sizes, strict=True)]
    return v[tuple(slice(first, first + size) for first, size in zip(firsts, sizes, strict=True))]


@rule("dynamic_update_slice")
def _dynamic_update_slice(params: dict[str, Any], v: Array, update: Array, *starts: Array) -> Array:
    firsts = [int(np.clip(s, 0, n - k)) for s, n, k in zip(starts, v.shape, update.shape, strict=True)]
    new = v.copy()
    new[tuple(slice(first, first + size) for first, size in zip(firsts, update.shape, strict=True))] = update
    return new


def _cumulative(function: Callable[..., Any]) -> Callable[..., Any]:
    def apply(params: dict[str, Any], v: Array) -> Array:
        axis = params["axis"]
        return np.flip(function(np.flip(v, axis), axis), axis) if params["reverse"] else function(v, axis)

    return apply


RULES["cumsum"] = _cumulative(np.cumsum)
RULES["cumprod"] = _cumulative(np.cumprod)
RULES["cummax"] = _cumulative(np.maximum.accumulate)
RULES["cummin"] = _cumulative(np.minimum.accumulate)

RULES["cumlogsumexp"] = _cumulative(np.logaddexp.accumulate)
RULES["argmax"] = lambda params, v: np.argmax(v, params["axes"][0])
RULES["argmin"] = lambda params, v: np.argmin(v, params["axes"][0])


@rule("sort")
def _sort(params: dict[str, Any], *columns: Array) -> list[Array]:
    axis = params["dimension"]
    order = np.lexsort(columns[: params["num_keys"]][::-1], axis=axis)
    return [np.take_along_axis(column, order, axis) for column in columns]


@rule("conv_general_dilated")
def _conv(params: dict[str, Any], image: Array, kernel: Array) -> Array:
    numbers, strides = params["dimension_numbers"], params["window_strides"]
    image, kernel = np.transpose(image, numbers.lhs_spec), np.transpose(kernel, numbers.rhs_spec)
    plain, space = [(0, 0, 0)] * 2, range(len(strides))
    edges = [(*params["padding"][i], params["lhs_dilation"][i] - 1) for i in space]
    image = _pad({"padding_config": plain + edges}, image, np.zeros(()))
    kernel = _pad({"padding_config": plain + [(0, 0, d - 1) for d in params["rhs_dilation"]]}, kernel, np.zeros(()))
    batches, features = params["batch_group_count"], params["feature_group_count"]
    groups = zip(
        np.split(image, batches) if batches > 1 else np.split(image, features, 1),
        np.split(kernel, max(batches, features)),
        strict=True,
    )
    out = np.concatenate([_conv_group(part, weights, strides) for part, weights in groups], 1)
    return np.transpose(out, np.argsort(numbers.out_spec))


def _conv_group(image: Array, kernel: Array, strides: Sequence[int]) -> Array:
    """A plain convolution of (batch, channel, ...) with (out, in, ...)."""
    axes = tuple(range(2, image.ndim))
    windows = np.lib.stride_tricks.sliding_window_view(image, kernel.shape[2:], axes)
    windows = windows[(slice(None), slice(None), *(slice(None, None, stride) for stride in strides))]
    inner = [1, *range(image.ndim, windows.ndim)]
    return np.moveaxis(np.tensordot(windows, kernel, (inner, [1, *axes])), -1, 1)


# --- gather and scatter --------------------------------------------------------------------------------------------


def _positions(
    shape: Sequence[int],
    window_shape: Sequence[int],
    index: Array,
    grid: Array,
    window_dims: Sequence[int],
    index_map: Sequence[int],
    absent: Sequence[int],
    batching: Sequence[tuple[int, int]],
    mode: str,
) -> tuple[tuple[Array, ...], Array]:
    """The element of the operand behind each element of a window grid, and which of them exist."""
    batch = [grid[d] for d in range(len(grid)) if d not in window_dims]
    offsets = iter(grid[d] for d in window_dims)
    inside = np.ones(grid.shape[1:], bool)
    at = []
    for dim, (n, k) in enumerate(zip(shape, window_shape, strict=True)):
        first: Any = 0
        if dim in index_map:
            first = index[(*batch, np.full(grid.shape[1:], list(index_map).index(dim)))].astype(np.int64)
            inside &= (first >= 0) & (first <= n - k)
            first = np.clip(first, 0, n - k)
        for operand_dim, index_dim in batching:
            first = batch[index_dim] if operand_dim == dim else first
        at.append(first + (0 if dim in absent else next(offsets)) + np.zeros(grid.shape[1:], np.int64))
    return tuple(at), np.ones_like(inside) if mode in ("CLIP", "ONE_HOT") else inside


@rule("gather")
def _gather(params: dict[str, Any], v: Array, index: Array) -> Array:
    d, sizes, mode = params["dimension_numbers"], params["slice_sizes"], params["mode"].name
    batching = list(zip(d.operand_batching_dims, d.start_indices_batching_dims, strict=True))
    absent = (*d.collapsed_slice_dims, *d.operand_batching_dims)
    rank = index.ndim - 1 + len(d.offset_dims)
    window = iter(n for i, n in enumerate(sizes) if i not in absent)
    batch = iter(index.shape[:-1])
    shape = [next(window) if i in d.offset_dims else next(batch) for i in range(rank)]
    grid = np.indices(shape)
    at, inside = _positions(v.shape, sizes, index, grid, d.offset_dims, d.start_index_map, absent, batching, mode)
    fill = params["fill_value"]
    if fill is None:
        fill = np.nan if np.issubdtype(v.dtype, np.inexact) else 0
    return np.where(inside, v[at], fill)


def _scatter(combine: Callable[[Array, Any, Array], None]) -> Callable[..., Any]:
    def apply(params: dict[str, Any], v: Array, index: Array, updates: Array) -> Array:
        d, mode = params["dimension_numbers"], params["mode"].name
        batching = list(zip(d.operand_batching_dims, d.scatter_indices_batching_dims, strict=True))
        absent = (*d.inserted_window_dims, *d.operand_batching_dims)
        window = iter(updates.shape[i] for i in d.update_window_dims)
        sizes = [1 if i in absent else next(window) for i in range(v.ndim)]
        grid = np.indices(updates.shape)
        window_dims, index_map = d.update_window_dims, d.scatter_dims_to_operand_dims
        at, inside = _positions(v.shape, sizes, index, grid, window_dims, index_map, absent, batching, mode)
        new = v.copy()
        combine(new, tuple(part[inside] for part in at), updates[inside])
        return new

    return apply


RULES["scatter"] = _scatter(lambda new, at, updates: operator.setitem(new, at, updates))
RULES["scatter-add"] = _scatter(np.add.at)
RULES["scatter-mul"] = _scatter(np.multiply.at)
