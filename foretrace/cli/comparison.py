"""Rules beside each other: what each reached, what its gradient costs, and how close it is to that of BPTT.

Gradients are compared on one batch of trials that nothing was trained on: with the first weights, which all rules
share, and with the weights that each has learned. Every gradient is compiled once; that of BPTT serves all rules.
"""

import csv
import functools
import io
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

import jax
import numpy as np

from foretrace._repr import bytes_text
from foretrace.cli.experiment import Experiment
from foretrace.cli.measure import compiled_gradient, seconds_in_turn, working_memory
from foretrace.cli.rules import BPTT, RuleChoice
from foretrace.compiler.reporting.tables import table
from foretrace.train.checkpoint import write_atomically
from foretrace.train.folder import write_json
from foretrace.train.losses import Beside, StepLoss, take_readout, take_spikes
from foretrace.train.result import validation_of

When = Literal["before", "after"]
Params = Mapping[str, Any]
REPEATS = 3
PROBE = 1_000_003
"""Folded into the seed: the batch that gradients are compared on is none of the training's."""
MEASURES = ("error", "accuracy", "nmse", "mse")
OVERALL = "overall"


@dataclass(frozen=True)
class Agreement:
    """A gradient beside that of BPTT.

    Attributes:
        cosine: The cosine of the angle between them; nan where one of them is zero.
        norm_ratio: Its norm over that of BPTT; nan where the latter is zero.
    """

    cosine: float
    norm_ratio: float


Agreements = dict[str, Agreement]
"""By layer, by parameter, and overall."""


@dataclass(frozen=True)
class Compared:
    """One rule.

    Attributes:
        rule: The rule.
        validation: The metrics of its last validation.
        metrics: The records of its training.
        training_seconds: How long its training took, compilation and validation included; None where there was none.
        gradient_seconds: How long the gradient of one batch takes.
        gradient_bytes: The memory of that, beside the trials themselves; None where it is not known.
        before: Its gradient beside that of BPTT, with the first weights.
        after: The same with the weights that it learned; None where nothing was learned.
    """

    rule: RuleChoice
    validation: dict[str, float]
    metrics: list[dict[str, Any]]
    training_seconds: float | None
    gradient_seconds: float
    gradient_bytes: int | None
    before: Agreements
    after: Agreements | None

    @functools.cached_property
    def update_seconds(self) -> float | None:
        """How long an iteration takes, without the first, which is compiled, and those that are validated too."""
        later = self.metrics[1:] or self.metrics
        plain = [record for record in later if not validation_of(record)] or later
        spent = [record["seconds"] for record in plain if record.get("seconds") is not None]
        return median(spent) if spent else None

    @property
    def steady_seconds(self) -> float | None:
        """How long its iterations took, compilation and validations aside; None where nothing was trained."""
        return None if self.update_seconds is None else len(self.metrics) * self.update_seconds

    def validation_after(self, seconds: float) -> dict[str, float]:
        """The metrics of its last validation within some seconds of iterations; none where it came to none."""
        each = self.update_seconds or math.inf
        within = [record for place, record in enumerate(self.metrics) if (place + 1) * each <= seconds * (1 + 1e-9)]
        found = (validation_of(record) for record in reversed(within))
        return next((dict(metrics) for metrics in found if metrics), {})


