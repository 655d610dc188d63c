"""Table lookups: a product with the one-hot vectors of the indices."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from foretrace._jax import JaxprEqn
from foretrace.engine.edges.bilinear import Bilinear

ROWS, FEATURES = "r", "f"
INDEX_AXES = "abcdegh"


class Lookup(Bilinear):
    """Rows of a table, chosen by indices of any shape.

    Args:
        index_shape: The shape of the indices.
        table: The shape `(rows, features)` of the weight.
        index_operand: Which operand holds the indices.
        clip: Whether an index outside the table means its nearest row; otherwise it means none.
    """

    def __init__(self, index_shape: tuple[int, ...], table: tuple[int, int], index_operand: int, clip: bool) -> None:
        axes = INDEX_AXES[: len(index_shape)]
        sizes = dict(zip(axes, index_shape, strict=True)) | {ROWS: table[0], FEATURES: table[1]}
        super().__init__(axes + ROWS, ROWS + FEATURES, axes + FEATURES, sizes, index_operand)
        self.rows, self.clip, self.index_shape = table[0], clip, index_shape

    def data(self, operands: Sequence[Any]) -> jax.Array:
        indices = operands[self.x_index].reshape(self.index_shape)
        indices = jnp.clip(indices, 0, self.rows - 1) if self.clip else indices
        return jax.nn.one_hot(indices, self.rows, dtype=operands[1 - self.x_index].dtype)


def row_gather(eqn: JaxprEqn) -> Lookup | None:
    """A plain `gather` that takes whole rows of a matrix; None for any other."""
    table, indices = eqn.invars[0].aval, eqn.invars[1].aval
    numbers, ndim = eqn.params["dimension_numbers"], eqn.outvars[0].aval.ndim
    rows_alone = tuple(numbers.collapsed_slice_dims) == (0,) and tuple(numbers.start_index_map) == (0,)
    if table.ndim != 2 or not rows_alone or tuple(numbers.offset_dims) != (ndim - 1,):
        return None
    if tuple(eqn.params["slice_sizes"]) != (1, table.shape[1]) or numbers.operand_batching_dims:
        return None
    clip = eqn.params["mode"] == jax.lax.GatherScatterMode.CLIP
    return Lookup(tuple(indices.shape[:-1]), tuple(table.shape), 1, clip)


def embedding_lookup(eqn: JaxprEqn) -> Lookup | None:
    """The marked lookup; None under a `vmap` that maps the table."""
    indices, table = eqn.invars[0].aval, eqn.invars[1].aval
    if any(axes[1] is not None or axes[0] != 0 for axes in eqn.params.get("vmap_axes", ())):
        return None
    return Lookup(tuple(indices.shape), tuple(np.shape(table)), 0, False)
