"""Streaming reinforcement learning where a sign must be remembered: success over steps, by the credit that is given.

One agent, batch 1, an update at every step; only the network and the credit of the past change. 5 seeds run side by
side in one process.

    python benchmarks/reinforcement.py            # print the tables
    python benchmarks/reinforcement.py --write    # and write docs/results/reinforcement.md and its figure
"""

import argparse
import itertools
import time
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import optax

from foretrace import rl, train
from foretrace._look import series
from foretrace.viz.canvas import canvas
from tables import RESULTS, machine, markdown, versions, write

RESULT = RESULTS / "reinforcement.md"
UNITS, SEEDS, BINS, SOLVED = 16, 5, 20, 0.9
SETTINGS = dict(decay=0.8, entropy=0.05)
OPTIMIZER = "optax.adam(3e-3, b1=0.0)"


@dataclass(frozen=True)
class Case:
    """A network and how the past is credited."""

    cell: str
    rule: str
    window: int | None = None

    @property
    def name(self) -> str:
        """As in the tables."""
        return f"{self.cell}, {self.rule if self.window is None else f'truncated to {self.window}'}"


CASES = [
    Case("RTU", "D_RTRL"),
    Case("GRU", "D_RTRL"),
    Case("RTU", "BPTT", 1),
    Case("GRU", "BPTT", 1),
    Case("RTU", "BPTT", 10),
    Case("GRU", "BPTT", 10),
]
PLACES: dict[str, tuple[Any, int]] = {
    "T-maze, corridor of 10": (rl.TMaze(length=10), 50_000),
    "T-maze, corridor of 30": (rl.TMaze(length=30), 150_000),
    "T-maze, corridor of 100": (rl.TMaze(length=100), 200_000),
    "memory chain of 30": (rl.MemoryChain(length=30), 150_000),
}


@dataclass(frozen=True)
class Found:
    """What a case came to: the share of successes in each part of the run, `(seeds, bins)`, and its time."""

    success: np.ndarray
    episodes: np.ndarray
    seconds: float

    @property
    def last(self) -> np.ndarray:
        """The success of each seed in the last tenth of the run."""
        return np.nanmean(self.success[:, -max(1, self.success.shape[1] // 10) :], axis=1)


def measure(case: Case, environment: Any, steps: int, seeds: int = SEEDS, bins: int = BINS) -> Found:
    """Trains from several seeds at once."""
    make = lambda key: train.network(case.cell, 3, environment.num_actions + 1, UNITS, key=key)
    agent = rl.ActorCritic(
        make(jax.random.key(0)).compile(case.rule, 1, window=case.window),
        environment,
        optax.adam(3e-3, b1=0.0),
        **SETTINGS,
    )

    @jax.jit
    def learn(key: Any) -> Any:
        weights, run = jax.random.split(key)
        return agent.run(agent.init(run, make(weights).params), steps)[1]

    began = time.perf_counter()
    seen = jax.block_until_ready(jax.vmap(learn)(jax.random.split(jax.random.key(1), seeds)))
    seconds = time.perf_counter() - began
    runs = [rl.episodes(jax.tree.map(lambda leaf, k=k: leaf[k], seen)) for k in range(seeds)]
    edges = np.arange(bins + 1) * steps // bins
    success = [[_share(run, low, high) for low, high in itertools.pairwise(edges)] for run in runs]
    return Found(np.array(success), np.array([len(run.ends) for run in runs]), seconds)


def _share(run: rl.Episodes, low: int, high: int) -> float:
    inside = (run.ends >= low) & (run.ends < high)
    return float(np.mean(run.last_rewards[inside] > 0)) if inside.any() else 0.0


def interval(values: np.ndarray) -> str:
    """The mean and, over few seeds, its range of 95 % by Student's t."""
    width = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}.get(len(values), 2.0) * values.std(ddof=1) / len(values) ** 0.5
    return f"{values.mean():.2f} ± {width:.2f}"


def table(found: dict[Case, Found], steps: int) -> str:
    """One environment, a line for each case."""
    rows = [
        [
            case.name,
            interval(one.last),
            f"{one.last.min():.2f}",
            f"{int((one.last >= SOLVED).sum())} of {len(one.last)}",
            f"{one.episodes.mean():,.0f}",
            f"{one.seconds:.0f}",
            f"{one.seconds / steps / len(one.last) * 1e6:.0f}",
        ]
        for case, one in found.items()
    ]
    head = ["network and credit", "success at the end", "worst seed", f"seeds at {SOLVED} or more", "episodes"]
    return markdown([*head, "seconds, all seeds", "µs per step and seed"], rows)


def draw(results: dict[str, dict[Case, Found]], path: Any) -> None:
    """Success over steps: the mean of the seeds, and all seeds as thin lines."""
    size = (0.6 + 3.4 * len(results), 3.2)
    with canvas("Drawing success", size, (1, len(results)), path, None) as (_, places):
        for axes, (name, found) in zip(places, results.items(), strict=True):
            steps = PLACES[name][1]
            for number, (case, one) in enumerate(found.items()):
                look, at = series(number), (np.arange(one.success.shape[1]) + 0.5) * steps / one.success.shape[1] / 1000
                axes.plot(at, one.success.T, color=look.color, linewidth=0.5, alpha=0.25)
                axes.plot(at, one.success.mean(0), label=case.name, **look.line)
            axes.set(xlabel="steps (thousands)", ylabel="success", title=name, ylim=(-0.03, 1.03))
        places[0].legend(fontsize="x-small", loc="lower right")


def page(results: dict[str, dict[Case, Found]]) -> str:
    """The result page."""
    lines = [
        "# Streaming reinforcement learning",
        "",
        f"Written by `benchmarks/reinforcement.py --write`. `rl.ActorCritic` with `{OPTIMIZER}`, decay "
        f"{SETTINGS['decay']}, entropy {SETTINGS['entropy']}, the same for all cases and chosen with RTU and D_RTRL "
        f"(of entropies 0.02, 0.05 and 0.1, and rates 1e-3 and 3e-3); {UNITS} units, batch 1, an update at every step, "
        f"{SEEDS} seeds side by side, float32. Success is the share of episodes that end with a "
        'positive reward, chance is 0.5; "at the end" is the last tenth of the run, mean and 95 % interval over the '
        "seeds. Times include compilation, on cores that other work shared.",
        "",
        f"- {versions('foretrace', 'jax')}",
        f"- {machine()}",
        "",
        "![Success over steps](reinforcement.svg)",
        "",
    ]
    for name, found in results.items():
        lines += [f"## {name}", "", f"{PLACES[name][1]:,} steps.", "", table(found, PLACES[name][1]), ""]
    return "\n".join(lines)


def main() -> None:
    """Measures, prints, and writes the page where it is asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write docs/results/reinforcement.md and its figure")
    arguments = parser.parse_args()
    results: dict[str, dict[Case, Found]] = {}
    for name, (environment, steps) in PLACES.items():
        results[name] = {case: measure(case, environment, steps) for case in CASES}
        print(f"{name}\n{table(results[name], steps)}", flush=True)
        if arguments.write:  # after every environment, so that an interrupted run leaves what it has found
            write(RESULT, page(results))
            draw(results, RESULT.with_suffix(".svg"))


if __name__ == "__main__":
    main()
