"""A first look: a recurrent network of adaptive spiking neurons, compiled, explained, and trained online.

`python -m foretrace.cli.demo` compiles one step of the network, a plain JAX function in which nothing is marked, and
prints what the compiler found. Then it trains the network to recall a cue after a delay, once online with D-RTRL and
once by backpropagation through time, from the same weights on the same sequences, and compares the two.
"""

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp

from foretrace.cli.figure import draw
from foretrace.cli.network import (
    CUE,
    DELAY,
    INPUTS,
    NEURONS,
    RECALL,
    Params,
    make_params,
    make_sequences,
    make_state,
    step,
)
from foretrace.cli.training import (
    Gradient,
    Progress,
    bptt_gradient,
    cosine,
    evaluate,
    online_gradient,
    train,
    working_memory,
)
from foretrace.entry import compile
from foretrace.learners import FunctionLearner

BATCH, UPDATES, RATE = 32, 60, 1.5e-3
HELD_OUT = 256
LENGTHS = (1_000, 10_000)
PICTURE = "foretrace_demo.svg"
ONLINE, BPTT = "online (D-RTRL)", "BPTT"


def compile_demo() -> tuple[FunctionLearner, Params]:
    """Builds the network and a learner for it.

    Returns:
        The learner, and the parameters to start from.

    Examples:
        >>> learner, _ = compile_demo()
        >>> [parameter.name for parameter in learner.graph.parameters]
        ['tau_a', 'tau_v', 'w_in', 'w_out', 'w_rec']
    """
    params = make_params(jax.random.key(0))
    learner = compile(step, "D_RTRL", jnp.zeros((BATCH, INPUTS)), params=params, state=make_state(BATCH))
    return learner, params


def run_training(name: str, gradient: Gradient, params: Params, updates: int) -> list[Progress]:
    """Trains, and prints how it goes about ten times: the loss on fresh sequences, and the time."""
    print(f"\n{name}: {updates} updates, {BATCH} sequences each; the first is compiled", flush=True)
    start, steps = time.perf_counter(), []
    for progress in train(gradient, params, updates=updates, batch=BATCH, rate=RATE, seed=1):
        steps.append(progress)
        if len(steps) % max(1, updates // 10) == 0 or len(steps) in (1, updates):
            spent = time.perf_counter() - start
            print(f"  update {len(steps):3d}   loss {progress.loss:.3f}   {spent:5.1f} s", flush=True)
    return steps


def print_results(gradients: dict[str, Gradient], trained: dict[str, list[Progress]], params: Params) -> None:
    """Prints how both networks do on sequences that they have not seen, and how close the gradients are."""
    held_out = make_sequences(jax.random.key(2), HELD_OUT)
    rows = [("before training", params), *((name, steps[-1].params) for name, steps in trained.items())]
    print(f"\nAt recall, on {HELD_OUT} new sequences; and the cosine of the online gradient to that of BPTT:\n")
    print(f"  {'':<16}  {'loss':>6}  {'accuracy':>8}  {'cosine':>8}")
    batch = make_sequences(jax.random.key(4), BATCH)
    for name, values in rows:
        score = evaluate(values, held_out)
        online, exact = (jax.jit(gradients[kind])(values, batch)[1] for kind in (ONLINE, BPTT))
        print(f"  {name:<16}  {score.loss:6.3f}  {score.accuracy:8.1%}  {cosine(online, exact):8.4f}")


def print_memory(gradients: dict[str, Gradient], params: Params) -> None:
    """Prints what a gradient of longer sequences would take, as XLA plans it; nothing is run."""
    print("\nMemory of one gradient beside its inputs, by the length of the sequence:\n")
    print(f"  {'':<16}" + "".join(f"  {f'{length:,} steps':>13}" for length in LENGTHS))
    for name, gradient in gradients.items():
        found = [working_memory(gradient, params, BATCH, length) for length in LENGTHS]
        words = ["unknown" if size is None else f"{size / 1e6:,.0f} MB" for size in found]
        print(f"  {name:<16}" + "".join(f"  {word:>13}" for word in words))


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the demonstration.

    Args:
        arguments: Those of the command line for None.
    """
    parser = argparse.ArgumentParser(
        prog="python -m foretrace.cli.demo",
        description="Compile a recurrent spiking network, train it online beside BPTT, and draw how it went.",
    )
    parser.add_argument("--output", type=Path, default=Path(), metavar="DIR", help="folder of the picture (default: .)")
    parser.add_argument("--quick", action="store_true", help="a few updates only, and no look at memory")
    options = parser.parse_args(arguments)
    folder: Path = options.output
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        parser.error(f"cannot write into the folder `{folder}`; name one that exists with --output DIR")
    learner, params = compile_demo()
    print("One step of the model, as the compiler sees it:\n")
    print(learner.graph.to_code())
    print("\nWhat it found:\n")
    print(learner.graph.explain(level=2))
    print(
        f"\nThe task: recall a cue of {CUE} steps after a delay of {DELAY}, for {RECALL} steps. {NEURONS} neurons; "
        "same weights, same sequences for both."
    )
    gradients: dict[str, Gradient] = {ONLINE: online_gradient(learner), BPTT: bptt_gradient}
    updates = 3 if options.quick else UPDATES
    trained = {name: run_training(name, gradient, params, updates) for name, gradient in gradients.items()}
    print_results(gradients, trained, params)
    if not options.quick:
        print_memory(gradients, params)
    picture = folder / PICTURE
    try:
        draw(picture, {name: [p.loss for p in steps] for name, steps in trained.items()}, trained[ONLINE][-1].params)
    except ImportError as error:
        print(f"\nNo picture ({error}): pip install 'foretrace[viz]'")
    else:
        print(f"\nThe picture is in {picture}")


if __name__ == "__main__":
    main()
