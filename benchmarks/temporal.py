"""Tasks whose answer lies in the past, and the networks that learn them: what `gradients.py` and `credit.py` measure.

A case is a task and a cell. Several seeds of it run side by side, by `vmap`, so that one compilation serves them all.
`Lorenz` is a task of its own here: the next state of a chaotic system.
"""

import argparse
import dataclasses
import functools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import tables
from foretrace import tasks, train
from foretrace.cli.seeds import half_width
from foretrace.learners.blocks import trace_bytes
from foretrace.tasks import scores
from foretrace.tasks.task import Generated, Trial, even_mask

GUIDE = tables.ROOT / "docs" / "choosing.md"
SPIKING = ("LIF", "ALIF")
FIRST_BIAS = (
    "The bias before the LRU's first normalisation begins at random (standard deviation 0.1) and not at zero: where "
    "inputs are silent, the derivative of a normalisation of zeros would outweigh every other gradient."
)


@dataclass(frozen=True, kw_only=True)
class Lorenz(Generated):
    """The state of the Lorenz system some steps ahead, from its state now.

    Attributes:
        n_steps: Steps of a trial.
        ahead: How many steps ahead the answer lies.
        interval: Time of the system in a step.
        n_test: Held-out trials.
    """

    name: ClassVar[str] = "lorenz"
    kind: ClassVar[Any] = "regression"
    timed: ClassVar[bool] = False

    n_steps: int = 100
    ahead: int = 5
    interval: float = 0.02
    n_inputs: ClassVar[int] = 3
    n_outputs: ClassVar[int] = 3

    def trial(self, key: jax.Array) -> Trial:
        burnt = 100  # onto the attractor
        start = jnp.array([0.0, 0.0, 25.0]) + 8.0 * jax.random.normal(key, (3,), jnp.float32)
        path = jax.lax.scan(self._step, start, None, burnt + self.n_steps + self.ahead)[1][burnt:]
        path = (path - jnp.array([0.0, 0.0, 23.5])) / 8.0
        return Trial(path[: self.n_steps], path[self.ahead :], even_mask(jnp.ones(self.n_steps)))

    def _step(self, at: jax.Array, _: Any) -> tuple[jax.Array, jax.Array]:
        """One step by the classical method of Runge and Kutta."""

        def slope(at: jax.Array) -> jax.Array:
            x, y, z = at
            return jnp.stack([10.0 * (y - x), x * (28.0 - z) - y, x * y - 8.0 / 3.0 * z])

        h = self.interval
        one = slope(at)
        two = slope(at + h / 2 * one)
        three = slope(at + h / 2 * two)
        four = slope(at + h * three)
        after = at + h / 6 * (one + 2 * two + 2 * three + four)
        return after, after

    def loss(self, output: jax.Array, target: jax.Array, mask: jax.Array) -> jax.Array:
        return scores.weighted(scores.squared_error(output, target), mask)

    def measure(self, outputs: jax.Array, trial: Trial) -> dict[str, jax.Array]:
        return scores.squared_errors(outputs, trial.targets, trial.mask)


