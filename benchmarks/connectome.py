"""A connectome that learns: every synapse of a fly's wiring, online, from the activity of a teacher's regions.

Two wirings of spiking neurons. `eye` is the fly's visual connectome as the package `flyvis` publishes it, cell types
and their offsets expanded over the columns of the eye (`pip install --no-deps flyvis`; its file is read, the package is
not imported). `brain` is a random wiring of the size and the statistics of FlyWire's whole brain. A teacher has the
same wiring and other strengths: a log-normal factor for every pair of regions, and one for every synapse. A student
starts from the strengths without these factors, sees the same smooth stimuli, and learns from the squared error of the
filtered activity of each region, every few steps, while the stream runs on.

- `all synapses`: D-RTRL on every synapse, which keeps its sign.
- `adapters`: synapses are frozen; rank-20 adapters and the input weights learn by pp_prop with decay 0.99.
- `untrained`: the student as it starts.
- `teacher again`: the teacher from other potentials, which is as close as anything comes.

The score is the correlation with the teacher's regional activity, over regions without sensory neurons, on stimuli that
were not learned from. Each method and seed runs in a fresh process, which reports its time and its peak memory.

    python benchmarks/connectome.py                        # print the tables
    python benchmarks/connectome.py --write                # and write docs/results/connectome.md and its figures
    python benchmarks/connectome.py --wirings brain        # one wiring; with --write the page keeps the other
    python benchmarks/connectome.py --choose               # the scores of some rates, on seeds of their own
    python benchmarks/connectome.py --quick                # tiny sizes, to see that everything runs
"""

import argparse
import importlib.util
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

import tables

RESULT = tables.RESULTS / "connectome.md"
METHODS = ("all synapses", "adapters", "untrained", "teacher again")
TRIED = {"all synapses": (0.005, 0.01, 0.02), "adapters": (1e-6, 3e-6, 1e-5, 3e-5, 1e-4)}  # rates, with `--choose`
RATES = {
    "eye": {"all synapses": 0.005, "adapters": 3e-5},
    "brain": {"all synapses": 0.01, "adapters": 1e-5},
}
CHOOSING = 10  # the first of the seeds that rates are chosen on
CHANNELS, RANK, UPDATE, PIECE, WARM, HELD = 8, 20, 20, 1000, 300, 2000
GAIN, DRIVE = {"eye": 0.4, "brain": 0.18}, {"eye": 0.03, "brain": 0.2}
PAIR, SYNAPSE = 0.8, 0.5  # of the teacher's log-normal factors
LEAK, SYNAPTIC, FILTER, LEAST = 0.95, 0.8, 0.98, 0.002
SIZES = {"eye": 15, "brain": 138_639}
STEPS = {"eye": 30_000, "brain": 10_000}
PER_NEURON = 15_091_983 / 138_639
PAPER = {"eye": "The fly's visual connectome", "brain": "A whole brain"}


@dataclass(frozen=True)
class Wiring:
    """Connections by presynaptic neuron, and what neurons belong to.

    Attributes:
        starts: Where the connections of each neuron start, and where the last ones end.
        columns: The postsynaptic neuron of every connection.
        strengths: Its number of synapses, negative where it inhibits.
        pairs: The number of its pair of regions.
        regions: The region of every neuron.
        names: The regions' names.
        field: How much each channel of the stimulus drives each neuron.
        balanced: Whether every neuron receives as much inhibition as excitation, in the student and in the teacher.
    """

    starts: np.ndarray
    columns: np.ndarray
    strengths: np.ndarray
    pairs: np.ndarray
    regions: np.ndarray
    names: tuple[str, ...]
    field: np.ndarray
    balanced: bool = False

    @property
    def inner(self) -> np.ndarray:
        """The regions without sensory neurons."""
        return np.setdiff1d(np.arange(len(self.names)), self.regions[np.any(self.field != 0, axis=0)])


def published_record() -> dict[str, Any]:
    """The wiring file of flyvis."""
    found = importlib.util.find_spec("flyvis")
    if found is None or found.origin is None:
        raise SystemExit("The wiring of the eye is a file of flyvis: `pip install --no-deps flyvis`.")
    return dict(json.loads((Path(found.origin).parent / "connectome" / "fib25-fib19_v2.2.json").read_text()))


