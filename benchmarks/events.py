"""The gradient of a large spiking network with sparse weights, beside its forward step, by the share that fires.

The network has as many neurons as the brain of a fly, two states each, and a sparse recurrent weight that reads spikes
as events. A constant drive makes each neuron fire at one rate, from a random phase, so the share of neurons that fire
in a step is set by the drive; the page gives the share that was measured. The loss reads the potential of all neurons
at every step.

One process for each rule, number of connections and activity compiles the forward steps (a scan of the model and its
loss) and the gradient with traces, calls them in turn, and reports the medians, the time to compile and its peak
memory. A second process times the gradient in a form that is dense in the connections, where the same spikes are read
as floats and every step passes over all connections, for some steps, and compares the two gradients. A third compares
the gradient of a small network with the one of a dense matrix, in float64. Where an environment with braintrace is
there, it runs the same network at the smallest number of connections; it takes spikes as floats alone.

    python benchmarks/events.py                        # print the tables
    python benchmarks/events.py --write                # and write docs/results/events.md
    python benchmarks/events.py --quick                # tiny sizes, to see that everything runs
    python benchmarks/events.py --rival-python PATH    # another environment with braintrace
"""

import argparse
import importlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import tables

RESULT = tables.RESULTS / "events.md"
BLOCKS = {"D_RTRL": 200, "pp_prop": 100}  # steps: what a block of pp_prop holds is more in each of them
NEURONS, CONNECTIONS, ACTIVITIES = 138_639, (3_000_000, 15_000_000), (0.001, 0.005, 0.02)
RATIO, COMPILE, PEAK, FLOAT32, FLOAT64 = 5.0, 15.0, 2.5e9, 1e-5, 1e-10


@dataclass(frozen=True)
class Setting:
    """One measurement: what is run, in what size, and over how many steps."""

    kind: str
    rule: str
    neurons: int
    connections: int
    activity: float
    steps: int
    block: int
    repeats: int


@dataclass(frozen=True)
class Network:
    """A network, its parameters, its state, and what its weight reads: events or floats."""

    step: Callable[..., Any]
    weight: Any
    state: Any


def wiring(setting: Setting, rng: Any) -> tuple[Any, Any, Any]:
    """Random connections: how many each neuron has, their columns and their weights."""
    import numpy as np

    counts = rng.poisson(setting.connections / setting.neurons, setting.neurons)
    columns = rng.integers(0, setting.neurons, int(counts.sum()), dtype=np.int32)
    return counts, columns, rng.normal(size=columns.size).astype(np.float32) * 1e-5


def network(setting: Setting, reads: str = "events") -> Network:
    """Leaky synapses on neurons that integrate a constant drive; `reads` is events, floats, or dense."""
    import brainevent
    import jax
    import jax.numpy as jnp
    import numpy as np

    import foretrace as ft

    neurons, rng = setting.neurons, np.random.default_rng(0)
    counts, columns, values = wiring(setting, rng)
    starts, dtype = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32), jnp.result_type(float)
    weight = jnp.asarray(values, dtype)
    matrix = brainevent.CSR((jnp.ones(1, dtype), jnp.asarray(columns), jnp.asarray(starts)), shape=(neurons, neurons))

    @jax.custom_jvp
    def spike(v: Any) -> Any:
        return (v > 0).astype(v.dtype)

    spike.defjvp(lambda primals, tangents: (spike(*primals), tangents[0] / (1 + jnp.abs(primals[0])) ** 2))

    def product(spikes: Any, weight: Any) -> Any:
        if reads == "dense":
            rows = np.repeat(np.arange(neurons), counts)
            return ft.matmul(spikes, jnp.zeros((neurons, neurons), dtype).at[rows, columns].add(weight))
        return ft.sparse_matmul(
            brainevent.BinaryArray(spikes) if reads == "events" else spikes, weight, sparse_mat=matrix
        )

    def step(weight: Any, state: Any, drive: Any) -> tuple[Any, Any]:
        v, current = state
        spikes = spike(v - 1.0)
        current = 0.9 * current + product(spikes, weight)
        v = v - spikes + drive + current
        return (v, current), v

    start = jnp.asarray(rng.random(neurons).astype(np.float32), dtype)
    return Network(step, weight, (start, jnp.zeros(neurons, dtype)))


