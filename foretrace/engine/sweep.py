"""The sweeps of a block: recursions over elementwise quantities only, along the axis of steps.

`credit` runs backward: the derivative of the losses of later steps by a state, `c_{k-1} = D_k^T (c_k + l_k) + b_k`.
`backward_filter` is the same for one decay, `G_k = L_k + decay G_{k+1}`.
`products` runs backward too: `P_k = D_K ... D_{k+1}`, which takes what enters at step `k` to the end of the block.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from foretrace.compiler.groups import HiddenGroup
from foretrace.compiler.positions import TransitionKind
from foretrace.engine.slots import Matrix, Vector, add, multiply, present, structure, total, unit_product


def no_credit(group: HiddenGroup) -> Vector:
    """The credit of a group's states where nothing comes later."""
    return [jnp.zeros(group.varshape, group.dtype)] * group.num_state


def credit(
    group: HiddenGroup, transition: Matrix, partial: Vector, bypass: Vector | None, later: Vector | None = None
) -> tuple[Vector, Vector]:
    """The derivatives of later losses by a group's states.

    Args:
        group: The group.
        transition: `D` at each step.
        partial: `l` at each step.
        bypass: `b`, likewise; None for zero.
        later: `c` for the states after the last of these steps; None for zero.

    Returns:
        `c_k` for the states after each step, and `c_0` for those before the first.
    """

    def back(later: Vector, step: Any) -> tuple[Vector, Vector]:
        matrix, signal, past = step
        before = transposed(group, matrix, add(later, signal))
        return before if past is None else add(before, past), later

    end = [jnp.zeros_like(column[0]) for column in partial] if later is None else later
    start, after = _scanned_back(back, end, (transition, partial, bypass), len(partial[0]))
    return after, start


def no_span(group: HiddenGroup) -> Matrix:
    """The product of no transitions of a group."""
    own = np.array([[not pattern.is_empty for pattern in row] for row in group.positions.patterns])
    return unit_product(own, group.varshape, group.dtype)


def products(transition: Matrix, span: Matrix, count: int) -> tuple[Matrix, Matrix]:
    """The products of an aligned group's transitions to the end of a block.

    Args:
        transition: `D` at each of some steps.
        span: The product of the transitions after these steps.
        count: How many steps there are.

    Returns:
        `P_k = D_K ... D_{k+1}` for each step, and the product of all.
    """
    filled, zero = structure(span), jnp.zeros_like(jax.tree.leaves(span)[0])

    def back(later: Matrix, step: Matrix) -> tuple[Matrix, Matrix]:
        return present(multiply(later, step), filled, zero), later

    start, after = _scanned_back(back, span, transition, count)
    return after, start


def backward_filter(signal: jax.Array, decay: float, later: jax.Array) -> jax.Array:
    """`G_k = L_k + decay G_{k+1}` along the first axis, given the one after the last."""
    if not decay:
        return signal

    def back(later: jax.Array, own: jax.Array) -> tuple[jax.Array, jax.Array]:
        total = own + decay * later
        return total, total

    later = later.astype(signal.dtype)
    return back(later, signal)[1] if len(signal) == 1 else jax.lax.scan(back, later, signal, reverse=True)[1]


def transposed(group: HiddenGroup, matrix: Matrix, signal: Vector) -> Vector:
    """`D^T` times a signal, along the positions that the group's elements move to."""
    moves = group.positions.kind is TransitionKind.RELABELLED
    size = range(len(matrix))

    def parts(j: int) -> list[jax.Array]:
        own = [(i, entry) for i in size if (entry := matrix[i][j]) is not None]
        return [entry * (_gathered(group, signal[i], i, j) if moves else signal[i]) for i, entry in own]

    return [total(found) if (found := parts(j)) else jnp.zeros_like(signal[j]) for j in size]


def _scanned_back(back: Any, end: Any, steps: Any, count: int) -> tuple[Any, Any]:
    """A reverse scan; a single step needs no loop."""
    if count == 1:
        start, last = back(end, jax.tree.map(lambda a: a[0], steps))
        return start, jax.tree.map(lambda a: a[None], last)
    return jax.lax.scan(back, end, steps, length=count, reverse=True)


def _gathered(group: HiddenGroup, values: jax.Array, i: int, j: int) -> jax.Array:
    targets = group.positions.targets[i, j]
    taken = jnp.take(values.reshape(-1), jnp.maximum(targets, 0))
    return jnp.where(targets >= 0, taken, 0).reshape(group.varshape)
