"""Every pattern rule against the derivatives of JAX: a pattern may say too much, and never too little."""

from collections.abc import Callable, Iterator
from typing import Any

import braintools
import brainunit
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from dense_structure import run
from foretrace._jax import ad
from foretrace.compiler.pattern_rules.elementwise import NO_DERIVATIVE
from foretrace.compiler.patterns import analyse
from foretrace.compiler.structure import structure_rules
from foretrace.ops import untraced
from foretrace.program.zero_safe import scale_p

LINE, SHEET, SQUARE = (4,), (2, 3), (3, 3)
ORDER = np.array([2, 0, 3])
ONE_DEVICE = jax.sharding.SingleDeviceSharding(jax.devices()[0])
POSITIVE = 3.0 + np.linspace(-0.4, 0.6, 3)


def unit(v: Any) -> Any:
    """Numbers between 0.2 and 0.8."""
    return 0.5 + 0.3 * jnp.tanh(v)


def symmetric(v: Any) -> Any:
    return v + v.T + 4.0 * jnp.diag(jnp.arange(1.0, 4.0))


def scattered(operation: Callable[..., Any]) -> Callable[..., Any]:
    """A scatter of a line of three into one of four."""
    numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
    return lambda a, b: operation(a, np.array([[3], [0], [1]]), b, numbers)


# The functions whose primitive has the same name, by what their operands must be.
ANY = (
    "abs asinh atan bessel_i0e bessel_i1e cbrt cos cosh erf erfc exp exp2 expm1 logistic neg sign sin sinh square tan "
)
ANY += "tanh"
BETWEEN_ZERO_AND_ONE = "acos asin atanh digamma erf_inv lgamma log log1p rsqrt sqrt"
TWO = "add atan2 max min mul rem sub"
TWO += " nextafter" if lax.nextafter_p in ad.primitive_jvps else ""  # since JAX 0.12

FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    **{name: (getattr(lax, name), (SHEET,)) for name in ANY.split()},
    **{name: (lambda v, name=name: getattr(lax, name)(unit(v)), (SHEET,)) for name in BETWEEN_ZERO_AND_ONE.split()},
    **{name: (getattr(lax, name), (SHEET, SHEET)) for name in TWO.split()},
    "acosh": (lambda v: lax.acosh(1.5 + unit(v)), (SHEET,)),
    "add_any": (lambda v: jax.grad(lambda u: jnp.sum(jnp.sin(u) * jnp.cos(u)))(v), (SHEET,)),
    "complex_sign": (lambda v: lax.real(lax.sign(lax.complex(v, v + 1.0))), (SHEET,)),
    "heaviside": (braintools.surrogate.sigmoid, (SHEET,)),
    "clamp": (lambda low, v, high: lax.clamp(0.1 * low, v, 3.0 + high), (SHEET, SHEET, SHEET)),
    "complex": (lambda a, b: jnp.abs(lax.complex(a, b) ** 2 + jnp.conj(lax.complex(b, a))), (SHEET, SHEET)),
    "convert_element_type": (lambda v: v.astype(jnp.float32).astype(float), (SHEET,)),
    "copy": (lambda v: jnp.copy(v), (SHEET,)),
    "div": (lambda a, b: a / (2.0 + unit(b)), (SHEET, SHEET)),
    "igamma": (lambda a, x: lax.igamma(jnp.full(SHEET, 0.7), 1.0 + unit(x)) * a, (SHEET, SHEET)),
    "igammac": (lambda a, x: lax.igammac(1.0 + unit(a), 1.0 + unit(x)), (SHEET, SHEET)),
    "integer_pow": (lambda v: lax.integer_pow(v, 3), (SHEET,)),
    "name": (lambda v: checkpoint_name(jnp.sin(v), "kept"), (SHEET,)),
    "untraced": (lambda v: untraced(jnp.sin(v)), (SHEET,)),
    "polygamma": (lambda v: lax.polygamma(jnp.ones(SHEET), 1.0 + unit(v)), (SHEET,)),
    "pow": (lambda a, b: lax.pow(unit(a), b), (SHEET, SHEET)),
    "real, imag": (lambda v: jnp.real(jnp.exp(1j * v)) + jnp.imag(jnp.exp(2j * v)), (SHEET,)),
    "random_gamma": (lambda a: jax.random.gamma(jax.random.key(1), 1.0 + unit(a)), (SHEET,)),
    "random_gamma, mapped": (
        lambda a: jax.vmap(lambda k, u: jax.random.loggamma(k, 1.0 + unit(u)))(jax.random.split(jax.random.key(1)), a),
        (SHEET,),
    ),
    "reduce_precision": (lambda v: lax.reduce_precision(v, 8, 20), (SHEET,)),
    "regularized_incomplete_beta": (lambda v: lax.betainc(jnp.ones(SHEET), 2 * jnp.ones(SHEET), unit(v)), (SHEET,)),
    "exprel": (lambda v: brainunit.math.exprel(v), (SHEET,)),
    "zero_safe_scale": (lambda a, b: scale_p.bind(a, b), (SHEET, SHEET)),
    "sharding_constraint": (lambda v: lax.with_sharding_constraint(v, ONE_DEVICE), (SHEET,)),
    "select_n": (lambda a, b: jnp.where(np.array([True, False, True]), a, b), (SHEET, SHEET)),
    "device_put": (lambda v: jax.device_put(v), (SHEET,)),
    "optimization_barrier": (lambda a, b: lax.optimization_barrier((a, b))[1], (SHEET, LINE)),
    # elements that move
    "reshape": (lambda v: v.reshape(3, 2), (SHEET,)),
    "squeeze": (lambda v: lax.squeeze(v[:1] * 2.0, (0,)), (SHEET,)),
    "transpose": (lambda v: v.T, (SHEET,)),
    "stack": (lambda a, b: jnp.stack([a, b], axis=1), (LINE, LINE)),
    "unstack": (lambda v: jnp.unstack(v)[1], (SHEET,)),
    "tile": (lambda v: jnp.tile(v, (2, 1)), (SHEET,)),
    "broadcast_in_dim": (lambda v: lax.broadcast_in_dim(v, (2, 4, 3), (1,)), (LINE,)),
    "rev": (lambda v: lax.rev(v, (1,)), (SHEET,)),
    "slice": (lambda v: v[:, ::2], (SHEET,)),
    "split": (lambda v: lax.split(v, (1, 2), axis=1)[1], (SHEET,)),
    "concatenate": (lambda a, b: lax.concatenate([a, b], 1), (SHEET, SHEET)),
    "pad": (lambda v, w: lax.pad(v, w, ((1, -1, 1), (0, 2, 0))), (SHEET, ())),
    "gather": (lambda v: v[:, ORDER[:2]], (SHEET,)),
    "gather by data": (lambda v, w: v[jnp.argmax(w)], (LINE, LINE)),
    "dynamic_slice": (lambda v: lax.dynamic_slice(v, (0, 1), (2, 2)), (SHEET,)),
    "dynamic_slice by data": (lambda v, w: lax.dynamic_slice(v, (jnp.argmax(w),), (2,)), (LINE, LINE)),
    "dynamic_update_slice": (lambda v, w: lax.dynamic_update_slice(v, w[:2], (1,)), (LINE, LINE)),
    "dynamic_update_slice by data": (
        lambda v, w: lax.dynamic_update_slice(v, w[:2], (jnp.argmax(w),)),
        (LINE, LINE),
    ),
    "scatter": (lambda a, b: a.at[ORDER].set(b), (LINE, (3,))),
    "scatter by data": (lambda a, b: a.at[jnp.argmax(b)].set(b[0]), (LINE, (3,))),
    "scatter-add": (lambda a, b: a.at[np.array([1, 1, 2])].add(b), (LINE, (3,))),
    "scatter-sub": (lambda a, b: a.at[np.array([1, 1, 2])].subtract(b), (LINE, (3,))),
    "scatter-mul": (lambda a, b: a.at[ORDER].multiply(b, unique_indices=True), (LINE, (3,))),
    "scatter-min": (scattered(lax.scatter_min), (LINE, (3,))),
    "scatter-max": (scattered(lax.scatter_max), (LINE, (3,))),
    # products and reductions
    "dot_general": (lambda a, b: jnp.einsum("ij,jk->ki", a, b), (SHEET, (3, 4))),
    "dot_general, batched": (lambda a, b: jnp.einsum("bij,bj->bi", a, b), ((2, 2, 3), SHEET)),
    "dot_general, outer": (lambda a, b: jnp.einsum("bi,bj->bij", a, b), (SHEET, (2, 2))),
    "conv_general_dilated": (
        lambda a, b: lax.conv_general_dilated(a, b, (2,), "SAME", rhs_dilation=(1,)),
        ((1, 2, 5), (2, 2, 3)),
    ),
    "ragged_dot_general": (lambda a, b: lax.ragged_dot(a, b, jnp.array([1, 2])), ((3, 2), (2, 2, 2))),
    "reduce_sum": (lambda v: jnp.sum(v, axis=0), (SHEET,)),
    "reduce_max": (lambda v: jnp.max(v, axis=1), (SHEET,)),
    "reduce_min": (lambda v: jnp.min(v, axis=1), (SHEET,)),
    "reduce_prod": (lambda v: jnp.prod(v, axis=0), (SHEET,)),
    "cumsum": (lambda v: lax.cumsum(v, 1), (SHEET,)),
    "cumprod": (lambda v: lax.cumprod(v, 1, reverse=True), (SHEET,)),
    "cummax": (lambda v: lax.cummax(v, 0), (SHEET,)),
    "cummin": (lambda v: lax.cummin(v, 1), (SHEET,)),
    "cumlogsumexp": (lambda v: lax.cumlogsumexp(v, 1), (SHEET,)),
    "sort": (lambda v, w: lax.sort((v, w), dimension=1)[1], (SHEET, SHEET)),
    "top_k": (lambda v: lax.top_k(v, 2)[0], (SHEET,)),
    "approx_top_k": (lambda v: lax.approx_max_k(v, 2)[0], (SHEET,)),
    "reduce": (lambda v: lax.reduce(v, 0.1, lambda a, b: a * b + a, (1,)), (SHEET,)),
    "reduce_window": (lambda v: lax.reduce_window(v, 1.0, lambda a, b: a * b, (2,), (1,), "VALID"), (LINE,)),
    "reduce_window_sum": (lambda v: lax.reduce_window(v, 0.0, lax.add, (2,), (1,), "SAME"), (LINE,)),
    "reduce_window_max, select_and_gather_add": (
        lambda v: jax.jvp(lambda u: lax.reduce_window(u, -jnp.inf, lax.max, (2,), (2,), "VALID"), (v,), (v,))[1],
        (LINE,),
    ),
    "reduce_window_min": (lambda v: lax.reduce_window(v, jnp.inf, lax.min, (2,), (2,), "VALID"), (LINE,)),
    "select_and_scatter_add": (
        lambda v, w: jax.vjp(lambda u: lax.reduce_window(u, -jnp.inf, lax.max, (2,), (2,), "VALID"), v)[1](w[:2])[0],
        (LINE, LINE),
    ),
    "fft": (lambda v: jnp.abs(jnp.fft.rfft(v)), (LINE,)),
    "cholesky": (lambda v: lax.linalg.cholesky(symmetric(v)), (SQUARE,)),
    "eigh": (lambda v: lax.linalg.eigh(symmetric(v))[1], (SQUARE,)),
    "eig": (
        lambda v: jnp.real(
            lax.linalg.eig(symmetric(v), compute_left_eigenvectors=False, compute_right_eigenvectors=False)[0]
        ),
        (SQUARE,),
    ),
    "lu": (lambda v: lax.linalg.lu(symmetric(v))[0], (SQUARE,)),
    "qr": (lambda v: jnp.linalg.qr(symmetric(v))[1], (SQUARE,)),
    "svd": (lambda v: jnp.linalg.svd(symmetric(v), compute_uv=False), (SQUARE,)),
    "triangular_solve": (
        lambda a, b: lax.linalg.triangular_solve(symmetric(a), b, left_side=True, lower=True),
        (SQUARE, SQUARE),
    ),
    "tridiagonal_solve": (
        lambda a, b: lax.linalg.tridiagonal_solve(a, 5.0 + unit(b), a[::-1], b[:, None]),
        (LINE, LINE),
    ),
    "custom_linear_solve": (
        lambda v: lax.custom_linear_solve(
            lambda u: u * POSITIVE, v, lambda _, b: b / POSITIVE, lambda _, b: b / POSITIVE
        ),
        ((3,),),
    ),
    # code inside
    "cond": (lambda a, b: lax.cond(jnp.sum(a) > 0, lambda u, v: u + v, lambda u, v: u * 2.0, a, b), (LINE, LINE)),
    "scan": (lambda c, xs: lax.scan(lambda s, x: (s * jnp.roll(x, 1), s + x), c, xs), ((3,), SHEET)),
    "while": (lambda v: lax.fori_loop(0, jnp.argmax(v) + 1, lambda _, u: jnp.roll(u, 1) * 1.1, v), (LINE,)),
    "jit": (lambda v: jax.jit(lambda u: jnp.sin(u)[::-1])(v), (LINE,)),
    "checkpoint": (lambda v: jax.checkpoint(lambda u: jnp.sin(u)[::-1])(v), (LINE,)),
    "custom_jvp_call": (lambda v: jax.nn.relu(v) + jax.nn.silu(v), (LINE,)),
    "custom_vjp_call": (lambda v: _reversed_backward(v), (LINE,)),
}