def loss(v: Any) -> Any:
    """Half of the mean squared potential."""
    import jax.numpy as jnp

    return 0.5 * jnp.mean(v**2)


def learner_of(setting: Setting, net: Network) -> Any:
    import jax.numpy as jnp

    import foretrace as ft

    options = {"pp_prop": {"decay_or_rank": 0.9}}.get(setting.rule, {})
    return ft.compile(
        net.step, setting.rule, jnp.zeros(()), params=net.weight, state=net.state, block=setting.block, **options
    )


def gradient_of(learner: Any, setting: Setting) -> tuple[Any, Any]:
    """The jitted gradient, which writes over its carry, and the drive of each step."""
    import jax
    import jax.numpy as jnp

    run = jax.jit(lambda weight, carry, xs: learner.grad(weight, carry, xs, loss=loss), donate_argnums=1)
    return run, jnp.full(setting.steps, setting.activity)


def by_events(setting: Setting) -> dict[str, Any]:
    """Times forward steps and gradients in turn."""
    import jax
    import jax.numpy as jnp

    net = network(setting)

    def steps(measured: Callable[[Any], Any]) -> Callable[..., Any]:
        def one(state: Any, x: Any, weight: Any) -> tuple[Any, Any]:
            state, v = net.step(weight, state, x)
            return state, measured(v)

        return jax.jit(lambda weight, state, xs: jax.lax.scan(lambda s, x: one(s, x, weight), state, xs))

    forward = steps(loss)
    begun = time.perf_counter()
    learner = learner_of(setting, net)
    gradient, xs = gradient_of(learner, setting)
    carry = learner.init()
    compiled = gradient.lower(net.weight, carry, xs).compile()
    compiling = time.perf_counter() - begun
    activity = float(jnp.mean(steps(lambda v: jnp.mean(v > 1.0))(net.weight, net.state, xs)[1]))
    times: dict[str, list[float]] = {"forward": [], "gradient": []}
    state = jax.tree.map(jnp.copy, net.state)
    for _ in range(setting.repeats + 1):
        begun = time.perf_counter()
        state, _ = jax.block_until_ready(forward(net.weight, state, xs))
        times["forward"].append(time.perf_counter() - begun)
        begun = time.perf_counter()
        found, carry, _ = jax.block_until_ready(compiled(net.weight, carry, xs))
        times["gradient"].append(time.perf_counter() - begun)
        del found
    first, *later = times["gradient"]
    return {
        "activity": activity,
        "forward": median(times["forward"][1:]) / setting.steps,
        "gradient": median(later) / setting.steps,
        "compile": compiling + first - median(later),
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        "versions": tables.versions("foretrace", "brainevent", "numba", "jax"),
    }


def by_connections(setting: Setting) -> dict[str, Any]:
    """Times the form that is dense in the connections, and compares its gradient."""
    import jax
    import jax.numpy as jnp

    found = {}
    for reads in ("events", "floats"):
        net = network(setting, reads)
        learner = learner_of(setting, net)
        gradient, xs = gradient_of(learner, setting)
        begun = time.perf_counter()
        compiled = gradient.lower(net.weight, learner.init(), xs).compile()
        compiling = time.perf_counter() - begun
        _, carry, _ = jax.block_until_ready(compiled(net.weight, learner.init(), xs))
        begun = time.perf_counter()
        found[reads] = jax.block_until_ready(compiled(net.weight, carry, xs))[0]
        seconds = time.perf_counter() - begun
    apart = jnp.max(jnp.abs(found["events"] - found["floats"])) / jnp.max(jnp.abs(found["floats"]))
    return {"gradient": seconds / setting.steps, "apart": float(apart), "compile": compiling}