def lattice(extent: int) -> tuple[np.ndarray, np.ndarray]:
    """The two coordinates of all columns of a hexagon."""
    line = np.arange(-extent, extent + 1)
    u, v = (axis.ravel() for axis in np.meshgrid(line, line, indexing="ij"))
    inside = np.abs(u + v) <= extent
    return u[inside], v[inside]


def expanded(record: Mapping[str, Any], extent: int) -> Wiring:
    """A record of cell types, their strides, and the offsets between pairs of them, over all columns of a hexagon."""
    u, v = lattice(extent)
    span, count = 2 * extent + 1, 0
    places, tables_of, sizes = {}, {}, []
    for node in record["nodes"]:
        by_u, by_v = node["pattern"][1]
        kept = (u % by_u == 0) & (v % by_v == 0)
        table = np.full((3 * span, 3 * span), -1)  # a margin for offsets that leave the eye
        table[u[kept] + extent + span, v[kept] + extent + span] = count + np.arange(kept.sum())
        places[node["name"]], tables_of[node["name"]] = (u[kept], v[kept]), table
        sizes.append(int(kept.sum()))
        count += sizes[-1]
    parts = []
    for number, edge in enumerate(record["edges"]):
        (own_u, own_v), targets = places[edge["src"]], tables_of[edge["tar"]]
        sources = tables_of[edge["src"]][own_u + extent + span, own_v + extent + span]
        for (by_u, by_v), synapses in edge["offsets"]:
            if max(abs(by_u), abs(by_v)) > span:
                continue
            reached = targets[own_u + by_u + extent + span, own_v + by_v + extent + span]
            there = reached >= 0
            rest = np.broadcast_to([edge["alpha"] * synapses, number], (int(there.sum()), 2))
            parts.append(np.column_stack([sources[there], reached[there], rest]))
    found = np.concatenate(parts)
    found = found[np.argsort(found[:, 0], kind="stable")]
    regions = np.repeat(np.arange(len(sizes)), sizes)
    names = tuple(node["name"] for node in record["nodes"])
    field = np.zeros((CHANNELS, count), np.float32)
    for name in record["input_units"]:
        here = regions == names.index(name)
        field[:, here] = waves(*places[name], extent)
    starts = np.searchsorted(found[:, 0], np.arange(count + 1))
    return Wiring(
        starts.astype(np.int32),
        found[:, 1].astype(np.int32),
        found[:, 2].astype(np.float32),
        found[:, 3].astype(np.int32),
        regions.astype(np.int32),
        names,
        field,
    )


def waves(u: np.ndarray, v: np.ndarray, extent: int) -> np.ndarray:
    """One channel for the brightness of the whole eye, the others for waves over its columns."""
    channels = np.arange(CHANNELS)[:, None]
    angle = np.pi * channels / CHANNELS
    along = np.cos(angle) * (u + v / 2) + np.sin(angle) * (np.sqrt(3) / 2 * v)
    return np.where(channels == 0, 1.0, np.cos(np.pi * along / (extent + 1)))


def whole_brain(neurons: int, connections: int, seed: int = 0, regions: int = 70) -> Wiring:
    """A random wiring of FlyWire's statistics.

    Out-degrees and the attraction of targets are log-normal, the largest out-degree is 9,783, most connections stay in
    their region, 60 % excite, all connections of a neuron have one sign, and a connection has 3.61 synapses on average.
    """
    rng = np.random.default_rng(seed)
    shares = rng.lognormal(0.0, 1.0, regions)
    region = np.sort(rng.choice(regions, neurons, p=shares / shares.sum()))
    region[:regions] = np.arange(regions)  # none is empty
    region.sort()
    degrees = rng.lognormal(0.0, 1.15, neurons)
    degrees = np.minimum(degrees * connections / degrees.sum(), min(9_783, neurons / 4)).astype(np.int64)
    degrees += rng.multinomial(connections - degrees.sum(), np.full(neurons, 1 / neurons))
    starts = np.concatenate([[0], np.cumsum(degrees)])
    attraction = np.concatenate([[0.0], np.cumsum(rng.lognormal(0.0, 1.0, neurons))])
    first, last = np.searchsorted(region, np.arange(regions)), np.searchsorted(region, np.arange(regions), "right")
    within = rng.random(connections) < 0.6
    own = np.repeat(region, degrees)
    low = np.where(within, attraction[first][own], 0.0)
    high = np.where(within, attraction[last][own], attraction[-1])
    columns = np.searchsorted(attraction, low + rng.random(connections) * (high - low), "right") - 1
    columns = np.minimum(columns, neurons - 1).astype(np.int32)
    excites = rng.random(neurons) < np.clip(rng.normal(0.6, 0.15, regions), 0.1, 0.95)[region]
    signs = np.repeat(np.where(excites, 1.0, -1.0), degrees)
    field = np.zeros((CHANNELS, neurons), np.float32)
    for channel in range(CHANNELS):
        field[channel, region == channel] = 2.0
    return Wiring(
        starts.astype(np.int32),
        columns,
        (signs * rng.geometric(1 / 3.61, connections)).astype(np.float32),
        (own * regions + region[columns]).astype(np.int32),
        region.astype(np.int32),
        tuple(f"region {number}" for number in range(regions)),
        field,
        balanced=True,
    )


