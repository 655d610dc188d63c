"""Elementwise equations whose derivative leaves a zero cotangent at zero.

Reverse mode multiplies the cotangent by a derivative, and `0 * inf` is NaN: `sqrt(w)` in a branch that was not taken
would send NaN to `w`, though nothing depends on it. `zero_safe` gives the same equation with the same derivative, but
for one rule: where the cotangent is zero, so is its product with anything. The predicate of the branch is not needed,
and so a value made of parameters alone stays made of parameters alone.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from foretrace._jax import JaxprEqn, Literal, Primitive, ad, batching, bind_eqn, is_float, make_jaxpr_of, mlir
from foretrace.program.inline import inline_jaxpr

scale_p = Primitive("zero_safe_scale")


def _multiply(derivative: Any, value: Any) -> Any:
    return derivative * value


def _transposed(cotangent: Any, factor: Any) -> Any:
    return jnp.where(cotangent == 0, jnp.zeros_like(cotangent), scale_p.bind(factor, cotangent))


def _mapped(operands: Sequence[Any], axes: Sequence[Any]) -> tuple[Any, int]:
    """Both operands get the mapped axis in full: a transposition gives each a cotangent of its own shape."""
    size = next(v.shape[axis] for v, axis in zip(operands, axes, strict=True) if axis is not None)
    whole = [
        jnp.broadcast_to(v, (size, *v.shape)) if axis is None else jnp.moveaxis(v, axis, 0)
        for v, axis in zip(operands, axes, strict=True)
    ]
    return scale_p.bind(*whole), 0


scale_p.def_impl(_multiply)
scale_p.def_abstract_eval(lambda derivative, value: value.update(weak_type=False))
mlir.register_lowering(scale_p, mlir.lower_fun(_multiply, multiple_results=False))
batching.primitive_batchers[scale_p] = _mapped
ad.defbilinear(
    scale_p,
    lambda cotangent, derivative, value: _transposed(cotangent, value),
    lambda cotangent, derivative, value: _transposed(cotangent, derivative),
)


def zero_safe(eqn: JaxprEqn) -> JaxprEqn:
    """The equation with the same values and derivatives, and zero cotangents where its output's are zero.

    Args:
        eqn: An elementwise equation of one output.

    Returns:
        An equation of the same outvars whose derivative is taken care of (a `custom_jvp_call`).
    """
    operands = [v for v in eqn.invars if not isinstance(v, Literal)]

    def apply(*values: Any) -> Any:
        supply = iter(values)
        return bind_eqn(eqn, *(v.val if isinstance(v, Literal) else next(supply) for v in eqn.invars))[0]

    apply.__name__ = eqn.primitive.name
    safe = jax.custom_jvp(apply)

    @safe.defjvp
    def derivative(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        out = safe(*primals)
        tangent = jnp.zeros_like(out)
        for i, (primal, change) in enumerate(zip(primals, tangents, strict=True)):
            if is_float(jax.typeof(primal)):
                tangent = tangent + scale_p.bind(*_slope(apply, primals, i, change))
        return out, tangent

    closed = make_jaxpr_of(safe, [v.aval for v in operands])
    (call,), _ = inline_jaxpr(closed.jaxpr, [], operands)
    return call.replace(outvars=eqn.outvars, source_info=eqn.source_info)


def _slope(apply: Any, primals: tuple[Any, ...], position: int, change: Any) -> tuple[Any, Any]:
    """The derivative of every element by the operand at this position, and the operand's change at its shape."""

    def along(value: Any) -> Any:
        return apply(*primals[:position], value, *primals[position + 1 :])

    stretched = jnp.broadcast_to(primals[position], jnp.shape(apply(*primals)))
    _, slope = jax.jvp(along, (stretched,), (jnp.ones_like(stretched),))
    return slope, jnp.broadcast_to(change, slope.shape)
