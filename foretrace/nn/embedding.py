"""The table of learned vectors. Its options change what is read or how it learns, and all of them can be traced.

- `padding_idx` and `max_norm` are functions of the table alone. The row of the padding is held constant. A row longer
  than allowed is read shortened, and learns as if it had been read as it is. The table itself is not rewritten:
  rewriting a parameter in a step would pull it from under its trace.
- `scale_grad_by_freq` divides the derivative of each row read by how often the call reads it, and leaves its value.
- `freeze` stops the derivative behind the reading: the table reaches no state by a derivative and needs no trace.
"""

from typing import Any

import brainstate
import jax
import jax.numpy as jnp

from foretrace.nn.parameters import LECUN_UNIFORM, Initializer, Size, checked_count, checked_size, whole
from foretrace.ops import embedding
from foretrace.ops.units import ArrayLike


class Embedding(brainstate.nn.Embedding):
    """The layer that reads rows of a learned table.

    Args:
        num_embeddings: The number of rows.
        embedding_size: The size of a row, one number or several.
        embedding_init: The table `(num_embeddings, *embedding_size)`: an initialiser, an array, or a number.
        padding_idx: The row that starts at zero and is not trained; None for none.
        max_norm: The largest norm that a row is read with, in the table's unit; None for any.
        norm_type: Which norm: the `p` of the p-norm.
        scale_grad_by_freq: Whether the gradient of a row is divided by the number of times that a call reads it.
        freeze: Whether the table is not trained.
        name: The name of the module.
        param_type: The class of the parameter's state.

    Raises:
        ValueError: `padding_idx` outside the table, `max_norm` or a size that is not positive.
        TypeError: A size that is not whole.

    Attributes:
        weight: The parameter, the table.

    Examples:
        >>> import jax.numpy as jnp
        >>> layer = Embedding(3, 2, embedding_init=jnp.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]))
        >>> layer(jnp.array([2, 0])).tolist()
        [[4.0, 5.0], [0.0, 1.0]]
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_size: Size,
        embedding_init: Initializer = LECUN_UNIFORM,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        freeze: bool = False,
        name: str | None = None,
        param_type: type = brainstate.ParamState,
    ) -> None:
        rows = checked_count("Embedding", "num_embeddings", num_embeddings)
        size = checked_size("Embedding", "embedding_size", embedding_size)
        if padding_idx is not None and not 0 <= padding_idx < rows:
            raise ValueError(f"Embedding: `padding_idx` must be a row from 0 to {rows - 1}, got {padding_idx}.")
        if max_norm is not None and not max_norm > 0:
            raise ValueError(f"Embedding: `max_norm` must be positive, or None for any norm, got {max_norm}.")
        table = whole("Embedding", "embedding_init", embedding_init)
        super().__init__(
            rows, size, table, padding_idx, max_norm, norm_type, scale_grad_by_freq, freeze, name, param_type
        )

    def update(self, indices: ArrayLike) -> Any:
        """The rows `(*indices.shape, *embedding_size)`; an index outside the table gives NaN."""
        table = self.weight.value.reshape((self.num_embeddings, -1))
        rows = embedding(indices, table, weight_fn=self._read)
        if self.freeze:
            rows = jax.lax.stop_gradient(rows)
        elif self.scale_grad_by_freq:
            rows = self._scaled(rows, jnp.asarray(indices))
        return rows.reshape((*jnp.shape(indices), *self.embedding_size))

    def _read(self, table: jax.Array) -> jax.Array:
        """The table as it is read, a function of parameters alone."""
        constant = -1 if self.padding_idx is None else self.padding_idx
        padding = (jnp.arange(self.num_embeddings) == constant)[:, None]
        if self.max_norm is not None:
            norms = jnp.linalg.norm(table, ord=self.norm_type, axis=1, keepdims=True)
            shorter = table * jnp.minimum(1.0, self.max_norm / (norms + 1e-8))
            table = table + jax.lax.stop_gradient(jnp.where(padding, table, shorter) - table)
        if self.padding_idx is not None:
            table = jnp.where(padding, jax.lax.stop_gradient(table), table)
        return table

    def _scaled(self, rows: Any, indices: jax.Array) -> Any:
        counts = jnp.zeros(self.num_embeddings, rows.dtype).at[indices].add(1.0)[indices]
        # The bracket is zero, so that the value of the rows stays; its derivative is one.
        return rows + (1.0 / counts - 1.0)[..., None] * (rows - jax.lax.stop_gradient(rows))