def beside_dense(setting: Setting) -> dict[str, Any]:
    """Compares the gradient of a small network with that of a dense matrix."""
    import jax.numpy as jnp

    found = []
    for reads in ("events", "dense"):
        net = network(setting, reads)
        learner = learner_of(setting, net)
        gradient, xs = gradient_of(learner, setting)
        carry = gradient(net.weight, learner.init(), xs)[1]
        found.append(gradient(net.weight, carry, xs)[0])
    apart = jnp.max(jnp.abs(found[0] - found[1])) / jnp.max(jnp.abs(found[1]))
    return {"apart": float(apart)}


def by_braintrace(setting: Setting, library: str = "braintrace") -> dict[str, Any]:
    """Times the gradient of braintrace, whose sparse product takes spikes as floats alone."""
    import brainevent
    import brainstate
    import jax
    import jax.numpy as jnp
    import numpy as np

    tracing: Any = importlib.import_module(library)
    neurons, rng = setting.neurons, np.random.default_rng(0)
    counts, columns, values = wiring(setting, rng)
    starts = jnp.asarray(np.concatenate([[0], np.cumsum(counts)]), jnp.int32)
    matrix = brainevent.CSR((jnp.asarray(values), jnp.asarray(columns), starts), shape=(neurons, neurons))
    spike = jax.custom_jvp(lambda v: (v > 0).astype(v.dtype))
    spike.defjvp(lambda primals, tangents: (spike(*primals), tangents[0] / (1 + jnp.abs(primals[0])) ** 2))

    class Layer(brainstate.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = brainstate.ParamState(jnp.asarray(values))

        def init_state(self, *_: Any, **__: Any) -> None:
            self.v = brainstate.HiddenState(jnp.asarray(rng.random(neurons).astype(np.float32)))
            self.current = brainstate.HiddenState(jnp.zeros(neurons, jnp.float32))

        def update(self, drive: Any) -> Any:
            spikes = spike(self.v.value - 1.0)
            arriving = tracing.sparse_matmul(spikes, self.weight.value, sparse_mat=matrix)
            self.current.value = 0.9 * self.current.value + arriving
            self.v.value = self.v.value - spikes + jnp.mean(drive) + self.current.value
            return self.v.value

    begun, layer = time.perf_counter(), Layer()
    brainstate.nn.init_all_states(layer)
    options = {"pp_prop": {"decay_or_rank": 0.9}}.get(setting.rule, {})
    xs = jnp.full((setting.steps, 1), setting.activity, jnp.float32)
    learner = tracing.compile(layer, setting.rule, xs[0], **options)

    @brainstate.transform.jit
    def run(xs: Any) -> Any:
        return learner.etrace_grad(xs, xs, step_fn=lambda x, _: loss(learner(x)), reduction="sum", return_value=True)

    jax.block_until_ready(run(xs))
    first, begun = time.perf_counter() - begun, time.perf_counter()
    jax.block_until_ready(run(xs))
    seconds = time.perf_counter() - begun
    return {
        "gradient": seconds / setting.steps,
        "compile": first - seconds,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        "versions": tables.versions(library, "brainevent", "jax"),
    }


KINDS = {"events": by_events, "connections": by_connections, "dense": beside_dense, "rival": by_braintrace}


def in_process(setting: Setting, python: Path | None = None) -> dict[str, Any]:
    """Measures in a fresh process, of this environment or of another."""
    print(*asdict(setting).values(), file=sys.stderr, flush=True)
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1" if setting.kind == "dense" else "0"}
    command = [str(python or sys.executable), __file__, "--worker", json.dumps(asdict(setting))]
    finished = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if finished.returncode:
        raise SystemExit(f"{setting} failed:\n{finished.stderr}")
    return dict(json.loads(finished.stdout.splitlines()[-1]))


Results = dict[tuple[str, int, float], dict[str, Any]]


def table(results: Results) -> str:
    """Times per step, compile time and peak of every setting."""
    header = ["", "connections", "active", "forward, ms", "gradient, ms", "ratio", "dense in connections, ms", "ratio"]
    rows = []
    for (rule, connections, _), one in results.items():
        cells = [f"{1e3 * one[name]:.3g}" for name in ("forward", "gradient", "connections")]
        ratios = [f"{one[name] / one['forward']:.1f}" for name in ("gradient", "connections")]
        sizes = [f"{one['compile']:.1f}", tables.megabytes(one["peak"]), f"{one['apart']:.1e}"]
        share = f"{100 * one['activity']:.2g}%"
        rows.append([rule, f"{connections:,}", share, *cells[:2], ratios[0], cells[2], ratios[1], *sizes])
    return tables.markdown([*header, "compile, s", "process peak, MB", "apart"], rows)


def rival_table(results: Results, rival: dict[str, dict[str, Any]], connections: int) -> str:
    """Times per step, compile time and peak of braintrace, beside what they are here at the most activity."""
    rows = []
    for rule, one in rival.items():
        own = results[max(key for key in results if key[:2] == (rule, connections))]
        sizes = [f"{one['compile']:.1f}", tables.megabytes(one["peak"])]
        ratio = f"{one['gradient'] / own['gradient']:.1f}"
        rows.append([rule, f"{connections:,}", f"{1e3 * one['gradient']:.3g}", ratio, *sizes])
    header = ["", "connections", "gradient, ms", "x the gradient here", "compile, s", "process peak, MB"]
    return tables.markdown(header, rows)


def checks(results: Results, small: dict[str, float]) -> list[list[str]]:
    """What was aimed at, and what was measured: the worst of all settings."""
    rows = []
    for rule in dict.fromkeys(rule for rule, _, _ in results):
        own = {key: one for key, one in results.items() if key[0] == rule}
        ratios = [one["gradient"] / one["forward"] for one in own.values()]
        rows.append(_checked(f"{rule}, gradient / forward", RATIO, max(ratios)))
        rows.append(_checked(f"{rule}, gradient at the least / at the most activity", 1.0, max(_falls(own))))
        rows.append(_checked(f"{rule}, seconds to compile", COMPILE, max(one["compile"] for one in own.values())))
        rows.append(_checked(f"{rule}, process peak, bytes", PEAK, max(one["peak"] for one in own.values())))
        apart = max(one["apart"] for one in own.values())
        rows.append(_checked(f"{rule}, apart from the form dense in connections", FLOAT32, apart))
        rows.append(_checked(f"{rule}, apart from a dense matrix, float64", FLOAT64, small[rule]))
    return rows


def _falls(results: Results) -> list[float]:
    """For each number of connections, the time at the least over the time at the most activity."""
    found = []
    for size in dict.fromkeys(connections for _, connections, _ in results):
        times = {
            activity: one["gradient"] for (_, connections, activity), one in results.items() if connections == size
        }
        found.append(times[min(times)] / times[max(times)])
    return found


def _checked(what: str, limit: float, figure: float) -> list[str]:
    return [what, f"<= {limit:g}", f"{figure:.3g}", "yes" if figure <= limit else "**no**"]


def page(
    results: Results, small: dict[str, float], rival: dict[str, dict[str, Any]], arguments: argparse.Namespace
) -> str:
    """The whole result page."""
    some = next(iter(results.values()))
    parts = [
        "# Events",
        f"Written by `benchmarks/events.py --write`. {arguments.neurons:,} spiking neurons of two states with sparse "
        f"recurrent weights, batch 1, float32; {arguments.steps} steps in a call, in blocks of "
        f"{' and '.join(f'{arguments.block or BLOCKS[rule]} ({rule})' for rule in arguments.rules)}. The weights read "
        "spikes as events (`brainevent.BinaryArray`), and a loss reads the potential of all neurons at "
        "every step. Milliseconds per step: of the model and its loss alone, and of the gradient with traces.",
        "`dense in connections` is the gradient of the same network where spikes are read as floats: each step then "
        f"passes over all connections. It was timed over {arguments.dense_steps} steps in one block, and `apart` is "
        "the largest difference between the two gradients by the largest gradient. Compile time is from the model to "
        "the end of the first call, less what a later call takes. The peak is `ru_maxrss` of a fresh process that "
        "makes the network, compiles and runs both.",
        f"- {some['versions']}\n- {tables.machine()}",
        table(results),
        "The worst of all settings:",
        tables.markdown(["", "target", "measured", "holds"], checks(results, small)),
        f"A dense matrix was compared at {arguments.small_neurons} neurons.",
    ]
    if rival:
        parts += [
            f"The same network in braintrace ({next(iter(rival.values()))['versions']}), which takes spikes as floats "
            f"(a `BinaryArray` is an error in its traced product), over {arguments.dense_steps} steps; `x the gradient "
            "here` is against the events above with the most activity:",
            rival_table(results, rival, min(arguments.connections)),
        ]
    return "\n\n".join(parts) + "\n"


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--neurons", type=int, default=NEURONS)
    parser.add_argument("--connections", type=int, nargs="+", default=list(CONNECTIONS))
    parser.add_argument("--activities", type=float, nargs="+", default=list(ACTIVITIES))
    parser.add_argument("--rules", nargs="+", default=list(BLOCKS))
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--block", type=int, help="steps in a block; 200 for D_RTRL and 100 for pp_prop")
    parser.add_argument("--dense-steps", type=int, default=20)
    parser.add_argument("--small-neurons", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rival-python", type=Path, default=tables.ROOT / ".venv-rival" / "bin" / "python")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.relative_to(tables.ROOT)}")
    parser.add_argument("--worker", metavar="SETTING", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.quick:
        arguments.neurons, arguments.connections, arguments.steps, arguments.block = 500, [5_000], 40, 10
        arguments.activities, arguments.repeats = [0.005, 0.1], 1
    return arguments


def measure(arguments: argparse.Namespace) -> tuple[Results, dict[str, float], dict[str, dict[str, Any]]]:
    """Every setting, one process after the other."""
    results: Results = {}
    for rule in arguments.rules:
        for connections in arguments.connections:
            for activity in arguments.activities:
                own = (rule, arguments.neurons, connections, activity)
                block = arguments.block or BLOCKS[rule]
                one = in_process(Setting("events", *own, arguments.steps, block, arguments.repeats))
                other = in_process(Setting("connections", *own, arguments.dense_steps, arguments.dense_steps, 1))
                one |= {"connections": other["gradient"], "apart": other["apart"]}
                results[rule, connections, activity] = one
    few = (arguments.small_neurons, 20 * arguments.small_neurons, 0.02)
    small = {rule: in_process(Setting("dense", rule, *few, 100, 30, 1))["apart"] for rule in arguments.rules}
    rival = {}
    if arguments.rival_python.exists():
        least = (arguments.neurons, min(arguments.connections), max(arguments.activities))
        settings = [Setting("rival", rule, *least, arguments.dense_steps, 1, 1) for rule in arguments.rules]
        rival = {setting.rule: in_process(setting, arguments.rival_python) for setting in settings}
    return results, small, rival


def main(argv: list[str]) -> None:
    arguments = parse(argv)
    if arguments.worker:
        setting = Setting(**json.loads(arguments.worker))
        print(json.dumps(KINDS[setting.kind](setting)))
        return
    text = page(*measure(arguments), arguments)
    print(text)
    if arguments.write:
        tables.write(RESULT, text)


if __name__ == "__main__":
    main(sys.argv[1:])
