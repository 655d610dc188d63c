"""Whatever a file holds, behind a checksum that is right: it is read, or it is refused by a `CheckpointError`."""

import hashlib
import json
import random
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from foretrace import train
from foretrace.train.checkpoint import CheckpointError, CheckpointWarning, encode, read
from train.small_task import fit

Header = dict[str, Any]
BLANK = "0" * 64
DIGEST = re.compile(r'"sha256":"[0-9a-f]{64}"')
VALUES = {"w": jnp.arange(6.0).reshape(2, 3), "b": jnp.ones(2, jnp.bfloat16), "key": jax.random.key(0)}


def forged(header: Any, body: bytes) -> bytes:
    """A file with the given header, sealed with a checksum that is right; one is put in where there is none."""
    text = header if isinstance(header, str) else json.dumps(header)
    text = text.replace('"sha256": "', '"sha256":"')
    if DIGEST.search(text) is None:
        text += f'"sha256":"{BLANK}"'
    text = DIGEST.sub(f'"sha256":"{BLANK}"', text, count=1)
    data = len(text.encode()).to_bytes(8, "little") + text.encode() + body
    return data.replace(BLANK.encode(), hashlib.sha256(data).hexdigest().encode(), 1)


def parts(data: bytes) -> tuple[Header, bytes]:
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


def in_metadata(**changes: Any) -> Callable[[Header], Any]:
    return lambda header: header | {"__metadata__": header["__metadata__"] | changes}


def without(name: str) -> Callable[[Header], Any]:
    return lambda header: header | {"__metadata__": {k: v for k, v in header["__metadata__"].items() if k != name}}


def of_array(name: str, **changes: Any) -> Callable[[Header], Any]:
    return lambda header: header | {name: header[name] | changes}


def kinds(**changes: Any) -> Callable[[Header], Any]:
    return lambda header: in_metadata(kinds=json.dumps(json.loads(header["__metadata__"]["kinds"]) | changes))(header)


FORGED: dict[str, Callable[[Header], Any]] = {
    "header is no JSON": lambda header: "{" + json.dumps(header),
    "header is a list": lambda header: [header],
    "header is a number and more": lambda header: "7",
    "header is deep": lambda header: "[" * 100_000,
    "no metadata": lambda header: {k: v for k, v in header.items() if k != "__metadata__"},
    "metadata is a list": lambda header: header | {"__metadata__": ["sha256"]},
    "metadata is null": lambda header: header | {"__metadata__": None},
    "no version": without("version"),
    "another version": in_metadata(version="2"),
    "version is a number": in_metadata(version=1),
    "another format": in_metadata(format="weights"),
    "note is no JSON": in_metadata(note="{"),
    "note is a list": in_metadata(note="[]"),
    "note is null": in_metadata(note="null"),
    "note is a number": in_metadata(note=3),
    "note is deep": in_metadata(note="[" * 100_000),
    "kinds is no JSON": in_metadata(kinds="?"),
    "kinds is a list": in_metadata(kinds="[1]"),
    "kinds is a record": in_metadata(kinds={}),
    "no kinds": without("kinds"),
    "units is a list": in_metadata(units="[]"),
    "units are numbers": in_metadata(units='{"w": 3}'),
    "units of nothing": in_metadata(units='{"v": "mV"}'),
    "kind of nothing": kinds(v={"dtype": "bfloat16", "shape": [2]}),
    "kind is a word": kinds(b="bfloat16"),
    "kind is empty": kinds(b={}),
    "no such dtype": kinds(b={"dtype": "float7", "shape": [2]}),
    "dtype of objects": kinds(b={"dtype": "object", "shape": [2]}),
    "dtype is a number": kinds(b={"dtype": 4, "shape": [2]}),
    "dtype of words": kinds(b={"dtype": "<U1", "shape": [1]}),
    "dtype of times": kinds(b={"dtype": "<M8[s]", "shape": [0]}),
    "shape is too large": kinds(b={"dtype": "bfloat16", "shape": [3]}),
    "shape is huge": kinds(b={"dtype": "bfloat16", "shape": [10**12, 10**12]}),
    "shape is negative": kinds(b={"dtype": "bfloat16", "shape": [-1]}),
    "shape is a number": kinds(b={"dtype": "bfloat16", "shape": 2}),
    "shape of words": kinds(b={"dtype": "bfloat16", "shape": ["2"]}),
    "size does not fit": kinds(b={"dtype": "complex128", "shape": [1]}),
    "no such key": kinds(key={"key": "nothing"}),
    "key is a number": kinds(key={"key": 3}),
    "key of another size": kinds(key={"key": "rbg"}),
    "key of numbers": kinds(w={"key": "threefry2x32"}),
    "array of no dtype": of_array("w", dtype="F7"),
    "array of another dtype": of_array("w", dtype="BF16"),
    "array of another size": of_array("w", shape=[7]),
    "array of a negative size": of_array("w", shape=[-1]),
    "array beyond the file": of_array("w", data_offsets=[0, 10**9]),
    "array is a word": lambda header: header | {"w": "array"},
    "array without a place": lambda header: header | {"w": {"dtype": "F64", "shape": [2, 3]}},
    "array without bytes": lambda header: header | {"v": {"dtype": "F64", "shape": [2], "data_offsets": [0, 16]}},
}


