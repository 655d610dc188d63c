"""Online gradients beside those of BPTT: numbers, the table, the picture, and that nothing is moved."""

import json
import math
import sys
from typing import Any

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from learners.nets import BATCH, HIDDEN, INPUT, MASK, OUT, STEPS, XS, YS, make, squared

_random = np.random.default_rng(1)
PARAMS = {
    "w": jnp.asarray(_random.normal(size=(INPUT, HIDDEN))),
    "u": jnp.asarray(0.4 * _random.normal(size=(HIDDEN, HIDDEN))),
    "read": jnp.asarray(_random.normal(size=(HIDDEN, OUT))),
    "unused": jnp.asarray(1.0),
}
STATE = jnp.zeros((BATCH, HIDDEN))


def step(params: Any, h: Any, x: Any) -> Any:
    h = 0.6 * h + jnp.tanh(x @ params["w"] + h @ params["u"])
    return h, h @ params["read"] + 0.0 * params["unused"]


def compiled(rule: str = "D_RTRL", **options: Any) -> ft.Learner:
    return ft.compile(step, rule, XS[0], params=PARAMS, state=STATE, **options)


@pytest.fixture(scope="module")
def learner() -> ft.Learner:
    return compiled()


@pytest.fixture(scope="module")
def comparison(learner: ft.Learner) -> ft.GradientComparison:
    return ft.compare_gradients(learner, XS, YS, loss=squared, params=PARAMS, state=STATE, mask=MASK)


def bptt(params: Any) -> Any:
    def one(h: Any, item: Any) -> Any:
        h, out = step(params, h, item[0])
        return h, item[2] * squared(out, item[1])

    return jnp.sum(jax.lax.scan(one, STATE, (XS, YS, MASK))[1])


def test_rows_are_the_angle_and_norms_to_bptt(learner: ft.Learner, comparison: ft.GradientComparison) -> None:
    online = jax.jit(lambda p: learner.grad(p, learner.init(STATE), XS, YS, loss=squared, mask=MASK)[0])(PARAMS)
    exact = jax.jit(jax.grad(bptt))(PARAMS)
    for row in comparison.rows:
        mine, other = np.ravel(online[row.name]), np.ravel(exact[row.name])
        assert math.isclose(row.online_norm, np.linalg.norm(mine), rel_tol=1e-10)
        assert math.isclose(row.bptt_norm, np.linalg.norm(other), rel_tol=1e-10)
        if row.name != "unused":
            assert math.isclose(row.cosine, mine @ other / row.online_norm / row.bptt_norm, rel_tol=1e-10)
            assert math.isclose(row.norm_ratio, row.online_norm / row.bptt_norm, rel_tol=1e-10)
    mine, other = (np.concatenate([np.ravel(g[row.name]) for row in comparison.rows]) for g in (online, exact))
    wanted = mine @ other / np.linalg.norm(mine) / np.linalg.norm(other)
    assert math.isclose(comparison.overall.cosine, wanted, rel_tol=1e-10)


def test_what_d_rtrl_loses_shows(comparison: ft.GradientComparison) -> None:
    rows = {row.name: row for row in comparison.rows}
    assert rows["read"].history == "none-needed"
    assert math.isclose(rows["read"].cosine, 1.0, rel_tol=1e-10)
    assert rows["u"].history == "direct"
    assert 0.5 < rows["u"].cosine < 0.999


def test_a_gradient_of_zero_is_shown_as_a_dash(comparison: ft.GradientComparison) -> None:
    row = next(row for row in comparison.rows if row.name == "unused")
    assert math.isnan(row.cosine)
    assert math.isnan(row.norm_ratio)
    (line,) = [line for line in str(comparison).splitlines() if line.startswith("unused")]
    assert line.split()[1:5] == ["-", "-", "0", "0"]


def test_table_has_a_line_for_each_parameter_and_all(comparison: ft.GradientComparison) -> None:
    lines = str(comparison).splitlines()
    assert lines[0] == "D_RTRL against BPTT"
    assert [line.split()[0] for line in lines[3:]] == [*(row.name for row in comparison.rows), "overall"]
    assert f"{comparison.overall.cosine:.4f}" in lines[-1]


