"""Reductions, cumulative sums and sorts: mixing along the axes they run over."""

from collections.abc import Callable

import numpy as np

from foretrace._jax import JaxprEqn
from foretrace.compiler import sparse
from foretrace.compiler.pattern_rules.structural import keep_order
from foretrace.compiler.structure import Known, Local, Structure, dense, from_matrix, index_array, rule_for, size_of


@rule_for("reduce_sum", "reduce_max", "reduce_min", "reduce_prod")
def reduce_axes(eqn: JaxprEqn, known: Known) -> Structure:
    """An output element depends on all that were reduced to it; over axes of size one, nothing is mixed."""
    operand, axes = eqn.invars[0], tuple(eqn.params["axes"])
    width = int(np.prod([operand.aval.shape[axis] for axis in axes], dtype=int))
    if width == 1:
        return keep_order(eqn, known)

    def build() -> sparse.Matrix:
        kept = np.moveaxis(index_array(operand), axes, range(-len(axes), 0))
        return sparse.from_lists(kept.reshape(-1, width), size_of(operand))

    return [{0: from_matrix(eqn.outvars[0], operand, build, mixing=True)}]


@rule_for("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
def cumulative(eqn: JaxprEqn, known: Known) -> Structure:
    """An output element depends on those before it along the axis (after it, if reversed)."""

    def related(length: int) -> np.ndarray:
        before = np.tri(length, dtype=bool)
        return before.T if eqn.params["reverse"] else before

    return [{0: _along_axis(eqn, 0, eqn.params["axis"], related)}]


@rule_for("sort")
def sort(eqn: JaxprEqn, known: Known) -> Structure:
    """Each operand is permuted along the axis, by data."""
    everything = lambda length: np.ones((length, length), bool)
    return [{i: _along_axis(eqn, i, eqn.params["dimension"], everything)} for i in range(len(eqn.outvars))]


def _along_axis(eqn: JaxprEqn, operand: int, axis: int, related: Callable[[int], np.ndarray]) -> Local:
    """Each element of a line along `axis` (a row of `related`) depends on some elements of that line (the columns)."""
    atom = eqn.invars[operand]
    length = atom.aval.shape[axis]

    def build() -> sparse.Matrix:
        lines = np.moveaxis(index_array(atom), axis, -1)
        sources = np.moveaxis(np.where(related(length), lines[..., None, :], -1), -2, axis)
        return sparse.from_lists(sources.reshape(-1, length), size_of(atom))

    return from_matrix(eqn.outvars[operand], atom, build, mixing=length > 1)


@rule_for(
    *(
        "reduce reduce_window reduce_window_sum reduce_window_max reduce_window_min select_and_gather_add "
        "select_and_scatter select_and_scatter_add top_k approx_top_k fft cholesky eig eigh hessenberg "
        "householder_product linear_solve custom_linear_solve lu qr schur svd triangular_solve tridiagonal "
        "tridiagonal_solve ragged_dot ragged_dot_general while"
    ).split()
)
def whole_array(eqn: JaxprEqn, known: Known) -> Structure:
    """Known to mix; which elements is not worth following, because the path ends here."""
    return dense(eqn)