@jax.custom_vjp
def _reversed_backward(v: Any) -> Any:
    return jnp.sin(v)


_reversed_backward.defvjp(lambda v: (jnp.sin(v), v), lambda v, c: (jnp.cos(v) * c,))


def traced(name: str) -> tuple[Any, list[Any]]:
    function, shapes = FUNCTIONS[name]
    generator = np.random.default_rng(list(name.encode()))
    arguments = [jnp.asarray(generator.normal(size=shape)) for shape in shapes]
    return jax.make_jaxpr(lambda *values: jax.tree.leaves(function(*values)))(*arguments), arguments


def primitives_in(jaxpr: Any) -> Iterator[str]:
    for eqn in jaxpr.eqns:
        yield eqn.primitive.name
        for value in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda v: hasattr(v, "eqns")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from primitives_in(inner)


def by_columns(function: Callable[..., Any], wrt: Any) -> Callable[..., Any]:
    """A Jacobian without `vmap`, for what cannot be mapped over."""

    def column(arguments: Any, i: int, k: int) -> Any:
        tangents = [jnp.zeros(a.size).at[k].set(float(n == i)).reshape(a.shape) for n, a in enumerate(arguments)]
        return jax.jvp(function, arguments, tuple(tangents))[1][0].reshape(-1)

    return lambda *arguments: [
        [jnp.stack([column(arguments, i, k) for k in range(arguments[i].size)], axis=1) for i in wrt]
    ]


