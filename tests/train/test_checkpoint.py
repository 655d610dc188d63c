"""Checkpoints come back bit for bit, and a file that is not whole is never taken for one."""

import json
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import brainstate
import brainunit as u
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from foretrace import train
from foretrace.train.checkpoint import CheckpointError, read


class Pair(NamedTuple):
    first: Any
    second: Any


def everything() -> Any:
    """Every kind of leaf and of node."""
    rng = np.random.default_rng(0)
    return {
        "float64": jnp.asarray(rng.normal(size=(3, 2))),
        "float32": jnp.float32(rng.normal(size=4)),
        "bfloat16": jnp.asarray(rng.normal(size=(2, 3)), jnp.bfloat16),
        "complex128": jnp.asarray(rng.normal(size=3) + 1j),
        "bool": jnp.array([True, False]),
        "scalar": jnp.asarray(7, jnp.int32),
        "empty": jnp.zeros((0, 3)),
        "special": jnp.array([jnp.nan, -0.0, jnp.inf, 5e-324]),
        "key": jax.random.key(3),
        "old key": jax.random.PRNGKey(3),
        "keys": jax.random.split(jax.random.key(1, impl="rbg"), 2),
        ("a", "path"): Pair([jnp.ones(2)], (jnp.zeros(1), None)),
    }


def bits(leaf: Any) -> bytes:
    plain = jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
    return np.asarray(plain).tobytes()


def test_every_kind_of_leaf_comes_back_bit_for_bit(tmp_path: Path) -> None:
    values = {str(key): value for key, value in everything().items()}
    found = train.restore(train.save(tmp_path / "all.safetensors", values), values)
    assert jax.tree.structure(found) == jax.tree.structure(values)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(values), strict=True):
        assert (a.dtype, a.shape, bits(a)) == (b.dtype, b.shape, bits(b))


def test_note_and_names(tmp_path: Path) -> None:
    path = train.save(
        tmp_path / "a", {("w",): [jnp.ones(1), jnp.ones(2)], ("cell", "b"): jnp.ones(3)}, note={"n": [1, "é"]}
    )
    found = read(path)
    assert found.note == {"n": [1, "é"]}
    assert sorted(found.arrays) == ["cell.b", "w/0", "w/1"]
    assert sorted(train.restore(path)) == sorted(found.arrays)


def test_other_programs_can_read_it(tmp_path: Path) -> None:
    import safetensors.numpy

    path = train.save(tmp_path / "a", {"w": jnp.arange(3.0)})
    assert safetensors.numpy.load_file(path)["w"].tolist() == [0, 1, 2]


class Scaled(brainstate.nn.Module):
    """A weight with a unit, and a state that begins anew with each trial."""

    def __init__(self, weight: Any) -> None:
        super().__init__()
        self.weight = brainstate.ParamState(weight)

    def init_state(self, batch_size: int | None = None, **_: Any) -> None:
        self.h = brainstate.HiddenState(jnp.zeros(batch_size or 1))


def test_module_is_saved_and_restored(tmp_path: Path) -> None:
    net, other = Scaled(jnp.arange(3.0) * u.mV), Scaled(jnp.zeros(3) * u.mV)
    brainstate.nn.init_all_states(net, 2)
    brainstate.nn.init_all_states(other, 2)
    net.h.value = jnp.ones(2)
    path = train.save(tmp_path / "net", net)
    assert train.restore(path, other) is other
    assert other.weight.value.unit == u.mV
    assert bits(other.weight.value.mantissa) == bits(net.weight.value.mantissa)
    assert bits(other.h.value) == bits(net.h.value)


def test_states_that_a_file_lacks_stay_but_parameters_are_wanted(tmp_path: Path) -> None:
    weights = train.save(tmp_path / "net", Scaled(jnp.arange(3.0) * u.mV))
    nothing = train.save(tmp_path / "nothing", {})
    other = Scaled(jnp.zeros(3) * u.mV)
    brainstate.nn.init_all_states(other, 2)
    train.restore(weights, other)
    assert other.weight.value.mantissa.tolist() == [0, 1, 2]
    with pytest.raises(CheckpointError, match="lacks `weight`"):
        train.restore(nothing, other)


@pytest.mark.parametrize(("like", "said"), [(1 * u.volt, "V"), (1.0, "")])
def test_other_unit_is_refused(tmp_path: Path, like: Any, said: str) -> None:
    path = train.save(tmp_path / "a", {"w": jnp.arange(3.0) * u.mV})
    wanted = f"float64[3]{' in ' + said if said else ''} is wanted"
    with pytest.raises(CheckpointError, match=re.escape(f"`w` is float64[3] in mV in the checkpoint, where {wanted}")):
        train.restore(path, {"w": jnp.ones(3) * like})


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.7, 0.999])
def test_truncated_file_is_refused(tmp_path: Path, share: float) -> None:
    path = train.save(tmp_path / "a", {"w": jnp.arange(200.0)})
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(CheckpointError, match="not a whole checkpoint"):
        train.restore(path)


def test_any_changed_byte_is_noticed(tmp_path: Path) -> None:
    path = train.save(tmp_path / "a", {"w": jnp.arange(4.0)}, note={"x": 1})
    data = path.read_bytes()
    for place in range(len(data)):
        broken = bytearray(data)
        broken[place] ^= 1
        path.write_bytes(broken)
        with pytest.raises(CheckpointError):
            read(path)


def test_other_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text(json.dumps({"w": list(range(100))}))
    with pytest.raises(CheckpointError, match="another file"):
        train.restore(path)


@pytest.mark.parametrize(
    ("like", "said"),
    [
        ({"w": jnp.zeros(4)}, r"`w` is float64\[3\] in the checkpoint, where float64\[4\]"),
        ({"w": jnp.zeros(3, jnp.float32)}, "where float32"),
        ({"v": jnp.zeros(3)}, "lacks `v` and it has `w`"),
        ({"w": jnp.zeros(3), "b": jnp.zeros(1)}, "lacks `b`"),
    ],
)
def test_other_form_is_refused(tmp_path: Path, like: Any, said: str) -> None:
    path = train.save(tmp_path / "a", {"w": jnp.arange(3.0)})
    with pytest.raises(CheckpointError, match=said):
        train.restore(path, like)


def test_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: Any) -> None:
    path = train.save(tmp_path / "a", {"w": jnp.zeros(2)})

    def full(_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"Cannot write .*No space left"):
        train.save(path, {"w": jnp.ones(2)})
    assert [file.name for file in tmp_path.iterdir()] == ["a"]
    assert train.restore(path)["w"].tolist() == [0, 0]


def test_what_is_no_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="arrays of numbers"):
        train.save(tmp_path / "a", {"w": "words"})
    with pytest.raises(ValueError, match="Two arrays have the path `a/b`"):
        train.save(tmp_path / "a", {"a": {"b": 1.0}, "a/b": 2.0})