@dataclass(frozen=True)
class Case:
    """A task and a network.

    Attributes:
        task: The task.
        cell: The cell of `train.network`.
        units: Its units, in each layer.
        batch: Trials in a batch.
        updates: Updates until the end of learning.
        settings: Of the cell.
    """

    task: Any
    cell: str
    units: int = 32
    batch: int = 16
    updates: int = 300
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def spiking(self) -> bool:
        """Whether its neurons spike."""
        return self.cell in SPIKING

    @property
    def leak(self) -> float:
        """What a neuron's potential keeps in a step."""
        return float(np.exp(-self.task.dt / self.settings.get("tau_m", 20.0)))

    @property
    def metric(self) -> str:
        """How success is measured."""
        return "nmse" if self.task.kind == "regression" else "accuracy"

    @property
    def words(self) -> str:
        """The sizes, for a page."""
        given = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        of_task = ", ".join(f"{name} {value}" for name, value in _changed(self.task).items())
        return (
            f"{self.task.n_steps} steps, {self.task.n_inputs} inputs{f' ({of_task})' if of_task else ''}; "
            f"{self.units} units{f' ({given})' if given else ''}, batch {self.batch}"
        )

    def network(self, key: Any = 0) -> Any:
        """The network with its first weights."""
        sizes = (self.task.n_inputs, self.task.n_outputs, self.units)
        return train.network(self.cell, *sizes, dt=float(self.task.dt), key=key, **self.settings)

    def params(self, seeds: int) -> Any:
        """The first weights of several seeds, side by side."""
        return jax.vmap(self._first)(jax.random.split(jax.random.key(0), seeds))

    def _first(self, key: jax.Array) -> dict[str, jax.Array]:
        params = dict(self.network(key).params)
        if "b_in" in params:
            params["b_in"] = 0.1 * jax.random.normal(jax.random.fold_in(key, 1), params["b_in"].shape)
        return params

    def learner(self, rule: Any, **options: Any) -> Any:
        """What gives the gradient."""
        return self.network().compile(rule, self.batch, **options)

    def loss(self, out: Any, y: Any) -> jax.Array:
        """The loss of a step, of its output and `(target, mask)`."""
        return self.task.loss(out.out, *y)

    def score(self, params: Any, trial: Trial) -> jax.Array:
        """How well a network does on a batch of any size."""
        network = self.network()
        state = network.init_state(trial.inputs.shape[1])
        _, outputs = jax.lax.scan(lambda state, x: network.step(params, state, x), state, trial.inputs)
        return self.task.measure(outputs.out, trial)[self.metric]

    def held_out(self, most: int = 256) -> Trial:
        """Trials that nothing is trained on."""
        return next(iter(self.task.test_trials(min(most, self.task.n_test))))

    def record_bytes(self, steps: int) -> int:
        """The bytes that reverse mode through some steps keeps of them for the way back."""
        return round(steps * (self._record(16) - self._record(8)) / 8)  # without the weights, which are there anyway

    def _record(self, steps: int) -> int:
        network, trial = self.network(), jax.eval_shape(lambda: self.task.sample(jax.random.key(0), self.batch))
        cut = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((steps, *leaf.shape[1:]), leaf.dtype), trial)

        def total(params: Any, trial: Trial) -> jax.Array:
            def one(state: Any, item: Trial) -> tuple[Any, jax.Array]:
                state, out = network.step(params, state, item.inputs)
                return state, self.loss(out, (item.targets, item.mask))

            return jnp.sum(jax.lax.scan(one, network.init_state(self.batch), trial)[1])

        record = jax.eval_shape(
            lambda params, trial: jax.vjp(lambda p: total(p, trial), params)[1], network.params, cut
        )
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(record))

    def kept_bytes(self, learner: Any) -> int:
        """What a rule keeps from step to step: its traces, and the record of the steps in a window or a segment."""
        if segment := learner.rule.segment:  # and the states between segments
            states = jax.tree.leaves(self.network().init_state(self.batch))
            between = sum(leaf.size * leaf.dtype.itemsize for leaf in states) * -(-self.task.n_steps // segment)
            return self.record_bytes(segment) + between
        window = learner.window or getattr(learner.rule, "every", 1)  # LowRank is exact in windows of its own
        window = self.task.n_steps if learner.rule.exact and learner.window is None else window
        traces = trace_bytes(learner.plan, learner.rule)
        return traces + (self.record_bytes(min(window, self.task.n_steps)) if window > 1 else 0)

    def equal_window(self) -> int:
        """The window of truncated BPTT whose record takes what the traces of D-RTRL take."""
        traces = self.kept_bytes(self.learner("D_RTRL"))
        return int(np.clip(round(traces / self.record_bytes(1)), 2, self.task.n_steps))


def _changed(task: Any) -> dict[str, Any]:
    """The settings of a task that are not its publication's."""
    first = type(task)()
    return {name: value for name, value in vars(task).items() if value != getattr(first, name)}


_COPY = dict(n_bits=2, pattern=3, n_test=256)
COPY_20, COPY_60, COPY_200 = (tasks.Copy(delay=delay, **_COPY) for delay in (20, 60, 200))
EVIDENCE = tasks.EvidenceAccumulation(dt=5.0, n_cues=3, delay=300.0, n_test=256)
_DIRECTIONS = dict(n_directions=2, n_channels=32, n_test=256)
DMS = tasks.DelayedMatchToSample(dt=5.0, sample_time=150.0, delay=300.0, test_time=150.0, **_DIRECTIONS)
RANDMAN = tasks.Randman(n_classes=4, n_units=32, n_samples=500, counted=10)
DIGITS = tasks.SequentialDigits(by="pixels")
_ALIF = dict(tau_a=500.0)
_FAST = dict(tau_m=10.0, tau_out=10.0, threshold=0.5, refractory=0.0, surrogate="fast_sigmoid", slope=25.0)
_TWO = dict(layers=2)
CASES: dict[str, Case] = {
    "Lorenz, tanh RNN": Case(Lorenz(), "RNN", units=64, batch=8),
    "copy 20, GRU": Case(COPY_20, "GRU", updates=1000),
    "copy 20, LRU": Case(COPY_20, "LRU", updates=200, settings=_TWO),
    "evidence, ALIF": Case(EVIDENCE, "ALIF", updates=200, settings=_ALIF),
    "digits, GRU": Case(DIGITS, "GRU", updates=400),
    "randman, LIF": Case(RANDMAN, "LIF", updates=300, settings=_FAST),
    "dms, ALIF": Case(DMS, "ALIF", updates=300, settings=_ALIF),
    "copy 200, LRU": Case(COPY_200, "LRU", updates=100, settings=_TWO),
    "digits, LRU": Case(DIGITS, "LRU", updates=200, settings=_TWO),
    "copy 20, LSTM": Case(COPY_20, "LSTM", updates=1000),
    "evidence, LIF": Case(EVIDENCE, "LIF", updates=200),
    "copy 60, GRU": Case(COPY_60, "GRU", updates=1000),
    "digits, LSTM": Case(DIGITS, "LSTM", updates=400),
    "evidence, GRU": Case(EVIDENCE, "GRU", updates=200),
    "randman, ALIF": Case(RANDMAN, "ALIF", updates=300, settings={**_FAST, "tau_a": 50.0}),
    "dms, GRU": Case(DMS, "GRU", updates=300),
    "copy 200, GRU": Case(COPY_200, "GRU", updates=300),
    "copy 200, LSTM": Case(COPY_200, "LSTM", updates=300),
}
"""By name, those first that say most: a recording that is cut short has them."""


def spread(values: Any, digits: int = 2) -> str:
    """A mean with its interval."""
    values = np.asarray(values, np.float64)
    return f"{values.mean():.{digits}f} ± {half_width(values):.{digits}f}"


class Recording:
    """What was measured so far, in a file: a recording that was cut, or that a new rule is added to, goes on.

    A row is a case, and has an entry for each rule or method. It is used again only where the sizes are the same.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def missing(self, name: str, sizes: Any, wanted: Sequence[str]) -> list[str]:
        """What has not been measured of a case with these sizes."""
        row = self.rows.get(name, {})
        there = row["found"]["entries"] if row.get("sizes") == json.loads(json.dumps(sizes)) else {}
        return [label for label in wanted if label not in there]

    def row(self, name: str, sizes: Any, wanted: Sequence[str], measure: Callable[[list[str]], Any]) -> Any:
        """The row of a case, with what is missing measured; `measure` gives a row with at least these entries."""
        missing = self.missing(name, sizes, wanted)
        if missing:
            new = json.loads(json.dumps({"sizes": sizes, "found": measure(missing)}))
            if len(missing) < len(wanted):  # what was measured before stays as it was
                new["found"]["entries"] |= self.rows[name]["found"]["entries"]
            entries = new["found"]["entries"]
            new["found"]["entries"] = {label: entries[label] for label in wanted}
            self.rows[name] = new
            self.path.parent.mkdir(parents=True, exist_ok=True)
            beside = self.path.with_suffix(".part")
            beside.write_text(json.dumps(self.rows))
            beside.replace(self.path)
        return self.rows[name]["found"]


class Bench(NamedTuple):
    """What a script measures for each case.

    Attributes:
        name: Of the script, its page, its figure and the file of its rows.
        labels: The entries of a case.
        sizes: What the row of a case is measured with.
        measure: The row of a case with some of its entries.
        shown: A row as it is printed.
        page: The page of all rows.
        draw: Draws the figure of all rows.
        guide: What the guide shows of all rows.
    """

    name: str
    labels: Callable[[Case], list[str]]
    sizes: Callable[[Case, argparse.Namespace], Any]
    measure: Callable[[Case, argparse.Namespace, Sequence[str]], dict[str, Any]]
    shown: Callable[[str, dict[str, Any], argparse.Namespace], str]
    page: Callable[[dict[str, Any], argparse.Namespace], str]
    draw: Callable[[dict[str, Any], Path], None]
    guide: Callable[[dict[str, Any]], str]

    def write(self, rows: dict[str, Any], arguments: argparse.Namespace) -> None:
        """Writes the page, its figure, and the table of the guide."""
        result = tables.RESULTS / f"{self.name}.md"
        tables.write(result, self.page(rows, arguments))
        self.draw(rows, result.with_suffix(".svg"))
        show_in_guide(self.name, self.guide(rows))

    def run(self, arguments: argparse.Namespace, tiny: dict[str, int]) -> None:
        """Measures what is asked for, prints it, and writes the page where that is asked for.

        Args:
            arguments: The options.
            tiny: What `--quick` makes of a case.
        """
        began, rows = time.monotonic(), dict[str, Any]()
        kept = tables.ROOT / "runs" / "results" / f"{self.name}{'_quick' if arguments.quick else ''}.json"
        recording = Recording(kept)
        for name, whole in CASES.items():
            case = dataclasses.replace(whole, **tiny) if arguments.quick else whole
            late = time.monotonic() - began > 60 * arguments.minutes
            if arguments.only_write or late or name not in arguments.cases:
                if name in recording.rows and not arguments.quick:
                    rows[name] = recording.rows[name]["found"]
                continue
            started, measure = time.monotonic(), functools.partial(self.measure, case, arguments)
            rows[name] = recording.row(name, self.sizes(case, arguments), self.labels(case), measure)
            shown = self.shown(name, rows[name], arguments)
            print(f"{name}, {time.monotonic() - started:.0f} s\n{shown}\n", flush=True)
            jax.clear_caches()  # what was compiled for a case serves no other
            if arguments.write:  # after every case, so that a recording that is cut leaves what it has found
                self.write(rows, arguments)
        if arguments.only_write:
            self.write(rows, arguments)


def parser_of(text: str | None, name: str, cases: Sequence[str], minutes: float) -> argparse.ArgumentParser:
    """The options that all recordings have."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(cases), metavar="CASE")
    parser.add_argument("--seeds", type=int, default=5, help="networks of each case; 5")
    parser.add_argument("--minutes", type=float, default=minutes, help=f"no case is begun after so many; {minutes:g}")
    parser.add_argument("--write", action="store_true", help=f"write docs/results/{name}.md and its figure")
    parser.add_argument("--only-write", action="store_true", help="measure nothing, write what is there")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    return parser


def parsed(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """The options of a call."""
    arguments = parser.parse_args(argv)
    if arguments.quick and (arguments.write or arguments.only_write):
        parser.error("--quick measures nothing worth writing")
    return arguments


def failures(rows: dict[str, Any]) -> list[str]:
    """What could not be run, and why."""
    return [
        f"- {label}, {name}: {one['error']}"
        for name, row in rows.items()
        for label, one in row["entries"].items()
        if "error" in one
    ]


def reason(error: Exception) -> dict[str, str]:
    """What is kept of a rule that cannot be run: a line of the page, not the end of the recording."""
    return {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"}


def inserted(text: str, name: str, part: str) -> str:
    """A page with what stands between the marks of a name replaced.

    Raises:
        ValueError: The page has no such marks.
    """
    start, end = (f"<!-- {name}: {word} -->" for word in (f"written by benchmarks/{name}.py", "end"))
    before, found, rest = text.partition(start)
    _, ended, after = rest.partition(end)
    if not (found and ended):
        raise ValueError(f"The guide has no place for the figures of {name}: {start!r} and {end!r} are not both there.")
    return f"{before}{start}\n\n{part}\n\n{end}{after}"


def show_in_guide(name: str, part: str) -> None:
    """Writes figures into the guide to choosing a rule, where there is one."""
    if GUIDE.exists():
        GUIDE.write_text(inserted(GUIDE.read_text(), name, part))
