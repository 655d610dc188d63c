"""Does temporal credit pay? The same tasks trained with no trace, with traces, and by BPTT.

For each case (a task and a cell, `temporal.py`) every method trains the same networks on the same trials: the exact
gradient within a step alone (*no trace*, with Adam and with RMSprop), truncated BPTT in the memory of D-RTRL's traces,
online rules, and BPTT. Seeds and learning rates run side by side in one compiled function, and the methods take turns,
some updates each, so that a slow phase of the machine falls on all of them. Methods that are faster than BPTT go on
until they have had its time.

A row of the recording is one case. It is kept in `runs/results/credit.json` as soon as it is measured, so that a
recording that was cut goes on; the page is written from that file.

    python benchmarks/credit.py                          # train, and print the tables
    python benchmarks/credit.py --write                  # and write docs/results/credit.md and the guide's table
    python benchmarks/credit.py --only-write             # train nothing, write what is there
    python benchmarks/credit.py --cases "copy 20, GRU"   # some of the cases
    python benchmarks/credit.py --quick                  # tiny sizes, to see that everything runs
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import tables
from foretrace._look import series
from foretrace.cli.seeds import half_width
from foretrace.rules import RULES
from foretrace.viz.canvas import canvas
from temporal import CASES, FIRST_BIAS, Bench, Case, failures, parsed, parser_of, reason, spread

EXACT, NOTHING = "BPTT", ("no trace, Adam", "no trace, RMSprop")
OPTIMIZERS = {"adam": optax.adam, "rmsprop": optax.rmsprop}
CLIP = 1.0
TOLERANCE = 0.02  # of accuracy, or of the normalised error: what counts as no difference
LAST = 3  # scores of the last parts that are averaged: a single one jumps about
LONGEST = 3.0  # at most so many times the updates of BPTT in its time
DEFAULT = (
    "Lorenz, tanh RNN",
    "copy 20, GRU",
    "copy 20, LRU",
    "evidence, ALIF",
    "digits, GRU",
    "randman, LIF",
    "dms, ALIF",
    "digits, LRU",
    "copy 200, LRU",
    "copy 20, LSTM",
)


@dataclass(frozen=True)
class Method:
    """A way to train.

    Attributes:
        label: As in the tables.
        rule: The rule.
        options: Its options, those of the learner among them.
        optimizer: The optimizer.
    """

    label: str
    rule: str
    options: dict[str, Any] = field(default_factory=dict)
    optimizer: str = "adam"


def methods(case: Case) -> Iterator[Method]:
    """What a case is trained by."""
    yield Method(NOTHING[0], "BPTT", {"window": 1})
    yield Method(NOTHING[1], "BPTT", {"window": 1}, "rmsprop")
    yield Method("BPTT, window of D_RTRL's memory", "BPTT", {"window": case.equal_window()})
    yield Method("D_RTRL", "D_RTRL")
    yield Method("pp_prop, 0.9", "pp_prop", {"decay_or_rank": 0.9})
    yield Method("D_RTRL, window 10", "D_RTRL", {"window": 10})
    if "low_rank" in RULES:
        yield Method("low_rank, 4", "low_rank", {"rank": 4, "every": 20})
    yield Method(EXACT, "BPTT")


class Training:
    """One method on one case: all seeds and rates side by side, some updates at a time.

    Attributes:
        kept: The bytes that it keeps from step to step, of one network.
        scores: After each part, `(rates, seeds)`.
        seconds: Of each part.
    """

    def __init__(self, case: Case, method: Method, arguments: argparse.Namespace) -> None:
        learner = case.learner(method.rule, **method.options)
        self.kept = case.kept_bytes(learner)
        state = case.network().init_state(case.batch)

        def optimizer(rate: Any) -> Any:
            return optax.chain(optax.clip_by_global_norm(CLIP), OPTIMIZERS[method.optimizer](rate))

        def part(before: Any, rate: Any, key: Any) -> Any:
            def update(before: Any, key: Any) -> tuple[Any, None]:
                params, opt_state = before
                trial = case.task.sample(key, case.batch)
                given = (trial.inputs, (trial.targets, trial.mask))
                grads = learner.grad(params, learner.init(state), *given, loss=case.loss)[0]
                updates, opt_state = optimizer(rate).update(grads, opt_state, params)
                return (optax.apply_updates(params, updates), opt_state), None

            return jax.lax.scan(update, before, jax.random.split(key, part_of(case, arguments)))[0]

        by_seed = jax.vmap(part, in_axes=(0, None, 0))
        whole = jax.jit(jax.vmap(by_seed, in_axes=(0, 0, None)), donate_argnums=0)
        self.rates, self.seeds = jnp.asarray(arguments.rates), arguments.seeds
        params = case.params(arguments.seeds)
        self.before = jax.vmap(lambda _: (params, jax.vmap(optimizer(1.0).init)(params)))(self.rates)
        self.whole = whole.lower(self.before, self.rates, self._keys(0)).compile()
        held_out = case.held_out()
        self.score = jax.jit(jax.vmap(jax.vmap(lambda params: case.score(params, held_out))))
        self.scores, self.seconds = [np.asarray(self.score(self.before[0]))], list[float]()

    def _keys(self, part: int) -> Any:
        """The same trials for all methods, others for each seed and part."""
        return jax.random.split(jax.random.key(1 + part), self.seeds)

    def go_on(self) -> None:
        """Some more updates, timed, and the score after them."""
        keys = jax.block_until_ready(self._keys(len(self.seconds)))
        began = time.perf_counter()
        self.before = jax.block_until_ready(self.whole(self.before, self.rates, keys))
        self.seconds.append(time.perf_counter() - began)
        self.scores.append(np.asarray(self.score(self.before[0])))


def part_of(case: Case, arguments: argparse.Namespace) -> int:
    """Updates between two scores."""
    return max(1, case.updates // arguments.parts)


def measure(case: Case, arguments: argparse.Namespace, labels: Sequence[str]) -> dict[str, Any]:
    """The row of a case, of some methods; BPTT always takes turns with them."""
    runs, found = dict[str, Training](), dict[str, Any]()
    for method in methods(case):
        if method.label not in (EXACT, *labels):
            continue
        try:
            runs[method.label] = Training(case, method, arguments)
        except Exception as error:
            found[method.label] = reason(error)
    for turn in range(arguments.parts):
        for run in list(runs.values())[:: 1 if turn % 2 == 0 else -1]:
            run.go_on()
    seconds = {label: median(run.seconds) for label, run in runs.items()}  # of the parts that took turns
    for label, run in runs.items():
        at_time = round(arguments.parts * min(seconds[EXACT] / seconds[label], LONGEST))
        while len(run.seconds) < at_time:
            run.go_on()
        found[label] = {
            "scores": np.stack(run.scores).astype(float).tolist(),
            "time": seconds[label] / seconds[EXACT],
            "kept": run.kept,
            "parts": arguments.parts,
            "at_time": max(1, at_time),
        }
    return {"window": case.equal_window(), "entries": found}


@dataclass(frozen=True)
class Outcome:
    """What a method came to on a case, with the rate that served it best.

    Attributes:
        curve: The scores, `(parts + 1, seeds)`.
        rate: The place of that rate.
        at_updates: The scores at equal updates.
        at_time: The scores in BPTT's time.
        factor: Updates in BPTT's time over those of BPTT.
        time: Of an update, over that of BPTT.
    """

    curve: np.ndarray
    rate: int
    at_updates: np.ndarray
    at_time: np.ndarray
    factor: float
    time: float


def outcome(one: dict[str, Any], higher: bool) -> Outcome:
    """Takes the rate whose mean over the seeds is best at equal updates."""
    scores = np.asarray(one["scores"], np.float64)
    scores = np.where(np.isfinite(scores), scores, 0.0 if higher else np.inf)
    until = lambda part: scores[max(0, part - LAST + 1) : part + 1].mean(0)
    at_updates, at_time = until(one["parts"]), until(min(one["at_time"], len(scores) - 1))
    rate = int(np.argmax(at_updates.mean(-1)) if higher else np.argmin(at_updates.mean(-1)))
    factor = one["at_time"] / one["parts"]
    return Outcome(scores[:, rate], rate, at_updates[rate], at_time[rate], factor, one["time"])


def outcomes(name: str, row: dict[str, Any]) -> dict[str, Outcome]:
    """All methods of a case that ran."""
    higher = CASES[name].metric == "accuracy"
    return {label: outcome(one, higher) for label, one in row["entries"].items() if "error" not in one}


def sizes(case: Case, arguments: argparse.Namespace) -> dict[str, Any]:
    """What a row was measured with."""
    given = {name: getattr(arguments, name) for name in ("seeds", "rates", "parts")}
    return {"case": case.words, "cell": case.cell, "updates": case.updates, **given}


def table(name: str, row: dict[str, Any], rates: Sequence[float]) -> str:
    """All methods of a case."""
    metric, found = CASES[name].metric, outcomes(name, row)
    header = [
        "",
        "kept, kB",
        f"{metric}, equal updates",
        f"{metric}, BPTT's time",
        "updates in that time",
        "worst seed",
    ]
    lines = []
    for label in row["entries"]:
        if label not in found:
            lines.append([label, *["-"] * 7])
            continue
        one, shown = found[label], f"{label} ({row['window']})" if "memory" in label else label
        worst = one.at_updates.min() if metric == "accuracy" else one.at_updates.max()
        kept = row["entries"][label]["kept"] / 1e3
        lines.append(
            [
                shown,
                f"{kept:,.0f}" if kept >= 10 else f"{kept:.3g}",
                spread(one.at_updates, 3),
                spread(one.at_time, 3),
                f"{one.factor:.2f}",
                f"{worst:.3f}",
                f"{one.time:.2f}",
                f"{rates[one.rate]:g}",
            ]
        )
    return tables.markdown([*header, "time / BPTT", "rate"], lines)


def closed(name: str, row: dict[str, Any]) -> dict[str, float]:
    """The share of the way from the first score to BPTT's that each method went, at equal updates."""
    found = outcomes(name, row)
    first, last = found[EXACT].curve[0].mean(), found[EXACT].at_updates.mean()
    return {label: float((one.at_updates.mean() - first) / (last - first)) for label, one in found.items()}


