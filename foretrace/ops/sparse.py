"""The marked sparse product: data times a matrix of fixed connections, whose values are trained.

The connections come from a matrix of `brainevent` (CSR, CSC, a fixed number of connections per neuron) or of
`brainunit.sparse` (CSR, CSC, COO). Its index arrays are operands of the primitive, never constants, because XLA
would try to fold products of large constant arrays. The weight has one value for each connection, or a single one
for all.

Data wrapped as `brainevent.BinaryArray` are events: brainevent's event-driven kernels then visit the connections of
active neurons only. An element is an event if it is True or above zero; the derivative by the data passes straight
through, as for a spike with a surrogate gradient. COO matrices have no such kernel and use a scatter-add.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from foretrace._optional import load
from foretrace.ops.elementwise import add_bias
from foretrace.ops.matmul import matmul
from foretrace.ops.primitive import register_primitive
from foretrace.ops.units import ArrayLike, Transform, join_unit, product_unit, split_unit, split_weight


@functools.partial(jax.tree_util.register_dataclass, data_fields=["task_begin", "task_end", "status"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class _Workspace:
    """The scratch arrays that brainevent's event kernels ask for; only those of CUDA write to them."""

    task_begin: jax.Array
    task_end: jax.Array
    status: jax.Array

    @property
    def task_capacity(self) -> int:
        return self.task_begin.shape[0]


def _workspace(indices: jax.Array, indptr: jax.Array) -> _Workspace:
    # Every row needs one task for each `task_nnz` connections begun: this bound needs no values of `indptr`.
    capacity = indptr.size + indices.size // _brainevent().get_hybrid_config().task_nnz
    tasks = jnp.zeros(capacity, indptr.dtype)
    return _Workspace(tasks, tasks, jnp.zeros(2, jnp.int32))


def _as_events(x: jax.Array, dtype: Any) -> jax.Array:
    """Ones where there is an event; the derivative is that of the identity."""
    if x.dtype == jnp.bool_:
        return x
    if not jnp.issubdtype(x.dtype, np.floating):
        return x > 0
    x = x.astype(dtype)
    return (x > 0).astype(dtype) + (x - jax.lax.stop_gradient(x))


def _dense_events(x: ArrayLike, weight: ArrayLike) -> Any:
    """Events for a product with a dense matrix, which is not event-driven."""
    mantissa, unit = split_unit("sparse_matmul", "x", x)
    return join_unit(_as_events(mantissa, split_weight("sparse_matmul", "weight", weight, None)[0].dtype), unit)


def _sparse_matmul(
    x: jax.Array,
    weight: jax.Array,
    first: jax.Array,
    second: jax.Array,
    *,
    form: str,
    shape: tuple[int, int],
    event: bool,
    backend: str | None,
) -> jax.Array:
    """`x @ matrix`; the index operands are rows and columns, or the indices and the starts of a compressed matrix."""
    dtype = weight.dtype if event else jnp.promote_types(x.dtype, weight.dtype)
    x = _as_events(x, dtype) if event else x.astype(dtype)
    weight = weight.astype(dtype)
    if form == "coo":
        y = jnp.zeros((*x.shape[:-1], shape[1]), jnp.result_type(x, weight))
        return y.at[..., second].add(x[..., first] * weight)
    flat = x if x.ndim <= 2 else x.reshape(-1, x.shape[-1])
    options: dict[str, Any] = {"shape": shape, "transpose": True, "backend": backend}
    if form == "csc":  # the transpose of a CSR matrix
        options |= {"shape": shape[::-1], "transpose": False}
    kernels = _brainevent()
    by_vector, by_matrix = kernels.csrmv, kernels.csrmm
    if event:
        options["workspace"] = _workspace(first, second)
        by_vector, by_matrix = kernels.binary_csrmv, kernels.binary_csrmm
    if flat.ndim == 1:
        y = by_vector(weight, first, second, flat, **options)
    else:
        y = by_matrix(weight, first, second, flat.T, **options).T
    return y.reshape(*x.shape[:-1], shape[1])


def _brainevent() -> Any:
    return load("brainevent", "foretrace.sparse_matmul")


sparse_matmul_p = register_primitive("etp_sparse_matmul", _sparse_matmul)


