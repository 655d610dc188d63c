"""Checkpoints: the arrays of a pytree and a note about them, in one file that is whole or is not there.

The file is a `safetensors` file: plain arrays behind a header of JSON, which other programs read too and which runs no
code when it is opened. Every array stands in it by its path, and a quantity as its number, with the unit in the header.
The header also carries a SHA-256 of the whole file, taken with zeros in its own place, so that a single wrong bit
anywhere is noticed. A file is written beside its place, forced to the disk, and moved there in one step: a program that
is killed leaves the old file or the new one, never a half.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from foretrace._optional import is_brainstate_module, is_instance
from foretrace._repr import arrays_text, one_line
from foretrace._units import is_quantity, with_unit_of, without_unit

FORMAT, VERSION = "foretrace checkpoint", "1"
_NO_DIGEST = "0" * 64
_DIGEST = re.compile(rb'"sha256":"([0-9a-f]{64})"')
# What numpy and safetensors both know; arrays of other dtypes (bfloat16, complex) are stored as their bytes.
_PLAIN = {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"} | {
    "float16",
    "float32",
    "float64",
}


class CheckpointError(ValueError):
    """A checkpoint is damaged, or does not fit what it is to be restored into."""


class CheckpointWarning(UserWarning):
    """The folder of a run is not as it should be, and the run goes on nevertheless."""


@dataclass(frozen=True)
class Checkpoint:
    """What a file holds.

    Attributes:
        arrays: Every array by the path that it had in the saved pytree, its parts joined by `/`.
        note: What was noted beside them, plain values as of JSON.
        units: The units of arrays that have one, by the same paths.
    """

    arrays: dict[str, Any]
    note: dict[str, Any]
    units: dict[str, str] = field(default_factory=dict)

    @one_line
    def __repr__(self) -> Iterator[str]:
        yield arrays_text(self.arrays)

    def fill(self, like: Any) -> Any:
        """The saved values in the form of a pytree.

        Raises:
            CheckpointError: An array is missing, is left over, or has another shape, dtype or unit.
        """
        leaves, form = _flat(like)
        missing, further = sorted(set(leaves) - set(self.arrays)), sorted(set(self.arrays) - set(leaves))
        if missing or further:
            said = [f"it lacks `{missing[0]}`"] if missing else []
            said += [f"it has `{further[0]}`, which is not wanted"] if further else []
            raise CheckpointError(f"The checkpoint is one of something else: {' and '.join(said)}.")
        for name, leaf in leaves.items():
            want, got = _form(leaf), _form(self.arrays[name]) + _in_unit(self.units.get(name))
            if want != got:
                raise CheckpointError(f"`{name}` is {got} in the checkpoint, where {want} is wanted.")
        return jax.tree.unflatten(form, [with_unit_of(leaf, self.arrays[name]) for name, leaf in leaves.items()])


def save(path: str | os.PathLike[str], values: Any, note: dict[str, Any] | None = None) -> Path:
    """Writes the arrays of a pytree, or the states of a brainstate module, to a file.

    Args:
        path: The file; by custom it ends in `.safetensors`. One that exists is replaced in one step.
        values: A pytree of arrays, random keys and quantities with units included, or a `brainstate.nn.Module`.
        note: Anything that JSON can hold, to be stored beside the arrays.

    Returns:
        The path.

    Raises:
        ImportError: safetensors is not installed.
        OSError: The file cannot be written.

    Examples:
        >>> import jax.numpy as jnp, tempfile
        >>> from foretrace import train
        >>> path = tempfile.mkdtemp() + "/weights.safetensors"
        >>> _ = train.save(path, {"w": jnp.arange(3.0)}, note={"task": "copy"})
        >>> train.restore(path, {"w": jnp.zeros(3)})["w"].tolist()
        [0.0, 1.0, 2.0]
    """
    path = Path(path)
    write_atomically(path, encode(_plain(values), note or {}))
    return path


def restore(path: str | os.PathLike[str], like: Any = None) -> Any:
    """Reads what `save` wrote, after checking that not a bit of it has changed.

    Args:
        path: The file.
        like: A pytree of the form that was saved: the values come back in that form. A brainstate module: its states
            get the values, and it is returned; states that the file lacks, parameters excepted, stay as they are.
            None: a dictionary of arrays by their paths, without units.

    Raises:
        CheckpointError: The file is damaged, or holds something of another form or in other units.
        FileNotFoundError: There is no such file.
    """
    found = read(path)
    if like is None:
        return found.arrays
    if not is_brainstate_module(like):
        return found.fill(like)
    there = lambda path, state: any(name in found.arrays for name in _flat({path: state.value})[0])
    is_weight = lambda state: is_instance(state, "brainstate", "ParamState")
    wanted = {path: state for path, state in like.states().items() if is_weight(state) or there(path, state)}
    values = found.fill({path: state.value for path, state in wanted.items()})
    for path, state in wanted.items():
        state.value = values[path]
    return like


def read(path: str | os.PathLike[str]) -> Checkpoint:
    """Reads a file, after checking that not a bit of it has changed.

    Args:
        path: The file.

    Raises:
        CheckpointError: The file is damaged or is not a checkpoint.
        FileNotFoundError: There is no such file.
    """
    data = Path(path).read_bytes()
    try:
        return decode(data)
    except CheckpointError as error:
        raise CheckpointError(f"`{path}` is not a whole checkpoint: {error}") from None


def encode(values: Any, note: dict[str, Any], units: dict[str, str] | None = None) -> bytes:
    """A pytree and a note as the bytes of a file; `units` are those of arrays that were taken off."""
    leaves = _flat(values)[0]
    stored = {name: _stored(without_unit(leaf)) for name, leaf in leaves.items()}
    kinds = {name: kind for name, (_, kind) in stored.items() if kind is not None}
    units = units or {name: str(leaf.unit) for name, leaf in leaves.items() if is_quantity(leaf)}
    about = {"format": FORMAT, "version": VERSION, "sha256": _NO_DIGEST}
    about |= {"note": json.dumps(note), "kinds": json.dumps(kinds), "units": json.dumps(units)}
    arrays = {name: array for name, (array, _) in stored.items()}
    return _sealed(bytearray(_safetensors().save(arrays, metadata=about)))


def decode(data: bytes) -> Checkpoint:
    """What the bytes of a file hold.

    Raises:
        CheckpointError: They are damaged, or those of something else.
    """
    sound = len(data) > 8 and 8 + int.from_bytes(data[:8], "little") <= len(data)
    end = 8 + int.from_bytes(data[:8], "little")
    found = _DIGEST.search(data, 8, end) if sound else None
    if found is None:
        raise CheckpointError(f"its {len(data)} bytes hold no complete header. It was cut off, or is another file.")
    blank = bytearray(data)
    blank[found.start(1) : found.end(1)] = _NO_DIGEST.encode()
    if hashlib.sha256(blank).hexdigest().encode() != found[1]:
        raise CheckpointError("its checksum does not match what it holds. It was cut off or has changed.")
    package = _safetensors()
    try:
        return _parsed(data, json.loads(data[8:end]), package)
    except CheckpointError:
        raise
    except Exception as error:  # whatever a file made on purpose can make a parser raise
        raise CheckpointError(f"what it holds cannot be read: {type(error).__name__}: {error}") from error


def _parsed(data: bytes, header: Any, package: ModuleType) -> Checkpoint:
    about = _record(_record(header, "header").get("__metadata__"), "header's `__metadata__`")
    version = about.get("version")
    if about.get("format") != FORMAT:
        raise CheckpointError(f"its format is {about.get('format')!r}, and this program reads {FORMAT!r}.")
    if version != VERSION:
        raise CheckpointError(f"it is of version {version!r}, and this program reads {VERSION!r}.")
    note, kinds, units = (
        _record(json.loads(about.get(name, "{}")), f"`{name}`") for name in ("note", "kinds", "units")
    )
    found = package.load(data)
    strange = sorted((set(kinds) | set(units)) - set(found))
    if strange:
        raise CheckpointError(f"it says something about an array `{strange[0]}`, which it does not hold.")
    if not all(isinstance(unit, str) for unit in units.values()):
        raise CheckpointError("its units are no words.")
    return Checkpoint({name: _loaded(array, kinds.get(name)) for name, array in found.items()}, note, units)


def _record(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CheckpointError(f"its {what} is no record by name.")
    return value


def _sealed(data: bytearray) -> bytes:
    """The bytes with their own checksum in its place."""
    found = _DIGEST.search(data, 8, 8 + int.from_bytes(data[:8], "little"))
    assert found is not None
    place = slice(*found.span(1))
    digest = hashlib.sha256(data).hexdigest().encode()
    del found  # it holds on to the buffer
    data[place] = digest
    return bytes(data)


def _stored(leaf: Any) -> tuple[np.ndarray, Any]:
    """A leaf as a plain array, and what is to be known to get it back."""
    if is_key(leaf):
        return np.asarray(jax.random.key_data(leaf)), {"key": str(jax.random.key_impl(leaf))}
    array = np.array(leaf, order="C")
    if array.dtype.name in _PLAIN:
        return array, None
    if array.dtype.hasobject or array.dtype.kind in "USMm":
        raise TypeError(f"A checkpoint holds arrays of numbers; got {type(leaf).__name__} {array.dtype}.")
    as_bytes = np.frombuffer(array.tobytes(), np.uint8)
    return as_bytes, {"dtype": array.dtype.name, "shape": list(array.shape)}


def _loaded(array: np.ndarray, kind: Any) -> Any:
    if kind is None:
        return jnp.asarray(array, array.dtype)
    kind = _record(kind, "kind of an array")
    if "key" in kind:
        return jax.random.wrap_key_data(jnp.asarray(array), impl=kind["key"])
    dtype, shape = np.dtype(kind["dtype"]), kind["shape"]
    if dtype.hasobject or not all(isinstance(size, int) and size >= 0 for size in shape):
        raise CheckpointError(f"it holds an array of dtype {dtype} and shape {shape}, which there is not.")
    return jnp.asarray(np.frombuffer(array.tobytes(), dtype).reshape(shape))


def is_key(leaf: Any) -> bool:
    """Whether a leaf is a random key of JAX."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _form(leaf: Any) -> str:
    if is_quantity(leaf):
        return _form(leaf.mantissa) + _in_unit(str(leaf.unit))
    if is_key(leaf):
        return f"{leaf.dtype}{list(leaf.shape)}"
    return f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}"


