"""The marked table lookup: a linear function of the table, with the indices as data."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from foretrace.ops.primitive import register_primitive
from foretrace.ops.units import ArrayLike, Transform, join_unit, split_unit, split_weight


def _embedding(indices: jax.Array, weight: jax.Array) -> jax.Array:
    # An index outside the table gives NaN: a clamped one would be a wrong row without a word.
    return jnp.take(weight, indices, axis=0, mode="fill", fill_value=np.nan)


embedding_p = register_primitive("etp_embedding", _embedding)


def embedding(indices: ArrayLike, weight: ArrayLike, *, weight_fn: Transform | None = None) -> Any:
    """The marked lookup `weight_fn(weight)[indices]`.

    Args:
        indices: Integers of any shape. An index outside the table gives a row of NaN.
        weight: The table, of shape `(entries, features)`.
        weight_fn: Applied to the table's mantissa first.

    Returns:
        The rows, of shape `(*indices.shape, features)`, in the table's unit.

    Examples:
        >>> import jax.numpy as jnp
        >>> embedding(jnp.array([2, 0]), jnp.eye(3)).tolist()
        [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    """
    places, places_unit = split_unit("embedding", "indices", indices)
    if not jnp.issubdtype(places.dtype, np.integer) or places_unit is not None:
        raise TypeError(
            f"embedding: `indices` must be integers without a unit, got {places.dtype} with shape {places.shape}. "
            "For one-hot or dense data use matmul."
        )
    table, unit = split_weight("embedding", "weight", weight, weight_fn)
    if table.ndim != 2:
        raise ValueError(
            f"embedding: `weight` must have the shape (entries, features), got {table.shape}. "
            "Reshape the features of an entry to one axis."
        )
    return join_unit(embedding_p.bind(places, table), unit)
