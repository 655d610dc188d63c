"""One gradient on one and on two devices of one core each, and what devices exchange as they become more.

Times are those of `learner.grad` by D_RTRL over a sequence, in processes that take turns: a device is one core, to
which its process is pinned, and XLA may use no more threads for it. What is exchanged is read from the compiled
programs: the arrays of their collectives, counted for the algorithms that are usual (in a ring of D devices each one
sends 2 (D - 1) / D of an array for an all-reduce, and (D - 1) / D for an all-gather or an all-to-all).

    python benchmarks/scaling.py            # print the tables
    python benchmarks/scaling.py --write    # and write docs/results/scaling.md
    python benchmarks/scaling.py --quick    # tiny sizes, to see that everything runs
"""

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

MARK = "@result "
INPUTS, LOOPBACK = 100, "127.0.0.1"
AXES = {"data": "batch", "units": "units"}
KINDS = {
    "one": "1 device, 1 core",
    "both": "1 device, 2 cores",
    "data": "2 devices, batch",
    "units": "2 devices, units",
    "processes": "2 processes, batch",
}
"""What is timed. `both` is one device that XLA's own threads share out over two cores."""
COLLECTIVE = re.compile(r"= (.*?) (all-gather|all-reduce|all-to-all|collective-permute)(?:-start)?\(")
ARRAY = re.compile(r"\b(?:f|s|u|pred|bf)(\d*)\[([\d,]*)\]")
SHARE = {"all-reduce": lambda d: 2 * (d - 1) / d, "collective-permute": lambda _: 1.0}


@dataclass(frozen=True)
class Size:
    """A network of one recurrent layer, its batch, and the length of the sequence."""

    units: int
    batch: int
    steps: int = 100

    def __str__(self) -> str:
        return f"({self.units}, {self.batch})"