@pytest.fixture(scope="module")
def sound() -> tuple[Header, bytes]:
    return parts(encode(VALUES, {"n": 1}))


def test_forged_file_that_changes_nothing_is_read(sound: Any, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(forged(*sound))
    assert read(tmp_path / "a").note == {"n": 1}


@pytest.mark.parametrize("what", FORGED)
def test_forged_file_is_refused(sound: Any, tmp_path: Path, what: str) -> None:
    path = tmp_path / "a"
    path.write_bytes(forged(FORGED[what](sound[0]), sound[1]))
    with pytest.raises(CheckpointError):
        train.restore(path, VALUES)


def test_random_changes_of_a_header_are_read_or_refused(sound: Any, tmp_path: Path) -> None:
    chance, path, refused = random.Random(0), tmp_path / "a", 0
    text, words = json.dumps(sound[0]), ['"', "{", "}", "[", "]", "-1", "null", "9" * 30, "\\", "NaN", "é", ":", ""]
    for _ in range(400):
        at = chance.randrange(len(text))
        changed = text[:at] + chance.choice(words) + text[at + chance.randint(0, 3) :]
        path.write_bytes(forged(changed, sound[1]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of JAX, on a dtype that it does not have
            try:
                train.restore(path, VALUES)
            except CheckpointError:
                refused += 1
    assert refused > 200


@pytest.fixture(scope="module")
def run(tmp_path_factory: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays and the note of a checkpoint of a run, after two iterations."""
    folder = tmp_path_factory.mktemp("run")
    fit(iterations=2, folder=folder, validate_every=1)
    found = read(folder / "checkpoint-00000002.safetensors")
    return found.arrays, found.note


def note(**changes: Any) -> Callable[..., Any]:
    return lambda arrays, said: (arrays, said | changes)


def best(**changes: Any) -> Callable[..., Any]:
    return lambda arrays, said: (arrays, said | {"best": said["best"] | changes})


def arrays(**changes: Any) -> Callable[..., Any]:
    return lambda held, said: ({**held, **{name.replace("__", "/"): value for name, value in changes.items()}}, said)


STRANGE: dict[str, Callable[..., Any]] = {
    "no note": lambda arrays, said: (arrays, {}),
    "settings are a list": note(settings=[]),
    "settings are empty": note(settings={}),
    "settings are of other types": lambda arrays, said: (
        arrays,
        said | {"settings": {name: [] for name in said["settings"]}},
    ),
    "lines are a word": note(lines="2"),
    "lines are negative": note(lines=-2),
    "lines are half": note(lines=1.5),
    "lines are true": note(lines=True),
    "lines are many": note(lines=10**18),
    "waited is a word": note(waited="0"),
    "waited is negative": note(waited=-1),
    "best is a list": note(best=[1]),
    "best is empty": note(best={}),
    "best is missing": note(best=None),
    "best has no loss": best(metrics={}),
    "best has words": best(metrics={"loss": "low"}),
    "best is not finite": best(metrics={"loss": float("nan")}),
    "best measures words": best(metrics={"loss": 1.0, "error": ["low"]}),
    "best is yet to come": best(iteration=3),
    "best is negative": best(iteration=-1),
    "first is a list": note(first=[]),
    "first has words": note(first={"loss": "low", "gradient_norm": 1.0, "change": 1.0}),
    "first is half": note(first={"loss": 1.0}),
    "iteration is negative": arrays(iteration=jnp.asarray(-2, jnp.int32)),
    "iteration is huge": arrays(iteration=jnp.asarray(2**31 - 1, jnp.int32)),
    "iteration is another one": arrays(iteration=jnp.asarray(1, jnp.int32)),
    "iteration is a vector": arrays(iteration=jnp.zeros(2, jnp.int32)),
    "iteration is real": arrays(iteration=jnp.asarray(2.0)),
    "key is no key": arrays(key=jnp.zeros(2, jnp.uint32)),
    "key is another": arrays(key=jax.random.key(0, impl="rbg")),
    "keys are two": arrays(key=jax.random.split(jax.random.key(0))),
    "weights of another shape": arrays(params__w_in=jnp.zeros((3, 3))),
    "weights of another dtype": arrays(params__w_in=jnp.zeros((2, 5), jnp.float32)),
    "weights are one number": arrays(params__w_in=jnp.zeros(())),
    "weights too many": arrays(params__w_more=jnp.zeros(1)),
    "weights missing": lambda arrays, said: ({k: v for k, v in arrays.items() if k != "params/w_in"}, said),
    "nothing at all": lambda arrays, said: ({}, said),
}


@pytest.mark.parametrize("what", STRANGE)
def test_strange_checkpoint_of_a_run_is_refused(run: Any, tmp_path: Path, what: str) -> None:
    held, said = STRANGE[what](*run)
    path = tmp_path / "checkpoint-00000002.safetensors"
    path.write_bytes(encode(held, said))
    (tmp_path / "metrics.jsonl").write_text('{"iteration": 1}\n{"iteration": 2}\n')
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)
        with pytest.raises(CheckpointError):
            fit(iterations=3, folder=tmp_path, resume=True, validate_every=1)
    assert path.exists()
