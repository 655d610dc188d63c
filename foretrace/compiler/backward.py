"""Whether the backward pass of a `custom_vjp` is linear in its cotangents.

A trace carries a derivative forward, long before any cotangent is known. A backward pass that clips its cotangent,
takes its sign or adds to it is the transpose of no derivative: there is nothing that a trace could carry through it.

The walk follows the cotangents through the equations of the backward pass. What it does not know to be linear counts
as not linear.
"""

import enum
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

from foretrace._jax import (
    ClosedJaxpr,
    JaxprEqn,
    Literal,
    bind_eqn,
    held_jaxprs,
    is_float,
    make_jaxpr_of,
    scan_counts,
)
from foretrace.compiler.structure import plain_jaxpr
from foretrace.ops import is_etp_primitive
from foretrace.program.walks import inner_eqns


class Kind(enum.Enum):
    """How a value depends on the cotangents."""

    ZERO = "zero whatever they are"
    FREE = "not at all"
    LINEAR = "linear"
    OTHER = "otherwise"


Kinds: TypeAlias = list[Kind]

# Linear in the first operand; the others say where, and must not depend on the cotangents.
FIRST = frozenset(
    "broadcast_in_dim conj convert_element_type copy cumsum dynamic_slice fft gather imag neg real reduce_precision "
    "reduce_sum reshape rev slice split squeeze stop_gradient tile transpose untraced".split()
)
# Linear in several operands together: their places.
JOINTLY = {
    **dict.fromkeys("add add_any complex concatenate pad stack sub".split(), slice(None)),
    **dict.fromkeys(("scatter", "scatter-add"), slice(0, 3, 2)),
    "dynamic_update_slice": slice(2),
    "select_n": slice(1, None),
    "div": slice(1),
}
# Linear in each operand by itself.
PRODUCTS = frozenset("conv_general_dilated dot_general mul".split())
CALLS = frozenset("checkpoint closed_call core_call custom_jvp_call custom_vjp_call jit pjit remat2".split())


def cotangent_jaxpr(eqn: JaxprEqn) -> tuple[ClosedJaxpr, list[int], list[int]]:
    """The backward pass of a `custom_vjp_call` as a jaxpr.

    Returns:
        The jaxpr from operands and cotangents of outputs to cotangents of operands; the operands that have one; the
        outputs that have one.
    """
    active = [i for i, atom in enumerate(eqn.invars) if is_float(atom.aval)]
    out_active = [i for i, out in enumerate(eqn.outvars) if is_float(out.aval)]

    def cotangents(*args: Any) -> Any:
        primals, directions = args[: len(eqn.invars)], args[len(eqn.invars) :]

        def function(*values: Any) -> Any:
            filled = dict(zip(active, values, strict=True))
            outs = bind_eqn(eqn, *(filled.get(i, primal) for i, primal in enumerate(primals)))
            return [outs[i] for i in out_active]

        return jax.vjp(function, *(primals[i] for i in active))[1](list(directions))

    avals = [atom.aval for atom in eqn.invars]
    return make_jaxpr_of(cotangents, [*avals, *(eqn.outvars[i].aval for i in out_active)]), active, out_active


def nonlinear_operands(backward: ClosedJaxpr, active: Sequence[int], operands: int) -> frozenset[int]:
    """The operands whose cotangent is not known to be linear in those of the outputs.

    Args:
        backward: The backward pass, as `cotangent_jaxpr` gives it.
        active: The operands that have a cotangent.
        operands: How many operands there are.
    """
    given = [Kind.FREE] * operands + [Kind.LINEAR] * (len(backward.jaxpr.invars) - operands)
    found = _through(backward, given)
    return frozenset(i for i, kind in zip(active, found, strict=True) if kind not in (Kind.LINEAR, Kind.ZERO))


def nonlinear_calls(eqn: JaxprEqn) -> Iterator[tuple[JaxprEqn, frozenset[int]]]:
    """The calls whose backward pass is not known to be linear: the equation itself or those within its bodies.

    Yields:
        A call, and the operands of `eqn` that it concerns; for one within a body, all of them.
    """
    if eqn.primitive.name == "custom_vjp_call":
        backward, active, _ = cotangent_jaxpr(eqn)
        operands = nonlinear_operands(backward, active, len(eqn.invars))
        if operands:
            yield eqn, operands
        return
    for body in held_jaxprs(list(eqn.params.values())):
        for inner in body.jaxpr.eqns:
            yield from ((call, frozenset(range(len(eqn.invars)))) for call, _ in nonlinear_calls(inner))


