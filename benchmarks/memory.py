"""The memory of a gradient over a sequence, for sequences from a hundred to a hundred thousand steps.

One process for each rule and length compiles the gradient of a recurrent LIF network and runs it. Two figures come of
it: what XLA reserves for the compiled computation (`memory_analysis()`: arguments, outputs and temporary arrays, those
that outputs share with arguments once), and the peak resident memory of the process (`ru_maxrss`), which holds Python,
JAX and the compiler too.

A sequence of inputs would itself grow with the length, whatever the rule. So the step makes its input and its target
from the number of the step, inside the scan, and what is left that grows is that number and the loss: 8 bytes a step.
They are listed apart as `sequence`, and `without` is the compiled peak less them. The carry is donated, so that traces
are counted once.

Lengths are compared at one block for all. It is short enough for four blocks in the shortest sequence: chosen
automatically, blocks differ with the length, and a loop over blocks that runs once is no loop to XLA, which then lays
memory out otherwise. A second table compiles D_RTRL with other blocks, the automatic one among them, and gives the peak
beside the size of the traces and of one block; every block is listed, whether the target holds for it or not.

    python benchmarks/memory.py                # print the table
    python benchmarks/memory.py --write        # and write docs/results/memory.md and memory.svg
    python benchmarks/memory.py --quick        # tiny sizes, to see that everything runs
"""

import argparse
import json
import os
import resource
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tables
from cases import INPUTS, OUTPUTS

RESULT = tables.RESULTS / "memory.md"
PLOT = tables.RESULTS / "memory.svg"
RULES = ("D_RTRL", "pp_prop", "BPTT")
LENGTHS = (100, 1_000, 10_000, 100_000)
SEQUENCE_BYTES = 8  # a step: its number, int32, and its loss, float32
FLAT, PEAK = 1.05, 1.3
BLOCKS = (1, 10, 25, 50, 100, None)


@dataclass(frozen=True)
class Setting:
    """A rule, the length of the sequence and of a block, and the size of the model."""

    rule: str
    steps: int
    units: int
    batch: int
    block: int | None


@dataclass(frozen=True)
class Memory:
    """Bytes of one computation; `after` is None where it was compiled but not run."""

    arguments: int
    outputs: int
    shared: int
    temporary: int
    traces: int
    steps_in_block: int
    block: int
    before: int
    after: int | None
    versions: str

    @property
    def compiled(self) -> int:
        return self.arguments + self.outputs - self.shared + self.temporary


Results = dict[tuple[str, int], Memory]


def build(setting: Setting) -> tuple[Any, tuple[Any, ...], tuple[int, int, int]]:
    """The jitted gradient, its arguments, and the bytes of the traces, the steps in a block, and the bytes of one."""
    import jax
    import jax.numpy as jnp

    import foretrace
    import models
    from foretrace.learners.blocks import default_block, even_block, step_bytes, trace_bytes

    is_bptt = setting.rule == "BPTT"
    ops = models.plain if is_bptt else foretrace
    network = models.Network(ops, models.MODELS["PlainLIF"], INPUTS, setting.units, OUTPUTS)
    wave = lambda step, size: jnp.sin(0.1 * step + jnp.arange(setting.batch * size, dtype=jnp.float32))

    def step(params: Any, state: Any, number: Any) -> tuple[Any, Any]:
        time = number.astype(jnp.float32)
        state, out = network.step(params, state, wave(time, INPUTS).reshape(setting.batch, INPUTS))
        return state, out - wave(time, OUTPUTS).reshape(setting.batch, OUTPUTS)

    def loss(error: Any) -> Any:
        return 0.5 * jnp.sum(error**2)

    def total(params: Any, state: Any, numbers: Any) -> Any:
        def one(state: Any, number: Any) -> Any:
            state, error = step(params, state, number)
            return state, loss(error)

        state, losses = jax.lax.scan(one, state, numbers)
        return jnp.sum(losses), (state, losses)

    params, state, numbers = network.params(), network.state(setting.batch), jnp.arange(setting.steps, dtype=jnp.int32)
    if is_bptt:
        run = jax.jit(jax.grad(total, has_aux=True), donate_argnums=1)
        return run, (params, state, numbers), (0, 0, 0)
    options = {"pp_prop": {"decay_or_rank": 0.9}}.get(setting.rule, {})
    learner = foretrace.compile(
        step, setting.rule, numbers[0], params=params, state=state, block=setting.block, **options
    )
    run = jax.jit(lambda params, carry, numbers: learner.grad(params, carry, numbers, loss=loss), donate_argnums=1)
    plan, rule = learner.plan, learner.rule
    block = setting.block or even_block(setting.steps, default_block(plan, rule))
    sizes = trace_bytes(plan, rule), block, step_bytes(plan, rule) * block
    return run, (params, learner.init(state), numbers), sizes


