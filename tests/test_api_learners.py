"""`compile` and every method of a learner, called with the arguments that scripts of the field pass."""

import sys
from typing import Any

import brainstate
import jax
import jax.numpy as jnp
import pytest

import foretrace as ft
from api_net import XS, YS, Net, X


@pytest.fixture(scope="module")
def learner() -> Any:
    return ft.compile(Net(), "D_RTRL", X, batch_size=2, seed=0)


RULE_NAMES = {
    "d_rtrl": {},
    "pp_prop": {"decay_or_rank": 0.9},
    "es_d_rtrl": {"decay_or_rank": 3},
    "esd_rtrl": {"decay_or_rank": (0.9, 3)},
    "e_prop": {},
    "eprop": {},
    "ostl_recurrent": {},
    "ostl_feedforward": {},
    "otpe": {"leak": 0.9},
    "ottt": {"leak": 0.9},
    "osttp": {"B_list": [jnp.ones((2, 4))]},
    "snap": {},
    "uoro": {},
    "three_factor": {},
    "dni": {},
    "rtrl": {},
    "hybrid": {"decay_or_rank": 0.9},
}


@pytest.mark.parametrize("name", RULE_NAMES)
def test_rule_is_found_by_name_in_any_case(name: str) -> None:
    written = name.title() if len(name) % 2 else name.upper()
    learner = ft.compile(Net(), written, X, batch_size=2, **RULE_NAMES[name])  # type: ignore[arg-type]
    assert isinstance(learner, ft.ETraceVjpAlgorithm)
    assert learner.is_compiled


def test_compile_takes_its_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    learner = ft.compile(Net(), ft.D_RTRL, X, batch_size=2, seed=1, verbose=1, vmap=False, vjp_method="multi-step")
    assert "2 parameters" in capsys.readouterr().out
    assert learner.vjp_method == "multi-step"
    mapped = ft.compile(Net(), ft.ETraceConfig(), X, batch_size=2, vmap=True)
    assert isinstance(mapped, ft.ETraceVmap)


def test_compile_refuses_what_is_no_rule() -> None:
    with pytest.raises(ValueError, match=r"no rule `backprop`.*d_rtrl.*three_factor.*hybrid"):
        ft.compile(Net(), "backprop", X)
    for strange in (3, None, Net, object()):
        with pytest.raises(TypeError, match="A rule is a name"):
            ft.compile(Net(), strange, X)
    with pytest.raises(ValueError, match="No example input"):
        ft.compile(Net(), "D_RTRL")


def test_a_call_is_an_update(learner: Any) -> None:
    brainstate.nn.init_all_states(learner.model, batch_size=2)
    learner.init_etrace_state()
    first = learner(X)
    assert learner.update(ft.SingleStepData(X)).shape == first.shape == (2, 2)
    assert learner(ft.MultiStepData(XS)).shape == (4, 2, 2)
    assert float(learner.model.count.value) == 6


def test_learner_says_what_it_is_made_of(learner: Any) -> None:
    assert isinstance(learner.graph, ft.ETraceGraph)
    assert isinstance(learner.report, ft.CompilationReport)
    assert isinstance(learner.executor, ft.ETraceVjpGraphExecutor)
    assert set(learner.param_states) == {("w",), ("read",)}
    assert set(learner.hidden_states) == {("h",)}
    assert set(learner.other_states) == {("count",)}
    assert isinstance(learner.etrace, ft.EligibilityTrace)
    assert learner.compile_graph(X) is None


def test_traces_are_kept_and_emptied(learner: Any) -> None:
    learner(X)
    (trace,) = learner.get_etrace_of(learner.model.w).values()
    assert {leaf.shape for leaf in jax.tree.leaves(trace)} == {(1, 2, 7, 4)}
    assert learner.get_etrace_of(("w",)).keys() == learner.get_etrace_of("w").keys()
    assert any(jnp.any(leaf != 0) for leaf in jax.tree.leaves(learner.etrace.value))
    for empty in (learner.init_etrace_state, learner.reset_state, lambda: learner.reset_state(batch_size=2)):
        learner(X)
        empty()
        assert not any(jnp.any(leaf != 0) for leaf in jax.tree.leaves(learner.etrace.value))