def verdict(name: str, row: dict[str, Any]) -> str:
    """Whether no trace is enough: the better of its optimizers beside BPTT and beside D-RTRL."""
    higher, found = CASES[name].metric == "accuracy", outcomes(name, row)
    sign = 1.0 if higher else -1.0
    mean = lambda label: sign * float(found[label].at_updates.mean())
    nothing = max((label for label in NOTHING if label in found), key=mean)
    rivals = [label for label in found if label not in NOTHING and label != EXACT and not label.startswith("BPTT")]
    best = max(rivals, key=mean)
    gap = lambda label: sign * (found[label].at_updates - found[nothing].at_updates)
    learned = sign * (found[EXACT].at_updates.mean() - found[EXACT].curve[0].mean())
    words = f"best without a trace: {nothing}, {spread(found[nothing].at_updates, 3)}; "
    words += f"best online rule: {best}, {spread(found[best].at_updates, 3)}; "
    words += f"BPTT {spread(found[EXACT].at_updates, 3)}"
    if learned < 2 * TOLERANCE:
        return f"**BPTT has not learned it in these updates.** {words}."
    apart = {label: float(gap(label).mean()) for label in (best, EXACT)}
    sure = {label: apart[label] - half_width(gap(label)) > 0 for label in apart}
    largest = max(apart, key=lambda label: apart[label])
    if apart[largest] <= TOLERANCE:
        return f"**No trace is enough.** {words}."
    if sure[largest]:
        return f"**No trace fails**: {apart[largest]:.3f} behind {largest}. {words}."
    return f"**No trace is behind, within the spread of the seeds**: {apart[largest]:.3f} behind {largest}. {words}."