def measure(setting: Setting, limit: int) -> Memory:
    """Compiles the gradient in this process, and runs it where it is said to need less than the limit."""
    import jax

    run, arguments, kept = build(setting)
    compiled = run.lower(*arguments).compile()
    found = compiled.memory_analysis()
    sizes = (
        found.argument_size_in_bytes,
        found.output_size_in_bytes,
        found.alias_size_in_bytes,
        found.temp_size_in_bytes,
    )
    before, after = resident(), None
    if sizes[0] + sizes[1] - sizes[2] + sizes[3] <= limit:
        jax.block_until_ready(compiled(*arguments))
        after = resident()
    return Memory(*sizes, *kept, before, after, tables.versions("foretrace", "jax"))


def resident() -> int:
    """The peak resident memory of this process up to now, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def in_process(setting: Setting, limit: int) -> Memory:
    """Measures in a fresh process."""
    command = [sys.executable, __file__, "--worker", json.dumps(asdict(setting)), str(limit)]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "0"}
    finished = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if finished.returncode:
        raise SystemExit(f"{setting.rule} failed on {setting.steps} steps:\n{finished.stderr}")
    return Memory(**json.loads(finished.stdout.splitlines()[-1]))


def row(rule: str, steps: int, memory: Memory) -> list[str]:
    """The numbers of one line, in MB."""
    sequence = SEQUENCE_BYTES * steps
    sizes = (memory.arguments, memory.outputs - memory.shared, memory.temporary, memory.compiled, sequence)
    cells = [tables.megabytes(size) for size in (*sizes, memory.compiled - sequence)]
    after = "not run" if memory.after is None else tables.megabytes(memory.after)
    return [rule, f"{steps:,}", *cells, tables.megabytes(memory.before), after]


def growth(results: Results, rule: str, figure: Any) -> float:
    """The largest figure of a rule over its smallest, over all lengths; NaN where one was not run."""
    values = [figure(steps, memory) for (name, steps), memory in results.items() if name == rule]
    return float("nan") if None in values else max(values) / min(values)


def checks(results: Results) -> list[list[str]]:
    """What was aimed at, and what was measured."""
    kinds = {
        "compiled, without the sequence": lambda steps, memory: memory.compiled - SEQUENCE_BYTES * steps,
        "compiled, with it": lambda steps, memory: memory.compiled,
        "process": lambda steps, memory: memory.after,
    }
    rows = []
    for rule in dict.fromkeys(name for name, _ in results if name != "BPTT"):
        for kind, figure in kinds.items():
            rows.append(_checked(f"{rule}, {kind}", FLAT, growth(results, rule, figure)))
    return rows


def by_block(blocks: dict[int | None, Memory]) -> list[list[str]]:
    """The peak of D_RTRL for each block, beside its traces and one block."""
    rows = []
    for block, memory in blocks.items():
        sizes = [tables.megabytes(size) for size in (memory.traces, memory.block, memory.compiled)]
        name = f"{memory.steps_in_block}" if block else f"{memory.steps_in_block}, automatic"
        rows.append([*sizes, *_checked(name, PEAK, memory.compiled / (memory.traces + memory.block))])
    return [[line[3], *line[:3], *line[4:]] for line in rows]


def _checked(what: str, limit: float, figure: float) -> list[str]:
    return [what, f"<= {limit:g}", f"{figure:.3f}", "yes" if figure <= limit else "**no**"]


def page(results: Results, blocks: dict[int | None, Memory], arguments: argparse.Namespace) -> str:
    """The whole result page: what was measured, with what, and the tables."""
    header = ["", "steps", "arguments", "outputs", "temporary", "compiled peak", "sequence", "without"]
    some = next(memory for (rule, _), memory in results.items() if rule == "D_RTRL")
    parts = [
        "# Memory",
        f"Written by `benchmarks/memory.py --write`. The gradient over a sequence: recurrent LIF, {arguments.units} "
        f"units, batch {arguments.batch}, {INPUTS} inputs, a readout of {OUTPUTS}, squared error at every step, "
        f"float32, blocks of {arguments.block} steps where not said otherwise. MB, of 10^6 bytes.",
        "The compiled peak is what XLA says: arguments, outputs that are not shared with them, and temporary arrays. "
        "Inputs and targets are made inside the scan from the number of the step; that number and the loss of each "
        "step are what `sequence` counts, and `without` leaves them out. The process peak is `ru_maxrss` of a fresh "
        "process, Python, JAX and compilation included, which are what it had reached `before` the run. A computation "
        f"that asks for more than {tables.megabytes(arguments.limit)} MB is compiled but not run.",
        f"- {some.versions}\n- {tables.machine()}",
        "## By the length of the sequence",
        tables.markdown(
            [*header, "process before", "process peak"], [row(*key, memory) for key, memory in results.items()]
        ),
        "![Memory by the length of the sequence](memory.svg)",
        "The largest over the smallest peak of all lengths:",
        tables.markdown(["", "target", "measured", "holds"], checks(results)),
        "## D_RTRL by the block",
        f"Compiled for {arguments.block_steps} steps. One block is what Foretrace estimates when it chooses the block; "
        "the ratio is that of the compiled peak, weights and gradients included, to traces and one block.",
        tables.markdown(
            ["steps in a block", "traces", "one block", "compiled peak", "target", "ratio", "holds"], by_block(blocks)
        ),
    ]
    return "\n\n".join(parts) + "\n"


def plot(results: Results, path: Path) -> None:
    """Draws the compiled peak and the process peak by the length of the sequence, legible in grey."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "foretrace"
    from matplotlib import pyplot

    styles = {"D_RTRL": ("o", "-", "0.0"), "pp_prop": ("s", "--", "0.35"), "BPTT": ("^", ":", "0.55")}
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    kinds = {"compiled computation": lambda memory: memory.compiled, "process": lambda memory: memory.after}
    for axis, (title, value) in zip(axes, kinds.items(), strict=True):
        for rule, (marker, line, shade) in styles.items():
            points = [(steps, value(memory)) for (name, steps), memory in results.items() if name == rule]
            points = [(steps, size / 1e6) for steps, size in points if size is not None]
            axis.loglog(*zip(*points, strict=True), marker=marker, linestyle=line, color=shade, label=rule)
        axis.set(title=f"Peak memory of the {title}", xlabel="steps of the sequence", ylabel="MB")
        axis.grid(color="0.9")
    axes[0].legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--block", type=int, default=25)
    parser.add_argument("--block-steps", type=int, default=1_000, help="steps in the table by the block")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--limit", type=int, default=2_000_000_000, help="bytes beyond which nothing is run")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.relative_to(tables.ROOT)} and its plot")
    parser.add_argument("--worker", nargs=2, metavar=("SETTING", "LIMIT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.quick:
        arguments.units, arguments.batch, arguments.block, arguments.lengths = 32, 2, 5, [20, 100]
    return arguments


def main(argv: list[str]) -> None:
    arguments = parse(argv)
    if arguments.worker:
        setting, limit = arguments.worker
        print(json.dumps(asdict(measure(Setting(**json.loads(setting)), int(limit)))))
        return
    results: Results = {}
    for rule in RULES:
        for steps in arguments.lengths:
            print(f"{rule} {steps}", file=sys.stderr, flush=True)
            setting = Setting(rule, steps, arguments.units, arguments.batch, arguments.block)
            results[rule, steps] = in_process(setting, arguments.limit)
    sizes = (arguments.block_steps, arguments.units, arguments.batch)
    blocks = {block: in_process(Setting("D_RTRL", *sizes, block), limit=0) for block in BLOCKS}
    text = page(results, blocks, arguments)
    print(text)
    if arguments.write:
        tables.write(RESULT, text)
        plot(results, PLOT)


if __name__ == "__main__":
    main(sys.argv[1:])
