"""One network as a function, in Flax NNX, Flax linen, Equinox and brainstate: what its gradient costs in each form.

All five are the leaky layer of `docs/frameworks.md`, with the same values, driven by the pure learner over a whole
sequence. They are compiled in one process and take turns, so that a slow phase of the machine falls on all of them.

    python benchmarks/frontends.py            # print the table
    python benchmarks/frontends.py --write    # and write docs/results/frontends.md
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import brainstate
import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import foretrace as ft
from tables import RESULTS, machine, markdown, versions, write

RULE = "D_RTRL"
RESULT = RESULTS / "frontends.md"
NAMES = ("w", "u", "leak", "readout")


@dataclass(frozen=True)
class Size:
    """How large the network and its data are."""

    units: int = 256
    batch: int = 16
    inputs: int = 100
    steps: int = 200


def values_of(size: Size) -> dict[str, jax.Array]:
    """The values of the parameters."""
    shapes = {"w": (size.inputs, size.units), "u": (size.units,) * 2, "leak": (size.units,), "readout": (size.units, 1)}
    return {n: 0.1 * jax.random.normal(jax.random.key(k), shapes[n]) for k, n in enumerate(NAMES)}


def leaky(w: Any, u: Any, leak: Any, readout: Any, h: Any, x: Any) -> tuple[Any, Any]:
    """One step: the new state and the output."""
    a = jax.nn.sigmoid(leak)
    h = a * h + (1 - a) * jnp.tanh(x @ w + h @ u)
    return h, h @ readout


class NNXNetwork(nnx.Module):
    """The network in Flax NNX."""

    def __init__(self, values: dict[str, jax.Array]) -> None:
        self.w, self.u, self.leak, self.readout = (nnx.Param(values[name]) for name in NAMES)

    def __call__(self, carry: Any, x: Any) -> Any:
        return leaky(self.w[...], self.u[...], self.leak[...], self.readout[...], carry, x)


class LinenNetwork(nn.Module):
    """The network in Flax linen."""

    values: Any

    @nn.compact
    def __call__(self, carry: Any, x: Any) -> Any:
        own = [self.param(name, lambda key, name=name: self.values[name]) for name in NAMES]
        return leaky(*own, carry, x)


class EquinoxNetwork(eqx.Module):
    """The network in Equinox."""

    w: jax.Array
    u: jax.Array
    leak: jax.Array
    readout: jax.Array

    def __call__(self, carry: Any, x: Any) -> Any:
        return leaky(self.w, self.u, self.leak, self.readout, carry, x)


class BrainstateNetwork(brainstate.nn.Module):
    """The network in brainstate."""

    def __init__(self, values: dict[str, jax.Array]) -> None:
        super().__init__()
        self.w, self.u, self.leak, self.readout = (brainstate.ParamState(values[name]) for name in NAMES)

    def init_state(self, batch_size: int) -> None:
        self.h = brainstate.HiddenState(jnp.zeros((batch_size, self.u.value.shape[0])))

    def update(self, x: Any) -> Any:
        own = (self.w.value, self.u.value, self.leak.value, self.readout.value)
        self.h.value, out = leaky(*own, self.h.value, x)
        return out


def learners(size: Size) -> dict[str, Any]:
    """A learner of the network in each form."""
    values, x, h = values_of(size), jnp.zeros((size.batch, size.inputs)), jnp.zeros((size.batch, size.units))
    linen = LinenNetwork(values)
    step = lambda params, h, x: leaky(*(params[name] for name in NAMES), h, x)
    return {
        "function": ft.compile(step, RULE, x, params=values, state=h),
        "Flax NNX": ft.compile(NNXNetwork(values), RULE, x, state=h),
        "Flax linen": ft.compile(linen, RULE, x, params=linen.init(jax.random.key(0), h, x), state=h),
        "Equinox": ft.compile(EquinoxNetwork(**values), RULE, x, state=h),
        "brainstate": ft.compile(BrainstateNetwork(values), RULE, x, batch_size=size.batch),
    }


def gradient_of(learner: Any, xs: jax.Array) -> Callable[[], Any]:
    """The compiled gradient of a sequence, ready to be called."""
    pure, params, carry = learner.pure, learner.params, learner.carry
    run = jax.jit(lambda p, c, xs: pure.grad(p, c, xs, loss=lambda out: jnp.sum(out**2))[0])
    compiled = run.lower(params, carry, xs).compile()
    return lambda: jax.block_until_ready(compiled(params, carry, xs))


def measure(size: Size, repeats: int) -> tuple[dict[str, float], float]:
    """The median seconds of each form, and how far the gradients are from that of the function, relative to it."""
    xs = jax.random.normal(jax.random.key(9), (size.steps, size.batch, size.inputs))
    runs = {name: gradient_of(learner, xs) for name, learner in learners(size).items()}
    found = {name: _by_size(run()) for name, run in runs.items()}
    apart = max(_distance(found["function"], other) for other in found.values())
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(repeats):
        for name in list(runs) if turn % 2 == 0 else reversed(list(runs)):
            began = time.perf_counter()
            runs[name]()
            seconds[name].append(time.perf_counter() - began)
    return {name: median(times) for name, times in seconds.items()}, apart


def _by_size(gradients: Any) -> list[np.ndarray]:
    """The gradients in an order that does not depend on how a library names them; here all sizes differ."""
    return sorted((np.asarray(leaf) for leaf in jax.tree.leaves(gradients)), key=lambda leaf: (leaf.size, leaf.ndim))


def _distance(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> float:
    pairs = zip(one, other, strict=True)
    return max(float(np.max(np.abs(a - b)) / np.max(np.abs(a))) for a, b in pairs)


def table(seconds: dict[str, float]) -> str:
    """Milliseconds of each form, and the ratio to the function."""
    rows = [[name, f"{1e3 * s:.1f}", f"{s / seconds['function']:.2f}"] for name, s in seconds.items()]
    return markdown(["form", "gradient, ms", "beside the function"], rows)


def page(seconds: dict[str, float], apart: float, size: Size, repeats: int) -> str:
    """The result page."""
    return "\n".join(
        [
            "# One network in five forms",
            "",
            f"Written by `benchmarks/frontends.py --write`. The gradient of a sequence by {RULE}: {size.units} leaky "
            f"units, {size.inputs} inputs, batch {size.batch}, {size.steps} steps, float32; median of {repeats} calls "
            f"that take turns in one process. The gradients differ by at most {apart:.1e} of the largest entry.",
            "",
            f"- {versions('foretrace', 'jax', 'flax', 'equinox', 'brainstate')}",
            f"- {machine()}",
            "",
            table(seconds),
            "",
        ]
    )


def main() -> None:
    """Measures, prints, and writes the page where it is asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write docs/results/frontends.md")
    parser.add_argument("--repeats", type=int, default=21)
    arguments = parser.parse_args()
    size = Size()
    seconds, apart = measure(size, arguments.repeats)
    print(table(seconds))
    print(f"gradients differ by at most {apart:.1e}")
    if arguments.write:
        write(RESULT, page(seconds, apart, size, arguments.repeats))


if __name__ == "__main__":
    main()
