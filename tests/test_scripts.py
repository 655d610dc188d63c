"""Scripts written for braintrace run with one import changed, and learn.

Each script of `examples/from_braintrace` is run as its reader would run it, in float32 and with warnings as errors, and
hands back its losses.
"""

import ast
import runpy
from pathlib import Path

import brainstate
import jax
import numpy as np
import pytest

SCRIPTS = sorted((Path(__file__).parent.parent / "examples" / "from_braintrace").glob("*.py"))
IMPORT = "import foretrace as braintrace"

LONG = ("alif_pp_prop", "conv_snn", "copy_gru", "integrator", "lif_pp_prop", "lora", "sparse")

per_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)


def imported_packages(script: Path) -> set[str]:
    """The packages that a script imports anywhere."""
    found = set()
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


def run(script: Path) -> list[float]:
    """The losses of a script's `main`, in JAX's default precision."""
    had_step = brainstate.environ.get("dt", None)
    with brainstate.environ.context(precision=32), jax.enable_x64(False):
        try:
            return runpy.run_path(str(script))["main"]()
        finally:
            if had_step is None:
                brainstate.environ.pop("dt", None)


def test_there_is_a_script_for_each_kind_of_use() -> None:
    names = "alif_pp_prop conv_snn copy_gru custom_primitive integrator lif_pp_prop lora multi_step_windows"
    assert [script.stem for script in SCRIPTS] == [*names.split(), "quick_start", "sparse", "vmap"]


@pytest.mark.parametrize(
    "script",
    [pytest.param(script, marks=[pytest.mark.slow] if script.stem in LONG else []) for script in SCRIPTS],
    ids=lambda script: script.stem,
)
def test_loss_falls_by_half(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    losses = run(script)
    assert np.all(np.isfinite(losses))
    edge = len(losses) // 10
    assert np.mean(losses[-edge:]) < np.mean(losses[:edge]) / 2
    assert f"{losses[0]:.4f}" in capsys.readouterr().out


@per_script
def test_one_import_is_all_there_is_to_change(script: Path) -> None:
    lines = script.read_text().splitlines()
    assert lines.count(IMPORT) == 1
    assert not any("foretrace" in line for line in lines if line != IMPORT)
    assert imported_packages(script) <= set(
        "brainevent brainpy brainstate braintools brainunit foretrace jax numpy".split()
    )
    assert len(lines) < 100
