"""The folder of a run: its last few checkpoints, the best weights, and `metrics.jsonl`, one line for each iteration.

Every checkpoint says how many lines of metrics belong to it. A run that goes on from a checkpoint cuts the file to that
many, so that no line is there twice, and none is missing.
"""

import json
import math
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretrace.train.checkpoint import (
    Checkpoint,
    CheckpointError,
    CheckpointWarning,
    encode,
    read,
    said_where,
    write_atomically,
)
from foretrace.train.lock import locked

METRICS, BEST = "metrics.jsonl", "best.safetensors"
_CHECKPOINT = re.compile(r"checkpoint-(\d+)\.safetensors")
_PART = re.compile(r"\..*\.\d+\.part")

Record = dict[str, Any]
"""The metrics of one iteration, by name."""


@dataclass(frozen=True)
class Folder:
    """The files of one run.

    Attributes:
        path: The folder.
        keep: How many checkpoints are kept.
    """

    path: Path
    keep: int = 2

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Makes the folder, keeps others out of it within the block, and clears away what a killed run left half done.

        Raises:
            FolderInUseError: Another run is under way in it.
        """
        with said_where(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        with locked(self.path):
            for file in self.path.iterdir():
                if _PART.fullmatch(file.name):
                    file.unlink(missing_ok=True)
            yield

    @property
    def checkpoints(self) -> list[Path]:
        """The checkpoints, the newest first."""
        if not self.path.is_dir():
            return []
        found = [(int(match[1]), file) for file in self.path.iterdir() if (match := _CHECKPOINT.fullmatch(file.name))]
        return [file for _, file in sorted(found, reverse=True)]

    def save(self, iteration: int, values: Any, note: dict[str, Any]) -> Path:
        """Writes the checkpoint of an iteration, and removes the oldest beyond those to keep."""
        path = self.path / f"checkpoint-{iteration:08d}.safetensors"
        write_atomically(path, encode(values, note))
        for old in self.checkpoints[self.keep :]:
            old.unlink(missing_ok=True)
        return path

    def save_best(self, weights: Any, note: dict[str, Any]) -> None:
        """Writes the file of the best weights."""
        write_atomically(self.path / BEST, encode(weights, note))

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole; None where the folder has none at all.

        Raises:
            CheckpointError: There are checkpoints, and none is whole.
        """
        problems = []
        for path in self.checkpoints:
            try:
                found = read(path)
            except CheckpointError as error:
                problems.append(str(error))
                continue
            if problems:
                said = " ".join(problems)
                warnings.warn(f"{said} The run goes on from `{path.name}` instead.", CheckpointWarning, stacklevel=2)
            return found
        if problems:
            raise CheckpointError(
                f"No checkpoint in `{self.path}` is whole. {' '.join(problems)} Name another folder to begin anew."
            )
        return None

    def cut_metrics(self, count: int) -> list[Record]:
        """Reduces the metrics to the first lines, and returns their records."""
        file, records = self.path / METRICS, []
        lines = file.read_text().splitlines()[:count] if file.exists() else []
        for line in lines:
            try:
                records.append(json.loads(line))
            except ValueError:
                break
        if len(records) < count:
            said = f"`{file}` has {len(records)} of the {count} lines that belong to the checkpoint; the rest is lost."
            warnings.warn(said, CheckpointWarning, stacklevel=2)
        write_atomically(file, "".join(map(_line, records)).encode())
        return records

    def open_metrics(self) -> "MetricsFile":
        """The file of metrics, to be appended to."""
        with said_where(self.path / METRICS):
            return MetricsFile(open(self.path / METRICS, "a", encoding="utf-8"))


@dataclass(frozen=True)
class MetricsFile:
    """A file of JSON lines that is appended to."""

    file: Any

    def append(self, record: Record) -> None:
        """Writes one line, for other programs to see at once."""
        self.file.write(_line(record))
        self.file.flush()

    def sync(self) -> None:
        """Forces all lines to the disk."""
        os.fsync(self.file.fileno())

    def close(self) -> None:
        """Closes the file."""
        self.file.close()


def _line(record: Record) -> str:
    """A record as one line; JSON has no word for a NaN or an infinity."""
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
    return f"{json.dumps(finite)}\n"
