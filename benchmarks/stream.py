"""A million steps of a stream: memory that stays flat, and the rate of steps beside a jitted loop by hand.

Both learn at every step from the same arrays, by the same rule and optimizer, in turns. The loop by hand calls one
jitted function for each piece that writes the new state over the old one, waits for nothing on the way, and reads all
losses at the end; its pieces have the same length.

    python benchmarks/stream.py            # print the tables
    python benchmarks/stream.py --write    # and write docs/results/stream.md
"""

import argparse
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from foretrace import train
from foretrace.cli.live import resident_bytes
from tables import RESULTS, machine, markdown, megabytes, versions, write

RESULT = RESULTS / "stream.md"
RULE, CELL = "D_RTRL", "RNN"
OPTIMIZER = optax.sgd(1e-2)
FLAT, FAST = 0.02, 0.8


@dataclass(frozen=True)
class Size:
    """How large the network and the stream are."""

    units: int = 16
    inputs: int = 4
    steps: int = 1_000_000
    settled: int = 10_000
    piece: int = 256


def data(size: Size, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Noise, and the mean of the last three values of its first channel."""
    xs = np.random.default_rng(0).normal(size=(steps, 1, size.inputs)).astype(jnp.result_type(float))
    past = np.pad(xs[:, :, :1], ((2, 0), (0, 0), (0, 0)))
    return xs, (past[2:] + past[1:-1] + past[:-2]) / 3


def make(size: Size) -> Any:
    """The learner."""
    return train.network(CELL, size.inputs, 1, size.units).compile(RULE, batch_size=1)


def loss(out: Any, y: Any) -> Any:
    """The squared error."""
    return jnp.mean((out.out - y) ** 2)


def by_hand(learner: Any) -> Callable[..., tuple[float, Any]]:
    """A loop over pieces with one jitted function; it gives the time of the loop, and the parameters."""

    @functools.partial(jax.jit, donate_argnums=(0, 1, 2))
    def learn(params: Any, opt_state: Any, carry: Any, xs: Any, ys: Any) -> Any:
        return learner.train(params, carry, xs, ys, loss=loss, optimizer=OPTIMIZER, opt_state=opt_state)

    def loop(xs: np.ndarray, ys: np.ndarray, piece: int) -> tuple[float, Any]:
        params, carry = jax.tree.map(jnp.copy, (learner.params, learner.init()))
        opt_state, found = OPTIMIZER.init(params), []
        began = time.perf_counter()
        for start in range(0, len(xs), piece):
            part = slice(start, start + piece)
            params, opt_state, carry, losses = learn(params, opt_state, carry, xs[part], ys[part])
            found.append(losses)
        np.concatenate([np.asarray(losses) for losses in found])
        return time.perf_counter() - began, params

    return loop


def by_stream(learner: Any) -> Callable[..., tuple[float, Any]]:
    """The same by `train.stream`."""

    def loop(xs: np.ndarray, ys: np.ndarray, piece: int) -> tuple[float, Any]:
        began = time.perf_counter()
        result = train.stream(learner, (xs, ys), OPTIMIZER, loss=loss, piece=piece, progress=False)
        return time.perf_counter() - began, result.params

    return loop


def rates(size: Size, pieces: dict[int, int], repeats: int) -> tuple[dict[int, tuple[float, float]], float]:
    """Steps per second for each piece, by hand and by `train.stream`, and how far their parameters are apart."""
    learner = make(size)
    loops, found, apart = (by_hand(learner), by_stream(learner)), {}, 0.0
    for piece, steps in pieces.items():
        steps -= steps % piece  # whole pieces, so that the loop by hand compiles one program
        xs, ys = data(size, steps)
        ends = [loop(xs[: 2 * piece], ys[: 2 * piece], piece)[1] for loop in loops]
        distances = jax.tree.map(lambda a, b: float(jnp.max(jnp.abs(a - b))), *ends)
        apart = max(apart, *jax.tree.leaves(distances))
        seconds: list[list[float]] = [[], []]
        for turn in range(repeats):
            for k in (0, 1) if turn % 2 == 0 else (1, 0):
                seconds[k].append(loops[k](xs, ys, piece)[0])
        found[piece] = (steps / median(seconds[0]), steps / median(seconds[1]))
    return found, apart


def memory(size: Size) -> tuple[list[tuple[int, int]], Any]:
    """The resident memory at some steps of one long stream, and its result. Items are made one by one, as they go."""
    rng, seen = np.random.default_rng(1), list[tuple[int, int]]()
    marks = {size.settled, *(size.steps * k // 10 for k in range(1, 11))}

    def source() -> Any:
        past, ahead = np.zeros(3, "float32"), iter(())
        for number in range(1, size.steps + 1):
            x = next(ahead, None)
            if x is None:
                ahead = iter(rng.normal(size=(1000, 1, size.inputs)).astype("float32"))
                x = next(ahead)
            past = np.append(past[1:], x[0, 0])
            if number in marks:
                seen.append((number, resident_bytes() or 0))
            yield x, past.mean(keepdims=True)[None]

    result = train.stream(make(size), source(), OPTIMIZER, loss=loss, piece=size.piece, progress=False)
    return seen, result


def rate_table(found: dict[int, tuple[float, float]]) -> str:
    """The rates of each piece, and their ratio."""
    rows = [
        [f"{piece:,}", f"{hand:,.0f}", f"{ours:,.0f}", f"{ours / hand:.2f}", "yes" if ours >= FAST * hand else "**no**"]
        for piece, (hand, ours) in found.items()
    ]
    return markdown(["piece", "by hand, steps/s", "`train.stream`, steps/s", "ratio", f"at least {FAST}"], rows)


def growth(seen: list[tuple[int, int]]) -> float:
    """By what share memory has grown after the first mark, at most."""
    first = seen[0][1]
    return max(size for _, size in seen) / first - 1


def memory_table(seen: list[tuple[int, int]]) -> str:
    """Memory at some steps."""
    first = seen[0][1]
    rows = [[f"{step:,}", megabytes(size), f"{100 * (size / first - 1):+.2f} %"] for step, size in seen]
    return markdown(["step", "resident memory, MB", f"since step {seen[0][0]:,}"], rows)


def page(size: Size, found: Any, apart: float, seen: Any, result: Any, repeats: int) -> str:
    """The result page."""
    flat = growth(seen)
    return "\n".join(
        [
            "# Streams",
            "",
            f"Written by `benchmarks/stream.py --write`. {size.units} units of an {CELL}, {size.inputs} inputs, by "
            f"{RULE} with an update at every step, float32.",
            "",
            f"- {versions('foretrace', 'jax')}",
            f"- {machine()}",
            "",
            "## Memory",
            "",
            f"A stream of {result.steps:,} items that are made one by one, gathered in pieces of {size.piece}: "
            f"{result.steps_per_second:,.0f} steps per second, the making of items and compilation included. Memory "
            f"after the first {seen[0][0]:,} steps grows by at most {100 * flat:.2f} %; within {100 * FLAT:.0f} %: "
            f"{'yes' if flat <= FLAT else '**no**'}.",
            "",
            memory_table(seen),
            "",
            "## Rate of steps",
            "",
            "Beside a loop by hand, which calls one jitted function for each piece of the same arrays, with its state "
            f"donated, waits for nothing on the way, and reads all losses at the end; median of {repeats} runs that "
            f"take turns in one process. The parameters of both differ by at most {apart:.1e}.",
            "",
            rate_table(found),
            "",
        ]
    )


def main() -> None:
    """Measures, prints, and writes the page where it is asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write docs/results/stream.md")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=Size.steps)
    arguments = parser.parse_args()
    size = Size(steps=arguments.steps)
    seen, result = memory(size)
    print(memory_table(seen), flush=True)
    found, apart = rates(size, {1: 40_000, 16: 300_000, 256: 1_000_000}, arguments.repeats)
    print(rate_table(found))
    print(f"parameters differ by at most {apart:.1e}")
    if arguments.write:
        write(RESULT, page(size, found, apart, seen, result, arguments.repeats))


if __name__ == "__main__":
    main()