def test_dict_is_plain(comparison: ft.GradientComparison) -> None:
    found = json.loads(json.dumps(comparison.dict()))
    assert [row["name"] for row in found["rows"]] == [row.name for row in comparison.rows]
    assert found["overall"]["norm_ratio"] == comparison.overall.norm_ratio


def test_exact_rule_has_nothing_to_lose() -> None:
    carry = compiled().init(STATE)
    found = ft.compare_gradients(compiled("rtrl"), XS, YS, loss=squared, params=PARAMS, state=carry)
    assert math.isclose(found.overall.cosine, 1.0, rel_tol=1e-10)
    assert math.isclose(found.overall.norm_ratio, 1.0, rel_tol=1e-10)


def test_picture_has_a_bar_for_each_number(comparison: ft.GradientComparison, tmp_path: Any) -> None:
    figure = comparison.plot(tmp_path / "bars.png")
    assert (tmp_path / "bars.png").stat().st_size > 1000
    left, right = figure.axes
    numbers = [row for row in (*comparison.rows, comparison.overall) if not math.isnan(row.cosine)]
    for axes, name in ((left, "cosine"), (right, "norm_ratio")):
        np.testing.assert_allclose([bar.get_width() for bar in axes.patches], [getattr(row, name) for row in numbers])
    assert [text.get_text() for text in left.get_yticklabels()] == [*(r.name for r in comparison.rows), "overall"]
    looks = {row.name: bar.get_hatch() for row, bar in zip(numbers, left.patches, strict=True)}
    assert looks["u"] != looks["read"]


def test_picture_without_matplotlib_names_the_extra(
    comparison: ft.GradientComparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"foretrace\[viz\]"):
        comparison.plot()


def test_module_is_compared_and_left_as_it_was() -> None:
    net, learner = make()
    learner(XS[0])
    before = jax.tree.map(np.asarray, (net.h.value, learner.etrace.value))
    by_loss = ft.compare_gradients(learner, XS, YS, loss=squared, mask=MASK)
    jax.tree.map(np.testing.assert_array_equal, (net.h.value, learner.etrace.value), before)
    learner.reset_state()
    run = lambda **options: learner.etrace_grad(
        XS, YS, step_fn=lambda x, y: squared(learner(x), y), mask=MASK, reduction="sum", **options
    )
    online = run()
    net.h.value = before[0]
    learner.reset_state()
    exact = run(chunk_size=STEPS)
    for row in by_loss.rows:
        assert math.isclose(row.online_norm, np.linalg.norm(online[(row.name,)]), rel_tol=1e-10)
        assert math.isclose(row.bptt_norm, np.linalg.norm(exact[(row.name,)]), rel_tol=1e-10)


def test_parameters_of_a_tree_have_a_row_each() -> None:
    learner = ft.compile(brainstate.nn.GRUCell(INPUT, HIDDEN), "D_RTRL", XS[0], batch_size=BATCH)
    found = ft.compare_gradients(learner, XS[:1], loss=lambda out: jnp.sum(out**2))
    assert [row.name for row in found.rows] == [parameter.name for parameter in learner.graph.parameters]
    assert len(found.rows) == 4
    # Over one step there is no history to lose.
    assert math.isclose(found.overall.cosine, 1.0, rel_tol=1e-10)


def test_what_a_learner_was_compiled_with_need_not_be_given(learner: ft.Learner) -> None:
    alone = ft.compare_gradients(learner, XS, YS, loss=squared)
    given = ft.compare_gradients(learner, XS, YS, loss=squared, params=learner.params, state=learner.state)
    for one, other in zip((*alone.rows, alone.overall), (*given.rows, given.overall), strict=True):
        assert (one.name, one.history) == (other.name, other.history)
        assert math.isclose(one.online_norm, other.online_norm, rel_tol=1e-12)
        assert math.isclose(one.bptt_norm, other.bptt_norm, rel_tol=1e-12)


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(ft.StateMismatchError, match="no value for `w`"):
        ft.compare_gradients(make()[1], XS, YS, loss=squared, params={})
    with pytest.raises(TypeError, match="takes a learner"):
        ft.compare_gradients(step, XS, YS, loss=squared)