@dataclass
class Comparison:
    """Some rules on one network and one task.

    Attributes:
        experiment: The network and the task.
        rows: The rules so far.
    """

    experiment: Experiment
    rows: list[Compared] = field(default_factory=list)

    def add(self, rule: RuleChoice, result: Any) -> None:
        """Measures a rule.

        Args:
            rule: The rule.
            result: What its training gave; None where nothing was trained.
        """
        whole = rule.name == BPTT and not rule.options  # and not truncated
        compiled = self._exact if whole else self._compile(rule)
        first, probe = self.experiment.network.params, self._probe
        (spent,) = seconds_in_turn([lambda: compiled(first, *probe)], REPEATS)
        compare = lambda params: self._agreements(compiled(params, *probe)[0], self._exact(params, *probe)[0])
        self.rows.append(
            Compared(
                rule,
                {} if result is None else dict(result.validation or {}),
                [] if result is None else result.metrics,
                None if result is None else result.seconds,
                spent,
                working_memory(compiled),
                compare(first),
                None if result is None else compare(result.params),
            )
        )

    @functools.cached_property
    def _probe(self) -> tuple[Any, Beside]:
        key = jax.random.fold_in(jax.random.key(self.experiment.training["seed"]), PROBE)
        trial = self.experiment.task.sample(key, self.experiment.batch_size)
        return trial.inputs, Beside(trial.targets, trial.mask, None)

    @functools.cached_property
    def _exact(self) -> Any:
        return self._compile(RuleChoice(BPTT))

    def _compile(self, rule: RuleChoice, probe: Any = None) -> Any:
        loss = StepLoss(self.experiment.task, take_readout, take_spikes)
        start, (inputs, beside) = self.experiment.begin(), probe or self._probe
        return compiled_gradient(self.experiment.learner(rule), **start, loss=loss, inputs=inputs, beside=beside)

    def memory_at(self, rule: RuleChoice, steps: int) -> int | None:
        """Bytes of a gradient of trials of another length, beside the trials; nothing is run."""
        longer = lambda leaf: jax.ShapeDtypeStruct((steps, *leaf.shape[1:]), leaf.dtype)
        return working_memory(self._compile(rule, jax.tree.map(longer, self._probe)))

    def _agreements(self, online: Params, exact: Params) -> Agreements:
        layers = {layer: [name for name, own in self._layer_of.items() if own == layer] for layer in self.layers}
        parts = {**layers, **{name: [name] for name in online}, OVERALL: list(online)}
        return {part: agreement(online, exact, names) for part, names in parts.items()}

    @property
    def measures(self) -> list[str]:
        """The measures of success that the task has."""
        return [name for name in MEASURES if any(name in row.validation for row in self.rows)]

    @property
    def equal_seconds(self) -> float | None:
        """The time in which the fastest rule has done its iterations; None where nothing was trained."""
        return min((spent for row in self.rows if (spent := row.steady_seconds) is not None), default=None)

    def at_equal_time(self, row: Compared) -> dict[str, float]:
        """What a rule had reached by then."""
        return {} if self.equal_seconds is None else row.validation_after(self.equal_seconds)

    @property
    def layers(self) -> list[str]:
        """The layers of the network, in order."""
        return sorted(set(self._layer_of.values()), key=lambda name: (name == "readout", name != "input", name))

    @functools.cached_property
    def _layer_of(self) -> dict[str, str]:
        network = self.experiment.network
        return {name: layer_of(name, network.settings.get("layers", 1)) for name in network.params}

    def cosine(self, row: Compared, when: When, part: str) -> float | None:
        """The cosine of a gradient to that of BPTT; None where nothing was compared, or one of them is zero."""
        found: Agreements = getattr(row, when) or {}
        return _finite(found[part].cosine) if part in found else None

    def table(self) -> str:
        """What each rule reached and costs."""
        timed = self.measures[:1]
        header = ["rule", *self.measures, "loss", *(f"{name} in {self.equal_seconds:.3g} s" for name in timed)]
        header += ["training", "gradient", "memory", "cosine"]
        rows = [
            [
                row.rule.label,
                *(_number(row.validation.get(name)) for name in (*self.measures, "loss")),
                *(_number(self.at_equal_time(row).get(name)) for name in timed),
                "-" if row.training_seconds is None else f"{row.training_seconds:.1f} s",
                f"{1000 * row.gradient_seconds:.3g} ms",
                bytes_text(row.gradient_bytes),
                _number(self.cosine(row, "before", OVERALL), ".4f"),
            ]
            for row in self.rows
        ]
        return _table(header, rows)

    def cosines(self, when: When) -> str:
        """The cosine of each layer's gradient, a line for each rule."""
        parts = [*self.layers, OVERALL]
        cells = [[_number(self.cosine(row, when, part), ".4f") for part in parts] for row in self.rows]
        return _table(["rule", *parts], [[row.rule.label, *own] for row, own in zip(self.rows, cells, strict=True)])

    def plain(self, row: Compared) -> dict[str, Any]:
        """One rule as plain values, one for each column of a file."""
        return {
            "rule": row.rule.label,
            **{name: row.validation.get(name) for name in (*self.measures, "loss")},
            **{f"{name} at equal time": self.at_equal_time(row).get(name) for name in (*self.measures, "loss")},
            "equal_seconds": self.equal_seconds,
            "update_seconds": row.update_seconds,
            "training_seconds": row.training_seconds,
            "gradient_seconds": row.gradient_seconds,
            "gradient_bytes": row.gradient_bytes,
            **{f"cosine before {part}": self.cosine(row, "before", part) for part in (*self.layers, OVERALL)},
            **{f"cosine after {part}": self.cosine(row, "after", part) for part in (*self.layers, OVERALL)},
        }


