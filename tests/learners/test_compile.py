"""`ft.compile`: every name of a rule for both kinds of models, rules by class and by parts, and what is refused."""

import itertools
from typing import Any

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from foretrace import rules
from foretrace.rules.config import PARTS

INPUT, HIDDEN, STEPS = 2, 3, 4
XS = jnp.asarray(np.random.default_rng(0).normal(size=(STEPS, INPUT)))
PARAMS = {"w": jnp.ones((INPUT, HIDDEN)), "u": 0.3 * jnp.ones((HIDDEN, HIDDEN))}
STATE = jnp.zeros(HIDDEN)
TARGETS = jnp.ones((STEPS, 2))

# What each name stands for, and the options that its rule cannot do without.
NAMES: dict[str, tuple[type, dict[str, Any]]] = {
    "d_rtrl": (ft.D_RTRL, {}),
    "pp_prop": (ft.pp_prop, dict(decay_or_rank=0.9)),
    "es_d_rtrl": (ft.ES_D_RTRL, dict(decay_or_rank=3)),
    "esd_rtrl": (ft.ES_D_RTRL, dict(decay_or_rank=(0.9, 2))),
    "e_prop": (ft.EProp, dict(feedback="random", kappa_filter_decay=0.5)),
    "eprop": (ft.EProp, {}),
    "ostl_recurrent": (ft.OSTLRecurrent, {}),
    "ostl_feedforward": (ft.OSTLFeedforward, {}),
    "otpe": (ft.OTPE, dict(leak=0.9)),
    "ottt": (ft.OTTT, dict(leak=0.9)),
    "osttp": (ft.OSTTP, dict(B_list=[jnp.ones((2, HIDDEN))])),
    "snap": (ft.SnAp, dict(n=2)),
    "uoro": (ft.UORO, {}),
    "three_factor": (ft.ThreeFactor, {}),
    "dni": (ft.DNI, {}),
    "rtrl": (ft.RTRL, {}),
    "low_rank": (ft.LowRank, dict(rank=3)),
    "hybrid": (ft.Hybrid, dict(decay_or_rank=0.9)),
}
EXTERNAL = {"y_target": TARGETS, "modulator": jnp.ones(STEPS)}


def step(params: Any, h: Any, x: Any) -> Any:
    h = jnp.tanh(x @ params["w"] + h @ params["u"])
    return h, h


def total(out: Any) -> Any:
    return jnp.sum(out**2)


def of_function(algorithm: Any, **options: Any) -> ft.Learner:
    return ft.compile(step, algorithm, XS[0], params=PARAMS, state=STATE, **options)


def cell() -> brainstate.nn.Module:
    return brainstate.nn.GRUCell(INPUT, HIDDEN)


def assert_gradient(found: Any, like: Any) -> None:
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(like), strict=True):
        assert one.shape == other.shape
        assert np.isfinite(one).all()
    assert any(float(jnp.max(jnp.abs(leaf))) > 0 for leaf in jax.tree.leaves(found))


@pytest.mark.parametrize("name", NAMES)
def test_name_is_a_rule_for_functions(name: str) -> None:
    rule_class, options = NAMES[name]
    learner = of_function(name.upper(), **options)
    assert type(learner.rule) is rule_class
    external = EXTERNAL.get(learner.rule.external or "")
    run = lambda params, carry: learner.grad(params, carry, XS, loss=total, external=external)[0]
    found = jax.jit(run)(PARAMS, learner.init(STATE))
    assert jax.tree.structure(found) == jax.tree.structure(PARAMS)
    assert_gradient(found, PARAMS)


@pytest.mark.parametrize("name", NAMES)
def test_name_is_a_rule_for_modules(name: str) -> None:
    rule_class, options = NAMES[name]
    learner = ft.compile(cell(), name.title(), XS[0], **options)
    assert type(learner.rule) is rule_class
    external = learner.rule.external
    given = (XS,) if external is None else (XS, EXTERNAL[external])
    call = lambda x, *extra: total(learner(x, **({external: extra[0]} if external else {})))
    found = learner.etrace_grad(*given, step_fn=call)
    assert found.keys() == learner.param_states.keys()
    assert_gradient(found, {path: state.value for path, state in learner.param_states.items()})