def compiled(size: Size, mesh_axes: dict[str, int]) -> tuple[Any, tuple[Any, ...], int]:
    """The compiled gradient, its arguments where they belong, and the bytes of the traces on one device."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import foretrace as ft
    from foretrace.train.placement import placed

    def step(params: Any, v: Any, x: Any) -> Any:
        v = 0.9 * v + 0.1 * (x @ params["enter"] + jnp.tanh(v) @ params["recurrent"])
        return v, jnp.tanh(v)

    normal = np.random.default_rng(0).normal
    weights = lambda n: np.asarray(normal(size=(n, size.units)) / np.sqrt(n), np.float32)
    params = {"enter": weights(INPUTS), "recurrent": weights(size.units)}
    xs = np.asarray(normal(size=(size.steps, size.batch, INPUTS)), np.float32)
    state = np.zeros((size.batch, size.units), np.float32)
    learner = ft.compile(step, "D_RTRL", jnp.asarray(xs[0]), params=params, state=jnp.asarray(state))
    sizes, names = tuple(mesh_axes.values()), tuple(mesh_axes)
    kinds, count = (jax.sharding.AxisType.Auto,) * len(names), int(np.prod(sizes))
    mesh = jax.make_mesh(sizes, names, axis_types=kinds, devices=jax.devices()[:count])
    places = learner.shardings(mesh, **{AXES[name]: name for name in names})
    given = placed((params, learner.init(), xs), (places.params, places.carry, places.sequence))
    gradient = jax.jit(lambda *given: learner.grad(*given, loss=lambda out: jnp.mean(out**2)))
    traces = sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(given[1].trace))
    return gradient.lower(*given).compile(), given, traces


def bytes_sent(program: str, devices: int) -> dict[str, float]:
    """The bytes that one device sends in a run of a compiled program, by the kind of collective."""
    trips = {body: int(count) for body, count in _loops(program)}
    found, times = dict[str, float](), 1
    for line in program.splitlines():
        if line and not line.startswith(" "):
            times = trips.get(line.split(" ")[0], 1)
        if match := COLLECTIVE.search(line):
            arrays, kind = match.groups()
            share = SHARE.get(kind, lambda d: (d - 1) / d)(devices)
            found[kind] = found.get(kind, 0.0) + times * share * sum(map(_bytes, ARRAY.finditer(arrays)))
    return found


def _loops(program: str) -> Iterator[tuple[str, str]]:
    """The bodies of the loops of a program, and how often each of them runs."""
    for line in program.splitlines():
        body = re.search(r"body=(%[\w.\-]+)", line)
        count = re.search(r'known_trip_count":\{"n":"(\d+)"', line)
        if body and count:
            yield body[1], count[1]


def _bytes(array: re.Match[str]) -> int:
    size = int(array[1] or 8) // 8
    for length in filter(None, array[2].split(",")):
        size *= int(length)
    return size


class Group:
    """The processes of one kind, which time a call together when they are asked."""

    def __init__(self, kind: str) -> None:
        cores = sorted(os.sched_getaffinity(0))[:2]
        with closing(socket.socket()) as free:
            free.bind((LOOPBACK, 0))
            address = f"{LOOPBACK}:{free.getsockname()[1]}"
        devices = 2 if kind in ("data", "units") else 1
        flags = f"--xla_force_host_platform_device_count={devices}"
        flags += "" if kind == "both" else " --xla_cpu_multi_thread_eigen=false"
        known = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "0", "XLA_FLAGS": flags}
        environment = {**os.environ, **known, "JAX_COORDINATOR_BIND_ADDRESS": address}
        pinned = {"one": [cores[:1]], "processes": [[core] for core in cores]}.get(kind, [cores])
        self.processes = [
            subprocess.Popen(
                [sys.executable, __file__, "--serve", kind, str(number), address, ",".join(map(str, own))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for number, own in enumerate(pinned)
        ]

    def ask(self, **what: Any) -> dict[str, Any]:
        """What the first process answers; all of them work on it."""
        for process in self.processes:
            assert process.stdin is not None
            print(json.dumps(what), file=process.stdin, flush=True)
        first, *_ = [self._answer(process) for process in self.processes]
        return first

    def _answer(self, process: "subprocess.Popen[str]") -> dict[str, Any]:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(MARK):
                return dict(json.loads(line.removeprefix(MARK)))
        raise RuntimeError("a process has ended")

    def close(self) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self.processes:
            process.wait()


def serve(kind: str, number: str, address: str, cores: str) -> None:
    """Times a gradient whenever the parent asks for one, until its input ends."""
    os.sched_setaffinity(0, map(int, cores.split(",")))  # before JAX starts its threads
    import jax

    if kind == "processes":
        jax.distributed.initialize(address, 2, int(number))
    axes = {"units": {"units": 2}, "data": {"data": 2}, "processes": {"data": 2}}.get(kind, {"data": 1})
    runs: dict[Size, Any] = {}
    for line in sys.stdin:
        size = Size(**json.loads(line))
        runs[size] = runs.get(size) or compiled(size, axes)
        run, given, _ = runs[size]
        began = time.perf_counter()
        jax.block_until_ready(run(*given))
        print(MARK + json.dumps({"seconds": time.perf_counter() - began}), flush=True)


def seconds(sizes: Sequence[Size], repeats: int) -> dict[tuple[str, Size], float]:
    """The median time of a gradient of each kind and size; kinds take turns, so a slow phase falls on all of them."""
    groups = {kind: Group(kind) for kind in KINDS}
    found: dict[tuple[str, Size], list[float]] = {(kind, size): [] for size in sizes for kind in KINDS}
    for size in sizes:
        for group in groups.values():
            group.ask(**asdict(size))  # compiles it; this time does not count
        for turn in range(repeats):
            for kind in list(groups) if turn % 2 == 0 else reversed(list(groups)):
                found[kind, size].append(groups[kind].ask(**asdict(size))["seconds"])
    for group in groups.values():
        group.close()
    return {case: median(times) for case, times in found.items()}


def exchange(sizes: Sequence[Size], counts: Sequence[int]) -> list[list[str]]:
    """The lines of the table of what devices exchange; asked of a process that has enough of them."""
    flags = f"--xla_force_host_platform_device_count={max(counts)}"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "0", "XLA_FLAGS": flags}
    asked = json.dumps({"sizes": [asdict(size) for size in sizes], "counts": list(counts)})
    done = subprocess.run(
        [sys.executable, __file__, "--exchange", asked], env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith(MARK))
    return list(json.loads(line.removeprefix(MARK)))


def exchange_lines(asked: str) -> None:
    """Prints the lines for `exchange`."""
    what, rows = json.loads(asked), []
    for size in (Size(**own) for own in what["sizes"]):
        for axis in AXES:
            for devices in what["counts"]:
                run, _, traces = compiled(size, {axis: devices})
                sent = bytes_sent(run.as_text(), devices)
                each = [sent.get(kind, 0.0) / 1e3 / size.steps for kind in ("all-reduce", "all-gather", "all-to-all")]
                words = [str(size), axis, str(devices), *(f"{kilobytes:.3g}" for kilobytes in each)]
                rows.append([*words, f"{sum(sent.values()) / 1e3 / size.steps:.3g}", f"{traces / 1e6:.3g}"])
    print(MARK + json.dumps(rows))


TIMED = ("(units, batch)", *(f"{words}, ms" for words in KINDS.values()))
SPED = ("(units, batch)", *(f"{KINDS[kind]}" for kind in ("both", "data", "units", "processes")))
EXCHANGED = ("(units, batch)", "axis", "devices", "all-reduce, kB/step", "all-gather, kB/step", "all-to-all, kB/step")
EXCHANGED += ("in all, kB/step", "traces, MB/device")


def page(sizes: Sequence[Size], times: dict[tuple[str, Size], float], moved: Sequence[Any], repeats: int) -> str:
    """The page with both tables."""
    from tables import machine, markdown, versions

    timed = [[str(size), *(f"{1e3 * times[kind, size]:.3g}" for kind in KINDS)] for size in sizes]
    faster = lambda kind, size: f"{times['one', size] / times[kind, size]:.2f}"
    sped = [[str(size), *(faster(kind, size) for kind in ("both", "data", "units", "processes"))] for size in sizes]
    return "\n\n".join(
        [
            "# Many devices",
            "Written by `benchmarks/scaling.py --write`. One gradient of D_RTRL over "
            f"{sizes[0].steps} steps of a recurrent layer with {INPUTS} inputs, in float32. A device is one core: "
            "processes are pinned, and XLA may use one thread for each device; `1 device, 2 cores` is one device with "
            f"XLA's own threads on both cores. Medians of {repeats} calls that take turns.",
            f"- {versions('foretrace', 'jax')}\n- {machine()}",
            "## Time of a gradient",
            markdown(TIMED, timed),
            "Times as fast as one device with one core:",
            markdown(SPED, sped),
            "## What one device sends in a step",
            "Read from the compiled programs, whose collectives have these arrays, and counted for rings: of D devices "
            "each one sends 2 (D - 1) / D of an array for an all-reduce, and (D - 1) / D for an all-gather or an "
            "all-to-all. What is exchanged once in a gradient is shared out over its steps: a longer sequence sends "
            "less of it in a step. No network was measured.",
            markdown(EXCHANGED, moved),
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15, help="calls of each case after the first")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    parser.add_argument("--write", action="store_true", help="write scaling.md")
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--exchange", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        return serve(*given.serve)
    if given.exchange:
        return exchange_lines(given.exchange)
    from tables import RESULTS, write

    sizes = [Size(8, 4, 10)] if given.quick else [Size(128, 64), Size(256, 64), Size(512, 32)]
    moved = exchange(sizes, [2, 4] if given.quick else [2, 4, 8])
    text = page(sizes, seconds(sizes, given.repeats), moved, given.repeats)
    print(text)
    if given.write:
        write(RESULTS / "scaling.md", text)


if __name__ == "__main__":
    main()
