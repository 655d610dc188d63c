"""Low-rank RTRL: its cosine to exact RTRL while it learns, its certificate, and what it takes at 512 units.

A dense tanh network predicts the next point of the Lorenz system and learns by the gradient of `LowRank`. At every
update exact RTRL, carried along the same parameters, gives the true gradient: the cosine of the two, the true error and
the bound that the rule's certificate adds are noted. Then, with random weights, one gradient of a sequence by `LowRank`
is timed in turns with D-RTRL, and its memory is what XLA plans for it, beside that of RTRL.

    python benchmarks/low_rank.py            # print the page
    python benchmarks/low_rank.py --write    # and write docs/results/low_rank.md
    python benchmarks/low_rank.py --rounds 0 # nothing is timed: on a machine that has other work
    python benchmarks/low_rank.py --quick    # tiny sizes, to see that everything runs
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import foretrace as ft
import tables

RESULT = tables.RESULTS / "low_rank.md"
PUBLISHED = 0.918  # cosine of a published sketch of rank 16
RATE, MOMENT = 1e-3, 0.9  # of RMSprop


@dataclass(frozen=True)
class Size:
    """How large everything is."""

    units: int = 64
    rank: int = 16
    seeds: int = 5
    steps: int = 2400
    updates: tuple[int, ...] = (1, 8, 32)
    large: int = 512
    every: int = 256
    length: int = 512
    rounds: int = 9


def lorenz(steps: int) -> np.ndarray:
    """Points of the Lorenz system, 0.02 apart, after a while on the attractor, each coordinate standardised."""

    def slope(p: np.ndarray) -> np.ndarray:
        return np.array([10 * (p[1] - p[0]), p[0] * (28 - p[2]) - p[1], p[0] * p[1] - 8 / 3 * p[2]])

    point, step, points = np.ones(3), 0.02, []
    for _ in range(steps + 500):
        a = slope(point)
        b = slope(point + step / 2 * a)
        c = slope(point + step / 2 * b)
        d = slope(point + step * c)
        point = point + step / 6 * (a + 2 * b + 2 * c + d)
        points.append(point)
    found = np.array(points[500:])
    return (found - found.mean(axis=0)) / found.std(axis=0)


def network(units: int, seed: int, dtype: Any) -> tuple[Callable[..., Any], dict[str, jax.Array]]:
    """A dense tanh network with three inputs and a readout of three."""
    rng = np.random.default_rng(seed)
    shapes = {"in": (3, units), "rec": (units, units), "out": (units, 3)}
    params = {name: jnp.asarray(rng.normal(size=s) / np.sqrt(s[0]), dtype) for name, s in shapes.items()}
    params["bias"] = jnp.zeros(units, dtype)

    def step(params: Any, h: Any, x: Any) -> Any:
        h = jnp.tanh(x @ params["in"] + h @ params["rec"] + params["bias"])
        return h, h @ params["out"]

    return step, params


def squared_error(out: Any, y: Any) -> Any:
    return jnp.mean((out - y) ** 2)


class Checked(NamedTuple):
    """What was found at each update, over all seeds.

    Attributes:
        cosine: Of the gradient to exact RTRL's, of all weights but the readout's.
        direct: The same for D-RTRL.
        error: The norm of the difference from RTRL's gradient.
        bound: What the certificate grew by.
        norm: The norm of RTRL's gradient.
    """

    cosine: np.ndarray
    direct: np.ndarray
    error: np.ndarray
    bound: np.ndarray
    norm: np.ndarray

    @property
    def violations(self) -> int:
        """Errors above their bound, beyond what rounding in float64 explains."""
        return int(np.sum(self.error > self.bound + 1e-12 * self.norm.max()))

    @property
    def ratios(self) -> np.ndarray:
        """Bounds over errors, where there is an error."""
        lossy = self.error > 1e-9 * self.norm
        return self.bound[lossy] / self.error[lossy]


def checked(size: Size, update: int, seed: int) -> Checked:
    """Trains by LowRank, an update after every few steps, with RTRL and D-RTRL along the same parameters."""
    points = jnp.asarray(lorenz(size.steps + 1))
    step, params = network(size.units, seed, points.dtype)
    rule = ft.LowRank(size.rank, every=update, certify=True)
    own = ft.compile(step, rule, points[0], params=params, state=jnp.zeros(size.units))
    learners = {"own": own, "exact": own.with_rule("RTRL"), "direct": own.with_rule("D_RTRL")}

    def one(carry: Any, number: jax.Array) -> Any:
        params, squares, carries = carry
        xs, ys = (jax.lax.dynamic_slice_in_dim(points, number * update + k, update) for k in (0, 1))
        found, after = {}, {}
        for name, learner in learners.items():
            found[name], after[name], _ = learner.grad(params, carries[name], xs, ys, loss=squared_error)
        squares = jax.tree.map(lambda s, g: MOMENT * s + (1 - MOMENT) * g**2, squares, found["own"])
        params = jax.tree.map(lambda p, g, s: p - RATE * g / (jnp.sqrt(s) + 1e-8), params, found["own"], squares)
        mine, true, direct = (recurrent(found[name]) for name in ("own", "exact", "direct"))
        bound = own.certificate(after["own"]) - own.certificate(carries["own"])
        norms = jnp.linalg.norm(true - mine), bound, jnp.linalg.norm(true)
        return (params, squares, after), Checked(cosine(mine, true), cosine(direct, true), *norms)

    start = (params, jax.tree.map(jnp.zeros_like, params), {name: own.init() for name, own in learners.items()})
    run = jax.jit(lambda start: jax.lax.scan(one, start, jnp.arange(size.steps // update))[1])
    return Checked(*map(np.asarray, run(start)))


def recurrent(gradient: dict[str, jax.Array]) -> jax.Array:
    return jnp.concatenate([gradient[name].reshape(-1) for name in ("in", "rec", "bias")])


def cosine(one: jax.Array, other: jax.Array) -> jax.Array:
    return one @ other / (jnp.linalg.norm(one) * jnp.linalg.norm(other))


class Cost(NamedTuple):
    """What one gradient of a sequence takes.

    Attributes:
        kept: Bytes of the traces.
        planned: Bytes that XLA plans, traces, parameters and gradients included, the sequence not.
        seconds: For each round, of one step; none where it was not timed.
    """

    kept: int
    planned: int
    seconds: list[float]


def costs(size: Size) -> dict[str, Cost]:
    """D-RTRL and LowRank in turns; of RTRL the memory."""
    step, params = network(size.large, 0, jnp.float32)
    xs = jnp.asarray(np.random.default_rng(1).normal(size=(size.length, 1, 3)), jnp.float32)
    state = jnp.zeros((1, size.large), jnp.float32)
    rules = {"D_RTRL": ft.D_RTRL(), "LowRank": ft.LowRank(size.rank, every=size.every), "RTRL": ft.RTRL()}
    learners = {name: ft.compile(step, rule, xs[0], params=params, state=state) for name, rule in rules.items()}

    def compiled(learner: ft.Learner) -> Any:
        run = lambda params, carry, xs: learner.grad(params, carry, xs, xs, loss=squared_error)[:2]
        carry = jax.eval_shape(learner.init)
        return jax.jit(run, donate_argnums=1).lower(params, carry, xs).compile()

    programs = {name: compiled(learner) for name, learner in learners.items()}
    seconds: dict[str, list[float]] = {name: [] for name in rules}
    for _ in range(size.rounds):
        for name in ("D_RTRL", "LowRank"):
            seconds[name].append(min(_timed(programs[name], learners[name], params, xs) for _ in range(3)) / len(xs))
    return {name: Cost(_kept(learners[name]), _planned(programs[name]), seconds[name]) for name in rules}


def _timed(program: Any, learner: ft.Learner, params: Any, xs: Any) -> float:
    carry = jax.block_until_ready(jax.tree.map(jnp.copy, learner.init()))  # it is written over
    start = time.perf_counter()
    jax.block_until_ready(program(params, carry, xs))
    return time.perf_counter() - start


def _kept(learner: ft.Learner) -> int:
    leaves = jax.tree.leaves(jax.eval_shape(learner.init).trace)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


def _planned(program: Any) -> int:
    plan = program.memory_analysis()
    return plan.temp_size_in_bytes + plan.argument_size_in_bytes + plan.output_size_in_bytes - plan.alias_size_in_bytes


# --- the page ---------------------------------------------------------------------------------------------------------


def page(size: Size, found: dict[int, Checked], cost: dict[str, Cost] | None) -> str:
    parts = [
        "# Low-rank RTRL",
        "Written by `benchmarks/low_rank.py --write`. "
        f"A network of {size.units} dense tanh units predicts the next point of the Lorenz system (0.02 apart, "
        f"float64) and learns by the gradient of `LowRank(rank={size.rank}, certify=True)`, by RMSprop with a rate of "
        f"{RATE:g}, over {size.steps:,} steps from each of {size.seeds} seeds. At every update the gradient is held "
        "against that of exact RTRL, which is carried along the same parameters; the cosine is of all weights but the "
        f"readout's. A published sketch of rank 16 reports {PUBLISHED}.",
        "\n".join(f"- {line}" for line in (tables.versions("jax"), tables.machine())),
        _targets(size, found, cost),
        "## While it learns",
        "*Update* is the number of steps between updates, and so between compressions. *Ratio* is the bound over the "
        "true error.",
        tables.markdown(
            [
                "update",
                "cosine, mean",
                "least",
                "D-RTRL, mean",
                "checked",
                "steps",
                "violations",
                "ratio, median",
                "95%",
            ],
            [_row(size, update, own) for update, own in found.items()],
        ),
    ]
    if cost is not None:
        parts += [f"## {size.large} units, rank {size.rank}", _cost_text(size), _cost_table(cost)]
    return "\n\n".join(parts) + "\n"


def _row(size: Size, update: int, own: Checked) -> list[str]:
    checks, steps = len(own.error), size.seeds * (size.steps // update) * update
    middle, high = np.percentile(own.ratios, [50, 95]) if own.ratios.size else (np.nan, np.nan)
    cosines = [f"{value:.4f}" for value in (own.cosine.mean(), own.cosine.min(), own.direct.mean())]
    return [str(update), *cosines, f"{checks:,}", f"{steps:,}", str(own.violations), f"{middle:.2f}", f"{high:.2f}"]


def _cost_text(size: Size) -> str:
    return (
        f"One gradient of {size.length} steps at batch 1 in float32, `every={size.every}`; where they are timed, "
        f"D-RTRL and LowRank take turns, {size.rounds} rounds of the best of three. MB, of 10^6 bytes. *Planned* is "
        "what XLA plans: traces, parameters, gradients and what lies between."
    )


def _cost_table(cost: dict[str, Cost]) -> str:
    rows = [
        [
            name,
            tables.megabytes(own.kept),
            tables.megabytes(own.planned),
            f"{1e3 * np.median(own.seconds):.3f}" if own.seconds else "not timed",
        ]
        for name, own in cost.items()
    ]
    return tables.markdown(["rule", "traces, MB", "planned, MB", "ms per step"], rows)


def _targets(size: Size, found: dict[int, Checked], cost: dict[str, Cost] | None) -> str:
    violations = sum(own.violations for own in found.values())
    steps = sum(size.seeds * (size.steps // update) * update for update in found)
    rows = [
        (f"cosine to exact RTRL, mean, update {update}", own.cosine.mean(), ">= 0.92", own.cosine.mean() >= 0.92)
        for update, own in found.items()
    ]
    rows.append((f"violations of the certificate in {steps:,} steps", violations, "0", violations == 0))
    if cost is not None:
        low, exact, direct = cost["LowRank"], cost["RTRL"], cost["D_RTRL"]
        kept, planned = low.kept / exact.kept, low.planned / exact.planned
        rows += [
            ("traces / RTRL's", kept, "<= 0.1", kept <= 0.1),
            ("planned memory / RTRL's", planned, "<= 0.1", planned <= 0.1),
        ]
        if low.seconds:
            times = float(np.median(np.array(low.seconds) / np.array(direct.seconds)))
            rows.append(("time per step / D-RTRL's, by sequence", times, "<= 15", times <= 15))
    shown = [[what, f"{value:.4g}", limit, "yes" if holds else "no"] for what, value, limit, holds in rows]
    if cost is None or not cost["LowRank"].seconds:
        shown.append(["time per step / D-RTRL's, by sequence", "not measured", "<= 15", "not measured"])
    return tables.markdown(["target", "measured", "limit", "holds"], shown)


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.relative_to(tables.ROOT)}")
    parser.add_argument("--seeds", type=int, default=Size.seeds)
    parser.add_argument("--steps", type=int, default=Size.steps, help="steps of training from each seed")
    parser.add_argument("--rounds", type=int, default=Size.rounds, help="rounds of timing; 0 for none")
    arguments = parser.parse_args(argv)
    full = Size(seeds=arguments.seeds, steps=arguments.steps, rounds=arguments.rounds)
    size = Size(6, 2, 1, 16, (1, 4), 8, 4, 8, 1) if arguments.quick else full
    jax.config.update("jax_enable_x64", True)
    found = {}
    for update in size.updates:
        by_seed = [checked(size, update, seed) for seed in range(size.seeds)]
        found[update] = Checked(*map(np.concatenate, zip(*by_seed, strict=True)))
        print(update, found[update].cosine.mean(), found[update].violations, file=sys.stderr, flush=True)
    jax.config.update("jax_enable_x64", False)
    text = page(size, found, costs(size))
    if arguments.write:
        tables.write(RESULT, text)
    print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
