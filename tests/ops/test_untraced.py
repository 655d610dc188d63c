"""`untraced`: the identity everywhere, and no history for what it marks."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from foretrace.program.diagnostics import DiagnosticKind, DiagnosticLevel

STEPS, BATCH, INPUT, UNITS = 6, 2, 3, 4
RNG = np.random.default_rng(0)
PARAMS = {"w": jnp.asarray(RNG.normal(size=(INPUT, UNITS))), "b": jnp.asarray(RNG.normal(size=UNITS))}
STATE, XS = jnp.zeros((BATCH, UNITS)), jnp.asarray(RNG.normal(size=(STEPS, BATCH, INPUT)))


def step_with(mark: Any) -> Any:
    def step(params: Any, h: Any, x: Any) -> tuple[Any, Any]:
        h = 0.9 * h + x @ mark(params["w"]) + params["b"]
        return h, jnp.tanh(h)

    return step


def loss(out: Any) -> Any:
    return jnp.sum((out - 0.5) ** 2)


def gradient(step: Any, rule: str, **options: Any) -> Any:
    learner = ft.compile(step, rule, XS[0], params=PARAMS, state=STATE, **options)
    return jax.jit(lambda p: learner.grad(p, learner.init(STATE), XS, loss=loss)[0])(PARAMS)


def within_steps(step: Any) -> Any:
    """The gradient with every state held fixed before its step."""

    def total(params: Any) -> Any:
        outs = jax.lax.scan(lambda h, x: step(params, jax.lax.stop_gradient(h), x), STATE, XS)[1]
        return jnp.sum(jax.vmap(loss)(outs))

    return jax.grad(total)(PARAMS)


def test_it_is_the_identity_under_every_transformation() -> None:
    value, direction = PARAMS["w"], jnp.ones((INPUT, UNITS))
    np.testing.assert_array_equal(jax.jit(ft.untraced)(value), value)
    np.testing.assert_array_equal(jax.vmap(ft.untraced, 1, 1)(value), value)
    np.testing.assert_array_equal(jax.jvp(ft.untraced, (value,), (direction,))[1], direction)
    np.testing.assert_array_equal(jax.grad(lambda w: jnp.sum(ft.untraced(w) ** 3))(value), 3 * value**2)
    np.testing.assert_allclose(jax.hessian(lambda w: jnp.sum(ft.untraced(w) ** 3))(1.5), 9.0)


def test_it_takes_trees_and_leaves_integers_alone() -> None:
    found = ft.untraced({"w": PARAMS["w"], "n": 3})
    assert found["n"] == 3
    np.testing.assert_array_equal(found["w"], PARAMS["w"])


@pytest.mark.parametrize(("rule", "options"), [("D_RTRL", {}), ("pp_prop", {"decay_or_rank": 0.9}), ("EProp", {})])
def test_what_is_marked_gets_the_gradient_within_steps_and_the_rest_its_own(rule: str, options: Any) -> None:
    step = step_with(ft.untraced)
    found = gradient(step, rule, **options)
    np.testing.assert_allclose(found["w"], within_steps(step)["w"], rtol=1e-12)
    np.testing.assert_allclose(found["b"], gradient(step_with(lambda w: w), rule, **options)["b"], rtol=1e-12)


def test_a_marked_operator_and_a_value_made_of_it_are_kept_out_too() -> None:
    def step(params: Any, h: Any, x: Any) -> tuple[Any, Any]:
        h = 0.9 * h + ft.matmul(x, jnp.abs(ft.untraced(params["w"]))) + ft.element_wise(params["b"])
        return h, h

    graph = ft.compile_etrace_graph(step, XS[0], params=PARAMS, state=STATE)
    assert {p.name: p.history.value for p in graph.parameters} == {"w": "in-step", "b": "all"}


def test_the_report_says_that_it_was_on_purpose() -> None:
    graph = ft.compile_etrace_graph(step_with(ft.untraced), XS[0], params=PARAMS, state=STATE)
    (record,) = graph.explain(kind=DiagnosticKind.RELATION_EXCLUDED_ON_PURPOSE)
    assert (record.level, record.weight_path) == (DiagnosticLevel.INFO, ("w",))
    assert not [r for r in graph.diagnostics if r.level is not DiagnosticLevel.INFO]
    assert "on purpose" in str(graph.explain())


def test_a_mark_on_data_is_warned_about() -> None:
    def step(params: Any, h: Any, x: Any) -> tuple[Any, Any]:
        h = 0.9 * ft.untraced(h) + x @ params["w"] + params["b"]
        return h, h

    graph = ft.compile_etrace_graph(step, XS[0], params=PARAMS, state=STATE)
    (record,) = graph.explain(kind=DiagnosticKind.TRAINABLE_INVAR_NOT_PARAMSTATE)
    assert record.level is DiagnosticLevel.WARNING
    assert {p.history.value for p in graph.parameters} == {"all"}
