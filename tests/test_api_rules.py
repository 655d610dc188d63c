"""Every rule and helper, made with the options that scripts of the field pass, and those that are refused."""

from typing import Any

import brainstate
import brainunit as u
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from api_net import XS, Net, X

TRACED: dict[str, Any] = {
    "vjp_method": "multi-step",
    "fast_solve": True,
    "trace_dtype": jnp.float32,
    "control_flow": ft.ControlFlowPolicy(),
    "name": "mine",
}
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "D_RTRL": [TRACED],
    "ParamDimVjpAlgorithm": [TRACED],
    "OSTLRecurrent": [TRACED],
    "pp_prop": [{"decay_or_rank": value} for value in (0.0, 0.9, 1, 19, (0.9, 0.8), (3, 0.5))],
    "IODimVjpAlgorithm": [{"decay_or_rank": 0.9, "vjp_method": "single-step", "fast_solve": False}],
    "HybridDimVjpAlgorithm": [{"decay_or_rank": 0.9}],
    "OSTLFeedforward": [{}, {"decay_or_rank": 1e-6}],
    "EProp": [
        {"feedback": "symmetric", "kappa_filter_decay": 0.0},
        {"feedback": "random", "kappa_filter_decay": 0.5, "random_feedback_key": jax.random.key(0)},
    ],
    "OTTT": [{"mode": mode, "leak": 0.9} for mode in "AO"],
    "OTPE": [{"mode": "full", "leak": 0.9, "trace_clip_abs": None}, {"mode": "approx", "leak": 0.9}],
    "OSTTP": [{"B_list": [jnp.ones((2, 4))], "target_timing": "per-step"}],
    "SnAp": [{}, {"n": 1}],
    "UORO": [{}, {"projection_key": 42, "projection_eps": 1e-7}],
    "RandomProjectionVjpAlgorithm": [{"projection_key": jax.random.key(1), "projection_eps": 1e-12}],
    "ThreeFactor": [{}, {"modulator": None}, {"modulator": 0.5}],
    "DNI": [{}, {"synthesizer": None}],
    "RTRL": [{}],
}


@pytest.mark.parametrize("name", OPTIONS)
def test_rule_takes_its_options(name: str) -> None:
    net = Net()
    for options in OPTIONS[name]:
        assert getattr(ft, name)(net, **options).rule.name


# What the constructors of braintrace take, in its order.
BY_POSITION: dict[str, tuple[Any, ...]] = {
    "D_RTRL": ("mine", "single-step", True, None, True, None, None, None, 2**24),
    "OSTLRecurrent": ("mine", "single-step", True),
    "pp_prop": (0.9, "mine", "single-step", True, None, None, None),
    "OSTLFeedforward": (1e-6, "mine"),
    "EProp": ("random", 0.5, jax.random.key(0), "mine", "single-step", True),
    "SnAp": (2, "mine", "single-step", True, 2**24),
    "UORO": ("mine", "multi-step", True, None, 42, 1e-12, None, 2**24),
    "ThreeFactor": ("mine", "single-step", 0.5, True, None, True, None, 2**24),
    "DNI": (None, "mine", "multi-step", True, None, True, None, 2**24),
    "OSTTP": ([jnp.ones((2, 4))], "per-step", "mine", "single-step", True),
}


@pytest.mark.parametrize("name", BY_POSITION)
def test_rule_takes_its_options_by_position(name: str) -> None:
    assert getattr(ft, name)(Net(), *BY_POSITION[name]).name == "mine"


def test_options_of_another_implementation_are_checked_and_change_nothing() -> None:
    plain = ft.D_RTRL(Net())
    taken = dict(chunked_trace=False, snap_max_jacobian_elements=10, random_feedback_key=jax.random.key(0))
    mode = brainstate.mixin.Batching()
    assert ft.D_RTRL(Net(), normalize_matrix_spectrum=False, mode=mode, **taken).rule == plain.rule
    for option, error in (
        ({"chunked_trace": 3}, TypeError),
        ({"snap_max_jacobian_elements": 0}, ValueError),
        ({"mode": "batching"}, TypeError),
        ({"fast_solve": "yes"}, TypeError),
    ):
        with pytest.raises(error, match=next(iter(option))):
            ft.D_RTRL(Net(), **option)


