"""How near the gradient of each rule comes to that of BPTT, before, during and after learning, and at what price.

For each case (a task and a cell, `temporal.py`) several seeds are trained by BPTT. With their weights at the start, in
the middle and at the end of learning, the gradient of every rule is held against that of BPTT on batches that nothing
was trained on. The readout's gradient is exact with every rule and is left out.

A row of the recording is one case. It is kept in `runs/results/gradients.json` as soon as it is measured, so that a
recording that was cut goes on; the page is written from that file.

    python benchmarks/gradients.py                          # measure, and print the tables
    python benchmarks/gradients.py --write                  # and write docs/results/gradients.md and the guide's table
    python benchmarks/gradients.py --only-write             # measure nothing, write what is there
    python benchmarks/gradients.py --cases "copy 20, GRU"   # some of the cases
    python benchmarks/gradients.py --quick                  # tiny sizes, to see that everything runs
"""

import argparse
import dataclasses
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
from foretrace.rules import RULES
from foretrace.viz.canvas import canvas
from temporal import CASES, FIRST_BIAS, Bench, Case, failures, parsed, parser_of, reason, spread

PHASES = ("start", "middle", "end")
EXACT = "BPTT"
RATE = 5e-3
PUBLISHED = {"sketch of rank 16": 0.918, "Kronecker-factored": 0.478, "SnAp-1": 0.353, "RFLO": 0.208, "UORO": 0.053}
LORENZ = "Lorenz, tanh RNN"


@dataclass(frozen=True)
class Choice:
    """A rule with its options, under the name that the tables call it by.

    Attributes:
        label: Its name.
        rule: The rule.
        options: Its options, those of the learner among them.
        drawn: Whether it goes into the figure and the first table.
    """

    label: str
    rule: str
    options: dict[str, Any] = field(default_factory=dict)
    drawn: bool = False


def choices(case: Case) -> Iterator[Choice]:
    """What is measured for a case, BPTT first."""
    yield Choice(EXACT, "BPTT")
    yield Choice("BPTT, in segments", "BPTT", {"segment": round(case.task.n_steps**0.5)})
    yield Choice("no trace", "BPTT", {"window": 1}, drawn=True)
    yield Choice("BPTT, window 5", "BPTT", {"window": 5})
    yield Choice("BPTT, window of D_RTRL's memory", "BPTT", {"window": case.equal_window()}, drawn=True)
    yield Choice("D_RTRL", "D_RTRL", drawn=True)
    yield Choice("D_RTRL, bfloat16", "D_RTRL", {"trace_dtype": "bfloat16"})
    yield Choice("D_RTRL, window 5", "D_RTRL", {"window": 5})
    yield Choice("D_RTRL, window 20", "D_RTRL", {"window": 20}, drawn=True)
    yield Choice("pp_prop, 0.9", "pp_prop", {"decay_or_rank": 0.9}, drawn=True)
    yield Choice("pp_prop, 0.98", "pp_prop", {"decay_or_rank": 0.98})
    yield Choice("hybrid, 0.9", "hybrid", {"decay_or_rank": 0.9})
    if "low_rank" in RULES:
        for rank in (4, 16):  # in windows of 5 steps, beside D_RTRL's
            yield Choice(f"low_rank, {rank}", "low_rank", {"rank": rank, "every": 5}, drawn=rank == 16)
    if case.spiking:
        yield Choice("OTTT", "OTTT", {"leak": case.leak})
        yield Choice("OTPE", "OTPE", {"leak": case.leak})
        yield Choice("OTPE, approx", "OTPE", {"leak": case.leak, "mode": "approx"})
    yield Choice("OSTL_recurrent", "OSTL_recurrent")
    yield Choice("OSTL_feedforward", "OSTL_feedforward")
    if case.cell != "LRU":
        yield Choice("SnAp, n = 1", "SnAp", {"n": 1}, drawn=True)
    yield Choice("EProp, random feedback", "EProp", {"feedback": "random"})
    yield Choice("UORO", "UORO", drawn=True)
    if case.cell == "RNN":
        yield Choice("RTRL", "RTRL")


