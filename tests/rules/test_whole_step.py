"""The rules of the whole Jacobian where a step is not made of floating, differentiable equations throughout."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from foretrace.rules.d_rtrl import D_RTRL
from foretrace.rules.rtrl import RTRL
from foretrace.rules.rule import Rule
from foretrace.rules.snap import SnAp
from foretrace.rules.uoro import UORO
from whole import Case, agree, case_of, gradients_of_two, in_step_gradient, whole_gradient
from zoo.records import seeded, spike

EXACT = {"RTRL": RTRL(), "SnAp": SnAp(n=40)}
RULES = EXACT | {"UORO": UORO()}
STEPS, BATCH, IN, UNITS = 5, 2, 3, 4


def draw(*shape: int) -> jax.Array:
    return jnp.asarray(0.5 * seeded(str(shape)).normal(size=shape))


def reservoir(params: Any, h: Any, x: Any) -> Any:
    """Fixed dynamics, learned readout."""
    h = jnp.tanh(h @ draw(UNITS, UNITS) + x @ draw(IN, UNITS))
    return h, h @ params["out"]


@jax.custom_gradient
def reverse_spike(potential: Any) -> Any:
    """`zoo.records.spike`, its derivative given as a backward pass."""
    sigmoid = jax.nn.sigmoid(2.0 * potential)
    return jnp.where(potential > 0, 1.0, 0.0), lambda g: 2.0 * sigmoid * (1.0 - sigmoid) * g


@jax.custom_vjp
def reverse_gate(h: Any, weight: Any) -> Any:
    """A backward pass of two operands, one of them a parameter, that mixes positions and is not that of the values."""
    return h * jnp.sum(weight)


reverse_gate.defvjp(
    lambda h, weight: (reverse_gate(h, weight), (h, weight)),
    lambda kept, g: (g * jnp.cos(kept[0]) + 0.1 * jnp.sum(g), jnp.sum(g * kept[0]) * jnp.cos(kept[1])),
)


def lif(fire: Callable[[Any], Any]) -> Callable[..., Any]:
    def step(params: Any, v: Any, x: Any) -> Any:
        v = 0.8 * v + x @ params["w_in"] + fire(v - 0.3) @ params["w"]
        return v, fire(v - 0.3) @ params["out"]

    return step


def gated(params: Any, h: Any, x: Any) -> Any:
    h = jnp.tanh(reverse_gate(h, params["w_in"]) + x @ params["w_in"])
    return h, h @ params["out"]


def looped(params: Any, h: Any, x: Any) -> Any:
    """The backward pass stands inside of a loop that is not unrolled."""

    def inner(carry: Any, _: Any) -> Any:
        return 0.9 * carry + 0.1 * reverse_spike(carry - 0.2), None

    h = jax.lax.scan(inner, h, None, length=60)[0] + x @ params["w_in"]
    return h, h @ params["out"]


@jax.custom_gradient
def unit_cotangent(v: Any) -> Any:
    """Its backward pass is not linear, and has no derivative at zero."""
    return v, lambda g: g / jnp.sqrt(jnp.sum(g**2))


def bounded(params: Any, h: Any, x: Any) -> Any:
    """All of the past passes through a backward pass that is not linear."""
    h = 0.9 * unit_cotangent(h) + x @ params["w_in"]
    return h, jnp.tanh(h) @ params["out"]


def hard_gate(params: Any, h: Any, x: Any) -> Any:
    """Booleans made of a parameter choose a unit's leak."""
    sign = params["w"][0] > 0
    h = jnp.where(sign, 0.9 * h, 0.5 * h) + params["w"][0] * (x @ params["w_in"])
    return h, h @ params["out"]


def looked_up(params: Any, h: Any, x: Any) -> Any:
    """An integer made of parameters chooses a row of data."""
    chosen = jnp.argmax(params["w"][0])
    h = jnp.tanh(0.7 * h + h[..., chosen, None] * params["w"][1] + x @ params["w_in"])
    return h, h @ params["out"] * chosen


def solved(params: Any, h: Any, x: Any) -> Any:
    """The pivots of an LU decomposition of a parameter meet data."""
    h = 0.5 * h + jnp.linalg.solve(jnp.eye(UNITS) + params["w"], (x @ params["w_in"])[..., None])[..., 0]
    return h, h @ params["out"]


MODELS = {f.__name__: f for f in (reservoir, gated, looped, hard_gate, looked_up, solved)} | {
    "lif": lif(reverse_spike),
    "lif, forward": lif(spike),
    "bounded": bounded,
}


@functools.cache
def model(name: str) -> Case:
    shapes = {"out": (UNITS, 2), "w": (UNITS, UNITS), "w_in": (IN, UNITS)}
    params = {name: draw(*shape) for name, shape in shapes.items()}
    chosen = {"out": params["out"]} if name == "reservoir" else params
    return case_of(MODELS[name], chosen, draw(BATCH, UNITS), draw(STEPS, BATCH, IN))


@pytest.mark.parametrize("rule", EXACT)
@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("lif, forward", "bounded")])
def test_equals_bptt(name: str, rule: str) -> None:
    agree(whole_gradient(model(name), EXACT[rule]), model(name).whole, 1e-10)


@pytest.mark.parametrize("name", ["reservoir", "gated", "hard_gate", "looked_up", "solved"])
def test_uoro_gives_a_finite_gradient_and_the_readout_its_own(name: str) -> None:
    found = whole_gradient(model(name), UORO())
    assert all(np.isfinite(gradient).all() for gradient in found)
    agree(found[:1], model(name).whole[:1])


def test_where_no_parameter_reaches_a_state_the_gradient_is_that_of_each_step() -> None:
    fixed = model("reservoir")
    agree(in_step_gradient(fixed), fixed.whole)
    for rule in (RTRL(), SnAp(), UORO(), D_RTRL()):
        agree(whole_gradient(fixed, rule), fixed.whole)


@pytest.mark.parametrize("rule", RULES)
def test_a_backward_pass_is_worth_the_same_as_a_tangent_rule(rule: str) -> None:
    agree(*(whole_gradient(model(name), RULES[rule]) for name in ("lif", "lif, forward")))


@pytest.mark.parametrize("rule", RULES)
def test_nothing_of_the_past_passes_through_a_backward_pass_that_is_not_linear(rule: str) -> None:
    agree(whole_gradient(model("bounded"), RULES[rule]), in_step_gradient(model("bounded")))


@pytest.mark.parametrize("rule", RULES)
def test_maps_over_parameter_sets_with_marks(rule: str) -> None:
    agree(*gradients_of_two(model("hard_gate"), RULES[rule]))


def test_nothing_is_kept_where_no_parameter_reaches_a_state() -> None:
    assert RTRL().kept(model("reservoir").plan) == 0
    assert SnAp().kept(model("reservoir").plan) == 0


def test_credit_of_an_empty_trace_is_zero() -> None:
    plan, values = model("reservoir").plan, model("reservoir").values
    signal: list[Any] = [jnp.ones_like(h) for h in values[1]]
    for rule in (RTRL(), SnAp(), UORO()):
        _zero(rule, plan, values[0], signal)


def _zero(rule: Rule, plan: Any, params: Any, signal: list[Any]) -> None:
    assert all(not np.any(g) for g in rule.credit(plan, params, rule.init(plan), signal))
