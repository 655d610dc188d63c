"""A first look: a recurrent network of adaptive spiking neurons learns online to keep a tally in mind.

`foretrace demo` takes the evidence-accumulation task with a shorter delay: cues come from the left and from the right,
and after a silence the network says which side had more. It compiles the network, a plain JAX function in which nothing
is marked, prints what the compiler found, and trains it twice from the same weights on the same trials: online, forward
in time, and by backpropagation through time. A table and a figure are left: learning, the memory of a gradient against
the length of trials, and a trial.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from foretrace._repr import bytes_text
from foretrace.cli.comparison import Comparison, write_rows
from foretrace.cli.experiment import Experiment, describe

ONLINE, BPTT = "D_RTRL", "BPTT"
# With the published damping of 0.3 the gradient of BPTT explodes over these trials, and BPTT learns nothing.
FULL = ["--set", "n_cues=5", "--set", "delay=250", "--cell-set", "damping=0.1", "--batch", "64"]
FULL += ["--iterations", "60", "--validate-every", "10"]
QUICK = ["--set", "n_cues=1", "--set", "delay=20", "--set", "n_test=64", "--hidden", "20", "--batch", "16"]
QUICK += ["--iterations", "4", "--validate-every", "2"]
LENGTHS = (100, 1_000, 10_000)
PICTURE, TABLE = "foretrace_demo.svg", "foretrace_demo.csv"

Memory = dict[str, dict[int, int | None]]
"""Bytes, by rule and by the length of the trials; None where they are not known."""


def make_demo(quick: bool = False) -> tuple[Experiment, argparse.Namespace]:
    """The task, the network and the training of the demonstration, and the options that say so.

    Args:
        quick: Whether it is a matter of seconds, and shows nothing but that it runs.

    Examples:
        >>> experiment, _ = make_demo()
        >>> experiment.task.n_steps, experiment.network.cell, sorted(experiment.network.params)
        (1150, 'ALIF', ['b_out', 'w_in', 'w_out', 'w_rec'])
    """
    from foretrace.cli.experiment import make_experiment
    from foretrace.cli.frame import make_parser

    options = make_parser().parse_args(["compare", "evidence", *(QUICK if quick else FULL)])
    return make_experiment(options), options


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the demonstration.

    Args:
        arguments: Those of the command line for None.
    """
    parser = argparse.ArgumentParser(
        prog="foretrace demo",
        description="Train a recurrent spiking network online, beside BPTT, on evidence accumulation, and draw it.",
    )
    parser.add_argument(
        "--output", type=Path, default=Path(), metavar="DIR", help="folder of the files, made if need be (default: .)"
    )
    parser.add_argument("--quick", action="store_true", help="a few updates only")
    given = parser.parse_args(arguments)
    folder: Path = given.output
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"cannot make the folder `{folder}`: {error.strerror}; name another with --output DIR")
    if not os.access(folder, os.W_OK):
        parser.error(f"cannot write into the folder `{folder}`; name another with --output DIR")
    experiment, options = make_demo(given.quick)
    comparison, results = Comparison(experiment), {}
    print("\n".join(describe(experiment)))
    print("\nWhat the compiler found in one step of the network:\n")
    print(experiment.learner(experiment.rules(ONLINE)[0]).graph.explain(level=1))
    for rule in experiment.rules(f"{ONLINE},{BPTT}"):
        print(f"\n{rule.label}, from the same weights on the same trials; the first update is compiled", flush=True)
        results[rule.label] = experiment.fit(options, experiment.learner(rule), None, stop=experiment.task.goal)
        comparison.add(rule, results[rule.label])
    print(f"\nOn {experiment.task.n_test} new trials, and what one gradient takes:\n\n{comparison.table()}")
    print(f"\n{speed_text(comparison)}")
    print(f"\nCosine of the gradient to that of BPTT, before training:\n\n{comparison.cosines('before')}")
    memory = measure_memory(comparison)
    print_memory(memory)
    write_rows(comparison, folder / TABLE)
    print(f"\nThe table is in {folder / TABLE}")
    try:
        draw(folder / PICTURE, experiment, results, memory)
    except ImportError as error:
        print(f"No picture: {error}")
    else:
        print(f"The picture is in {folder / PICTURE}")


def speed_text(comparison: Comparison) -> str:
    """How long the online gradient took beside that of BPTT, and where that stands among measured networks."""
    seconds = {row.rule.label: row.gradient_seconds for row in comparison.rows}
    ratio = seconds[ONLINE] / seconds[BPTT]
    said = f"A gradient of {ONLINE} took {ratio:.2f} of the time of {BPTT}."
    return f"{said} The ratio falls with the size of a network:\nsee docs/results/speed.md for 256 units and more."


def measure_memory(comparison: Comparison) -> Memory:
    """What a gradient of trials of several lengths would take, as XLA plans it; nothing is run."""
    return {
        row.rule.label: {length: comparison.memory_at(row.rule, length) for length in LENGTHS}
        for row in comparison.rows
    }


def print_memory(memory: Memory) -> None:
    """Prints the memory of each rule, by the length of the trials."""
    print("\nMemory of one gradient beside its trials, by their length:\n")
    print(f"  {'':<8}" + "".join(f"  {f'{length:,} steps':>13}" for length in LENGTHS))
    for rule, found in memory.items():
        print(f"  {rule:<8}" + "".join(f"  {bytes_text(value):>13}" for value in found.values()))


def draw(path: Path, experiment: Experiment, results: dict[str, Any], memory: Memory) -> None:
    """Draws how both trainings went, what they need, and a trial of the network that was trained online.

    Args:
        path: The file to write.
        experiment: The network and the task.
        results: Of `fit`, by rule.
        memory: Bytes of a gradient; not drawn where they are not known.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from foretrace._look import figure
    from foretrace.viz import learning_curves, memory_against_length, spike_raster

    task, network = experiment.task, experiment.network
    trial, out, potentials = record(experiment, results[ONLINE].params)
    half = network.n_hidden // 2
    known = all(value is not None for found in memory.values() for value in found.values())
    with figure("The demonstration's picture", (11, 6.8), path) as drawn:
        halves = drawn.add_gridspec(1, 2, width_ratios=(1, 1.7))
        left: Any = halves[0].subgridspec(3 if known else 2, 1).subplots()
        rows: Any = halves[1].subgridspec(3, 1, height_ratios=(2.4, 0.8, 1)).subplots(sharex=True)
        learning_curves(results, ["loss", "error"], goal=task.goal, axes=list(left[:2]))
        if known:
            memory_against_length(memory, axes=left[2])
        spike_raster(
            out.spikes,
            potentials,
            trial=0,
            dt=float(task.dt),
            populations=[("LIF", 0, half), ("ALIF", half, network.n_hidden)],
            phases=task.phases,
            neurons=[half + 1],
            outputs=out.out,
            axes=list(rows),
        )
        cues = task.class_names[int(trial.targets[0, 0])]
        drawn.suptitle(f"evidence accumulation: learning, and a trial with more cues on the {cues} (trained online)")


def record(experiment: Experiment, params: Any) -> tuple[Any, Any, Any]:
    """A trial, and what a network does in it: outputs and spikes, and potentials."""
    import jax

    task, network = experiment.task, experiment.network
    trial = next(iter(task.test_trials(1)))

    def step(state: Any, x: Any) -> Any:
        after, out = network.step(params, state, x)
        return after, (out, after["v"])

    _, (out, potentials) = jax.jit(lambda xs: jax.lax.scan(step, network.init_state(1), xs))(trial.inputs)
    return trial, out, potentials


if __name__ == "__main__":
    main()