def test_rules_come_by_class_and_as_records_too() -> None:
    assert of_function(ft.SnAp, n=1).rule == of_function(rules.SnAp(n=1)).rule == rules.SnAp(n=1)
    learner = ft.compile(cell(), rules.pp_prop(0.9), XS[0])
    assert learner.rule == ft.compile(cell(), ft.pp_prop, XS[0], decay_or_rank=0.9).rule
    assert isinstance(ft.compile(cell(), ft.D_RTRL, XS[0]), ft.ParamDimVjpAlgorithm)


@pytest.mark.parametrize("model", [step, cell()], ids=["function", "module"])
def test_unknown_name_lists_the_known_ones(model: Any) -> None:
    with pytest.raises(ValueError, match="There is no rule `unheard_of`") as caught:
        ft.compile(model, "unheard_of", XS[0])
    assert all(name in str(caught.value) for name in NAMES)


@pytest.mark.parametrize("algorithm", [3, None, brainstate.nn.GRUCell, lambda: None])
def test_what_is_no_rule_is_refused(algorithm: Any) -> None:
    with pytest.raises(TypeError, match="A rule is a name"):
        ft.compile(step, algorithm, XS[0], params=PARAMS, state=STATE)


def test_an_example_input_is_needed() -> None:
    with pytest.raises(ValueError, match="No example input"):
        ft.compile(step, "D_RTRL", params=PARAMS, state=STATE)
    with pytest.raises(ValueError, match="No example input"):
        ft.compile(cell(), "D_RTRL")


def test_unknown_option_is_named() -> None:
    for make in (of_function, lambda *given, **options: ft.compile(cell(), *given, XS[0], **options)):
        with pytest.raises(TypeError, match="D_RTRL has no option `rank`"):
            make("D_RTRL", rank=3)
        with pytest.raises(TypeError, match="leak"):
            make("OTTT")


def test_parameters_of_a_module_are_its_own() -> None:
    with pytest.raises(TypeError, match="leave out `params`"):
        ft.compile(cell(), "D_RTRL", XS[0], params=PARAMS)


@pytest.mark.parametrize("kind", ["function", "module"])
def test_options_of_every_learner_are_taken(kind: str) -> None:
    options = dict(block=2, check_finite=True, fast_solve=True, vjp_method="single-step", trace_dtype=jnp.float32)
    learner = of_function("D_RTRL", **options) if kind == "function" else ft.compile(cell(), "D_RTRL", XS[0], **options)
    assert learner.block == 2
    assert learner.check_finite
    assert learner.rule.trace_dtype == jnp.float32


def test_multi_step_credit_of_a_function_needs_a_window() -> None:
    with pytest.raises(ValueError, match="`window=`"):
        of_function("D_RTRL", vjp_method="multi-step")
    assert of_function("D_RTRL", vjp_method="multi-step", window=3).window == 3


def test_seed_and_verbose(capsys: pytest.CaptureFixture[str]) -> None:
    class Noisy(brainstate.nn.GRUCell):
        def init_state(self, batch_size: int | None = None, **_: Any) -> None:
            super().init_state(batch_size)
            self.h.value = brainstate.random.normal(size=self.h.value.shape)

    first, second, third = (ft.compile(Noisy(2, 3), "D_RTRL", XS[0], seed=seed).model.h.value for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, third)
    assert capsys.readouterr().out == ""
    of_function("D_RTRL", verbose=1)
    assert "direct paths" in capsys.readouterr().out


CONFIGS = [
    (dict(), rules.D_RTRL()),
    (dict(trace_filter="kappa", kappa=0.9), rules.EProp(kappa_filter_decay=0.9)),
    (dict(learning_signal="random_feedback"), rules.EProp(feedback="random")),
    (
        dict(learning_signal="random_feedback", trace_filter="kappa", kappa=0.5),
        rules.EProp(feedback="random", kappa_filter_decay=0.5),
    ),
    (dict(recurrence_scope="coupled"), rules.OSTLRecurrent()),
    (dict(recurrence_scope="sparse_n", sparse_n=3), rules.SnAp(n=3)),
    (dict(temporal_recursion="scalar_leak", decay=0.9), rules.OTPE(leak=0.9)),
    (dict(trace_factorization="io_factorized", decay=0.9), rules.pp_prop(0.9)),
    (
        dict(trace_factorization="io_factorized", temporal_recursion="scalar_leak", decay=0.9),
        rules.OTTT(leak=0.9),
    ),
    (dict(trace_factorization="random_projection", recurrence_scope="coupled"), rules.UORO()),
]