def test_options_that_would_change_the_result_are_refused() -> None:
    with pytest.raises(ft.NotSupportedError, match="changes the gradient"):
        ft.D_RTRL(Net(), normalize_matrix_spectrum=True)
    with pytest.raises(TypeError, match="D_RTRL has no option `decay`"):
        ft.D_RTRL(Net(), decay=0.9)


def test_outer_signals_are_given_at_a_call() -> None:
    osttp = ft.compile(Net(), "osttp", X, batch_size=2, B_list=[jnp.ones((2, 4))])
    assert osttp.update(X, y_target=jnp.ones((2, 2))).shape == (2, 2)
    three = ft.compile(Net(), "three_factor", X, batch_size=2)
    assert three.update(X, modulator=jnp.ones(2)).shape == (2, 2)


def test_modulator_may_stand_for_all_calls() -> None:
    def gradient(**given: Any) -> Any:
        three = ft.compile(net, ft.ThreeFactor, X, batch_size=2)
        three.modulator = None if given else 0.5
        assert three.modulator == (None if given else 0.5)
        return brainstate.transform.grad(lambda: jnp.sum(three(X, **given)), three.param_states)()

    net = Net()
    standing, given = gradient(), gradient(modulator=0.5)
    jax.tree.map(np.testing.assert_array_equal, standing, given)
    assert jnp.any(standing["w",] != 0)


def test_modulator_is_for_rules_that_take_one() -> None:
    config = ft.ETraceConfig(learning_signal="modulatory")
    configured = ft.D_RTRL(Net(), config=config)
    configured.modulator = 2.0
    assert configured.modulator == 2.0
    with pytest.raises(ValueError, match="D_RTRL takes no modulator"):
        ft.D_RTRL(Net()).modulator = 2.0


def test_synthesiser_is_made_attached_and_trained() -> None:
    learner = ft.compile(Net(), "dni", X, batch_size=2)
    assert learner.group_signal_shapes() == {0: (2, 4, 1)}
    made = ft.SyntheticGradient(learner.group_signal_shapes(), hidden_width=3, scale=0.1, seed=1)
    learner.attach_synthesizer(made)
    assert learner.synthesizer is made
    assert jnp.any(learner.etrace.value.synthesizer["group_0"]["weight"] != 0)
    errors = ft.train_synthetic_gradient(
        learner,
        XS,
        chunk_size=1,
        loss_fn=lambda out: jnp.sum(out**2),
        optimizer=None,
        lr=0.01,
        epochs=2,
        reset=True,
        batch_size=2,
    )
    assert len(errors) == 2
    with pytest.raises(ValueError, match=r"made for groups of the shapes \{0: \(9, 1\)\}"):
        ft.compile(Net(), "dni", X, batch_size=2, synthesizer=ft.SyntheticGradient({0: (9, 1)}))


