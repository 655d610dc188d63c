"""What an entry of the table of models holds: how to build the model, and what the compiler must find in it.

The expected values follow from the vocabulary of the design alone: which equations mix positions, which states depend
on one another position by position, and by which paths a parameter reaches them. Sizes are small and differ from
axis to axis, so that nothing fits by coincidence. Everything is seeded and runs in float64.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import brainstate
import jax
import jax.numpy as jnp
import numpy as np

# Without this brainstate makes float32 states beside float64 weights, and a step would change a state's dtype.
brainstate.environ.set(precision=64)

BATCH, INPUT, HIDDEN, WIDE, OUT = 2, 3, 4, 5, 6

History = Literal["all", "direct", "in-step", "none-needed"]
Draw = Callable[[np.random.Generator], Any]


@dataclass(frozen=True)
class Expected:
    """What the compiler must find.

    Attributes:
        groups: The names of the states of each hidden group, with its `num_state`.
        history: What the history of each parameter keeps. `all`: the online gradient is that of BPTT. `direct`: some
            path to a later loss runs through a mixing equation, another shape or another position, and is left out.
            `in-step`: it influences a state, and no occurrence has a relation. `none-needed`: it influences no state.
        relations: The states that each parameter's traced occurrences reach by direct paths within the step.
    """

    groups: tuple[tuple[frozenset[str], int], ...]
    history: Mapping[str, History]
    relations: Mapping[str, frozenset[str]]


@dataclass(frozen=True, eq=False)
class Model:
    """One model of the table.

    Attributes:
        name: What it is called in test reports.
        kind: `function` for `step(params, state, x) -> (state, out)`, `module` for a brainstate module.
        build: For a function, gives `dict(step, params, state, x)`; for a module, `(factory, x, batch_size)`. The
            factory gives a fresh module whose states are yet to be initialised.
        expected: What the compiler must find.
        draw: One step's input from a random generator.
        marked: Whether the traced occurrences are marked with operators of Foretrace.
        forward: Whether JAX can differentiate the step, as it is written, in forward mode alone.
    """

    name: str
    kind: Literal["function", "module"]
    build: Callable[[], Any]
    expected: Expected
    draw: Draw = field(repr=False)
    marked: bool = False
    forward: bool = False


def inputs(model: Model, steps: int, seed: int = 0) -> Any:
    """A sequence of inputs for `model`, time first."""
    generator = np.random.default_rng(seed)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *(model.draw(generator) for _ in range(steps)))


def expect(groups: Sequence[str | tuple[str, int]], parameters: Mapping[str, str]) -> Expected:
    """Reads the short form: `expect(["c h"], {"w": "direct -> c h", "w_out": "none-needed"})`."""
    pairs = [(entry, len(entry.split())) if isinstance(entry, str) else entry for entry in groups]
    history: dict[str, Any] = {}
    relations: dict[str, frozenset[str]] = {}
    for name, text in parameters.items():
        kept, _, reached = text.partition("->")
        history[name] = kept.strip()
        relations[name] = frozenset(reached.split())
    return Expected(tuple((frozenset(names.split()), number) for names, number in pairs), history, relations)


def seeded(name: str) -> np.random.Generator:
    """The generator of a model's own parameters and initial states."""
    return np.random.default_rng(list(name.encode()))


def weight(generator: np.random.Generator, *shape: int, gain: float = 1.0) -> jax.Array:
    """Normal numbers scaled by the square root of the first axis."""
    return jnp.asarray(generator.normal(size=shape) * gain / np.sqrt(shape[0] if len(shape) > 1 else 1.0))


def normal(*shape: int) -> Draw:
    """Inputs from a normal distribution."""
    return lambda generator: jnp.asarray(generator.normal(size=shape))


def spikes(*shape: int) -> Draw:
    """Inputs that are zero or one."""
    return lambda generator: jnp.asarray((generator.random(size=shape) < 0.6).astype(float))


def tokens(size: int, *shape: int) -> Draw:
    """Inputs that are indices below `size`."""
    return lambda generator: jnp.asarray(generator.integers(size, size=shape))


@jax.custom_jvp
def spike(potential: jax.Array) -> jax.Array:
    """One where the potential is above zero; its derivative is that of a sigmoid with slope 2."""
    return jnp.where(potential > 0, 1.0, 0.0)


@spike.defjvp
def _spike_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    (potential,), (tangent,) = primals, tangents
    sigmoid = jax.nn.sigmoid(2.0 * potential)
    return spike(potential), 2.0 * sigmoid * (1.0 - sigmoid) * tangent


class Table:
    """Collects models as decorators meet them, in the order of the file."""

    def __init__(self) -> None:
        self.models: list[Model] = []

    def function(
        self,
        name: str,
        groups: Sequence[str | tuple[str, int]],
        parameters: Mapping[str, str],
        draw: Draw | None = None,
        marked: bool = False,
        forward: bool = False,
    ) -> Callable[[Callable[[np.random.Generator], Any]], Any]:
        """Adds a plain function; the decorated one gives `(step, params, state)` from a generator."""
        draw = normal(BATCH, INPUT) if draw is None else draw

        def add(make: Callable[[np.random.Generator], Any]) -> Any:
            def build() -> dict[str, Any]:
                step, params, state = make(seeded(name))
                return dict(step=step, params=params, state=state, x=draw(np.random.default_rng(0)))

            self.models.append(Model(name, "function", build, expect(groups, parameters), draw, marked, forward))
            return make

        return add

    def module(
        self,
        name: str,
        groups: Sequence[str | tuple[str, int]],
        parameters: Mapping[str, str],
        draw: Draw | None = None,
        batch_size: int | None = BATCH,
        marked: bool = False,
    ) -> Callable[[Callable[[np.random.Generator], Any]], Any]:
        """Adds a brainstate module; the decorated class or function gives one from a generator."""
        draw = normal(BATCH, INPUT) if draw is None else draw

        def add(make: Callable[[np.random.Generator], Any]) -> Any:
            def build() -> tuple[Callable[[], Any], Any, int | None]:
                return lambda: make(seeded(name)), draw(np.random.default_rng(0)), batch_size

            self.models.append(Model(name, "module", build, expect(groups, parameters), draw, marked))
            return make

        return add