def trained(case: Case, seeds: int) -> tuple[list[Any], np.ndarray]:
    """Weights at the start, in the middle and at the end of learning by BPTT, and the scores `(phases, seeds)`."""
    learner, optimizer = case.learner("BPTT"), optax.chain(optax.clip_by_global_norm(1.0), optax.adam(RATE))
    state = case.network().init_state(case.batch)

    def update(before: Any, key: Any) -> tuple[Any, None]:
        params, opt_state = before
        trial = case.task.sample(key, case.batch)
        given = (trial.inputs, (trial.targets, trial.mask))
        grads = learner.grad(params, learner.init(state), *given, loss=case.loss)[0]
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), None

    half = max(1, case.updates // 2)
    part = jax.jit(jax.vmap(lambda before, key: jax.lax.scan(update, before, jax.random.split(key, half))[0]))
    params = case.params(seeds)
    before, found = (params, jax.vmap(optimizer.init)(params)), [params]
    for phase in range(1, len(PHASES)):
        before = part(before, jax.random.split(jax.random.key(phase), seeds))
        found.append(before[0])
    held_out = case.held_out()
    score = jax.jit(jax.vmap(lambda params: case.score(params, held_out)))
    return found, np.stack([np.asarray(score(params), np.float64) for params in found])


class Gradients:
    """The gradient of a rule for several seeds side by side, as one compiled function.

    Attributes:
        draws: How many times it is drawn, where it is random.
        kept: The bytes that it keeps from step to step, of one network.
        planned: The bytes that XLA plans for it, of one network.
    """

    def __init__(self, case: Case, choice: Choice, seeds: int, draws: int) -> None:
        learner = case.learner(choice.rule, **choice.options)
        state = case.network().init_state(case.batch)
        carry = learner.init(state)
        self.random = hasattr(carry.trace, "key")
        self.draws = draws if self.random else 1

        def one(params: Any, trial: Any, key: Any) -> jax.Array:
            begun = carry
            if self.random:
                begun = dataclasses.replace(carry, trace=carry.trace._replace(key=_like(key, carry.trace.key)))
            given = (trial.inputs, (trial.targets, trial.mask))
            grads = learner.grad(params, begun, *given, loss=case.loss)[0]
            return jnp.concatenate([jnp.ravel(grads[name]) for name in sorted(grads) if not name.endswith("_out")])

        params, keys = case.params(seeds), jax.random.split(jax.random.key(0), seeds)
        self.compiled = jax.jit(jax.vmap(one)).lower(params, batch(case, seeds, 0), keys).compile()
        planned = self.compiled.memory_analysis()
        self.kept = case.kept_bytes(learner)
        self.planned = (planned.temp_size_in_bytes + planned.output_size_in_bytes) // seeds
        self.seconds: list[float] = []

    def __call__(self, params: Any, trial: Any, draw: int = 0) -> np.ndarray:
        """The gradients `(seeds, weights)`."""
        keys = jax.random.split(jax.random.key(draw), jax.tree.leaves(params)[0].shape[0])
        return np.asarray(self.compiled(params, trial, keys), np.float64)

    def time(self, params: Any, trial: Any) -> None:
        """Takes the time of one call."""
        keys = jax.random.split(jax.random.key(0), jax.tree.leaves(params)[0].shape[0])
        began = time.perf_counter()
        jax.block_until_ready(self.compiled(params, trial, keys))
        self.seconds.append(time.perf_counter() - began)


def _like(key: Any, other: Any) -> Any:
    """A key in the form of another, typed or as its words."""
    return key if jnp.issubdtype(other.dtype, jax.dtypes.prng_key) else jax.random.key_data(key)


def batch(case: Case, seeds: int, number: int) -> Any:
    """A batch of trials for each seed, which no training draws."""
    keys = jax.random.split(jax.random.key(1_000 + number), seeds)
    return jax.vmap(lambda key: case.task.sample(key, case.batch))(keys)


def agreement(mine: np.ndarray, exact: np.ndarray) -> dict[str, list[float]]:
    """Cosine, ratio of norms and bias of each seed.

    Args:
        mine: Gradients `(batches, draws, seeds, weights)`.
        exact: Those of BPTT, `(batches, seeds, weights)`.

    Returns:
        The cosine and the ratio of norms, means over batches and draws; and the norm of the mean error over the norm of
        BPTT's mean gradient.
    """
    other = exact[:, None]
    norm, exact_norm = np.linalg.norm(mine, axis=-1), np.linalg.norm(other, axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        cosine = np.sum(mine * other, axis=-1) / (norm * exact_norm)
        ratio = norm / exact_norm
        mean = exact.mean(0)
        bias = np.linalg.norm((mine - other).mean((0, 1)), axis=-1) / np.linalg.norm(mean, axis=-1)
    return {
        "cosine": np.nan_to_num(cosine).mean((0, 1)).tolist(),  # a gradient of zero points nowhere
        "norm": np.nan_to_num(ratio).mean((0, 1)).tolist(),
        "bias": np.nan_to_num(bias).tolist(),
    }


def measure(case: Case, arguments: argparse.Namespace, labels: Sequence[str]) -> dict[str, Any]:
    """The row of a case, of some rules; BPTT is always among them."""
    seeds = arguments.seeds
    params, score = trained(case, seeds)
    batches = [batch(case, seeds, number) for number in range(arguments.batches)]
    found: dict[str, Any] = {}
    made: dict[str, Gradients] = {}
    exact: list[np.ndarray] = []
    for choice in choices(case):
        if choice.label not in (EXACT, *labels):
            continue
        try:
            gradients = Gradients(case, choice, seeds, arguments.draws)
        except Exception as error:
            found[choice.label] = reason(error)
            continue
        by_phase = []
        for phase, own in enumerate(params):
            each = [[gradients(own, trial, draw) for draw in range(gradients.draws)] for trial in batches]
            stacked = np.array(each)
            if choice.label == EXACT:
                exact.append(stacked[:, 0])
            by_phase.append(agreement(stacked, exact[phase]))
        made[choice.label] = gradients
        found[choice.label] = {
            "options": {name: value for name, value in choice.options.items() if name == "window"},
            "drawn": choice.drawn,
            "kept": gradients.kept,
            "planned": gradients.planned,
            **{name: [one[name] for one in by_phase] for name in ("cosine", "norm", "bias")},
        }
    for turn in range(arguments.repeats):
        for gradients in list(made.values())[:: 1 if turn % 2 == 0 else -1]:
            gradients.time(params[0], batches[0])
    for label, gradients in made.items():
        found[label]["time"] = median(gradients.seconds) / median(made[EXACT].seconds)
    return {"score": score.tolist(), "entries": found}


def sizes(case: Case, arguments: argparse.Namespace) -> dict[str, Any]:
    """What a row was measured with."""
    given = {name: getattr(arguments, name) for name in ("seeds", "batches", "draws", "repeats")}
    return {"case": case.words, "cell": case.cell, "updates": case.updates, **given}


def table(row: dict[str, Any]) -> str:
    """All rules of a case."""
    header = ["", "kept, kB", "planned, kB", "time / BPTT"]
    header += [f"cosine, {phase}" for phase in PHASES] + [f"norm, {phase}" for phase in PHASES]
    header += [f"bias, {phase}" for phase in PHASES]
    return tables.markdown(header, [_line(label, one) for label, one in row["entries"].items()])


def _line(label: str, one: dict[str, Any]) -> list[str]:
    if "error" in one:
        return [label, *["-"] * 12]
    window = one["options"].get("window")
    shown = f"{label} ({window})" if "memory" in label else label
    kilobytes = [
        f"{one[name] / 1e3:,.0f}" if one[name] >= 1e4 else f"{one[name] / 1e3:.3g}" for name in ("kept", "planned")
    ]
    cells = [
        shown,
        *kilobytes,
        f"{one['time']:.2f}",
        *(spread(values) for values in one["cosine"]),
    ]
    return cells + [f"{np.mean(values):.2f}" for name in ("norm", "bias") for values in one[name]]


def summary(rows: dict[str, Any], phase: int) -> str:
    """The cosines of all cases side by side, a line for each rule, best on average first."""
    labels = list(dict.fromkeys(label for row in rows.values() for label in row["entries"] if label != EXACT))
    value = lambda row, label: (
        np.mean(row["entries"][label]["cosine"][phase]) if "cosine" in row["entries"].get(label, {}) else np.nan
    )
    figures = {label: [value(row, label) for row in rows.values()] for label in labels}
    ran = [label for label in labels if not np.isnan(figures[label]).all()]
    ranked = sorted(ran, key=lambda label: -np.nanmean(figures[label]))
    lines = [[label, *("-" if np.isnan(one) else f"{one:.2f}" for one in figures[label])] for label in ranked]
    return tables.markdown(["", *rows], lines)


def guide(rows: dict[str, Any]) -> str:
    """The table of the guide: the main rules, the cosine of untrained networks and of trained ones."""
    labels = list(
        dict.fromkeys(label for row in rows.values() for label, one in row["entries"].items() if one.get("drawn"))
    )

    def cell(one: dict[str, Any]) -> str:
        return " → ".join(f"{np.mean(one['cosine'][phase]):.2f}" for phase in (0, 2)) if "cosine" in one else "-"

    lines = [[label, *(cell(row["entries"].get(label, {})) for row in rows.values())] for label in labels]
    return tables.markdown(["", *rows], lines)


def against_published(row: dict[str, Any]) -> str:
    """What a publication found on this task, beside what was found here at each phase."""
    ours = {"SnAp-1": "SnAp, n = 1", "UORO": "UORO", "sketch of rank 16": "low_rank, 16"}
    lines = []
    for name, figure in PUBLISHED.items():
        found = row["entries"].get(ours.get(name, ""), {})
        here = [spread(values) for values in found["cosine"]] if "cosine" in found else ["-"] * len(PHASES)
        lines.append([name, f"{figure:.3f}", ours.get(name, "-") if here[0] != "-" else "-", *here])
    return tables.markdown(["published", "cosine to RTRL", "here", *PHASES], lines)


def scores_text(case: Case, row: dict[str, Any]) -> str:
    return ", ".join(f"{phase} {spread(values)}" for phase, values in zip(PHASES, row["score"], strict=True))


def page(rows: dict[str, Any], arguments: argparse.Namespace) -> str:
    """The whole page."""
    parts = [
        "# Gradients, before and after learning",
        f"Written by `benchmarks/gradients.py --write`. Each network is trained by BPTT (Adam, {RATE:g}, gradients "
        f"clipped to a norm of 1), and the gradient of each rule is held against BPTT's with the weights of the start, "
        f"the middle and the end of learning, on {arguments.batches} batches that nothing is trained on. "
        f"{arguments.seeds} seeds, float32. **Cosine** and **norm** (the norm over BPTT's) are means over batches and "
        "seeds, ± half of the 95 % interval over the seeds (Student's t). **Bias** is the norm of the mean error over "
        "the norm of BPTT's mean gradient: what does not go away by averaging over batches. The readout's weights are "
        "left out: their gradient is exact with every rule.",
        f"UORO is random: its cosine is that of single draws, and its bias that of the mean of {arguments.draws} draws "
        "for each batch, most of which is noise that more draws would take away. `kept` is what lasts from step to "
        "step in one network: traces, or the record of a window; `planned` is what XLA plans for the whole gradient, "
        f"blocks of steps included. Times are those of {arguments.seeds} networks side by side, medians of "
        f"{arguments.repeats} calls in turns, as a ratio to BPTT's. "
        "*In segments*, BPTT keeps the states of every so many steps and runs the steps between them again. "
        "*No trace* is the exact gradient within each step alone (`BPTT` with `window=1`; `DNI` before its synthesiser "
        "has learned). OSTTP and ThreeFactor learn from no loss; EProp with symmetric feedback is D_RTRL; RTRL is "
        "BPTT's gradient, and is measured for the tanh RNN; SnAp is not measured for the LRU, whose normalisations let "
        "every parameter reach all units at once, so that it keeps as much as RTRL. " + FIRST_BIAS,
        f"- {tables.versions('foretrace', 'jax')}\n- {tables.machine()}",
        "![Cosine to BPTT over learning](gradients.svg)",
        "## All cases: cosine at the end of learning",
        summary(rows, 2),
        "## All cases: cosine of untrained networks",
        summary(rows, 0),
    ]
    for name, row in rows.items():
        case = CASES[name]
        parts += [f"## {name}", f"{case.words}; {case.updates} updates. {case.metric}: {scores_text(case, row)}."]
        parts += [table(row)]
        if name == LORENZ:
            parts += [
                "Published for Lorenz prediction by 64 dense tanh units (sketched RTRL, 2026; its data and its length "
                "of sequences are not ours):",
                against_published(row),
            ]
    left = [name for name in CASES if name not in rows]
    if left:
        parts += ["## Not measured", f"Defined in the script and left out of this recording: {'; '.join(left)}."]
    if failed := failures(rows):
        parts += ["## Not run", "\n".join(failed)]
    return "\n\n".join(parts) + "\n"


def draw(rows: dict[str, Any], path: Path) -> None:
    """The cosine over learning: a panel for each case, a line for each of the main rules."""
    columns = min(4, len(rows))
    height = -(-len(rows) // columns)
    labels = list(
        dict.fromkeys(label for row in rows.values() for label, one in row["entries"].items() if one.get("drawn"))
    )
    size = (0.5 + 2.4 * columns, 0.8 + 2.1 * height)
    with canvas("Drawing cosines", size, (height, columns), path, None, sharey=True) as (drawn, places):
        for axes, (name, row) in zip(places, rows.items(), strict=False):
            for number, label in enumerate(labels):
                one, look = row["entries"].get(label, {}), series(number)
                if "cosine" in one:
                    means = [np.mean(values) for values in one["cosine"]]
                    axes.plot(range(len(PHASES)), means, marker=look.marker, label=label, **look.line)
            axes.set_xticks(range(len(PHASES)), PHASES)
            axes.set(title=name, ylim=(-0.08, 1.05))
        for axes in places[len(rows) :]:
            axes.set_axis_off()
        for axes in places[::columns]:
            axes.set_ylabel("cosine to BPTT")
        handles, names = places[0].get_legend_handles_labels()
        drawn.legend(handles, names, loc="outside lower center", ncols=4, fontsize="x-small")


BENCH = Bench(
    name="gradients",
    labels=lambda case: [choice.label for choice in choices(case)],
    sizes=sizes,
    measure=measure,
    shown=lambda name, row, arguments: table(row),
    page=page,
    draw=draw,
    guide=guide,
)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options."""
    parser = parser_of(__doc__, BENCH.name, list(CASES), minutes=12.0)
    parser.add_argument("--batches", type=int, default=4, help="batches that gradients are compared on; 4")
    parser.add_argument("--draws", type=int, default=8, help="draws of a random rule for each batch; 8")
    parser.add_argument("--repeats", type=int, default=3, help="calls that are timed; 3")
    arguments = parsed(parser, argv)
    if arguments.quick:
        arguments.seeds, arguments.batches, arguments.draws, arguments.repeats = 2, 2, 2, 1
    return arguments


if __name__ == "__main__":
    BENCH.run(parse(sys.argv[1:]), {"units": 4, "batch": 2, "updates": 2})