JACOBIANS = {"custom_vjp_call": jax.jacrev, "ragged_dot_general": by_columns, "reduce_window": by_columns}


def jacobians(name: str, arguments: list[Any]) -> list[list[np.ndarray]]:
    """Where a derivative is not zero, for each result and argument."""
    function, shapes = FUNCTIONS[name]
    jacobian = JACOBIANS.get(name, jax.jacfwd)(lambda *v: jax.tree.leaves(function(*v)), tuple(range(len(shapes))))
    closed = jax.make_jaxpr(jacobian)(*arguments)
    parts = iter(run(closed, arguments))
    rows = range(len(closed.jaxpr.outvars) // len(arguments))
    return [[next(parts).reshape(-1, a.size) != 0 for a in arguments] for _ in rows]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_pattern_holds_every_derivative(name: str) -> None:
    closed, arguments = traced(name)
    patterns = analyse(closed.jaxpr, closed.jaxpr.invars, cut=False, consts=closed.consts)
    for out, row in zip(closed.jaxpr.outvars, jacobians(name, arguments), strict=True):
        for source, nonzero in zip(closed.jaxpr.invars, row, strict=True):
            assert not np.any(nonzero & ~patterns.of(out, source).matrix.toarray().astype(bool))
    assert not patterns.unknown


def test_every_rule_is_tried() -> None:
    tried = {primitive for name in FUNCTIONS for primitive in primitives_in(traced(name)[0].jaxpr)}
    with_derivative = {primitive.name for primitive in ad.primitive_jvps} & set(structure_rules)
    assert with_derivative - set(NO_DERIVATIVE) - tried == set()


def test_nothing_with_a_derivative_is_listed_without_one() -> None:
    rules = {primitive.name: rule for primitive, rule in ad.primitive_jvps.items()}
    zero = ad.primitive_jvps[lax.floor_p]
    listed = [name for name in NO_DERIVATIVE if name in rules and name != "stop_gradient"]
    assert [name for name in listed if rules[name].func is not zero.func] == []