def summary(rows: dict[str, Any]) -> str:
    """The share of the way to BPTT's score, by method and case."""
    shares = {name: closed(name, row) for name, row in rows.items()}
    labels = list(dict.fromkeys(label for row in rows.values() for label in row["entries"]))
    cell = lambda name, label: f"{shares[name][label]:.2f}" if label in shares[name] else "-"
    return tables.markdown(["", *rows], [[label, *(cell(name, label) for name in rows)] for label in labels])


def verdicts(rows: dict[str, Any]) -> str:
    """A line for each case."""
    return "\n".join(f"- {name}: {verdict(name, row)}" for name, row in rows.items())


def guide(rows: dict[str, Any]) -> str:
    """What the guide shows: the shares, and how no trace did."""
    short = {name: verdict(name, row).split("**")[1].rstrip(".") for name, row in rows.items()}
    header, line, *lines = summary(rows).splitlines()
    return "\n".join(
        [header, line, *lines, "| *no trace* | " + " | ".join(_said(text) for text in short.values()) + " |"]
    )


def _said(verdict: str) -> str:
    """A verdict in a word or two."""
    return verdict.removeprefix("No trace ").removeprefix("is ").split(",")[0]


def page(rows: dict[str, Any], arguments: argparse.Namespace) -> str:
    """The whole page."""
    parts = [
        "# Does temporal credit pay?",
        f"Written by `benchmarks/credit.py --write`. The same networks, from the same first weights and on the same "
        f"trials, trained by each method: {arguments.seeds} seeds, mean ± half of the 95 % interval over them "
        f"(Student's t), float32, one update after each batch, gradients clipped to a norm of {CLIP:g}. Adam unless "
        f"RMSprop is said (optax's, with its defaults). Every method has the best of the rates "
        f"{', '.join(f'{rate:g}' for rate in arguments.rates)}, by its mean at equal updates on the held-out trials "
        "that are shown. *No trace* is the exact gradient within each step, nothing more. Truncated BPTT has the "
        "window whose record takes what the traces of D_RTRL take. `kept` is what lasts from step to step in one "
        "network.",
        f"*Equal updates* is the score after the updates of the case. *BPTT's time* is the score after the time in "
        f"which BPTT makes those updates: a faster method makes more of them (at most {LONGEST:g} times as many), a "
        f"slower one fewer. A score is the mean of the last {LAST} of the curve, which has {arguments.parts}. "
        f"Methods take turns, a {arguments.parts}th of the updates each, and the time is the median "
        "of these parts for all seeds and rates side by side, without compilation. " + FIRST_BIAS,
        'A paper of 2026, "Temporal Credit Is Free" (arXiv 2603.28750), says that immediate derivatives with RMSprop '
        "match or exceed full RTRL. Its tasks are streams of online adaptation; those here ask for an answer that lies "
        f"in the past. No trace counts as enough where it is at most {TOLERANCE:g} behind the best online rule and "
        "BPTT; as failing where the difference is larger than that and its interval over the seeds does not hold zero.",
        f"- {tables.versions('foretrace', 'jax', 'optax')}\n- {tables.machine()}",
        "![Learning curves](credit.svg)",
        "## Where no trace is enough, and where it fails",
        verdicts(rows),
        "The share of the way from the first score to BPTT's, at equal updates (1 is BPTT, 0 is nothing learned):",
        summary(rows),
    ]
    for name, row in rows.items():
        case = CASES[name]
        parts += [f"## {name}", f"{case.words}; {case.updates} updates.", table(name, row, arguments.rates)]
    if left := [name for name in CASES if name not in rows]:
        parts += ["## Not measured", f"Defined in `temporal.py` and left out of this recording: {'; '.join(left)}."]
    if failed := failures(rows):
        parts += ["## Not run", "\n".join(failed)]
    return "\n\n".join(parts) + "\n"


