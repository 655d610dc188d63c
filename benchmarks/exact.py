"""Exact RTRL beside the products of matrices that it cannot do without, and rules that carry the whole step's diagonal.

With `n` dense states and `P` recurrent parameters a step of RTRL multiplies an `n x n` matrix by an `n x P` one for
each sample: `2 n^2 P` operations. The same product alone, in the same run, is what it is held against. SnAp-1 and
OSTL_recurrent keep what D-RTRL keeps, so they are held against D-RTRL.

    python benchmarks/exact.py            # print the tables
    python benchmarks/exact.py --write    # and write docs/results/exact.md
    python benchmarks/exact.py --quick    # tiny sizes, to see that everything runs
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import foretrace as ft
from several_states import Case, measure
from tables import RESULTS, machine, markdown, megabytes, versions, write

RESULT = RESULTS / "exact.md"
INPUTS, LIMIT = 10, 2.0


def parts(units: int, batch: int, steps: int) -> tuple[Any, jax.Array, jax.Array]:
    """The parameters of a dense tanh network, its state, and inputs."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape) / np.sqrt(shape[0]), jnp.float32)
    params = {"w_in": draw(INPUTS, units), "w_rec": draw(units, units), "w_out": draw(units, 3)}
    return params, jnp.zeros((batch, units), jnp.float32), draw(steps, batch, INPUTS)


def step(params: Any, h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Dense tanh units with a linear readout."""
    h = jnp.tanh(x @ params["w_in"] + h @ params["w_rec"])
    return h, h @ params["w_out"]


def gradient(rule: Any, units: int, batch: int, steps: int) -> Case:
    """The gradient of a rule over a sequence."""
    params, state, xs = parts(units, batch, steps)
    learner = ft.compile(step, rule, xs[0], params=params, state=state)
    loss = lambda out, y: jnp.mean((out - y) ** 2)
    run = lambda params, xs, ys: learner.grad(params, learner.init(state), xs, ys, loss=loss)[0]
    return Case.of(run, params, xs, jnp.zeros((steps, batch, 3), jnp.float32))


def products(units: int, batch: int, steps: int) -> Case:
    """The product of the states' derivative with the influence of all parameters, for each sample and step."""
    count = units * (units + INPUTS)
    start = jnp.ones((batch, units, count), jnp.float32)
    matrices = jnp.asarray(np.random.default_rng(1).normal(size=(steps, batch, units, units)), jnp.float32) / units

    def run(start: jax.Array, matrices: jax.Array, _: Any) -> jax.Array:
        return jax.lax.scan(lambda kept, matrix: (matrix @ kept, None), start, matrices)[0]

    return Case.of(run, start, matrices, jnp.zeros(()))


def exact_row(units: int, batch: int, steps: int, repeats: int, seconds: float) -> list[str]:
    """RTRL beside its products."""
    rules: dict[str, Callable[[], Case]] = {
        "products": lambda: products(units, batch, steps),
        "RTRL": lambda: gradient(ft.RTRL(memory_limit=2**34), units, batch, steps),
        "BPTT": lambda: gradient("BPTT", units, batch, steps),
    }
    found = {name: make() for name, make in rules.items()}
    times = measure(found, repeats, seconds)
    ratio = times["RTRL"] / times["products"]
    flops = 2 * units**2 * units * (units + INPUTS) * batch
    return [
        f"({units}, {batch})",
        f"{1e3 * times['products']:.3g}",
        f"{flops / times['products'] / 1e9:.3g}",
        f"{1e3 * times['RTRL']:.3g}",
        f"{ratio:.2f}" if ratio <= LIMIT else f"**{ratio:.2f}**",
        f"{times['RTRL'] / times['BPTT']:.3g}",
        megabytes(found["RTRL"].memory),
    ]


def diagonal_row(units: int, batch: int, steps: int, repeats: int, seconds: float) -> list[str]:
    """Rules that carry the diagonal of the whole step, beside D-RTRL."""
    rules: dict[str, Any] = {"D_RTRL": "D_RTRL", "SnAp": ft.SnAp(n=1), "OSTL": "OSTL_recurrent", "BPTT": "BPTT"}
    times = measure({name: gradient(rule, units, batch, steps) for name, rule in rules.items()}, repeats, seconds)
    ratios = [f"{times[name] / times['D_RTRL']:.2f}" for name in ("SnAp", "OSTL", "BPTT")]
    return [f"({units}, {batch})", f"{1e3 * times['D_RTRL']:.3g}", *ratios]


EXACT = (
    "(units, batch)",
    "products, ms/step",
    "GFLOP/s",
    "RTRL, ms/step",
    "RTRL / products",
    "RTRL / BPTT",
    "RTRL, MB",
)
DIAGONAL = ("(units, batch)", "D_RTRL, ms/step", "SnAp, n=1 / D_RTRL", "OSTL_recurrent / D_RTRL", "BPTT / D_RTRL")


def page(exact: Sequence[Sequence[str]], diagonal: Sequence[Sequence[str]], steps: int, repeats: int) -> str:
    return "\n\n".join(
        [
            "# Exact gradients",
            f"Written by `benchmarks/exact.py --write`. Dense tanh units, {INPUTS} inputs, 3 outputs, float32, {steps} "
            f"steps; medians of up to {repeats} calls that take turns in one process.",
            f"- {versions('foretrace', 'jax')}\n- {machine()}",
            "## RTRL beside its products",
            "`products` is one product of matrices for each sample and step, `2 n² P` operations for `n` states and "
            f"`P` parameters that reach them. RTRL is to take at most {LIMIT:g} times as long; what misses that is "
            "bold.",
            markdown(EXACT, exact),
            "## The diagonal of the whole step",
            "SnAp with `n=1` and OSTL_recurrent keep as much as D_RTRL, and count what returns to a unit through the "
            "recurrent weights too.",
            markdown(DIAGONAL, diagonal),
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="calls of each case after the first")
    parser.add_argument("--case-seconds", type=float, default=20.0, help="a case that took longer is called no more")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    given = parser.parse_args()
    options = (given.repeats, given.case_seconds)
    sizes, steps = ([(6, 2)], 5) if given.quick else ([(64, 1), (64, 4), (256, 1)], 10)
    exact = [exact_row(*size, steps, *options) for size in sizes]
    diagonal = [diagonal_row(*size, steps, *options) for size in ([(6, 2)] if given.quick else [(64, 16), (256, 16)])]
    text = page(exact, diagonal, steps, given.repeats)
    print(text)
    if given.write:
        write(RESULT, text)


if __name__ == "__main__":
    main()