def sparse_matmul(
    x: ArrayLike,
    weight: ArrayLike,
    *,
    sparse_mat: Any,
    bias: ArrayLike | None = None,
    weight_fn: Transform | None = None,
    bias_fn: Transform | None = None,
) -> Any:
    """The marked product `x @ sparse_mat.with_data(weight_fn(weight)) + bias_fn(bias)`.

    Args:
        x: Data of shape `(..., rows)`: an array, or a `brainevent.BinaryArray` for an event-driven product.
        weight: The values of the connections in the order of `sparse_mat.data`, or one value for all.
        sparse_mat: The connections: a `brainevent` CSR, CSC, FixedNumPerPre, FixedNumPerPost or Dense matrix, or a
            `brainunit.sparse` CSR, CSC or COO matrix. Its own values are not used.
        bias: Added to the product, usually of shape `(columns,)`; a marked elementwise parameter of its own.
        weight_fn: Applied to the weight's mantissa first.
        bias_fn: Applied to the bias's mantissa first.

    Returns:
        The product, of shape `(..., columns)`, in the product of the units.

    Examples:
        >>> import brainevent, jax.numpy as jnp
        >>> mask = brainevent.CSR.fromdense(jnp.array([[0.0, 1.0], [1.0, 1.0]]))
        >>> sparse_matmul(jnp.array([1.0, 10.0]), jnp.array([1.0, 2.0, 3.0]), sparse_mat=mask).tolist()
        [20.0, 31.0]
    """
    brainevent = _brainevent()
    event = isinstance(x, brainevent.BinaryArray)
    if isinstance(sparse_mat, brainevent.Dense):
        dense_x = _dense_events(x.value, weight) if event else x
        return matmul(dense_x, weight, bias, weight_fn=weight_fn, bias_fn=bias_fn)
    form, index = _connections(sparse_mat)
    array, x_unit = split_unit("sparse_matmul", "x", x.value if event else x)
    values, unit = split_weight("sparse_matmul", "weight", weight, weight_fn)
    shape = (int(sparse_mat.shape[0]), int(sparse_mat.shape[1]))
    _check_operands(array, values, shape, sparse_mat, index[0].size)
    backend = getattr(sparse_mat, "backend", None)
    y = sparse_matmul_p.bind(array, values.reshape(-1), *index, form=form, shape=shape, event=event, backend=backend)
    return add_bias("sparse_matmul", y, product_unit(x_unit, unit), bias, bias_fn)


def connection_indices(
    index: tuple[jax.Array, ...], *, form: str, shape: tuple[int, int]
) -> tuple[jax.Array, jax.Array]:
    """The row and the column of every connection, from the index operands and parameters of an equation."""
    if form == "coo":
        return index[0], index[1]
    indices, indptr = index
    outer = jnp.repeat(jnp.arange(indptr.size - 1), jnp.diff(indptr), total_repeat_length=indices.size)
    return (outer, indices) if form == "csr" else (indices, outer)


def _connections(sparse_mat: Any) -> tuple[str, tuple[jax.Array, jax.Array]]:
    """The form of a matrix and its index arrays."""
    brainevent, brainunit = _brainevent(), load("brainunit", "foretrace.sparse_matmul")
    if isinstance(sparse_mat, (brainevent.CSR, brainunit.sparse.CSR)):
        return "csr", _compressed_index(sparse_mat.indices, sparse_mat.indptr)
    if isinstance(sparse_mat, (brainevent.CSC, brainunit.sparse.CSC)):
        return "csc", _compressed_index(sparse_mat.indices, sparse_mat.indptr)
    if isinstance(sparse_mat, brainunit.sparse.COO):
        return "coo", (jnp.asarray(sparse_mat.row), jnp.asarray(sparse_mat.col))
    if isinstance(sparse_mat, (brainevent.FixedNumPerPre, brainevent.FixedNumPerPost)):
        # The connections of every neuron stand in a row of one length, so the starts of the rows are known.
        count = sparse_mat.indices.shape[1]
        starts = jnp.arange(sparse_mat.indices.shape[0] + 1, dtype=jnp.int32) * count
        form = "csr" if isinstance(sparse_mat, brainevent.FixedNumPerPre) else "csc"
        return form, _compressed_index(sparse_mat.indices.reshape(-1), starts)
    convertible = hasattr(sparse_mat, "tocsr")
    advice = "Convert it once, outside the step, with .tocsr()." if convertible else "For a dense matrix use matmul."
    raise TypeError(
        f"sparse_matmul: `sparse_mat` must be a brainevent CSR, CSC, FixedNumPerPre, FixedNumPerPost or Dense matrix, "
        f"or a brainunit.sparse CSR, CSC or COO, got {type(sparse_mat).__name__}. {advice}"
    )


def _compressed_index(indices: Any, indptr: Any) -> tuple[jax.Array, jax.Array]:
    starts = jnp.asarray(indptr)
    return jnp.asarray(indices, jnp.int32), starts if starts.dtype == jnp.int64 else starts.astype(jnp.int32)


def _check_operands(x: jax.Array, weight: jax.Array, shape: tuple[int, int], sparse_mat: Any, connections: int) -> None:
    if x.ndim < 1 or x.shape[-1] != shape[0]:
        raise ValueError(
            f"sparse_matmul: `x` of shape {x.shape} does not fit `sparse_mat` of shape {shape}. "
            f"Expected x of shape (..., {shape[0]})."
        )
    if not jnp.issubdtype(weight.dtype, np.floating):
        raise TypeError(f"sparse_matmul: `weight` must be real, got {weight.dtype}. Use two products for complex ones.")
    if weight.size not in (1, connections):
        raise ValueError(
            f"sparse_matmul: `weight` of shape {weight.shape} does not fit the {connections} connections of "
            f"`sparse_mat` ({type(sparse_mat).__name__}). Expected the shape of its data, or a single value."
        )