def _in_unit(unit: str | None) -> str:
    return "" if unit is None else f" in {unit}"


def _flat(values: Any) -> tuple[dict[str, Any], Any]:
    """The leaves of a pytree by name, quantities among them, and its form."""
    leaves, form = jax.tree_util.tree_flatten_with_path(values, is_leaf=is_quantity)
    found: dict[str, Any] = {}
    for keys, leaf in leaves:
        name = name_of(keys)
        if name in found:
            raise ValueError(f"Two arrays have the path `{name}`; a `/` in a key makes paths meet. Rename one.")
        found[name] = leaf
    return found, form


def name_of(keys: Any) -> str:
    """The path of a leaf in words, its parts joined by `/`."""
    return "/".join(map(_key_name, keys)) or "value"


def _key_name(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        part = getattr(key, attribute, None)
        if part is not None:
            return ".".join(map(str, part)) if isinstance(part, tuple) else str(part)
    return str(key)


def _plain(values: Any) -> Any:
    if not is_brainstate_module(values):
        return values
    return {path: state.value for path, state in values.states().items()}


def write_atomically(path: Path, data: bytes) -> None:
    """Puts a file in its place in one step, on the disk when this returns."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    with said_where(path):
        try:
            beside.unlink(missing_ok=True)
            with open(beside, "xb") as file:  # a new file: what is there may be a link to another one
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Forces the names in a folder to the disk, where the system can do that."""
    if os.name != "posix":
        return
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


@contextmanager
def said_where(path: Path) -> Iterator[None]:
    """Within the block, an error of the system says which file could not be written."""
    try:
        yield
    except OSError as error:
        raise type(error)(
            error.errno, f"Cannot write `{path}` ({error.strerror}). Name a folder that can be written"
        ) from error


def _safetensors() -> ModuleType:
    try:
        import safetensors.numpy
    except ImportError as error:
        raise ImportError("Checkpoints need safetensors: pip install 'foretrace[train]'") from error
    return safetensors.numpy