@pytest.mark.parametrize(("parts", "rule"), CONFIGS)
def test_parts_make_a_rule(parts: dict[str, Any], rule: Any) -> None:
    found = ft.ETraceConfig(**parts).rule()
    assert type(found) is type(rule)
    assert repr(found) == repr(rule)


def test_signals_from_elsewhere_by_parts() -> None:
    assert isinstance(ft.ETraceConfig(learning_signal="modulatory").rule(), rules.ThreeFactor)
    bootstrapped = ft.ETraceConfig(temporal_recursion="none", learning_signal="bootstrapped")
    assert isinstance(bootstrapped.rule(), rules.DNI)


def test_parts_serve_both_kinds_of_models() -> None:
    config = ft.ETraceConfig(recurrence_scope="sparse_n", sparse_n=1)
    assert of_function(config).rule == rules.SnAp(n=1)
    assert ft.compile(cell(), config, XS[0]).rule == rules.SnAp(n=1)


def coefficients(parts: dict[str, str]) -> dict[str, Any]:
    """The numbers that some parts of a rule need."""
    has_decay = "scalar_leak" in parts.values() or "io_factorized" in parts.values()
    return (
        ({"decay": 0.9} if has_decay else {})
        | ({"kappa": 0.5} if "kappa" in parts.values() else {})
        | ({"sparse_n": 2} if "sparse_n" in parts.values() else {})
    )


def test_every_combination_is_a_rule_or_refused_with_the_list() -> None:
    made, refused = 0, []
    for choices in itertools.product(*PARTS.values()):
        parts = dict(zip(PARTS, choices, strict=True))
        try:
            assert ft.ETraceConfig(**parts, **coefficients(parts)).rule().name
            made += 1
        except ValueError as error:
            refused.append(str(error))
    assert made == 15
    assert len(refused) == np.prod([len(choices) for choices in PARTS.values()]) - 15
    listed = "These have a meaning:\n  trace_factorization='per_param', temporal_recursion='jacobian'"
    assert all(listed in message for message in refused)


def test_missing_numbers_and_unknown_parts_are_named() -> None:
    with pytest.raises(ValueError, match="needs `decay`"):
        ft.ETraceConfig(trace_factorization="io_factorized")
    with pytest.raises(ValueError, match="`trace_filter` is 'none' or 'kappa'"):
        ft.ETraceConfig(trace_filter="low-pass")


@pytest.mark.parametrize(("name", "rule"), [("e-prop", "EProp"), ("D-RTRL", "D_RTRL"), ("pp prop", "pp_prop")])
def test_names_may_have_hyphens(name: str, rule: str) -> None:
    assert rules.find_rule(name).name == rule


def test_a_parameter_that_is_used_but_not_held_is_compiled_by_every_way() -> None:
    shared = brainstate.ParamState(jnp.eye(2))

    class Borrowing(brainstate.nn.Module):
        def init_state(self, **_: Any) -> None:
            self.h = brainstate.HiddenState(jnp.zeros(2))

        def update(self, x: Any) -> Any:
            self.h.value = 0.5 * self.h.value + x @ self._borrowed()
            return self.h.value

        def _borrowed(self) -> Any:
            return shared.value

    learner = ft.compile(Borrowing(), "D_RTRL", jnp.ones(2))
    graph = ft.compile_etrace_graph(learner.model, jnp.ones(2))
    relations = ft.find_hidden_param_op_relations_from_module(learner.model, jnp.ones(2))
    for found in (learner.graph.hidden_param_op_relations, graph.hidden_param_op_relations, relations):
        assert [relation.trainable_param_states for relation in found] == [{"weight": shared}]
    assert ft.add_hidden_perturbation_in_module(learner.model, jnp.ones(2)).perturb_hidden_paths == (("h",),)
