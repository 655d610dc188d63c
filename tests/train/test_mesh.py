"""A run on many devices ends as one on one device does, to rounding, and goes on with any number of them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import foretrace as ft
from foretrace.cli import main
from train.small_task import fit, make_learner

TESTS = Path(__file__).parent.parent
ROUNDING = 1e-12
"""Sums over the batch are added up in another order, some 1e-16 apart; eight updates make little more of that."""


DEVICES = {"data": 2, "units": 2, "explicit": 4, "stream": 4, "fed": 2, "module": 2}


def ran(*cases: str) -> Any:
    """What `on_mesh.py` finds with four devices."""
    flags = "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0"
    paths = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "JAX_ENABLE_X64": "1", "XLA_FLAGS": flags, "PYTHONPATH": paths}
    script = [sys.executable, str(Path(__file__).parent / "on_mesh.py"), *cases]
    done = subprocess.run(script, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("found "))[6:])


def as_on_one_device(found: Any) -> None:
    for case, devices in DEVICES.items():
        if case in found:
            assert found[case]["devices"] == [devices], case
            assert found[case]["apart"] < ROUNDING, case
            assert found[case]["alike"], case  # moments of Adam lie where their parameters do


def goes_on(found: Any) -> None:
    assert found["apart"] < ROUNDING
    assert found["lines"] == list(range(1, 9))
    assert not {"mesh", "shardings", "placement"} & set(found["settings"])


def test_run_on_two_devices_that_goes_on_with_four_ends_as_on_one() -> None:
    goes_on(ran("more")["more"])


@pytest.mark.slow
def test_every_kind_of_run_ends_as_on_one_device() -> None:
    found = ran("explicit", "data", "units", "stream", "fed", "module", "fewer", "module afterwards", "command")
    as_on_one_device(found)
    goes_on(found["fewer"])
    assert found["module afterwards"]["devices"] == 1
    assert found["command"]["apart"] < ROUNDING


def places(**axes: str) -> Any:
    return make_learner().shardings(jax.make_mesh((1,), ("data",)), **axes)


def test_mesh_of_one_device_is_none(tmp_path: Path) -> None:
    on_mesh = fit(iterations=2, shardings=places(batch="data"), folder=tmp_path)
    same = jax.tree.map(lambda a, b: bool((a == b).all()), on_mesh.params, fit(iterations=2).params)
    assert all(same.values())
    assert len(on_mesh.params["w_in"].devices()) == 1


def test_mesh_in_the_place_of_shardings_is_refused() -> None:
    with pytest.raises(TypeError, match=r"learner.shardings\(mesh, batch='data'\)`; got Mesh"):
        fit(shardings=jax.make_mesh((1,), ("data",)))


def test_shardings_of_another_learner_are_refused() -> None:
    step = lambda w, h, x: (0.5 * h + x @ w, h)
    other = ft.compile(step, "D_RTRL", jnp.ones((4, 3)), params=jnp.ones((3, 2)), state=jnp.zeros((4, 2)))
    with pytest.raises(ValueError, match="`shardings` are those of another learner"):
        fit(shardings=other.shardings(jax.make_mesh((1,), ("data",)), batch="data"))


def test_processes_without_shardings_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="There are 2 processes, and each would train a network of its own"):
        fit()


SMALL = ["evidence", "--hidden", "6", "--cell", "RNN", "--no-folder"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--mesh data=4096", "needs 4096 devices, and there are 1. .* XLA_FLAGS=--xla_force_host_platform_device_co"),
        ("--mesh batch=2", "argument --mesh: 'batch=2' is not of the form data=N"),
        ("--mesh data=2,data=2", "is not of the form data=N"),
        ("--mesh data=0", "argument --mesh: '0' is no whole number from 1 on"),
    ],
)
def test_devices_that_cannot_be_are_refused(words: str, said: str, capsys: Any) -> None:
    assert main(["train", *SMALL, *words.split()]) == 2
    assert re.search(said, capsys.readouterr().err)


def test_processes_are_those_that_are_given_or_found(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    joined: list[Any] = []

    def initialize(*given: Any) -> None:
        joined.append(given)
        raise ValueError("coordinator_address should be defined.")

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    given = "--coordinator-address 127.0.0.1:9 --num-processes 2 --process-id 1".split()
    assert main(["train", *SMALL, "--distributed"]) == main(["train", *SMALL, *given]) == 2
    assert joined == [(None, None, None), ("127.0.0.1:9", 2, 1)]
    assert "give --coordinator-address HOST:PORT, --num-processes N and --process-id I" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("axes", "batch", "said"),
    [({"data": 4}, 6, "A batch of 6 cannot be shared out over 4 devices: give --batch 8"), ({"units": 4}, 6, None)],
)
def test_batch_that_devices_do_not_divide_is_refused(axes: Any, batch: int, said: Any, monkeypatch: Any) -> None:
    from foretrace.cli.arguments import UsageError
    from foretrace.cli.devices import mesh_of

    monkeypatch.setattr(jax, "device_count", lambda: 4)
    monkeypatch.setattr(jax, "make_mesh", lambda *_, **__: "made")
    options = SimpleNamespace(mesh=axes)
    if said is None:
        assert mesh_of(options, batch) == "made"
        return
    with pytest.raises(UsageError, match=said):
        mesh_of(options, batch)
