"""The step program: one step of a model as a flat jaxpr, with the role and the path of every value.

The compiler and the engine know nothing else of a model. Inputs come in the order params, hidden, other, inputs;
outputs in the order hidden, other, outputs. A hidden (or other) output stands at the same place as its input.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from foretrace._jax import ClosedJaxpr, Jaxpr, ShapedArray, Var, close_jaxpr, eval_jaxpr
from foretrace._repr import counted, one_line
from foretrace.program.diagnostics import CompilationRecord, Path


@dataclass(frozen=True)
class Leaf:
    """One array that enters or leaves a step.

    Attributes:
        path: Where it lives in the user's model. For a pytree value, the keys inside it follow the path of its owner.
        aval: Shape and dtype.
        packed: The last axis holds several states of one neuron (brainstate's `HiddenGroupState`).
        owner: The path of the parameter or state that this array is a part of; `path` itself for a plain array.
    """

    path: Path
    aval: ShapedArray
    packed: bool = False
    owner: Path = ()

    def __post_init__(self) -> None:
        if not self.owner:
            object.__setattr__(self, "owner", self.path)

    @property
    def name(self) -> str:
        """The path as people write it."""
        return path_name(self.path)


@dataclass(frozen=True, eq=False)
class StepProgram:
    """One step of a model, `(params, hidden, other, inputs) -> (hidden', other', outputs)`, as a frozen jaxpr.

    Every hidden output is a variable of its own, defined by an equation. Nested calls are inlined, and operands of
    elementwise equations have the shape of their output (scalar literals aside).

    Attributes:
        jaxpr: The equations.
        consts: Values of `jaxpr.constvars`.
        params: Trainable arrays.
        hidden: Recurrent states, whose history is credited.
        other: States that are carried along without credit (random keys, statistics, counters).
        inputs: The step's inputs.
        outputs: What the step returns.
        diagnostics: What the passes that made the program decided.
        open_loops: Whether operators inside loops that are kept are to be traced.
    """

    jaxpr: Jaxpr
    consts: tuple[Any, ...]
    params: tuple[Leaf, ...]
    hidden: tuple[Leaf, ...]
    other: tuple[Leaf, ...]
    inputs: tuple[Leaf, ...]
    outputs: tuple[Leaf, ...]
    diagnostics: tuple[CompilationRecord, ...] = field(default=())
    open_loops: bool = True

    @one_line
    def __repr__(self) -> Iterator[str]:
        yield counted(len(self.params), "parameter")
        yield counted(len(self.hidden), "state")
        yield f"{len(self.other)} carried along" if self.other else ""
        yield counted(len(self.inputs), "input")
        yield counted(len(self.outputs), "output")
        yield counted(len(self.jaxpr.eqns), "equation")

    @property
    def closed_jaxpr(self) -> ClosedJaxpr:
        """The jaxpr together with its constants."""
        return close_jaxpr(self.jaxpr, list(self.consts))

    @property
    def param_invars(self) -> list[Var]:
        return self.jaxpr.invars[: len(self.params)]

    @property
    def hidden_invars(self) -> list[Var]:
        start = len(self.params)
        return self.jaxpr.invars[start : start + len(self.hidden)]

    @property
    def other_invars(self) -> list[Var]:
        start = len(self.params) + len(self.hidden)
        return self.jaxpr.invars[start : start + len(self.other)]

    @property
    def input_invars(self) -> list[Var]:
        return self.jaxpr.invars[len(self.params) + len(self.hidden) + len(self.other) :]

    @property
    def hidden_outvars(self) -> list[Var]:
        return self.jaxpr.outvars[: len(self.hidden)]

    @property
    def other_outvars(self) -> list[Any]:
        start = len(self.hidden)
        return self.jaxpr.outvars[start : start + len(self.other)]

    @property
    def output_outvars(self) -> list[Any]:
        return self.jaxpr.outvars[len(self.hidden) + len(self.other) :]

    def __call__(
        self, params: Sequence[Any], hidden: Sequence[Any], other: Sequence[Any], inputs: Sequence[Any]
    ) -> tuple[list[jax.Array], list[jax.Array], list[jax.Array]]:
        """Runs the step on flat lists of arrays and returns new hidden, new other, outputs."""
        flat = eval_jaxpr(self.jaxpr, self.consts, *params, *hidden, *other, *inputs)
        first, second = len(self.hidden), len(self.hidden) + len(self.other)
        return flat[:first], flat[first:second], flat[second:]


def path_name(path: Path) -> str:
    """A path as people write it: `('cell', 'w', 0)` is `cell.w[0]`."""
    text = ""
    for key in path:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else str(key)
    return text or "(root)"


def quoted(*paths: Path) -> str:
    """Some paths in a sentence: "`cell.w`, `cell.b`"."""
    return ", ".join(f"`{path_name(path)}`" for path in paths)
