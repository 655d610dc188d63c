"""The layer with fixed connections: the trace lives on the connections alone, as the weights do."""

from typing import Any

import brainstate
import brainunit
import jax.numpy as jnp
import numpy as np

from foretrace.nn.parameters import Initializer, Size, checked_size, whole
from foretrace.ops import sparse_matmul
from foretrace.ops.units import ArrayLike


class SparseLinear(brainstate.nn.SparseLinear):
    """The layer `y = x @ spar_mat + bias` whose connections stay while their weights are trained.

    Args:
        spar_mat: The connections and their initial weights, of shape `(in, out)`: a `brainevent` CSR, CSC,
            FixedNumPerPre, FixedNumPerPost or Dense matrix, or a `brainunit.sparse` CSR, CSC or COO matrix.
        b_init: The bias `(out,)`: an initialiser, an array, or a number for all entries; None for none.
        in_size: The size of the input without batch axes; by default the rows of the matrix. Of several axes the
            last one is mapped.
        name: The name of the module.
        param_type: The class of the parameters' state.

    Raises:
        ValueError: `in_size` does not end with the rows of the matrix.
        TypeError: Not a sparse matrix, or not one of floating numbers.

    Attributes:
        weight: The parameters, `{'weight': ..., 'bias': ...}`, one weight for each connection.
        spar_mat: The connections; the values in it stay the initial ones.

    Examples:
        >>> import brainevent, jax.numpy as jnp
        >>> connections = brainevent.CSR.fromdense(jnp.array([[0.0, 1.0], [2.0, 3.0]]))
        >>> layer = SparseLinear(connections)
        >>> layer(jnp.array([1.0, 10.0])).tolist()
        [20.0, 31.0]
    """

    def __init__(
        self,
        spar_mat: Any,
        b_init: Initializer | None = None,
        in_size: Size | None = None,
        name: str | None = None,
        param_type: type = brainstate.ParamState,
    ) -> None:
        rows = _checked_matrix(spar_mat)
        size = (rows,) if in_size is None else checked_size("SparseLinear", "in_size", in_size)
        if size[-1] != rows:
            raise ValueError(
                f"SparseLinear: `in_size` {size} does not end with {rows}, the rows of `spar_mat` of shape "
                f"{tuple(spar_mat.shape)}. Leave it out, or transpose the matrix."
            )
        bias = None if b_init is None else whole("SparseLinear", "b_init", b_init)
        super().__init__(spar_mat, bias, name=name, param_type=param_type)
        self.in_size, self.out_size = size, (*size[:-1], spar_mat.shape[1])

    def update(self, x: ArrayLike) -> Any:
        """The output for data of shape `(..., in)`; events, as a `brainevent.BinaryArray`, visit active rows only."""
        params = self.weight.value
        return sparse_matmul(x, params["weight"], sparse_mat=self.spar_mat, bias=params.get("bias"))


def _checked_matrix(spar_mat: Any) -> int:
    """The rows of a matrix that can be trained."""
    if not isinstance(spar_mat, brainunit.sparse.SparseMatrix):
        raise TypeError(
            f"SparseLinear: `spar_mat` must be a sparse matrix of brainevent or brainunit.sparse, got "
            f"{type(spar_mat).__name__}. Make one with brainevent.CSR.fromdense, or use Linear with w_mask."
        )
    dtype = brainunit.get_mantissa(spar_mat.data).dtype
    if not jnp.issubdtype(dtype, np.floating):
        raise TypeError(f"SparseLinear: the values of `spar_mat` are trained and must be floating, got {dtype}.")
    return int(spar_mat.shape[0])
