"""Unrolling: a scan of static length as the equations of all of its iterations.

`unroll_scan` takes a `scan` equation and returns a jaxpr of the same operands and results: at each iteration the slices
of `xs`, the body, and at the end the stacked `ys`. Order (`reverse`), constants and scans of length zero are respected.
"""

from collections.abc import Sequence

from foretrace._jax import Atom, Jaxpr, JaxprEqn, ShapedArray, Var, new_jaxpr, new_var, primitives, scan_counts
from foretrace.program.emit import Emitter
from foretrace.program.inline import inline_jaxpr


def unroll_scan(eqn: JaxprEqn) -> Jaxpr:
    """The iterations of a scan one after another.

    Args:
        eqn: A `scan` equation whose body has no constants of its own.

    Returns:
        A jaxpr that maps the scan's operands to its results.
    """
    (num_consts, num_carry), length = scan_counts(eqn.params), eqn.params["length"]
    invars = [new_var(v.aval) for v in eqn.invars]
    consts, carry = invars[:num_consts], list[Atom](invars[num_consts : num_consts + num_carry])
    xs = invars[num_consts + num_carry :]
    emitter = Emitter(eqn)
    rows: list[list[Atom]] = [[] for _ in range(length)]
    for i in reversed(range(length)) if eqn.params["reverse"] else range(length):
        slices = [_row(emitter, x, i) for x in xs]
        eqns, outs = inline_jaxpr(eqn.params["jaxpr"].jaxpr, [], [*consts, *carry, *slices])
        emitter.eqns.extend(eqns)
        carry, rows[i] = outs[:num_carry], outs[num_carry:]
    ys = [
        _stack(emitter, [row[position] for row in rows], var.aval)
        for position, var in enumerate(eqn.outvars[num_carry:])
    ]
    return new_jaxpr([], invars, [*carry, *ys], emitter.eqns)


def _row(emitter: Emitter, x: Var, i: int) -> Var:
    shape = x.aval.shape
    params = {"start_indices": (i, *(0,) * (len(shape) - 1)), "limit_indices": (i + 1, *shape[1:]), "strides": None}
    row = emitter.apply(primitives.slice_p, [x], ShapedArray((1, *shape[1:]), x.aval.dtype), **params)
    return emitter.apply(primitives.squeeze_p, [row], ShapedArray(shape[1:], x.aval.dtype), dimensions=(0,))


def _stack(emitter: Emitter, rows: Sequence[Atom], aval: ShapedArray) -> Atom:
    if not rows:
        return emitter.zeros(aval)
    shape = (1, *aval.shape[1:])
    dimensions = tuple(range(1, aval.ndim))
    params = {"shape": shape, "broadcast_dimensions": dimensions, "sharding": None}
    row_aval = ShapedArray(shape, aval.dtype)
    wide = [emitter.apply(primitives.broadcast_in_dim_p, [row], row_aval, **params) for row in rows]
    if len(wide) == 1:
        return wide[0]
    return emitter.apply(primitives.concatenate_p, wide, aval, dimension=0)
