"""Lines of text as items of a stream: JSON or CSV, with the target among the fields or missing.

A line is a record of named fields, each a number or a list of numbers. The fields of the target are `y`, or those that
`--target` names; all others are the input, in the order of the first line, or those that `--columns` names. A target
that is missing, null or empty makes a line that is predicted and not learned from.
"""

import csv
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

SHOWN = 60
"""Characters of a bad line that are shown."""


class LineError(ValueError):
    """A line that is no item."""


@dataclass
class Lines:
    """Reads lines, one after another.

    Attributes:
        form: `'jsonl'` or `'csv'`.
        target: The fields of the target.
        columns: The fields of the input; None for all others of the first line.
        header: The names of the columns of CSV; None before the first line.
        sizes: How many numbers input and target have; None where that is not known yet.
    """

    form: str
    target: tuple[str, ...] = ("y",)
    columns: tuple[str, ...] | None = None
    header: tuple[str, ...] | None = None
    sizes: list[int | None] = field(default_factory=lambda: [None, None])

    def begin(self) -> None:
        """Forgets the header: another source of lines has one of its own."""
        self.header = None

    def item(self, line: bytes) -> tuple[np.ndarray, np.ndarray | None] | None:
        """The item of a line; None for an empty line, and for a header.

        Raises:
            LineError: It is none.
        """
        try:
            text = line.decode().strip()
        except UnicodeDecodeError as error:
            raise LineError(f"no text in UTF-8 ({error.reason})") from None
        if not text:
            return None
        record = self._json(text) if self.form == "jsonl" else self._csv(text)
        if record is None:
            return None
        self._learn_columns(record)
        x = self._numbers(record, self.columns or (), 0)
        if x is None:
            missing = next(name for name in self.columns or () if record.get(name) in (None, ""))
            raise LineError(f"no value for `{missing}`")
        return x, self._numbers(record, self.target, 1)

    def _json(self, text: str) -> dict[str, Any]:
        try:
            record = json.loads(text)
        except (ValueError, RecursionError):
            raise LineError(f"not JSON: {shown(text)}") from None
        if not isinstance(record, dict):
            raise LineError(f'a {type(record).__name__}, where an object such as {{"x": [1, 2], "y": 3}} is wanted')
        return record

    def _csv(self, text: str) -> dict[str, Any] | None:
        cells = [cell.strip() for cell in next(csv.reader([text]))]
        if self.header is None:
            self.header = tuple(cells)
            twice = [name for name in cells if cells.count(name) > 1]
            if twice or not all(cells) or all(map(_is_number, cells)):
                self.header = None
                raise LineError(f"no header: the first line of CSV names its columns, each once; got {shown(text)}")
            return None
        if len(cells) != len(self.header):
            raise LineError(f"{len(cells)} cells, where the header has {len(self.header)}")
        return dict(zip(self.header, cells, strict=True))

    def _learn_columns(self, record: dict[str, Any]) -> None:
        if self.columns is not None:
            return
        found = tuple(name for name in record if name not in self.target)
        if not found:
            raise LineError(f"no field beside the target ({', '.join(self.target)})")
        self.columns = found

    def _numbers(self, record: dict[str, Any], names: Sequence[str], part: int) -> np.ndarray | None:
        """The numbers of some fields; None where one of them is missing."""
        found: list[float] = []
        for name in names:
            value = record.get(name)
            if value is None or value == "":
                return None
            found += _flat(name, value)
        if self.sizes[part] is None:
            self.sizes[part] = len(found)
        if len(found) != self.sizes[part]:
            what = ("input", "target")[part]
            raise LineError(f"{len(found)} numbers of the {what}, where the first line has {self.sizes[part]}")
        return np.array(found)


def _flat(name: str, value: Any) -> list[float]:
    if isinstance(value, list):
        return [number for part in value for number in _flat(name, part)]
    try:
        number = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        raise LineError(f"`{name}` is {shown(str(value))}, where a number is wanted") from None
    if not math.isfinite(number):
        raise LineError(f"`{name}` is {shown(str(value))}, where a finite number is wanted")
    return [number]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def shown(text: str) -> str:
    """The beginning of a text, in quotes."""
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}...")
