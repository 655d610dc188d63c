"""What a type checker knows of a learner, and so an editor: checked as a user's script is, with default settings."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import brainstate
import equinox
import jax
import jax.numpy as jnp
from flax import nnx

import foretrace as ft


def step(params: jax.Array, state: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return state + x @ params, state


class EquinoxCell(equinox.Module):
    def __call__(self, x: jax.Array, state: jax.Array) -> tuple[jax.Array, jax.Array]:
        return state, state


class NNXCell(nnx.Module):
    def __call__(self, x: jax.Array, state: jax.Array) -> tuple[jax.Array, jax.Array]:
        return state, state


x = jnp.ones((2, 3))
reveal_type(ft.compile(step, "D_RTRL", x, params=x.T, state=x))
reveal_type(ft.compile(EquinoxCell(), "D_RTRL", x))
reveal_type(ft.compile(NNXCell(), ft.pp_prop, x, decay_or_rank=0.9))
reveal_type(ft.compile(brainstate.nn.GRUCell(3, 4), "D_RTRL", x, batch_size=2))
reveal_type(ft.compile(brainstate.nn.GRUCell(3, 4), "D_RTRL", x, batch_size=2, vmap=True))
"""


@pytest.mark.slow
def test_learner_of_each_kind_of_model_is_known(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "mypy.ini").write_text(f"[mypy]\nfollow_imports = silent\nmypy_path = {Path(__file__).parent.parent}\n")
    command = [sys.executable, "-m", "mypy", "--cache-dir", "cache", "script.py"]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout
    revealed = re.findall(r'Revealed type is "foretrace\.[\w.]+\.(\w+)"', printed)
    assert revealed == ["Learner"] * 3 + ["ETraceVjpAlgorithm", "ETraceVmap"], printed
