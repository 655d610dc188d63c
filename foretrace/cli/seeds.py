"""The same comparison of rules from several seeds: means, and how far they can be trusted.

Each seed has first weights and trials of its own, the same for all rules. A cell of a table is the mean over the seeds
with half the width of its 95 % interval, by Student's t. Files hold every seed, figures the means.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from foretrace._repr import bytes_text
from foretrace.cli.comparison import OVERALL, Agreement, Agreements, Compared, Comparison, When, write_files
from foretrace.compiler.reporting.tables import table


def half_width(values: Sequence[float]) -> float:
    """Half the width of the 95 % interval of a mean, by Student's t; nan for a single value.

    Examples:
        >>> f"{half_width([1.0, 2.0, 3.0]):.3f}"
        '2.484'
    """
    found = np.asarray(values, np.float64)
    if len(found) < 2:
        return math.nan
    return float(stats.t.ppf(0.975, len(found) - 1) * found.std(ddof=1) / len(found) ** 0.5)


class Column(NamedTuple):
    """A column of a table: which plain value it shows, in which form, in which unit."""

    name: str
    form: str = ".4g"
    scale: float = 1.0
    unit: str = ""


@dataclass(frozen=True)
class Seeds:
    """A comparison from several seeds.

    Attributes:
        comparisons: That of each seed, all of the same rules in the same order.
    """

    comparisons: Sequence[Comparison]

    @functools.cached_property
    def mean(self) -> Comparison:
        """A comparison whose figures are means over the seeds."""
        of_rules = zip(*(one.rows for one in self.comparisons), strict=True)
        return dataclasses.replace(self.comparisons[0], rows=[_mean_row(rows) for rows in of_rules])

    @functools.cached_property
    def lines(self) -> list[dict[str, Any]]:
        """Plain values, a line for each rule and seed."""
        return [
            {"seed": one.experiment.training["seed"], **one.plain(row)} for one in self.comparisons for row in one.rows
        ]

    def spread(self) -> dict[str, dict[str, dict[str, float | None]]]:
        """The mean and the interval of each figure, by rule."""
        names = [name for name in self.lines[0] if name not in ("seed", "rule")]
        return {
            label: {
                name: {"mean": _mean(values), "interval": _finite(half_width(values))}
                for name in names
                if (values := self._values(label, name))
            }
            for label in self._labels
        }

    def table(self) -> str:
        """What each rule reached and costs."""
        measures = self.mean.measures
        seconds = _mean(self._values(self._labels[0], "equal_seconds")) if measures else None
        columns = {
            **{name: Column(name) for name in (*measures, "loss")},
            **{f"{name} in {seconds:.3g} s": Column(f"{name} at equal time") for name in measures[:1]},
            "training": Column("training_seconds", ".3g", unit=" s"),
            "gradient": Column("gradient_seconds", ".3g", 1000, " ms"),
            "cosine": Column(f"cosine before {OVERALL}", ".4f"),
        }
        memory = {row.rule.label: bytes_text(row.gradient_bytes) for row in self.mean.rows}
        rows = [[label, *(self._cell(label, one) for one in columns.values()), memory[label]] for label in self._labels]
        return _laid_out(["rule", *columns, "memory"], rows)

    def cosines(self, when: When) -> str:
        """The cosine of each layer's gradient, a line for each rule."""
        parts = [*self.mean.layers, OVERALL]
        columns = [Column(f"cosine {when} {part}", ".4f") for part in parts]
        rows = [[label, *(self._cell(label, one) for one in columns)] for label in self._labels]
        return _laid_out(["rule", *parts], rows)

    @property
    def _labels(self) -> list[str]:
        return [row.rule.label for row in self.comparisons[0].rows]

    def _values(self, label: str, name: str) -> list[float]:
        """A figure of a rule by seed, where it is known."""
        return [line[name] for line in self.lines if line["rule"] == label and line[name] is not None]

    def _cell(self, label: str, column: Column) -> str:
        values = [column.scale * value for value in self._values(label, column.name)]
        if not values:
            return "-"
        width = half_width(values)
        spread = "" if math.isnan(width) else f" ± {width:{column.form if 'f' in column.form else '.2g'}}"
        return f"{np.mean(values):{column.form}}{spread}{column.unit}"


def write_seeds(seeds: Seeds, folder: Path, command: Sequence[str]) -> list[tuple[str, Path]]:
    """Writes tables with every seed, means with their intervals, and figures of the means; returns the files."""
    return write_files(seeds.mean, seeds.lines, {"over_seeds": seeds.spread()}, folder, command)


def _laid_out(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(table(header, rows, [40, *[22] * (len(header) - 1)], width=160))


def _mean_row(rows: Sequence[Compared]) -> Compared:
    after = [row.after for row in rows if row.after is not None]
    return Compared(
        rows[0].rule,
        _mean_record([row.validation for row in rows]),
        [_mean_record(records) for records in zip(*(row.metrics for row in rows), strict=False)],
        _mean([row.training_seconds for row in rows if row.training_seconds is not None]),
        float(np.mean([row.gradient_seconds for row in rows])),
        rows[0].gradient_bytes,
        _mean_agreements([row.before for row in rows]),
        _mean_agreements(after) if after else None,
    )


def _mean_record(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The mean of what all of them have as numbers."""
    shared = [name for name in records[0] if all(record.get(name) is not None for record in records)]
    return {name: float(np.mean([record[name] for record in records])) for name in shared}


def _mean_agreements(found: Sequence[Agreements]) -> Agreements:
    mean = lambda part, name: float(np.mean([getattr(one[part], name) for one in found]))
    return {part: Agreement(mean(part, "cosine"), mean(part, "norm_ratio")) for part in found[0]}


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
