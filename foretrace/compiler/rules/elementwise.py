"""Elementwise primitives, and those whose derivative is zero everywhere."""

from foretrace._jax import JaxprEqn
from foretrace.compiler.structure import SAME, Known, Structure, broadcast, rule_for

ELEMENTWISE = (
    "abs acos acosh add add_any asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt clamp complex conj cos cosh "
    "convert_element_type copy copy_p digamma div erf erf_inv erfc exp exp2 expm1 igamma igamma_grad_a igammac imag "
    "integer_pow lgamma log log1p logistic max min mul name neg nextafter polygamma pow real reduce_precision "
    "regularized_incomplete_beta rem rsqrt sharding_constraint sin sinh sqrt square sub tan tanh zeta "
    "heaviside_surrogate_gradient exprel "  # a spike of braintools, a function of saiunit
    "zero_safe_scale"  # of a guarded branch
).split()

ZERO = (
    "after_all and argmax argmin bitcast_convert_type ceil clz create_token eq eq_to floor ge gt iota is_finite le "
    "le_to lt lt_to ne not or population_count random_bits random_clone random_fold_in random_gamma random_seed "
    "random_split random_unwrap random_wrap reduce_and reduce_or reduce_xor rng_bit_generator rng_uniform round "
    "shift_left shift_right_arithmetic shift_right_logical sign stop_gradient threefry2x32 xor"
).split()


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


@rule_for(*ZERO)
def without_derivative(eqn: JaxprEqn, known: Known) -> Structure:
    """Nothing depends on anything by derivative."""
    return [{} for _ in eqn.outvars]