def agreement(online: Params, exact: Params, names: Sequence[str]) -> Agreement:
    """How the gradients of some parameters, taken together, agree."""
    mine, other = (np.concatenate([np.ravel(np.asarray(g[n], np.float64)) for n in names]) for g in (online, exact))
    norm, exact_norm = float(np.linalg.norm(mine)), float(np.linalg.norm(other))
    cosine = float((mine / norm) @ (other / exact_norm)) if norm and exact_norm else math.nan
    return Agreement(cosine, norm / exact_norm if exact_norm else math.nan)


def layer_of(parameter: str, layers: int) -> str:
    """The layer that a parameter of `foretrace.train.network` belongs to.

    Examples:
        >>> [layer_of(name, 3) for name in ("w_in_2", "w_out", "w_in")], layer_of("w_rec", 1)
        (['layer 2', 'readout', 'input'], 'layer 1')
    """
    numbered = re.search(r"_(\d+)$", parameter)
    if numbered:
        return f"layer {numbered[1]}"
    if parameter.endswith("_out"):
        return "readout"
    return "layer 1" if layers == 1 else "input"


def write_comparison(comparison: Comparison, folder: Path, command: Sequence[str]) -> list[tuple[str, Path]]:
    """Writes tables and figures; returns the files, each by what it is."""
    return write_files(comparison, [comparison.plain(row) for row in comparison.rows], {}, folder, command)


def write_files(
    comparison: Comparison, rows: Sequence[Mapping[str, Any]], further: Any, folder: Path, command: Sequence[str]
) -> list[tuple[str, Path]]:
    """Writes lines of plain values, what a comparison found beside them, and its figures.

    Args:
        comparison: The comparison.
        rows: The lines of the table.
        further: More for the file that has everything.
        folder: Where to.
        command: The words of the command.
    """
    from foretrace.cli.pictures import draw_comparison

    folder.mkdir(parents=True, exist_ok=True)
    gradients = {
        row.rule.label: {"before": _plain(row.before), "after": None if row.after is None else _plain(row.after)}
        for row in comparison.rows
    }
    said = shlex.join(["foretrace", *command])
    facts = {"command": said, **comparison.experiment.words, **further, "rules": rows, "gradients": gradients}
    as_json, as_csv = folder / "comparison.json", folder / "comparison.csv"
    write_json(as_json, facts)
    write_lines(rows, as_csv)
    files = [("table", as_csv), ("everything", as_json)]
    return [*files, *(("figure", path) for path in draw_comparison(comparison, folder / "comparison"))]


def write_rows(comparison: Comparison, path: Path) -> None:
    """Writes a line for each rule as comma-separated values."""
    write_lines([comparison.plain(row) for row in comparison.rows], path)


def write_lines(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Writes lines of plain values as comma-separated ones."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue().encode())


def _plain(found: Agreements) -> dict[str, Any]:
    return {part: {"cosine": _finite(one.cosine), "norm_ratio": _finite(one.norm_ratio)} for part, one in found.items()}


def _finite(value: float) -> float | None:
    """JSON has no word for a NaN."""
    return float(value) if math.isfinite(value) else None


def _number(value: float | None, form: str = ".4g") -> str:
    return "-" if value is None else format(value, form)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(table(header, rows, [40, *[12] * (len(header) - 1)]))