def received(wiring: Wiring, weights: np.ndarray) -> np.ndarray:
    """For each connection what its target receives in all, of its own sign alone where the wiring is balanced."""
    kinds = 2 * wiring.columns + (wiring.balanced & (wiring.strengths < 0))
    return np.bincount(kinds, np.abs(weights))[kinds]


def starting_weights(wiring: Wiring, gain: float) -> np.ndarray:
    """Numbers of synapses, by all that their target receives."""
    totals = received(wiring, wiring.strengths)
    least = np.median(totals[np.unique(wiring.columns, return_index=True)[1]]) / 10
    return (gain * wiring.strengths / np.maximum(totals, least)).astype(np.float32)


def teaching_weights(wiring: Wiring, start: np.ndarray, seed: int) -> np.ndarray:
    """The same wiring with other strengths: factors of mean one, for pairs of regions and for synapses."""
    rng = np.random.default_rng([seed, 1])
    pairs = rng.lognormal(-(PAIR**2) / 2, PAIR, int(wiring.pairs.max()) + 1)[wiring.pairs]
    found = start * pairs * rng.lognormal(-(SYNAPSE**2) / 2, SYNAPSE, start.size)
    if wiring.balanced:
        found *= received(wiring, start) / received(wiring, found)
    return found.astype(np.float32)


def stimuli(steps: int, seed: int, held_out: bool) -> np.ndarray:
    """Noise that was filtered twice, of variance one in each channel."""
    noise = np.random.default_rng([seed, 2 + held_out]).normal(size=(steps + 500, CHANNELS))
    for _ in range(2):
        for step in range(1, len(noise)):
            noise[step] = 0.98 * noise[step - 1] + 0.02 * noise[step]
    return (noise[500:] / noise.std(0)).astype(np.float32)


