"""Which primitives act element by element, by name.

An elementwise primitive computes each element of its output from the elements at the same place of its operands, after
JAX has stretched scalars and axes of size one. The names are JAX's own, with the spike of braintools
(`heaviside_surrogate_gradient`) and `exprel` of its units. A primitive that is not named here may mix elements.
"""

from foretrace._jax import JaxprEqn

UNARY = frozenset(
    "abs acos acosh asin asinh atan atanh bessel_i0e bessel_i1e cbrt ceil clz conj convert_element_type copy cos cosh "
    "digamma erf erf_inv erfc exp exp2 expm1 exprel floor imag integer_pow is_finite lgamma log log1p logistic name "
    "neg not population_count real reduce_precision round rsqrt sharding_constraint sign sin sinh sqrt square "
    "stop_gradient tan tanh untraced".split()
)

NARY = frozenset(
    "add add_any and atan2 clamp complex div eq eq_to ge gt heaviside_surrogate_gradient igamma igamma_grad_a igammac "
    "le le_to lt lt_to max min mul mulhi ne nextafter or polygamma pow regularized_incomplete_beta rem select_n "
    "shift_left shift_right_arithmetic shift_right_logical sub xor zero_safe_scale zeta".split()
)

# Elementwise primitives whose derivative is zero wherever it exists.
WITHOUT_DERIVATIVE = frozenset(
    "and ceil clz eq eq_to floor ge gt is_finite le le_to lt lt_to mulhi ne not or population_count round shift_left "
    "shift_right_arithmetic shift_right_logical sign stop_gradient xor".split()
)

# Elementwise primitives whose derivative is not finite for every finite operand, or is the value of another operand.
PARTIAL = frozenset(
    "acos acosh asin atan2 atanh cbrt cosh digamma div erf_inv exp exp2 expm1 igamma igammac integer_pow lgamma log "
    "log1p mul polygamma pow regularized_incomplete_beta rem rsqrt sinh sqrt square tan zeta".split()
)


def is_elementwise(eqn: JaxprEqn) -> bool:
    """Whether an equation computes each element from the elements at the same place."""
    return eqn.primitive.name in UNARY or eqn.primitive.name in NARY
