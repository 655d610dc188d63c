"""The recipes of CONTRIBUTING.md, each written to a file from that page and used through the public surface."""

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

import foretrace as ft
from foretrace import train
from foretrace.cli import main
from foretrace.compiler.structure import structure_rules
from foretrace.frontends import base

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
XS = jnp.asarray(np.random.default_rng(0).normal(size=(6, 2, 3)))
W = jnp.asarray(np.random.default_rng(1).normal(size=(3, 4)))


@pytest.fixture(autouse=True)
def _nothing_known() -> Iterator[None]:
    """What the page registers is not there before and after a test, though its code was run as a page before."""
    forget = lambda: (structure_rules.pop("swap_halves", None), base._registered.clear())
    forget()
    yield
    forget()


def written(name: str, folder: Path) -> Path:
    """A file of the page, in a folder."""
    code = next(block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if block.startswith(f"# {name}"))
    path = folder / name
    path.write_text(code)
    return path


def imported(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def leaky(params: Any, state: Any, x: Any) -> Any:
    state = 0.9 * state + x @ params["weight"]
    return state, state


def gradient(model: Any, rule: Any, **given: Any) -> Any:
    learner = ft.compile(model, rule, XS[0], **given)
    return learner.grad(learner.params, learner.carry, XS, loss=lambda out: jnp.sum(out**2))[0]["weight"]


def test_a_rule_in_one_file(tmp_path: Path) -> None:
    rule = imported(written("forgetful.py", tmp_path)).Forgetful
    given = dict(params={"weight": W}, state=jnp.zeros((2, 4)))
    np.testing.assert_allclose(gradient(leaky, rule(keep=1.0), **given), gradient(leaky, "D_RTRL", **given), rtol=1e-12)

    def faded(params: Any, state: Any, x: Any) -> Any:
        kept = jax.lax.stop_gradient(state)
        return leaky(params, kept + 0.5 / 0.9 * (state - kept), x)

    np.testing.assert_allclose(
        gradient(leaky, rule(keep=0.5 / 0.9), **given), gradient(faded, "D_RTRL", **given), rtol=1e-10
    )


def test_a_rule_of_ones_own_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written("forgetful.py", tmp_path)
    small = "adding --set n_steps=5 --set n_test=4 --cell RNN --hidden 3 --batch 2 --iterations 1 --no-folder".split()
    assert main(["train", *small, "--rule", f"{path}:Forgetful:keep=0.5"]) == 0
    assert "forgetful, keep=0.5" in capsys.readouterr().out
    assert main(["compare", *small[:-3], "--rules", f"D_RTRL,{path}:Forgetful"]) == 0
    assert "forgetful" in capsys.readouterr().out


def test_a_rule_gets_a_name(tmp_path: Path) -> None:
    rule = imported(written("forgetful.py", tmp_path)).Forgetful
    try:
        assert ft.register_rule(rule) is rule
        learner = ft.compile(leaky, "Forgetful", XS[0], params={"weight": W}, state=jnp.zeros((2, 4)), keep=0.5)
        assert learner.rule == rule(keep=0.5)
        with pytest.raises(ValueError, match="another rule"):
            ft.register_rule(imported(written("forgetful.py", tmp_path)).Forgetful)
    finally:
        ft.rules.RULES.pop("forgetful")


def swap_halves_primitive() -> Any:
    primitive = Primitive("swap_halves")
    swap = lambda x: jnp.roll(x, x.shape[-1] // 2, axis=-1)
    primitive.def_impl(swap)
    primitive.def_abstract_eval(lambda x: x)
    mlir.register_lowering(primitive, mlir.lower_fun(swap, multiple_results=False))
    ad.deflinear2(primitive, lambda cotangent, _: [primitive.bind(cotangent)])
    batching.defvectorized(primitive)
    return primitive.bind


def test_a_pattern_in_one_file(tmp_path: Path) -> None:
    swap = swap_halves_primitive()

    def step(params: Any, state: Any, x: Any) -> Any:
        state = 0.9 * swap(state) + x @ params["weight"]
        return state, state

    given = dict(params={"weight": W}, state=jnp.zeros((2, 4)))
    before = ft.compile(step, "D_RTRL", XS[0], **given)
    assert before.graph.parameters[0].history is not ft.HistoryKind.ALL
    assert any(record.kind == "primitive_unknown" for record in before.graph.diagnostics)
    imported(written("swapped_halves.py", tmp_path))
    after = ft.compile(step, "D_RTRL", XS[0], **given)
    assert after.graph.parameters[0].history is ft.HistoryKind.ALL
    np.testing.assert_allclose(gradient(step, "D_RTRL", **given), gradient(step, "BPTT", **given), rtol=1e-10)


def test_a_frontend_in_one_file(tmp_path: Path) -> None:
    cell = imported(written("leaky_frontend.py", tmp_path)).LeakyCell(W)
    expected = gradient(leaky, "D_RTRL", params={"weight": W}, state=jnp.zeros((2, 4)))
    np.testing.assert_array_equal(gradient(cell, "D_RTRL"), expected)


def test_a_task_in_one_file(tmp_path: Path) -> None:
    task = imported(written("first_bit.py", tmp_path)).FirstBit(n_steps=3)
    net = train.network("GRU", n_inputs=1, n_outputs=2, n_hidden=8)
    settings = dict(iterations=40, batch_size=8, validate_every=40, progress=False)
    result = train.fit(net.compile("D_RTRL", 8), task, optax.adam(0.05), **settings)
    assert result.metrics[-1]["loss"] < 0.5 * result.metrics[0]["loss"]
    assert set(result.validation) >= {"loss", "accuracy"}


def test_every_folder_is_on_the_map() -> None:
    listed = re.findall(r"`([a-z]+)/`", PAGE[PAGE.index("| folder |") : PAGE.index("## Four recipes")])
    folders = {path.parent.name for path in (ROOT / "foretrace").glob("*/__init__.py")}
    assert folders == set(listed)