def model(wiring: Wiring, seed: int) -> tuple[Callable[..., Any], Any]:
    """The step of the network, and its state: potentials, synaptic currents and filtered spikes."""
    import brainevent
    import jax
    import jax.numpy as jnp

    import foretrace as ft

    neurons, rng = len(wiring.regions), np.random.default_rng([seed, 0])
    index = (jnp.ones(1, jnp.float32), jnp.asarray(wiring.columns), jnp.asarray(wiring.starts))
    matrix = brainevent.CSR(index, shape=(neurons, neurons))
    bias = jnp.asarray(rng.uniform(0.04, 0.07, neurons), jnp.float32)
    regions, sizes = jnp.asarray(wiring.regions), jnp.asarray(np.bincount(wiring.regions), jnp.float32)

    @jax.custom_jvp
    def spike(v: Any) -> Any:
        return (v > 0).astype(v.dtype)

    spike.defjvp(lambda primals, tangents: (spike(*primals), tangents[0] / (1 + 4 * jnp.abs(primals[0])) ** 2))

    def step(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
        v, current, rate = state
        spikes = spike(v - 1.0)
        arriving = ft.sparse_matmul(brainevent.BinaryArray(spikes), params["weight"], sparse_mat=matrix)
        if "up" in params:
            arriving = arriving + (spikes @ params["down"]) @ params["up"]
        current = SYNAPTIC * current + arriving
        v = LEAK * (v - spikes) + bias + current + x @ params["enter"]
        rate = FILTER * rate + (1 - FILTER) * spike(v - 1.0)
        return (v, current, rate), jax.ops.segment_sum(rate, regions, sizes.size, indices_are_sorted=True) / sizes

    start = jnp.asarray(rng.random(neurons), jnp.float32)
    return step, (start, jnp.zeros(neurons, jnp.float32), jnp.full(neurons, 0.02, jnp.float32))


@dataclass(frozen=True)
class Setting:
    """One run: a wiring and its size, a method, a seed, and for how many steps it learns."""

    wiring: str
    method: str
    seed: int
    size: int
    steps: int
    rate: float = 0.0


def make(setting: Setting) -> Wiring:
    if setting.wiring == "eye":
        return expanded(published_record(), setting.size)
    return whole_brain(setting.size, round(setting.size * PER_NEURON))


def optimizer_of(setting: Setting, weight: Any) -> Any:
    """Adam with a rate that falls to zero; on synapses in units of the first weight, and without a change of sign."""
    import jax.numpy as jnp
    import optax

    if setting.method == "adapters":
        return optax.adam(optax.linear_schedule(setting.rate, 0.0, setting.steps // UPDATE))
    inner = optax.scale_by_adam(b2=0.99)

    def update(grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
        steps, state = inner.update(grads, state)
        rate = setting.rate * (1 - state.count * UPDATE / setting.steps)
        new = params["weight"] - rate.astype(weight.dtype) * jnp.abs(weight) * steps["weight"]
        return {"weight": jnp.where(new * weight > 0, new, 0.0) - params["weight"]}, state

    return optax.GradientTransformation(inner.init, update)


def prepared(setting: Setting, wiring: Wiring, start: np.ndarray) -> tuple[Any, tuple[str, ...], str, dict[str, Any]]:
    """The student's parameters, which of them learn, and by which rule."""
    import jax.numpy as jnp

    params = {"weight": jnp.asarray(start), "enter": jnp.asarray(DRIVE[setting.wiring] * wiring.field)}
    if setting.method != "adapters":
        return params, ("weight",), "D_RTRL", {}
    neurons = len(wiring.regions)
    down = np.random.default_rng([setting.seed, 4]).normal(size=(neurons, RANK)) / np.sqrt(neurons)
    params |= {"down": jnp.asarray(down, jnp.float32), "up": jnp.zeros((RANK, neurons), jnp.float32)}
    return params, ("down", "up", "enter"), "pp_prop", {"decay_or_rank": 0.99}


def correlations(found: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Of each region over time; zero where nothing changes."""
    found, wanted = found - found.mean(0), wanted - wanted.mean(0)
    scale = np.sqrt((found**2).sum(0) * (wanted**2).sum(0))
    return np.where(scale > 1e-12, (found * wanted).sum(0) / np.maximum(scale, 1e-12), 0.0)


def learn(setting: Setting) -> dict[str, Any]:
    """Trains one student online, and scores it on stimuli that were held out."""
    import jax
    import jax.numpy as jnp

    wiring = make(setting)
    step, state = model(wiring, setting.seed)
    start = starting_weights(wiring, GAIN[setting.wiring])
    params, learned, rule, options = prepared(setting, wiring, start)
    taught = {"weight": jnp.asarray(teaching_weights(wiring, start, setting.seed)), "enter": params["enter"]}
    run = jax.jit(lambda params, state, xs: jax.lax.scan(lambda s, x: step(params, s, x), state, xs))
    held = stimuli(WARM + HELD, setting.seed, held_out=True)
    wanted = np.asarray(run(taught, state, held)[1])[WARM:]
    xs = stimuli(setting.steps, setting.seed, held_out=False)
    facts: dict[str, Any] = {"losses": [], "neurons": len(wiring.regions), "connections": int(start.size)}
    if setting.method in ("untrained", "teacher again"):
        if setting.method == "teacher again":
            params, state = taught, (state[0][::-1], *state[1:])
        facts |= {"compile": 0.0, "step": _seconds(lambda: run(params, state, xs[:PIECE])) / PIECE}
    else:
        params = _trained(setting, facts, (step, state, run, taught), (params, learned, rule, options), xs)
    found = np.asarray(run(params, state, held)[1])[WARM:]
    scores = correlations(found, wanted)
    shown = wiring.inner[np.argsort(-wanted.std(0)[wiring.inner])[:3]]
    error = float(np.mean(((found - wanted) / np.maximum(wanted.std(0), LEAST))[:, wiring.inner] ** 2))
    return facts | {
        "score": float(scores[wiring.inner].mean()),
        "error": error,
        "active": float(wanted.mean()),
        "shown": {wiring.names[k]: [wanted[::5, k].tolist(), found[::5, k].tolist()] for k in shown},
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        "versions": tables.versions("foretrace", "brainevent", "numba", "jax"),
    }


def _seconds(call: Callable[[], Any]) -> float:
    """The time of a second call."""
    import jax

    jax.block_until_ready(call())
    begun = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - begun


def _trained(setting: Setting, facts: dict[str, Any], network: Any, student: Any, xs: np.ndarray) -> Any:
    """The parameters after the stream; adds what was measured to the facts."""
    import jax
    import jax.numpy as jnp
    import optax

    import foretrace as ft

    (step, state, run, taught), (params, learned, rule, options) = network, student
    spread = np.asarray(run(taught, state, xs[: 2 * PIECE])[1])[WARM:].std(0)
    scale = jnp.asarray(1 / np.maximum(spread, LEAST), jnp.float32)
    begun = time.perf_counter()
    learner = ft.compile(step, rule, xs[0], params=params, state=state, weights=list(learned), block=UPDATE, **options)
    optimizer = optimizer_of(setting, params["weight"])

    def update(before: Any, part: Any) -> tuple[Any, Any]:
        params, opt_state, carry = before
        grads, carry, losses = learner.grad(
            params, carry, *part, loss=lambda out, y: jnp.mean(((out - y) * scale) ** 2)
        )
        mine = {name: params[name] for name in learned}
        changes, opt_state = optimizer.update({name: grads[name] for name in learned}, opt_state, mine)
        return (params | optax.apply_updates(mine, changes), opt_state, carry), losses.mean()

    def piece(before: Any, xs: Any, ys: Any) -> tuple[Any, Any]:
        parts = jax.tree.map(lambda a: a.reshape(-1, UPDATE, *a.shape[1:]), (xs, ys))
        return jax.lax.scan(update, before, parts)

    opt_state = optimizer.init({name: params[name] for name in learned})
    before = jax.tree.map(jnp.copy, (params, opt_state, learner.init()))
    example = (before, xs[:PIECE], jnp.zeros((PIECE, scale.size), jnp.float32))
    compiled = jax.jit(piece, donate_argnums=0).lower(*example).compile()
    facts["compile"] = time.perf_counter() - begun
    seconds = []
    for first in range(0, setting.steps, PIECE):
        part = jnp.asarray(xs[first : first + PIECE])
        state, ys = jax.block_until_ready(run(taught, state, part))
        begun = time.perf_counter()
        before, losses = jax.block_until_ready(compiled(before, part, ys))
        seconds.append((time.perf_counter() - begun) / PIECE)
        facts["losses"].append(float(losses.mean()))
    facts["step"] = median(seconds[1:] or seconds)
    return before[0]


def in_process(setting: Setting) -> dict[str, Any]:
    """Runs in a fresh process."""
    print(*asdict(setting).values(), file=sys.stderr, flush=True)
    command = [sys.executable, __file__, "--worker", json.dumps(asdict(setting))]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    finished = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if finished.returncode:
        raise SystemExit(f"{setting} failed:\n{finished.stderr}")
    found = dict(json.loads(finished.stdout.splitlines()[-1]))
    print(f"  correlation {found['score']:.3f}, {1e3 * found['step']:.2f} ms per step", file=sys.stderr, flush=True)
    return found


Results = dict[str, list[dict[str, Any]]]  # of each method, one for each seed


def table(results: Results) -> str:
    """Score, time and memory of every method."""
    rows = []
    for method, found in results.items():
        scores = [one["score"] for one in found]
        cells = [f"**{mean(scores):.3f}**", ", ".join(f"{score:.3f}" for score in scores)]
        cells += [f"{mean(one['error'] for one in found):.2f}", f"{1e3 * median(one['step'] for one in found):.2f}"]
        built = median(one["compile"] for one in found)
        peak = tables.megabytes(max(one["peak"] for one in found))
        rows.append([method, *cells, f"{built:.1f}" if built else "", peak])
    header = ["", "correlation", "of each seed", "error", "ms per step", "compile, s", "process peak, MB"]
    return tables.markdown(header, rows)


def draw(results: Results, path: Any) -> None:
    """Activity of three regions, the loss, the correlations, time and memory."""
    from foretrace._look import series
    from foretrace.viz.canvas import canvas

    looks = {name: series(number) for number, name in enumerate(("teacher", *METHODS))}
    with canvas("Drawing a connectome", (10.5, 5.6), (2, 3), path, None) as (_, places):
        first = {method: found[0]["shown"] for method, found in results.items()}
        for axes, name in zip(places, next(iter(first.values())), strict=False):
            shown = {"teacher": next(iter(first.values()))[name][0]}
            shown |= {method: regions[name][1] for method, regions in first.items()}
            for method, values in shown.items():
                axes.plot(5 * np.arange(len(values)), 100 * np.array(values), label=method, **_line(looks[method]))
            axes.set(title=name, xlabel="held-out step", ylabel="active, %")
        places[0].legend(fontsize="x-small")
        for method, found in results.items():
            for one in found:
                at = PIECE * (np.arange(len(one["losses"])) + 0.5)
                places[3].plot(at, one["losses"], **_line(looks[method]))
        places[3].set(title="loss while learning", xlabel="step", yscale="log")
        _bars(places[4], "held-out correlation", {m: [one["score"] for one in f] for m, f in results.items()}, looks)
        _bars(places[5], "process peak, MB", {m: [one["peak"] / 1e6 for one in f] for m, f in results.items()}, looks)


def _line(look: Any) -> dict[str, Any]:
    return {"color": look.color, "linewidth": 1.0, "linestyle": look.line.get("linestyle", "solid")}


def _bars(axes: Any, title: str, values: Mapping[str, Sequence[float]], looks: Mapping[str, Any]) -> None:
    """A bar for the mean of each method, and a dot for each seed."""
    for place, (method, found) in enumerate(values.items()):
        axes.bar(place, mean(found), color=looks[method].color, width=0.6, alpha=0.6)
        axes.plot([place] * len(found), found, "o", color="black", markersize=3)
    axes.set(title=title, xticks=range(len(values)), xticklabels=list(values))


def section(name: str, results: Results, arguments: argparse.Namespace) -> str:
    """What was found on one wiring."""
    some = next(iter(results.values()))[0]
    rates = ", ".join(f"{rate:g} for {method}" for method, rate in RATES[name].items())
    facts = (
        f"{some['neurons']:,} neurons, {some['connections']:,} connections; {arguments.steps[name]:,} steps of "
        f"learning, {arguments.seeds} seeds; the rate is {rates}. In the teacher {100 * some['active']:.1f} % of the "
        "neurons fire in a step."
    )
    figure = f"![Activity by region, loss, correlation and memory](connectome_{name}.svg)"
    return "\n\n".join([f"## {PAPER[name]}", facts, table(results), figure])


def page(sections: Sequence[str], versions: str) -> str:
    """The whole result page."""
    parts = [
        "# A connectome that learns",
        "Written by `benchmarks/connectome.py --write`. Spiking neurons with a synaptic current on the wiring of a "
        "fly, batch 1, float32; spikes are read as events (`brainevent.BinaryArray`). A teacher has the same wiring "
        f"and other strengths: log-normal factors for every pair of regions (sigma {PAIR}) and every synapse "
        f"({SYNAPSE}); in the whole brain they leave what a neuron receives of each sign as it is. Students start from "
        "the strengths without these factors. The loss is the squared error of the "
        f"filtered activity of each region at every step, and weights change every {UPDATE} steps while the stream "
        "runs on, at a rate that falls to zero.",
        "- `all synapses`: every synapse learns by `D_RTRL` and keeps its sign; Adam in units of the first weight.\n"
        f"- `adapters`: synapses are frozen; adapters of rank {RANK} and the weights of {CHANNELS} input channels to "
        "all neurons learn by `pp_prop` (0.99); Adam. The first factor of the adapters "
        "reaches neurons only through the second one, so it has its gradient within a step and no trace.\n"
        "- `untrained`: the student as it starts; its time is that of the model alone.\n"
        "- `teacher again`: the teacher from other potentials. What is missing to 1 is the noise of finite regions.",
        "`correlation` is that of the student's regional activity with the teacher's, on stimuli that were held out, "
        "in the mean over all regions without sensory neurons; `error` is the squared error there, in units of the "
        "teacher's variance. The rates are of those that `--choose` tries, by the correlation on seeds that are not "
        "shown here: 10 to 12 for the adapters of the eye (1e-06 on 10 alone), 10 for all others. The peak is "
        "`ru_maxrss` of a fresh process, which also runs the teacher. Times were taken on cores that other work "
        "shared.",
        "The wiring of the eye is that of the package `flyvis` (MIT), cell types as regions, expanded over 721 "
        "columns by the offsets that it lists, without filling gaps between them. The whole brain is random, with the "
        "size and the statistics of FlyWire v783 (heavy-tailed degrees, about 60 % excitatory) and 70 regions, and "
        "every neuron receives as much inhibition as excitation; it is no measured wiring.",
        f"- {versions}\n- {tables.machine()}",
        *sections,
    ]
    return "\n\n".join(parts) + "\n"


def kept_section(name: str) -> str | None:
    """What the page says already of a wiring that is not run now."""
    text = RESULT.read_text() if RESULT.exists() else ""
    parts = [part for part in text.split("\n## ")[1:] if part.startswith(PAPER[name])]
    return "## " + parts[0].rstrip() if parts else None


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wirings", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--choose", action="store_true", help="print the scores of some rates, and nothing else")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.relative_to(tables.ROOT)} and its figures")
    parser.add_argument("--worker", metavar="SETTING", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    arguments.sizes, arguments.steps = dict(SIZES), dict(STEPS)
    if arguments.quick:
        arguments.sizes, arguments.steps = {"eye": 2, "brain": 400}, {"eye": 1000, "brain": 1000}
        arguments.seeds = 1
    return arguments


def measure(name: str, arguments: argparse.Namespace) -> Results:
    """All methods and seeds on one wiring, one process after the other."""
    size, steps = arguments.sizes[name], arguments.steps[name]
    return {
        method: [
            in_process(Setting(name, method, seed, size, steps, RATES[name].get(method, 0.0)))
            for seed in range(arguments.seeds)
        ]
        for method in METHODS
    }


def choose(name: str, arguments: argparse.Namespace) -> str:
    """The scores of the rates that are tried on one wiring."""
    size, steps = arguments.sizes[name], arguments.steps[name]
    seeds, rows = range(CHOOSING, CHOOSING + arguments.seeds), []
    for method, rate in [(method, rate) for method, rates in TRIED.items() for rate in rates]:
        scores = [in_process(Setting(name, method, seed, size, steps, rate))["score"] for seed in seeds]
        rows.append([method, f"{rate:g}", f"{mean(scores):.3f}", ", ".join(f"{score:.3f}" for score in scores)])
    return tables.markdown([name, "rate", "correlation", "of each seed"], rows)


def main(argv: list[str]) -> None:
    arguments = parse(argv)
    if arguments.worker:
        print(json.dumps(learn(Setting(**json.loads(arguments.worker)))))
        return
    if arguments.choose:
        for name in arguments.wirings:
            print(choose(name, arguments), flush=True)
        return
    results = {}
    for name in arguments.wirings:
        results[name] = measure(name, arguments)
        print(section(name, results[name], arguments), flush=True)
        if arguments.write:  # after every wiring, so that an interrupted run leaves what it has found
            draw(results[name], RESULT.with_name(f"connectome_{name}.svg"))
            own = {one: section(one, found, arguments) for one, found in results.items()}
            sections = [text for one in SIZES if (text := own.get(one) or kept_section(one))]
            tables.write(RESULT, page(sections, results[name]["untrained"][0]["versions"]))


if __name__ == "__main__":
    main(sys.argv[1:])