PARTS: dict[str, tuple[dict[str, Any], str]] = {
    "per_param": ({}, "D_RTRL"),
    "kappa": ({"trace_filter": "kappa", "kappa": 0.5}, "EProp"),
    "random_feedback": ({"learning_signal": "random_feedback"}, "EProp"),
    "modulatory": ({"learning_signal": "modulatory"}, "ThreeFactor"),
    "bootstrapped": ({"learning_signal": "bootstrapped"}, "DNI"),
    "coupled": ({"recurrence_scope": "coupled"}, "OSTL_recurrent"),
    "sparse_n": ({"recurrence_scope": "sparse_n", "sparse_n": 2}, "SnAp"),
    "scalar_leak": ({"temporal_recursion": "scalar_leak", "decay": 0.9}, "OTPE"),
    "none": ({"temporal_recursion": "none"}, "DNI"),
    "io_factorized": ({"trace_factorization": "io_factorized", "decay": (0.9, 0.8)}, "pp_prop"),
    "a pair": (
        {"trace_factorization": "io_factorized", "temporal_recursion": ("scalar_leak", "jacobian"), "decay": 0.9},
        "pp_prop",
    ),
    "random_projection": ({"trace_factorization": "random_projection", "recurrence_scope": "coupled"}, "UORO"),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_make_a_rule(name: str) -> None:
    parts, rule = PARTS[name]
    assert ft.ETraceConfig(**parts, update_schedule="per_step", window_size=None).rule().name == rule


@pytest.mark.parametrize("name", PARTS)
def test_learner_says_the_parts_of_its_rule(name: str) -> None:
    given = ft.ETraceConfig(**PARTS[name][0])
    learner = ft.compile(Net(), given, X, batch_size=2)
    assert repr(learner.config.rule()) == repr(given.rule())
    if PARTS[name][1] not in ("DNI", "UORO"):  # several combinations stand for one of these
        assert learner.config == given


def test_mapped_learner_says_the_parts_of_its_rule() -> None:
    assert ft.compile(Net(), "D_RTRL", X, batch_size=2, vmap=True).config == ft.ETraceConfig()


@pytest.mark.parametrize(
    ("name", "options"), [("RTRL", {}), ("hybrid", {"decay_or_rank": 0.9}), ("OTTT", {"mode": "O"})]
)
def test_rule_that_has_no_parts_says_so(name: str, options: dict[str, Any]) -> None:
    learner = ft.compile(Net(), name, X, batch_size=2, **({"leak": 0.9} if name == "OTTT" else {}), **options)
    assert not hasattr(learner, "config")
    with pytest.raises(AttributeError, match=r"No `ETraceConfig` describes .* `learner.rule`"):
        _ = learner.config


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"trace_factorization": "io_factorized", "trace_filter": "kappa", "kappa": 0.5}, "These have a meaning"),
        ({"recurrence_scope": "coupled", "temporal_recursion": "scalar_leak"}, "These have a meaning"),
        ({"learning_signal": "loud"}, "`learning_signal` is 'symmetric', 'random_feedback'"),
        ({"recurrence_scope": "sparse_n"}, "needs `sparse_n`"),
        ({"decay": 0.9}, "no use for `decay=0.9`"),
        ({"kappa": 0.9}, "no use for `kappa=0.9`"),
        ({"temporal_recursion": ("scalar_leak", "jacobian")}, "a pair for factored traces alone"),
        ({"update_schedule": "window"}, "`update_every` of `etrace_train`"),
        ({"window_size": 4}, "`chunk_size` of `etrace_grad`"),
    ],
)
def test_parts_without_a_meaning_are_refused(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ft.ETraceConfig(**parts)


def test_learner_classes_take_a_config_of_their_kind() -> None:
    filtered = ft.ETraceConfig(trace_filter="kappa", kappa=0.5)
    assert ft.D_RTRL(Net(), config=filtered).rule.name == "EProp"
    random = ft.ETraceConfig(learning_signal="random_feedback")
    assert ft.D_RTRL(Net(), config=random, random_feedback_key=jax.random.key(3)).rule.feedback == "random"
    factored = ft.ETraceConfig(trace_factorization="io_factorized", decay=0.9)
    assert ft.pp_prop(Net(), 0.9, config=factored).rule == ft.pp_prop(Net(), 0.9).rule
    with pytest.raises(ValueError, match="differ; give one"):
        ft.pp_prop(Net(), 0.8, config=factored)
    with pytest.raises(ValueError, match="D_RTRL does not stand for the rule of this config"):
        ft.D_RTRL(Net(), config=factored)
    with pytest.raises(TypeError, match="`config` is an `ETraceConfig`"):
        ft.D_RTRL(Net(), config="per_param")


def test_fixed_feedback() -> None:
    feedback = ft.FixedRandomFeedback(2, 3, jax.random.key(0), init_scale=0.1)
    assert feedback.B.shape == (2, 3)
    assert feedback.project(jnp.ones((5, 2))).shape == (5, 3)


@pytest.mark.parametrize(("make", "taken"), [(ft.KappaFilter, 0.5), (ft.PresynapticTrace, 1.0)])
def test_filters_are_states(make: Any, taken: float) -> None:
    running = make(jnp.zeros(2), 0.5)
    assert isinstance(running, brainstate.ShortTermState)
    brainstate.transform.for_loop(lambda x: running.update(x), jnp.ones((2, 2)))
    assert running.value.tolist() == [1.5 * taken] * 2
    running.reset_state(batch_size=3)
    assert running.value.tolist() == [0.0] * 3
    with pytest.raises(ValueError, match="from 0 to 1"):
        make(jnp.zeros(2), 1.5)


def test_running_gradient() -> None:
    running = ft.GradExpon({"w": jnp.zeros(2)}, 0.5)
    running.update({"w": jnp.ones(2)})
    running.update({"w": jnp.ones(2)})
    assert running.gradients.value["w"].tolist() == [1.5, 1.5]
    with brainstate.environ.context(dt=1 * u.ms):
        np.testing.assert_allclose(ft.GradExpon({"w": jnp.zeros(2)}, 10 * u.ms).decay, np.exp(-0.1))