def has_own_backward_pass(eqn: JaxprEqn) -> bool:
    """Whether an equation is or holds a `custom_vjp`, which JAX cannot differentiate forward."""
    return any("custom_vjp" in inner.primitive.name for inner in (eqn, *inner_eqns(eqn)))


def call_name(eqn: JaxprEqn) -> str:
    """What the user calls a function with a derivative of its own."""
    return str(eqn.params["call_jaxpr"].jaxpr.debug_info.func_name)


def _through(closed: ClosedJaxpr, given: Sequence[Kind]) -> Kinds:
    """The kinds of a jaxpr's results, from those of its inputs."""
    env = dict(zip(closed.jaxpr.constvars, map(_constant, closed.consts), strict=True))
    env.update(zip(closed.jaxpr.invars, given, strict=True))

    def read(atom: Any) -> Kind:
        return _constant(atom.val) if isinstance(atom, Literal) else env[atom]

    for eqn in closed.jaxpr.eqns:
        env.update(zip(eqn.outvars, _at(eqn, [read(atom) for atom in eqn.invars]), strict=True))
    return [read(atom) for atom in closed.jaxpr.outvars]


def _constant(value: Any) -> Kind:
    dtype = getattr(value, "dtype", np.asarray(value).dtype)
    known = not isinstance(value, jax.core.Tracer) and isinstance(dtype, np.dtype)
    return Kind.ZERO if known and not np.any(np.asarray(value)) else Kind.FREE


def _at(eqn: JaxprEqn, given: Kinds) -> Kinds:
    """The kinds of an equation's outputs."""
    name, count = eqn.primitive.name, len(eqn.outvars)
    if name in FIRST:
        kind = _among(given, (0,)) if all(is_float(out.aval) for out in eqn.outvars) else _any_other(given)
        return [kind] * count
    if name in JOINTLY:
        return [_among(given, range(len(given))[JOINTLY[name]])] * count
    if name in PRODUCTS:
        return [_product(given)] * count
    if (rule := NESTED.get(name)) is not None:
        return rule(eqn, given)
    if is_etp_primitive(eqn.primitive):
        return _through(plain_jaxpr(eqn), given)
    return [_any_other(given)] * count


def _any_other(given: Sequence[Kind]) -> Kind:
    """Of an equation that nothing is known about."""
    return Kind.FREE if all(kind in (Kind.ZERO, Kind.FREE) for kind in given) else Kind.OTHER


def _among(given: Sequence[Kind], places: Sequence[int]) -> Kind:
    """Of an equation that is linear in some operands together."""
    own, rest = {given[i] for i in places}, {kind for i, kind in enumerate(given) if i not in places}
    if Kind.OTHER in own or rest & {Kind.LINEAR, Kind.OTHER}:
        return Kind.OTHER
    if own == {Kind.ZERO}:
        return Kind.ZERO
    if Kind.LINEAR not in own:
        return Kind.FREE
    return Kind.OTHER if Kind.FREE in own else Kind.LINEAR


def _product(given: Sequence[Kind]) -> Kind:
    if Kind.ZERO in given:
        return Kind.ZERO
    moving = [kind for kind in given if kind is not Kind.FREE]
    return Kind.FREE if not moving else moving[0] if len(moving) == 1 else Kind.OTHER


def _called(eqn: JaxprEqn, given: Kinds) -> Kinds:
    (inner,) = held_jaxprs(eqn.params.get("jaxpr", eqn.params.get("call_jaxpr")))
    return _through(inner, given)


def _cond(eqn: JaxprEqn, given: Kinds) -> Kinds:
    found = [_through(branch, given[1:]) for branch in eqn.params["branches"]]
    return [_among([given[0], *kinds], range(1, len(kinds) + 1)) for kinds in zip(*found, strict=True)]


def _scan(eqn: JaxprEqn, given: Kinds) -> Kinds:
    body, (first, carries) = eqn.params["jaxpr"], scan_counts(eqn.params)
    fixed, carry, slices = given[:first], given[first : first + carries], given[first + carries :]
    while True:  # what a carry is after a step, it may be before the next
        found = _through(body, [*fixed, *carry, *slices])
        after = [_among([old, new], (0, 1)) for old, new in zip(carry, found[:carries], strict=True)]
        if after == carry:
            return [*after, *found[carries:]]
        carry = after


NESTED: dict[str, Callable[[JaxprEqn, Kinds], Kinds]] = {
    "optimization_barrier": lambda _, given: given,
    **dict.fromkeys(CALLS, _called),
    "cond": _cond,
    "scan": _scan,
}
