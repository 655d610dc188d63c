"""The only file that touches JAX interfaces outside its stable surface.

Everything else imports jaxpr types and helpers from here, so that a change in JAX is met in one place.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.core import ShapedArray, eval_jaxpr
from jax.extend.core import (
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Literal,
    Primitive,
    Var,
    get_opaque_trace_state,
    jaxpr_as_fun,
    new_jaxpr_eqn,
    primitives,
)
from jax.extend.source_info_util import summarize as _summarize_source
from jax.interpreters import ad, batching, mlir
from jax.interpreters.partial_eval import dce_jaxpr

Atom: TypeAlias = Var | Literal

_NO_NAMES = jax.make_jaxpr(lambda: ())().jaxpr.debug_info._replace(arg_names=None, result_paths=None)

__all__ = [
    "Atom",
    "ClosedJaxpr",
    "Jaxpr",
    "JaxprEqn",
    "Literal",
    "Primitive",
    "ShapedArray",
    "Var",
    "ad",
    "batching",
    "bind_eqn",
    "dce_jaxpr",
    "eval_jaxpr",
    "get_opaque_trace_state",
    "is_float",
    "jaxpr_as_fun",
    "make_jaxpr_of",
    "mlir",
    "new_eqn",
    "new_jaxpr",
    "new_jaxpr_eqn",
    "new_var",
    "primitives",
    "source_line",
    "tangent_jaxpr",
    "tangent_rule",
]


def new_var(aval: Any) -> Var:
    """A fresh variable of the given abstract value."""
    return Var(aval)


def new_jaxpr(
    constvars: Sequence[Var],
    invars: Sequence[Var],
    outvars: Sequence[Atom],
    eqns: Sequence[JaxprEqn],
    like: Jaxpr | None = None,
) -> Jaxpr:
    """A jaxpr of these parts, with the effects its equations have."""
    effects = frozenset().union(*(eqn.effects for eqn in eqns)) if eqns else frozenset()
    debug_info = _NO_NAMES
    if like is not None and len(like.invars) == len(invars) and len(like.outvars) == len(outvars):
        debug_info = like.debug_info
    return Jaxpr(list(constvars), list(invars), list(outvars), list(eqns), effects, debug_info)


def new_eqn(
    primitive: Primitive,
    invars: Sequence[Atom],
    outvars: Sequence[Var],
    params: dict[str, Any] | None = None,
    like: JaxprEqn | None = None,
) -> JaxprEqn:
    """An equation, with the source line and context of `like` where one is given."""
    effects = like.effects if like is not None and like.primitive is primitive else frozenset()
    source_info = None if like is None else like.source_info
    ctx = None if like is None else like.ctx
    return new_jaxpr_eqn(list(invars), list(outvars), primitive, dict(params or {}), effects, source_info, ctx)


def bind_eqn(eqn: JaxprEqn, *args: Any) -> list[Any]:
    """Runs one equation on values and returns its outputs as a list."""
    params = eqn.primitive.get_bind_params(eqn.params)
    with eqn.ctx.manager:
        out = eqn.primitive.bind(*args, **params)
    return list(out) if eqn.primitive.multiple_results else [out]


def tangent_jaxpr(eqn: JaxprEqn) -> tuple[ClosedJaxpr, list[int], list[int]]:
    """The tangent rule of a `custom_jvp_call` as a jaxpr.

    Returns:
        The jaxpr from operands and tangents to outputs and tangents; the operands that have a tangent; the outputs that
        have one.
    """
    constant = [not is_float(atom.aval) for atom in eqn.invars]
    jaxpr, consts, zeros = eqn.params["jvp_jaxpr_fun"].call_wrapped(*constant)
    active = [i for i, fixed in enumerate(constant) if not fixed]
    return ClosedJaxpr(jaxpr, list(consts)), active, [k for k, zero in enumerate(zeros) if not zero]


def tangent_rule(eqn: JaxprEqn) -> tuple[Callable[..., Any], Any] | None:
    """The user's function behind a `custom_jvp_call` and the tree of its arguments, to know it again by.

    None where it cannot be told, as with static arguments, which are bound to the rule.
    """
    try:
        cells = [cell.cell_contents for cell in eqn.params["jvp_jaxpr_fun"].f.__closure__]
        thunk = next(content for content in cells if hasattr(content, "__code__"))
        rule = dict(zip(thunk.__code__.co_freevars, thunk.__closure__, strict=True))["jvp"].cell_contents
        ((_, (_, _, tree, _)),) = rule.transforms
        return rule.f, tree
    except (AttributeError, KeyError, StopIteration, TypeError, ValueError):
        return None


def make_jaxpr_of(fun: Callable[..., Any], avals: Sequence[Any]) -> ClosedJaxpr:
    """Traces `fun` on abstract values given by shape and dtype."""
    return jax.make_jaxpr(fun)(*(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals))


def is_float(aval: Any) -> bool:
    """Whether values of this kind carry derivatives."""
    return hasattr(aval, "dtype") and _is_float_dtype(aval.dtype)


@functools.cache
def _is_float_dtype(dtype: Any) -> bool:
    return bool(jax.dtypes.issubdtype(dtype, np.inexact))


def source_line(eqn: JaxprEqn) -> str:
    """Where in the user's code an equation was written, as `file:line (function)`."""
    return _summarize_source(eqn.source_info)
