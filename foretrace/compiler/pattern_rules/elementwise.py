"""Elementwise primitives, and those whose derivative is zero everywhere."""

import jax.numpy as jnp

from foretrace._jax import JaxprEqn
from foretrace.compiler.structure import SAME, Known, Structure, broadcast, rule_for
from foretrace.program.elementwise import NARY, UNARY, WITHOUT_DERIVATIVE

ELEMENTWISE = sorted((UNARY | NARY) - WITHOUT_DERIVATIVE - {"select_n"})

NO_DERIVATIVE = (
    sorted(WITHOUT_DERIVATIVE - {"sign"})
    + (
        "after_all argmax argmin bitcast_convert_type create_token iota random_bits random_clone random_fold_in "
        "random_seed random_split random_unwrap random_wrap reduce_and reduce_or reduce_xor rng_bit_generator "
        "rng_uniform threefry2x32"
    ).split()
)


@rule_for(*ELEMENTWISE)
def elementwise(eqn: JaxprEqn, known: Known) -> Structure:
    """Each output element depends on the element at its place in every operand."""
    return [{i: broadcast(out, operand) for i, operand in enumerate(eqn.invars)} for out in eqn.outvars]


@rule_for("optimization_barrier", "device_put")
def passed_through(eqn: JaxprEqn, known: Known) -> Structure:
    """Output `i` is input `i`."""
    return [{i: SAME} for i in range(len(eqn.outvars))]


@rule_for("select_n")
def select(eqn: JaxprEqn, known: Known) -> Structure:
    """Each case counts, whichever is chosen; the predicate has no derivative."""
    out = eqn.outvars[0]
    return [{i: broadcast(out, case) for i, case in enumerate(eqn.invars) if i > 0}]


@rule_for("sign")
def sign(eqn: JaxprEqn, known: Known) -> Structure:
    """That of a real number is a step; that of a complex one turns with it."""
    is_complex = jnp.issubdtype(eqn.invars[0].aval.dtype, jnp.complexfloating)
    return [{0: SAME} if is_complex or known.by_value else {}]


@rule_for("random_gamma")
def random_gamma(eqn: JaxprEqn, known: Known) -> Structure:
    """A sample depends on the shape parameter at its place (by implicit reparametrisation), and not on the key."""
    return [{1: SAME}]


@rule_for(*NO_DERIVATIVE)
def without_derivative(eqn: JaxprEqn, known: Known) -> Structure:
    """Nothing depends on anything by derivative."""
    return [{} for _ in eqn.outvars]
