"""The first step has no history: every rule that learns from the loss with symmetric feedback gives BPTT's gradient."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from foretrace import rules
from foretrace.engine.sequence import States
from foretrace.errors import NotSupportedError
from foretrace.rules.rule import Rule
from oracle import bptt
from whole import Case, advance, case, case_of
from zoo.bare_states import bare_states
from zoo.solved import BY_NAME, loss

RULES: dict[str, Callable[[], Rule]] = {
    "D_RTRL": rules.D_RTRL,
    "pp_prop": lambda: rules.pp_prop(0.9),
    "EProp": rules.EProp,
    "OSTLRecurrent": rules.OSTLRecurrent,
    "OSTLFeedforward": rules.OSTLFeedforward,
    "OTTT": lambda: rules.OTTT(leak=0.8),
    "OTPE": lambda: rules.OTPE(leak=0.8),
    "OTPE, approximate": lambda: rules.OTPE(leak=0.8, mode="approx"),
    "SnAp": lambda: rules.SnAp(n=1),
    "RTRL": rules.RTRL,
    "UORO": rules.UORO,
    "DNI": lambda: rules.DNI(rules.SyntheticGradient(hidden_width=3)),
    "Hybrid": lambda: rules.Hybrid(0.9),
    "LowRank": lambda: rules.LowRank(rank=2, every=1),
}
QUICK = [*(model.name for model in bare_states.models), "a residual stack of three, the last one recurrent"]
TABLE = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in BY_NAME]


def first_steps(given: Case) -> dict[str, Any]:
    """The gradient of the first step by each rule that does not refuse the model, all in one program."""
    params, hidden, other, _ = given.values
    accepting, traces = {}, {}
    for name, make in RULES.items():
        try:
            accepting[name] = make()
            traces[name] = accepting[name].init(given.plan)
        except NotSupportedError:
            del accepting[name]

    @jax.jit
    def gradients(params: Any, hidden: Any, other: Any, inputs: Any) -> Any:
        states = States(hidden, other)
        return {n: advance(given, r, traces[n], params, states, inputs)[0] for n, r in accepting.items()}

    return gradients(list(params), list(hidden), list(other), [values[:1] for values in given.stacked])


def check(given: Case) -> None:
    params, hidden, other, inputs = given.values
    expected = bptt(given.plan.graph, loss, params, hidden, other, inputs[:1])
    found = first_steps(given)
    assert {"D_RTRL", "RTRL", "UORO"} <= set(found)
    for rule, gradients in found.items():
        for leaf, one, other in zip(given.plan.program.params, gradients, expected, strict=True):
            scale = max(1.0, float(jnp.max(jnp.abs(other), initial=0.0)))
            np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-8 * scale, err_msg=f"{rule}: {leaf.name}")


@pytest.mark.parametrize("name", TABLE)
def test_first_step_equals_bptt(name: str) -> None:
    check(case(name))


def test_first_step_equals_bptt_where_a_parameter_is_the_state() -> None:
    def step(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
        h = jnp.tanh(0.5 * state["h"] + x * params["gain"]) + state["bias"]
        return {"h": h, "bias": params["bias"]}, h * params["bias"]

    generator = np.random.default_rng(0)
    params, state = (
        {k: jnp.asarray(generator.normal(size=4)) for k in keys} for keys in (("gain", "bias"), ("h", "bias"))
    )
    check(case_of(step, params, state, jnp.asarray(generator.normal(size=(3, 4)))))


def test_a_modulator_takes_the_place_of_what_the_loss_asks_where_a_product_is_the_state() -> None:
    given = case("linear RNN, the product is the state")
    params, (h,), other, ((x,), *_) = given.values
    rule = rules.ThreeFactor(0.7)
    inputs = [values[:1] for values in given.stacked]
    (found,), *_ = advance(given, rule, rule.init(given.plan), params, States([h], other), inputs)
    np.testing.assert_allclose(found, jnp.concatenate([x, h], -1).T @ jnp.full(h.shape, 0.7), rtol=1e-10)
