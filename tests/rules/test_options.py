"""The options of every rule: what is out of range or of another kind is refused by name when the rule is made."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from foretrace import rules
from foretrace.rules.factored import LAST_STEP

PARAMS, STATE = jnp.ones((2, 3)), jnp.zeros((1, 3))


def step(params: Any, state: Any, x: Any) -> Any:
    state = (0.9 * state + jnp.tanh(x @ params)).astype(state.dtype)
    return state, state


def squares(out: Any) -> Any:
    return jnp.sum(out**2)


def learner_of(rule: Any, dtype: Any = jnp.float64, **options: Any) -> ft.Learner:
    params, state, x = (jnp.ones(shape, dtype) for shape in ((2, 3), (1, 3), (1, 2)))
    return ft.compile(step, rule, x, params=params, state=state, **options)


@pytest.mark.parametrize("dtype", ["int32", "bool", "complex64", np.int8, jnp.complex128, "no such", 3.0, "float3"])
def test_traces_are_kept_in_floating_numbers(dtype: Any) -> None:
    class Cell(ft.nn.ValinaRNNCell):
        """A module."""

    for rule in ("D_RTRL", "EProp", "OSTL_recurrent", "three_factor"):
        with pytest.raises((TypeError, ValueError), match="`trace_dtype` is a floating dtype"):
            learner_of(rule, trace_dtype=dtype)
    with pytest.raises((TypeError, ValueError), match="`trace_dtype` is a floating dtype"):
        ft.compile(Cell(2, 3), "D_RTRL", jnp.ones(2), trace_dtype=dtype)


@pytest.mark.parametrize("dtype", [None, "bfloat16", jnp.float16, np.dtype("float32"), float])
def test_a_floating_dtype_is_taken(dtype: Any) -> None:
    found = learner_of("D_RTRL", trace_dtype=dtype).init(jnp.zeros((1, 3))).trace
    assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {jnp.dtype(dtype or jnp.float64)}


def test_a_real_trace_of_a_complex_state_is_refused() -> None:
    with pytest.raises(ft.NotSupportedError, match="imaginary"):
        learner_of("D_RTRL", jnp.complex128, trace_dtype="float32").init(jnp.zeros((1, 3), jnp.complex128))


@pytest.mark.parametrize(
    "value",
    [10**17, 10**400, 0, -3, 1.0, 1.5, -0.1, np.nan, np.inf, True, np.True_, "0.9", None, np.ones(3), (0.9, 10**17)],
)
@pytest.mark.parametrize("rule", [rules.pp_prop, rules.Hybrid, rules.OSTLFeedforward])
def test_a_decay_is_below_one(rule: Any, value: Any) -> None:
    with pytest.raises(ValueError, match="`decay_or_rank"):
        rule(decay_or_rank=value)


def test_the_largest_rank_that_is_advised_gives_a_finite_gradient() -> None:
    learner = learner_of("pp_prop", decay_or_rank=10**15)
    found = learner.grad(PARAMS, learner.init(STATE), jnp.ones((5, 1, 2)), loss=squares)[0]
    assert np.isfinite(found).all()


BAD_OPTIONS: list[tuple[type, str, Any]] = [
    (rules.EProp, "feedback", 1),
    (rules.EProp, "kappa_filter_decay", "slow"),
    (rules.EProp, "kappa_filter_decay", np.nan),
    (rules.EProp, "kappa_filter_decay", True),
    (rules.EProp, "random_feedback_key", "seed"),
    (rules.EProp, "random_feedback_key", 0.5),
    (rules.UORO, "projection_eps", "small"),
    (rules.UORO, "projection_eps", np.inf),
    (rules.UORO, "projection_eps", np.nan),
    (rules.UORO, "projection_eps", -1e-7),
    (rules.UORO, "projection_key", "seed"),
    (rules.UORO, "projection_key", 1.5),
    (rules.UORO, "projection_key", 2**70),
    (rules.SnAp, "n", 2.0),
    (rules.SnAp, "n", jnp.ones(2)),
    (rules.SnAp, "memory_limit", "4 GB"),
    (rules.RTRL, "memory_limit", -1),
    (rules.RTRL, "memory_limit", None),
    (rules.LowRank, "rank", -1),
    (rules.LowRank, "rank", 2.5),
    (rules.LowRank, "every", 0),
    (rules.LowRank, "certify", "yes"),
    (rules.LowRank, "memory_limit", None),
    (rules.OSTTP, "B_list", None),
    (rules.OSTTP, "B_list", np.ones((2, 3))),
    (rules.OSTTP, "B_list", ["matrix"]),
    (rules.OSTTP, "target_timing", "late"),
    (rules.ThreeFactor, "modulator", "reward"),
    (rules.ThreeFactor, "modulator", 1j),
    (rules.DNI, "synthesizer", 3),
    (rules.DNI, "synthesizer", rules.SyntheticGradient),
    (rules.SyntheticGradient, "hidden_width", 2.5),
    (rules.SyntheticGradient, "hidden_width", -1),
    (rules.SyntheticGradient, "scale", "large"),
    (rules.SyntheticGradient, "seed", "now"),
]


@pytest.mark.parametrize(("rule", "option", "value"), BAD_OPTIONS)
def test_a_bad_option_is_refused_by_name(rule: Any, option: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=f"`{option}"):
        rule(**{option: value})


@pytest.mark.parametrize("rule", ["pp_prop", "hybrid"])
def test_the_count_of_steps_stops_and_does_not_wrap(rule: str) -> None:
    learner = learner_of(rule, decay_or_rank=0.9)
    settled, _ = learner.evolve(PARAMS, learner.init(STATE), jnp.ones((400, 1, 2)))

    def counted(trace: Any, count: int) -> Any:
        if rule == "hybrid":
            return trace._replace(factors=counted_factors(trace.factors, count))
        return counted_factors(trace, count)

    def counted_factors(factors: Any, count: int) -> Any:
        return factors._replace(steps=jnp.asarray(count, factors.steps.dtype))

    def gradient(count: int) -> Any:
        carry = ft.learners.Carry(settled.state, counted(settled.trace, count))
        return learner.grad(PARAMS, carry, jnp.ones((20, 1, 2)), loss=squares)[:2]

    wanted, _ = gradient(400)
    found, after = gradient(LAST_STEP - 5)
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    factors = after.trace.factors if rule == "hybrid" else after.trace
    assert int(factors.steps) == LAST_STEP


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_uoro_is_finite_in_half_precision(dtype: Any) -> None:
    xs = jax.random.normal(jax.random.key(0), (20, 1, 2), dtype)
    params, state = jnp.full((2, 3), 0.3, dtype), jnp.zeros((1, 3), dtype)
    half = learner_of("uoro", dtype)
    found = half.grad(params, half.init(state), xs, loss=squares)[0]
    wide = learner_of("uoro", jnp.float32)
    carry = wide.init(state.astype(jnp.float32))
    wanted = wide.grad(params.astype(jnp.float32), carry, xs.astype(jnp.float32), loss=squares)[0]
    assert found.dtype == dtype
    # The signs are drawn alike, so that the two differ by the rounding of some twenty steps.
    np.testing.assert_allclose(found.astype(jnp.float32), wanted, rtol=0.1, atol=0.1 * float(jnp.abs(wanted).max()))
