"""A small benchmark: networks of a few sizes on random spikes, rules in turn, time and planned memory."""

import argparse
import functools
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import jax
import jax.numpy as jnp

import foretrace
from foretrace import train
from foretrace._repr import bytes_text
from foretrace.cli.arguments import as_usage
from foretrace.cli.measure import compiled_gradient, seconds_in_turn, working_memory
from foretrace.cli.rules import BPTT, RuleChoice
from foretrace.compiler.reporting.tables import table

OUTPUTS, SPIKES = 10, 0.1
LONGER = 10


@dataclass(frozen=True)
class Measured:
    """The gradient of one rule, for one size.

    Attributes:
        rule: The rule.
        units: Neurons or units.
        seconds: Time of a gradient.
        bytes: Its memory, beside its inputs.
        longer_bytes: The same for sequences ten times as long.
    """

    rule: str
    units: int
    seconds: float
    bytes: int | None
    longer_bytes: int | None


@dataclass(frozen=True)
class Benchmark:
    """What is measured.

    Attributes:
        options: Those of `foretrace bench`.
        rules: The rules that they name.
    """

    options: argparse.Namespace
    rules: Sequence[RuleChoice]

    @property
    def words(self) -> str:
        """What is measured, in a line."""
        own = self.options
        return (
            f"{own.cell} networks, batch {own.batch}, {own.inputs} inputs, {own.steps} steps, "
            f"{OUTPUTS} outputs with a squared error at every step"
        )

    def measure(self, units: int) -> list[Measured]:
        """Measures all rules for one size."""
        own = self.options
        with as_usage():
            network = train.network(own.cell, own.inputs, OUTPUTS, units, **dict(own.cell_set))
            learners = [network.compile(rule.rule, own.batch, **rule.options) for rule in self.rules]
        spikes = jax.random.bernoulli(jax.random.key(0), SPIKES, (own.steps, own.batch, own.inputs))
        inputs, targets = spikes.astype(jnp.result_type(float)), jnp.zeros((own.steps, own.batch, OUTPUTS))
        loss = lambda out, target: (jnp.mean((out.out - target) ** 2), None)
        gradient = lambda *batch: [
            compiled_gradient(learner, network.params, network.init_state(own.batch), loss, *batch)
            for learner in learners
        ]
        compiled, longer = gradient(inputs, targets), gradient(*map(_longer, (inputs, targets)))
        runs = [functools.partial(run, network.params, inputs, targets) for run in compiled]
        times = seconds_in_turn(runs, own.repeats)
        return [
            Measured(rule.label, units, spent, working_memory(now), working_memory(later))
            for rule, spent, now, later in zip(self.rules, times, compiled, longer, strict=True)
        ]


def _longer(array: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((LONGER * array.shape[0], *array.shape[1:]), array.dtype)


def tables(measured: Sequence[Measured], benchmark: Benchmark) -> str:
    """The figures of one size."""
    exact = next((m.seconds for m in measured if m.rule == BPTT), None)
    header = [
        f"{measured[0].units} units",
        "time",
        "per step",
        "beside BPTT",
        f"memory, {benchmark.options.steps:,} steps",
        f"{LONGER * benchmark.options.steps:,} steps",
    ]
    rows = [
        [
            m.rule,
            f"{1e3 * m.seconds:.3g} ms",
            f"{1e6 * m.seconds / benchmark.options.steps:,.0f} us",
            "-" if exact is None else f"{m.seconds / exact:.2f}",
            bytes_text(m.bytes),
            bytes_text(m.longer_bytes),
        ]
        for m in measured
    ]
    return "\n".join(table(header, rows, [40, *[20] * 5]))


def machine() -> str:
    """What it is measured on and with."""
    device = jax.devices()[0]
    where = f"{os.cpu_count()} cores" if device.platform == "cpu" else str(device)
    return f"foretrace {foretrace.__version__}, jax {jax.__version__}, {platform.machine()}, {where}"


def write_results(
    benchmark: Benchmark, found: Sequence[Measured], figures: Path | None, picture: Path | None
) -> list[Path]:
    """Writes what was asked for."""
    if figures is not None:
        facts = {"machine": machine(), "what": benchmark.words, "steps": benchmark.options.steps, "longer": LONGER}
        figures.write_text(json.dumps({**facts, "results": [asdict(m) for m in found]}, indent=2) + "\n")
    if picture is not None:
        from foretrace.viz import memory_against_length

        largest = [m for m in found if m.units == max(other.units for other in found)]
        lengths = (benchmark.options.steps, LONGER * benchmark.options.steps)
        curves = {m.rule: dict(zip(lengths, (m.bytes, m.longer_bytes), strict=True)) for m in largest}
        memory_against_length(curves, path=picture)
    return [path for path in (figures, picture) if path is not None]
