"""`weights=`: the parameters that are named learn as ever, and the others cost nothing."""

from typing import Any

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from foretrace._jax import scan_counts
from foretrace.program.diagnostics import DiagnosticKind

OPTIONS: dict[str, dict[str, Any]] = {"pp_prop": {"decay_or_rank": 0.9}, "Hybrid": {"decay_or_rank": 0.9}}
RULES = ["D_RTRL", "pp_prop", "Hybrid", "EProp", "BPTT", "RTRL", "SnAp", "DNI"]


def step(params: Any, h: Any, x: Any) -> tuple[Any, Any]:
    gate = jax.nn.sigmoid(x @ params["gate"]["w"] + h @ params["gate"]["u"])
    h = gate * h + (1 - gate) * jnp.tanh(x @ params["in"] + params["low"] @ params["rank"])
    return h, h @ params["out"]


def values() -> tuple[Any, jax.Array, jax.Array]:
    draw = lambda *shape: jnp.asarray(np.random.default_rng(len(shape) + sum(shape)).normal(size=shape))
    params = {"gate": {"w": draw(3, 4), "u": draw(4, 4)}, "in": draw(3, 4), "out": draw(4, 2)}
    return params | {"low": draw(2), "rank": draw(2, 4)}, jnp.zeros((2, 4)), draw(6, 2, 3)


def learner_and_gradient(rule: str, **options: Any) -> Any:
    params, state, xs = values()
    options |= OPTIONS.get(rule, {})
    learner = ft.compile(step, rule, xs[0], params=params, state=state, **options)
    grads, _, losses = learner.grad(params, learner.init(), xs, loss=lambda out: jnp.sum(out**2))
    return learner, grads, losses


@pytest.mark.parametrize("block", [None, 1])
@pytest.mark.parametrize("rule", RULES)
def test_named_parameters_learn_as_among_all(rule: str, block: int | None) -> None:
    _, whole, losses = learner_and_gradient(rule, block=block)
    _, some, same = learner_and_gradient(rule, block=block, weights=["in", "gate.u", ("rank",)])
    np.testing.assert_allclose(same, losses)
    for own, all_of in [(some["in"], whole["in"]), (some["gate"]["u"], whole["gate"]["u"])]:
        np.testing.assert_allclose(own, all_of, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(some["rank"], whole["rank"], rtol=1e-12, atol=1e-12)
    for rest in (some["out"], some["gate"]["w"], some["low"]):
        assert not np.any(rest)


def test_a_branch_is_named_by_its_head() -> None:
    learner, grads, _ = learner_and_gradient("D_RTRL", weights="gate")
    assert np.any(grads["gate"]["w"])
    assert np.any(grads["gate"]["u"])
    assert not np.any(grads["in"])
    assert "2 of 6 parameters learn" in repr(learner)


def test_only_named_parameters_have_traces() -> None:
    learner, _, _ = learner_and_gradient("D_RTRL", weights="in")
    assert {link.relation.path for link in learner.plan.links} == {("in",)}


def test_the_report_names_what_is_constant() -> None:
    learner, _, _ = learner_and_gradient("D_RTRL", weights=["in", "gate"])
    found = [r.weight_path for r in learner.report if r.kind is DiagnosticKind.PARAMETER_CONSTANT]
    assert found == [("low",), ("out",), ("rank",)]


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"no such parameter. It has .*`gate.u`"):
        learner_and_gradient("D_RTRL", weights="reset")


def test_no_name_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        learner_and_gradient("D_RTRL", weights=[])


def test_the_loop_carries_no_gradient_of_a_constant() -> None:
    params, state, xs = values()
    learner = ft.compile(step, "D_RTRL", xs[0], params=params, state=state, weights="in", block=1)
    run = lambda params: learner.grad(params, learner.init(), xs, loss=jnp.sum)[0]
    (loop,) = [eqn for eqn in jax.make_jaxpr(run)(params).eqns if eqn.primitive.name == "scan"]
    carried = [tuple(aval.aval.shape) for aval in loop.outvars[: scan_counts(loop.params)[1]]]
    assert params["out"].shape not in carried
    assert params["gate"]["u"].shape not in carried


def module_gradient(weights: Any = None, asked: Any = None) -> tuple[Any, Any]:
    brainstate.random.seed(0)
    learner = ft.compile(brainstate.nn.GRUCell(3, 4), "D_RTRL", jnp.ones((2, 3)), batch_size=2, weights=weights)
    xs = jnp.asarray(np.random.default_rng(0).normal(size=(5, 2, 3)))
    return learner, learner.etrace_grad(xs, step_fn=lambda x: jnp.sum(learner(x) ** 2), weights=asked)


def test_a_module_learns_what_is_named() -> None:
    _, whole = module_gradient()
    learner, some = module_gradient(weights="Wh.weight")
    assert list(some) == [("Wh", "weight")]
    assert len(learner.etrace.value.e) == len(learner.executor.plan.links)
    assert {learner.graph.program.params[i].owner for i in learner.executor.plan.learned} == {("Wh", "weight")}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), some["Wh", "weight"], whole["Wh", "weight"])


def test_a_call_asks_for_some_of_what_learns() -> None:
    _, whole = module_gradient()
    _, some = module_gradient(asked="Wrz.weight")
    assert list(some) == [("Wrz", "weight")]
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), some["Wrz", "weight"], whole["Wrz", "weight"]
    )


def test_a_call_cannot_ask_for_a_constant() -> None:
    with pytest.raises(ValueError, match=r"`Wrz.weight` does not learn"):
        module_gradient(weights="Wh", asked="Wrz.weight")
