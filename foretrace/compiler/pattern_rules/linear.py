"""Products of two operands: matrix products and convolutions."""

import functools
from collections.abc import Sequence

import jax
import numpy as np

from foretrace._jax import JaxprEqn, bind_eqn
from foretrace.compiler import sparse
from foretrace.compiler.structure import Known, Local, Structure, from_matrix, from_rows, index_array, rule_for, size_of


@rule_for("dot_general")
def dot_general(eqn: JaxprEqn, known: Known) -> Structure:
    """An output element depends on one line of each operand; without contracted axes it is an outer product."""
    (contract, batch) = eqn.params["dimension_numbers"]
    return [{side: _operand(eqn, side, contract[side], batch[side]) for side in (0, 1)}]


def _operand(eqn: JaxprEqn, side: int, contract: Sequence[int], batch: Sequence[int]) -> Local:
    """Output axes are (batch, free axes of the left, free axes of the right)."""
    operand, out = eqn.invars[side], eqn.outvars[0]

    def lines() -> np.ndarray:
        free = [axis for axis in range(len(operand.aval.shape)) if axis not in contract and axis not in batch]
        index = np.transpose(index_array(operand), [*batch, *free, *contract])
        sizes: tuple[int, ...] = index.shape
        n_batch, n_free = len(batch), len(free)
        other = len(out.aval.shape) - n_batch - n_free
        start = n_batch + n_free if side == 0 else n_batch
        index = index.reshape(sizes[:start] + (1,) * other + sizes[start : n_batch + n_free] + (-1,))
        return np.broadcast_to(index, (*out.aval.shape, index.shape[-1])).reshape(size_of(out), -1)

    if not contract:
        return from_rows(out, operand, lambda: lines()[:, 0])
    return from_matrix(out, operand, lambda: sparse.from_lists(lines(), size_of(operand)), mixing=True)


@rule_for("conv_general_dilated")
def convolution(eqn: JaxprEqn, known: Known) -> Structure:
    """Read off a convolution with ones, one basis vector at a time; asked for only where the path is not cut."""
    out = eqn.outvars[0]
    return [{k: from_matrix(out, eqn.invars[k], functools.partial(_probe, eqn, k), mixing=True) for k in (0, 1)}]


def _probe(eqn: JaxprEqn, side: int) -> sparse.Matrix:
    ones = [np.ones(atom.aval.shape, atom.aval.dtype) for atom in eqn.invars]

    def product(operand: jax.Array) -> jax.Array:
        return bind_eqn(eqn, *(operand if i == side else one for i, one in enumerate(ones)))[0]

    with jax.ensure_compile_time_eval():
        jacobian = np.asarray(jax.jacfwd(product)(ones[side]))
    return sparse.from_dense(jacobian.reshape(size_of(eqn.outvars[0]), size_of(eqn.invars[side])))