def test_factored_traces_come_as_a_pair() -> None:
    learner = ft.compile(Net(), "pp_prop", X, batch_size=2, decay_or_rank=0.9)
    entered, effect = learner.get_etrace_of("w")
    assert entered.keys() == effect.keys() == {"w -> h"}
    assert {leaf.shape for leaf in jax.tree.leaves(entered)} == {(2, 7)}
    with pytest.raises(ValueError, match="`read` has no trace"):
        learner.get_etrace_of("read")


def test_graph_is_shown_as_picture_and_in_words(learner: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert learner.show_graph().get_size_inches().shape == (2,)
    assert capsys.readouterr().out == ""
    text = learner.show_graph(verbose=False, return_msg=True)
    assert "history keeps" in text
    assert capsys.readouterr().out == ""
    assert learner.show_graph(verbose=True) is None
    assert learner.show_graph(True) is None
    assert capsys.readouterr().out.count(text) == 2


def test_graph_is_told_in_words_where_nothing_can_draw(
    learner: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert learner.show_graph() is None
    assert "history keeps" in capsys.readouterr().out
    with pytest.raises(ImportError, match="matplotlib"):
        learner.show_graph("graph.svg")


def loss(learner: Any) -> Any:
    return lambda x, y: jnp.mean((learner(x) - y) ** 2)


def test_etrace_grad_by_default(learner: Any) -> None:
    grads = learner.etrace_grad(XS, YS, step_fn=loss(learner))
    assert {path: grad.shape for path, grad in grads.items()} == {("w",): (7, 4), ("read",): (4, 2)}


def test_etrace_grad_with_mask_sum_and_aux(learner: Any) -> None:
    mask = jnp.array([0.0, 1.0, 0.0, 1.0])

    def step_fn(x: Any, y: Any) -> Any:
        out = learner(x)
        return jnp.mean((out - y) ** 2), out

    grads, losses, aux = learner.etrace_grad(
        XS,
        YS,
        step_fn=step_fn,
        mask=mask,
        weights=None,
        reduction="sum",
        loss_output="masked",
        has_aux=True,
        return_value=True,
    )
    assert set(grads) == {("w",), ("read",)}
    assert aux.shape == (4, 2, 2)
    assert jnp.array_equal(losses == 0, mask == 0)


def test_etrace_grad_in_windows_by_chosen_weights(learner: Any) -> None:
    weights = {("w",): learner.model.w}
    for output, shape in (("scalar", ()), ("per_step", (4,))):
        grads, losses = learner.etrace_grad(
            XS,
            YS,
            step_fn=loss(learner),
            chunk_size=2,
            weights=weights,
            reduction="mean",
            loss_output=output,
            return_value=True,
        )
        assert set(grads) == {("w",)}
        assert losses.shape == shape


@pytest.mark.parametrize("calls", [0, 2])
def test_step_fn_calls_the_learner_exactly_once(learner: Any, calls: int) -> None:
    def step_fn(x: Any) -> Any:
        return sum((jnp.sum(learner(x)) for _ in range(calls)), jnp.zeros(()))

    with pytest.raises(ValueError, match="exactly once"):
        learner.etrace_grad(XS, step_fn=step_fn)


def test_etrace_evolve_takes_its_options(learner: Any) -> None:
    before = float(learner.model.count.value)
    assert learner.etrace_evolve(XS) is None
    outputs = learner.etrace_evolve(XS, step_fn=lambda x: 2 * learner(x), chunk_size=None, return_outputs=True)
    assert outputs.shape == (4, 2, 2)
    windows = learner.etrace_evolve(XS, chunk_size=2, return_outputs=True)
    assert windows.shape == (2, 2, 2, 2)
    assert float(learner.model.count.value) == before + 12
