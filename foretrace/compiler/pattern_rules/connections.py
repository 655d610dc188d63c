"""The marked sparse product, by its connections.

Its code calls kernels that cannot be looked into, but its index arrays say everything: an element of `y` depends on the
elements of `x` and of the weight that its connections have.
"""

from typing import Any

import jax
import numpy as np

from foretrace._jax import JaxprEqn
from foretrace.compiler import sparse
from foretrace.compiler.structure import Known, Structure, dense, from_matrix, size_of
from foretrace.ops.sparse import connection_indices, sparse_matmul_p


def by_connections(eqn: JaxprEqn, known: Known) -> Structure | None:
    """The structure of a marked sparse product; None for any other equation.

    Where its connections are not known beforehand, or mapped over, everything may depend on everything.
    """
    if eqn.primitive is not sparse_matmul_p:
        return None
    index: list[Any] = [known.value(atom) for atom in eqn.invars[2:]]
    mapped = any(axes != (0, None, None, None) for axes in eqn.params.get("vmap_axes", ()))
    if mapped or any(array is None for array in index):
        return dense(eqn)
    with jax.ensure_compile_time_eval():
        found: Any = connection_indices(tuple(index), form=eqn.params["form"], shape=eqn.params["shape"])
    rows, columns = (np.asarray(array) for array in found)
    x, weight, (y,) = eqn.invars[0], eqn.invars[1], eqn.outvars
    batch = np.arange(size_of(x) // x.aval.shape[-1])[:, None]
    to = (batch * y.aval.shape[-1] + columns).reshape(-1)
    of_x = (batch * x.aval.shape[-1] + rows).reshape(-1)
    of_weight = np.tile(np.arange(len(rows)) if size_of(weight) == len(rows) else np.zeros_like(rows), len(batch))
    return [
        {
            0: from_matrix(y, x, lambda: sparse.from_pairs(to, of_x, (size_of(y), size_of(x))), mixing=True),
            1: from_matrix(y, weight, lambda: sparse.from_pairs(to, of_weight, (size_of(y), size_of(weight))), True),
        }
    ]
