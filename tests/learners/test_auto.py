"""`"auto"`: the best gradient that fits a memory."""

import dataclasses
from typing import Any

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from foretrace._checks import require_bytes
from foretrace.errors import NotSupportedError

BATCH, INPUTS, UNITS, LENGTH = 4, 3, 12, 96
rng = np.random.default_rng(0)
PARAMS = {
    "w": jnp.asarray(rng.normal(size=(INPUTS, UNITS)) / 2),
    "u": jnp.asarray(rng.normal(size=(UNITS, UNITS)) / 4),
}
XS = jnp.asarray(rng.normal(size=(LENGTH, BATCH, INPUTS)))
YS = jnp.asarray(rng.normal(size=(LENGTH, BATCH, UNITS)))
STATE = jnp.zeros((BATCH, UNITS))


def step(params: Any, h: Any, x: Any) -> Any:
    h = jnp.tanh(x @ params["w"] + h @ params["u"] + 0.5 * h)
    return h, h


def loss(out: Any, y: Any) -> Any:
    return jnp.sum((out - y) ** 2)


def learner(rule: Any, **options: Any) -> Any:
    return ft.compile(step, rule, XS[0], params=PARAMS, state=STATE, **options)


def auto(memory: Any, **options: Any) -> Any:
    return learner("auto", memory=memory, sample=(XS, YS), loss=loss, **options)


def gradient(one: Any) -> np.ndarray:
    grads = jax.jit(lambda p: one.grad(p, one.init(), XS, YS, loss=loss)[0])(PARAMS)
    return np.concatenate([np.ravel(g) for g in jax.tree.leaves(grads)])


def planned(one: Any) -> int:
    run = jax.jit(lambda p, c, xs, ys: one.grad(p, c, xs, ys, loss=loss), donate_argnums=1)
    found = run.lower(PARAMS, one.init(), XS, YS).compile().memory_analysis()
    total = found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes
    return total - found.alias_size_in_bytes - XS.nbytes - YS.nbytes


@pytest.mark.parametrize(
    ("given", "expected"),
    [("2GB", 2 * 10**9), ("64 MiB", 64 * 2**20), ("1.5kb", 1500), (7, 7), ("12", 12), ("3 B", 3)],
)
def test_bytes(given: Any, expected: int) -> None:
    assert require_bytes("memory", given) == expected


@pytest.mark.parametrize("given", ["", "GB", "2 apples", "-1MB", "1.5", 0])
def test_refuses_what_is_no_number_of_bytes(given: Any) -> None:
    with pytest.raises(ValueError, match="`memory` is a number of bytes"):
        require_bytes("memory", given)


def test_refuses_a_float() -> None:
    with pytest.raises(TypeError, match="200MB"):
        require_bytes("memory", 2.5)


@pytest.mark.parametrize("segment", [1, 7, 10, 96, 200])
def test_segments_change_nothing(segment: int) -> None:
    np.testing.assert_allclose(gradient(learner(ft.BPTT(segment=segment))), gradient(learner("BPTT")), rtol=1e-12)


def test_segments_take_less_memory() -> None:
    assert planned(learner(ft.BPTT(segment=10))) < 0.5 * planned(learner("BPTT"))


def test_all_that_fits_is_kept() -> None:
    chosen = auto("1GB")
    assert chosen.rule == ft.BPTT()
    assert chosen.choice.chosen.cosine == 1.0


def test_what_fits_when_run_again_is_exact() -> None:
    exact = learner("BPTT")
    chosen = auto(planned(exact) - 1)
    assert chosen.rule.segment is not None
    np.testing.assert_allclose(gradient(chosen), gradient(exact), rtol=1e-10)


@pytest.fixture(scope="module")
def small() -> Any:
    return auto(int(0.7 * planned(learner(ft.BPTT(segment=9)))))


def test_stays_within_the_memory(small: Any) -> None:
    assert planned(small) <= small.choice.memory


def test_says_what_was_planned(small: Any) -> None:
    assert planned(small) == pytest.approx(small.choice.chosen.bytes, rel=0.1)


def test_says_its_cosine(small: Any) -> None:
    mine, exact = gradient(small), gradient(learner("BPTT"))
    cosine = mine @ exact / np.linalg.norm(mine) / np.linalg.norm(exact)
    assert small.choice.chosen.cosine == pytest.approx(cosine, abs=1e-9)


def test_is_the_best_that_was_measured(small: Any) -> None:
    assert small.choice.chosen.cosine >= max(o.cosine for o in small.choice.considered) - 1e-3


def test_the_choice_can_be_written_down(small: Any) -> None:
    again = learner(small.choice.rule, **small.choice.options)
    assert (again.rule, again.window, again.block) == (small.rule, small.window, small.block)
    assert gradient(again).tolist() == gradient(small).tolist()


def test_shows_itself(small: Any) -> None:
    assert "cosine" in repr(small.choice)
    assert "\n" not in repr(small.choice)
    assert small.choice.chosen.candidate.name in str(small.choice)
    assert "<table" in small.choice._repr_html_()


def test_says_what_other_memories_buy(small: Any, tmp_path: Any) -> None:
    budgets = [10, small.choice.memory, 10**9]
    found = small.choice.other_budgets(budgets)
    assert [None if o is None else o.candidate for _, o in found] == [
        None, small.choice.chosen.candidate, found[2][1].candidate
    ]  # fmt: skip
    assert found[2][1].cosine == 1.0
    assert "nothing fits" in small.choice.table(budgets)
    small.choice.plot(tmp_path / "choice.svg", budgets)
    assert (tmp_path / "choice.svg").exists()


def test_nothing_fits() -> None:
    with pytest.raises(NotSupportedError, match="No gradient of 96 steps fits in 100 B"):
        auto(100)


def test_without_data_a_stretch_is_made_up() -> None:
    chosen = learner("auto", memory="1MB", length=40)
    assert chosen.choice.length == 40
    assert not chosen.choice.given


def test_another_rule_forgets_the_choice(small: Any) -> None:
    assert small.with_rule("D_RTRL").choice is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs `memory=`"),
        ({"memory": 10**6}, "needs `length=`"),
        ({"memory": 10**6, "length": 4, "window": 2}, "chooses `window` itself"),
        ({"memory": 10**6, "sample": (XS, YS)}, "go together"),
    ],
)
def test_refuses(options: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        learner("auto", **options)


def test_a_module() -> None:
    model = brainstate.nn.GRUCell(3, 4)
    chosen = ft.compile(model, "auto", jnp.ones((2, 3)), batch_size=2, memory="1MB", length=20)
    grads = chosen.etrace_grad(jnp.ones((20, 2, 3)), step_fn=lambda x: jnp.sum(chosen(x) ** 2))
    assert chosen.choice.rule == "BPTT"
    assert all(jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(grads))


def test_a_module_with_a_window_gives_the_gradient_of_the_pure_learner() -> None:
    model = brainstate.nn.GRUCell(3, 4)
    xs = jnp.asarray(rng.normal(size=(10, 2, 3)))
    held = ft.compile(model, "D_RTRL", xs[0], batch_size=2, window=4)
    pure = dataclasses.replace(held.pure)
    expected = pure.grad(held.params, held.carry, xs, loss=lambda out: jnp.sum(out**2))[0]
    found = held.etrace_grad(xs, step_fn=lambda x: jnp.sum(held(x) ** 2), reduction="sum")
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), dict(found), dict(expected))
