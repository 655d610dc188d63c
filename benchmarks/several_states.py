"""D-RTRL beside BPTT for neurons of one, two and three states: time and memory of a gradient by sequence.

In one block of all steps nothing is kept but what the steps start from, so the time is to be below that of BPTT, and
the memory near it. A long sequence goes through many blocks: then the traces are taken along, and of the six products
of matrices that a step of BPTT makes, `4 + 2 n` are left, for `n` states at a position.

    python benchmarks/several_states.py            # print the table
    python benchmarks/several_states.py --write    # and write docs/results/several_states.md
    python benchmarks/several_states.py --quick    # tiny sizes, to see that everything runs
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp

import foretrace as ft
from cases import Setting
from models import MODELS, Cell, Gate, Values, plain, spike
from tables import RESULTS, machine, markdown, megabytes, versions, write

RESULT = RESULTS / "several_states.md"
TIME, MEMORY, LONG, FACTORED = 0.9, 1.5, 1.1, 0.5
PAUSE = 0.05  # seconds before a call, in which the memory of the last one is given back


def adapting(gate: Gate, state: Values, x: jax.Array) -> tuple[Values, jax.Array]:
    """Leaky integrate-and-fire neurons with a synaptic current and a threshold that rises with each spike."""
    fired = spike(state["v"] - 1.0 - state["a"])
    current = 0.8 * state["current"] + gate("in", x, fired)
    v = 0.9 * state["v"] + 0.1 * current - fired
    a = 0.99 * state["a"] + 0.05 * fired
    return {"v": v, "a": a, "current": current}, spike(v - 1.0 - a)


MODELS["ALIF with synapse"] = Cell(adapting, ("in",), ("v", "a", "current"))
TITLES = {"PlainLIF": "LIF", "LIF": "LIF with synapse", "ALIF with synapse": "ALIF with synapse", "GRU": "GRU"}
TITLES |= {"LSTM": "LSTM"}


@dataclass(frozen=True)
class Case:
    """One gradient over a sequence, compiled, with the memory that XLA gives it beside its arguments."""

    run: Callable[[], Any]
    memory: int
    steps: int

    @classmethod
    def of(cls, gradient: Callable[..., Any], params: Any, xs: jax.Array, ys: jax.Array) -> "Case":
        compiled = jax.jit(gradient).lower(params, xs, ys).compile()
        memory = int(compiled.memory_analysis().temp_size_in_bytes)  # type: ignore[union-attr]
        return cls(lambda: jax.block_until_ready(compiled(params, xs, ys)), memory, len(xs))


def cases(setting: Setting, long: int) -> tuple[int, dict[str, Case]]:
    """How many states a position has, and BPTT, D-RTRL in one block and over a long sequence, and pp_prop."""
    network = setting.network(plain)
    xs, ys = setting.sequences()
    params, state = network.params(), network.state(setting.batch)
    loss = lambda out, y: jnp.mean((out - y) ** 2)

    def total(params: Any, xs: jax.Array, ys: jax.Array) -> jax.Array:
        def one(state: Any, item: Any) -> tuple[Any, jax.Array]:
            state, out = network.step(params, state, item[0])
            return state, loss(out, item[1])

        return jnp.sum(jax.lax.scan(one, state, (xs, ys))[1])

    def online(block: int | None, rule: str = "D_RTRL", **options: Any) -> Callable[..., Any]:
        learner = ft.compile(network.step, rule, xs[0], params=params, state=state, block=block, **options)
        return lambda params, xs, ys: learner.grad(params, learner.init(state), xs, ys, loss=loss)[0]

    repeated = [jnp.tile(values, (long // len(values), 1, 1)) for values in (xs, ys)]
    return len(state), {
        "BPTT": Case.of(jax.grad(total), params, xs, ys),
        "block": Case.of(online(setting.steps), params, xs, ys),
        "long": Case.of(online(None), params, *repeated),
        "pp_prop": Case.of(online(None, "pp_prop", decay_or_rank=0.9), params, xs, ys),
    }


def measure(found: dict[str, Case], repeats: int, limit: float) -> dict[str, float]:
    """The median seconds of a step of each case, which take turns; one that took too long is called no more."""
    for case in found.values():
        case.run()
    seconds: dict[str, list[float]] = {name: [] for name in found}
    for turn in range(repeats):
        for name in list(found) if turn % 2 == 0 else reversed(list(found)):
            if sum(seconds[name]) * found[name].steps > limit:
                continue
            time.sleep(PAUSE)
            began = time.perf_counter()
            found[name].run()
            seconds[name].append((time.perf_counter() - began) / found[name].steps)
    return {name: median(times) for name, times in seconds.items()}


def row(setting: Setting, states: int, found: dict[str, Case], seconds: dict[str, float]) -> list[str]:
    """A line of the table; what misses its target is bold."""
    block, long = seconds["block"] / seconds["BPTT"], seconds["long"] / seconds["BPTT"]
    memory, limit = found["block"].memory / found["BPTT"].memory, LONG * (4 + 2 * states) / 6
    return [
        TITLES[setting.model],
        str(states),
        f"({setting.units}, {setting.batch})",
        f"{1e3 * seconds['BPTT']:.3g}",
        _held(block, TIME),
        megabytes(found["BPTT"].memory),
        _held(memory, MEMORY),
        f"{_held(long, limit)} (<= {limit:.2f})",
        megabytes(found["long"].memory),
        _held(seconds["pp_prop"] / seconds["BPTT"], FACTORED),
    ]


def _held(figure: float, limit: float) -> str:
    return f"{figure:.2f}" if figure <= limit else f"**{figure:.2f}**"


HEADER = ("neuron", "states", "(units, batch)", "BPTT ms/step", "one block", "BPTT MB", "one block, memory")
HEADER += ("long, per step", "long, MB", "pp_prop")


def page(rows: Sequence[Sequence[str]], steps: int, long: int, repeats: int) -> str:
    return "\n\n".join(
        [
            "# Several states",
            f"Written by `benchmarks/several_states.py --write`. The gradient of D_RTRL over {steps} steps in one "
            f"block, and over {long} steps in blocks of automatic size, and of pp_prop over {steps} steps, beside "
            f"BPTT over {steps} steps: ratios of times per step (medians of up to {repeats} calls that take turns, "
            f"with a pause of {1000 * PAUSE:.0f} ms before each, in which the memory of the last one is given back) "
            "and of the memory that XLA plans beside inputs and results. 100 inputs, 10 outputs, float32. Targets: at "
            f"most {TIME} of BPTT's time and {MEMORY} of its memory in one block, {LONG} x (4 + 2n) / 6 of its time "
            f"over the long sequence, for n states, and {FACTORED} for pp_prop. What misses its target is bold.",
            f"- {versions('foretrace', 'jax')}\n- {machine()}",
            markdown(HEADER, rows),
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=TITLES, default=list(TITLES))
    parser.add_argument("--repeats", type=int, default=7, help="calls of each case after the first")
    parser.add_argument("--case-seconds", type=float, default=10.0, help="a case that took longer is called no more")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    given = parser.parse_args()
    sizes = [(8, 2)] if given.quick else [(100, 64), (256, 16), (512, 32), (1024, 1)]
    steps, long = (10, 40) if given.quick else (400, 10_000)
    rows = []
    for model in given.models:
        for units, batch in sizes:
            setting = Setting(model, units, batch, steps)
            states, found = cases(setting, long)
            rows.append(row(setting, states, found, measure(found, given.repeats, given.case_seconds)))
            print(" | ".join(rows[-1]), flush=True)
    text = page(rows, steps, long, given.repeats)
    print(text)
    if given.write:
        write(RESULT, text)


if __name__ == "__main__":
    main()
