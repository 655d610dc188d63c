"""The folder of a run: its last few checkpoints, the best weights, and `metrics.jsonl`, one line for each iteration.

A run that goes on from a checkpoint cuts the lines of later iterations off, so that none is there twice. Whatever is
damaged, a line or a checkpoint, is set aside under another name and told of; nothing that is whole is lost by it.
"""

import bisect
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
from foretrace.train.note import note_of

METRICS, BEST, OUTCOME = "metrics.jsonl", "best.safetensors", "result.json"
DAMAGED = ".damaged"  # behind the name of what is set aside
_CHECKPOINT = re.compile(r"checkpoint-(\d+)\.safetensors")
_PART = re.compile(r"\..*\.\d+\.part(\.\w+)?")

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
        found = [(_number(file), file) for file in self.path.iterdir() if _CHECKPOINT.fullmatch(file.name)]
        return [file for _, file in sorted(found, reverse=True)]

    def refuse_remains(self) -> None:
        """Raises `FileExistsError` where files of a run are left without a checkpoint: a new run would replace them."""
        files = [self.path / name for name in (METRICS, BEST, OUTCOME)]
        left = [file.name for file in files if file.is_symlink() or (file.exists() and file.stat().st_size)]
        if left and not self.checkpoints:
            raise FileExistsError(
                f"`{self.path}` has {' and '.join(left)} of a run, but no checkpoint to go on from. "
                "A new run would replace what is there: move it away, or name another folder."
            )

    def save(self, iteration: int, values: Any, note: dict[str, Any]) -> Path:
        """Writes the checkpoint of an iteration, and removes the oldest beyond those to keep."""
        path = self.path / f"checkpoint-{iteration:08d}.safetensors"
        write_atomically(path, encode(values, note))
        until_now = [file for file in self.checkpoints if _number(file) <= iteration]
        for old in until_now[self.keep :]:
            old.unlink(missing_ok=True)
        return path

    def set_aside_after(self, iteration: int) -> None:
        """Renames the checkpoints of later iterations, which were passed over: they are not whole."""
        for file in self.checkpoints:
            if _number(file) > iteration:
                with said_where(file):
                    os.replace(file, file.with_name(file.name + DAMAGED))

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
                found = _read_checkpoint(path)
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
        """Reduces the metrics to the lines of the first iterations, and returns their records."""
        file = self.path / METRICS
        lines = file.read_bytes().split(b"\n") if file.exists() else []
        read = [_parse(line) for line in lines]
        order = _in_order(read)
        kept = [place for place in order if _iteration(read[place]) <= count]
        in_kept = set(kept)
        until = order[len(kept)] if len(kept) < len(order) else len(lines)
        strange = [place for place in range(until) if place not in in_kept and lines[place].strip()]
        damaged = strange[: count - len(kept)]  # what follows is newer than the checkpoint, or half a line
        if damaged:
            self._set_lines_aside(file, {place + 1: lines[place] for place in damaged})
        if len(kept) + len(damaged) < count:
            said = f"`{file}` has {len(kept)} of the {count} lines that belong to the checkpoint; the rest is lost."
            warnings.warn(said, CheckpointWarning, stacklevel=2)
        records = [record for place in kept if (record := read[place]) is not None]
        write_atomically(file, "".join(map(_line, records)).encode())
        return records

    def _set_lines_aside(self, file: Path, lines: dict[int, bytes]) -> None:
        aside = file.with_name(file.name + DAMAGED)
        before = aside.read_bytes() if aside.is_file() and not aside.is_symlink() else b""
        write_atomically(aside, before + b"".join(line + b"\n" for line in lines.values()))
        which = f"{'line' if len(lines) == 1 else 'lines'} {', '.join(map(str, lines))}"
        said = f"`{file}` is damaged in {which}: put into `{aside.name}`, and the run goes on without."
        warnings.warn(said, CheckpointWarning, stacklevel=3)

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


def finite(value: Any) -> Any:
    """A plain value for JSON, which has no word for a NaN or an infinity: they become None."""
    if isinstance(value, dict):
        return {name: finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, value: Any) -> None:
    """Writes a plain value to a file of JSON, in the place of whatever is there."""
    write_atomically(path, (json.dumps(finite(value), indent=2, allow_nan=False) + "\n").encode())


def _line(record: Record) -> str:
    return f"{json.dumps(finite(record))}\n"


def _number(file: Path) -> int:
    """The iteration that the name of a checkpoint says."""
    match = _CHECKPOINT.fullmatch(file.name)
    return -1 if match is None else int(match[1])


def _read_checkpoint(path: Path) -> Checkpoint:
    """Reads the checkpoint of a run.

    Raises:
        CheckpointError: It is damaged, or is none of a run, or of another iteration than its name says.
    """
    found = read(path)
    try:
        lines = note_of(found).lines
    except CheckpointError as error:
        raise CheckpointError(f"`{path}` is no checkpoint of a run: {error}") from None
    if lines != _number(path):
        raise CheckpointError(f"`{path}` is one of iteration {lines}, which its name does not say.")
    return found


def _parse(line: bytes) -> Record | None:
    """The record of a line; None where it is damaged."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    iteration = record.get("iteration") if isinstance(record, dict) else None
    good = isinstance(iteration, int) and not isinstance(iteration, bool) and iteration > 0
    return (
        record if good and all(value is None or isinstance(value, int | float) for value in record.values()) else None
    )


def _iteration(record: Record | None) -> int:
    return 0 if record is None else int(record["iteration"])


def _in_order(records: list[Record | None]) -> list[int]:
    """The places of the most records whose iterations are in order: a wrong number then costs its own line alone."""
    lowest: list[int] = []  # the lowest iteration that so many records in order can end with
    ends: list[int] = []  # and the place of that record
    before: dict[int, int | None] = {}
    for place, record in enumerate(records):
        if record is None:
            continue
        length = bisect.bisect_left(lowest, _iteration(record))
        before[place] = ends[length - 1] if length else None
        lowest[length : length + 1], ends[length : length + 1] = [_iteration(record)], [place]
    found, at = list[int](), ends[-1] if ends else None
    while at is not None:
        found.append(at)
        at = before[at]
    return found[::-1]