def draw(rows: dict[str, Any], path: Path) -> None:
    """Learning curves: a panel for each case, the mean of the seeds of each method, and its interval as a band."""
    columns = min(3, len(rows))
    height = -(-len(rows) // columns)
    labels = list(dict.fromkeys(label for row in rows.values() for label in row["entries"]))
    size = (0.5 + 3.1 * columns, 0.8 + 2.3 * height)
    with canvas("Drawing learning curves", size, (height, columns), path, None) as (drawn, places):
        for axes, (name, row) in zip(places, rows.items(), strict=False):
            found = outcomes(name, row)
            for number, label in enumerate(labels):
                if label not in found:
                    continue
                look, parts = series(number), row["entries"][label]["parts"]
                curve = found[label].curve[: parts + 1]
                at, mean = np.linspace(0, CASES[name].updates, parts + 1), curve.mean(1)
                half = np.array([half_width(values) for values in curve])
                axes.fill_between(at, mean - half, mean + half, color=look.color, alpha=0.12, linewidth=0)
                axes.plot(at, mean, label=label, **look.line)
            axes.set(title=name, xlabel="updates", ylabel=CASES[name].metric)
            if CASES[name].metric == "nmse":
                axes.set(yscale="log")
        for axes in places[len(rows) :]:
            axes.set_axis_off()
        handles, names = places[0].get_legend_handles_labels()
        drawn.legend(handles, names, loc="outside lower center", ncols=4, fontsize="x-small")


BENCH = Bench(
    name="credit",
    labels=lambda case: [method.label for method in methods(case)],
    sizes=sizes,
    measure=measure,
    shown=lambda name, row, arguments: f"{table(name, row, arguments.rates)}\n\n{verdict(name, row)}",
    page=page,
    draw=draw,
    guide=guide,
)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options."""
    parser = parser_of(__doc__, BENCH.name, DEFAULT, minutes=15.0)
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[5e-4, 2e-3, 1e-2], help="learning rates; 5e-4 2e-3 1e-2"
    )
    parser.add_argument("--parts", type=int, default=20, help="parts of a training, with a score after each; 20")
    arguments = parsed(parser, argv)
    if arguments.quick:
        arguments.seeds, arguments.parts = 2, 2
    return arguments


if __name__ == "__main__":
    BENCH.run(parse(sys.argv[1:]), {"units": 4, "batch": 2, "updates": 4})
