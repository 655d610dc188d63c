"""A derivative rule from forward mode alone, for functions that act position by position.

Where each position of an output depends on at most one position of each operand, the Jacobian is diagonal, and forward
mode with a tangent of ones gives all of it: one array for each output and operand. `diagonal` gives such a function the
rule `sum_i J_i * t_i`. It is linear in the tangents, so it can be transposed, and reverse mode needs nothing of the
function itself; that is how a loop of unknown length gets a gradient. Further derivatives are forward mode's alone.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from foretrace._jax import is_complex, is_float

Function = Callable[..., list[Any]]
Diagonal = Mapping[int, Sequence[int]]  # output -> operands that reach it position by position


def diagonal(function: Function, by_position: Diagonal, otherwise: Sequence[int] = ()) -> Function:
    """The function with a derivative that reverse mode can take.

    Args:
        function: Takes arrays and returns a list of arrays; it can be differentiated in forward mode.
        by_position: The outputs that have a derivative, each with the operands that reach it position by position.
        otherwise: Operands that reach some of these outputs in another way. Their derivatives are those of the function
            itself, in forward mode only.

    Returns:
        The function with the same values, and no derivative but these.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> double = lambda v: [jax.lax.while_loop(lambda v: v.sum() < 9.0, lambda v: 2.0 * v, v)]
        >>> jax.grad(lambda v: diagonal(double, {0: [0]})(v)[0].sum())(jnp.ones(3)).tolist()
        [4.0, 4.0, 4.0]
    """
    call = jax.custom_jvp(function)

    def derivative(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
        moving = {i for i, tangent in enumerate(tangents) if type(tangent) is not SymbolicZero}
        operands = sorted(moving.intersection(i for reached in by_position.values() for i in reached))
        directions = [(i, unit) for i in operands for unit in ((1, 1j) if is_complex(primals[i]) else (1,))]
        values, slopes = _values_and_slopes(function, primals, by_position, directions)
        changes = {out: jnp.zeros_like(values[out]) for out in by_position}
        for out, (d, (i, unit)) in itertools.product(by_position, enumerate(directions)):
            if i in by_position[out]:
                slope = slopes[out][d]
                changes[out] = changes[out] + slope * _part(tangents[i], unit, slope)
        if others := sorted(moving.intersection(otherwise)):
            moved = [primals[i] for i in others], [tangents[i] for i in others]
            _, pushed, _ = jax.jvp(_chosen(function, primals, others, by_position), *moved, has_aux=True)
            changes = {out: changes[out] + change for out, change in zip(by_position, pushed, strict=True)}
        return values, [changes.get(out, _zero(value)) for out, value in enumerate(values)]

    call.defjvp(derivative, symbolic_zeros=True)
    return call


def _values_and_slopes(
    function: Function, primals: Sequence[Any], by_position: Diagonal, directions: Sequence[tuple[int, complex]]
) -> tuple[list[Any], dict[int, Any]]:
    """The outputs, and their derivatives along the directions (an operand's ones, or `i`), one behind the other."""
    operands = sorted({i for i, _ in directions})
    if not operands:
        return function(*primals), {}
    chosen = _chosen(function, primals, operands, by_position)

    def push(tangents: Sequence[Any]) -> tuple[Any, Any]:
        _, slopes, outs = jax.jvp(chosen, [primals[i] for i in operands], tangents, has_aux=True)
        return outs, slopes

    # One run for all directions: the values are the same in each, and computed once.
    outs, slopes = jax.vmap(push, out_axes=(None, 0))([_ones(primals[i], i, directions) for i in operands])
    return outs, dict(zip(by_position, slopes, strict=True))


def _ones(primal: Any, operand: int, directions: Sequence[tuple[int, complex]]) -> Any:
    """The operand's tangent in each direction: ones (or `i`) in its own, zeros in those of the others."""
    column = np.array([unit if i == operand else 0 for i, unit in directions])
    tangent = jnp.asarray(column if is_complex(primal) else column.real, jnp.result_type(primal))
    return jnp.broadcast_to(tangent.reshape(-1, *(1,) * jnp.ndim(primal)), (len(directions), *jnp.shape(primal)))


def _part(tangent: Any, unit: complex, slope: Any) -> Any:
    """How far a tangent goes along a direction, in the shape and dtype of a derivative."""
    along = (jnp.imag(tangent) if unit == 1j else jnp.real(tangent)) if is_complex(tangent) else tangent
    return jnp.reshape(along, jnp.shape(slope)).astype(slope.dtype)


def _chosen(function: Function, primals: Sequence[Any], operands: Sequence[int], by_position: Diagonal) -> Any:
    """The outputs that have a derivative, and beside them all outputs, as a function of some operands alone."""

    def chosen(*moved: Any) -> tuple[list[Any], list[Any]]:
        replaced = dict(zip(operands, moved, strict=True))
        outs = function(*(replaced.get(i, primal) for i, primal in enumerate(primals)))
        return [outs[out] for out in by_position], outs

    return chosen


def _zero(value: Any) -> Any:
    return jnp.zeros_like(value) if is_float(value) else np.zeros(jnp.shape(value), jax.dtypes.float0)
