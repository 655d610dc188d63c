"""What every frontend gives: a model taken apart into a pure step, what it learns and what it carries.

A frontend knows one library. `frontend_of` looks through a table for the one that accepts a model. The file of a
library's frontend is imported only where that library is loaded already, as it must be where a model of it exists: so
the core imports none of them.
"""

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from foretrace._checks import require_parts
from foretrace._jax import ClosedJaxpr
from foretrace._repr import arrays_text, counted, one_line
from foretrace.errors import CompilationError
from foretrace.frontends.trees import Form, TreeSpec
from foretrace.program.diagnostics import CompilationRecord, Path
from foretrace.program.records import Leaf

Step = Callable[..., tuple[Any, Any]]


def same(value: Any) -> Any:
    """The value as it is."""
    return value


@dataclass(frozen=True, eq=False)
class FlatStep:
    """The step of a model as a jaxpr of flat arrays, and the forms that its values have in the model.

    Attributes:
        closed_jaxpr: `(params, hidden, other, inputs) -> (hidden, other, outputs)`.
        params: The form of the parameters.
        state: The form of the state, hidden and other arrays together.
        hidden: Which arrays of the state are hidden.
        inputs: The form of `(args, kwargs)`, the inputs of one step.
        outputs: The form of what the step returns beside the state.
        records: What was decided while it was traced.
        advice: What a model that cannot be compiled probably lacks, by the error; None for nothing to say.
    """

    closed_jaxpr: ClosedJaxpr
    params: Form
    state: Form
    hidden: tuple[bool, ...]
    inputs: TreeSpec
    outputs: TreeSpec
    records: tuple[CompilationRecord, ...] = ()
    advice: Callable[[CompilationError], str | None] | None = None

    @one_line
    def __repr__(self) -> Iterator[str]:
        yield counted(len(self.closed_jaxpr.jaxpr.invars), "array")
        yield counted(len(self.closed_jaxpr.jaxpr.eqns), "equation")


@dataclass(frozen=True, eq=False)
class Split:
    """A model taken apart.

    Attributes:
        step: `step(params, state, *inputs) -> (state, out)`, pure.
        params: What is learned: a pytree in the library's own form, so that gradients go into its optimizers.
        state: What is carried from step to step, in the library's own form.
        hidden: Which arrays of the state are recurrent, so that their history is credited; None for all floating ones.
            An array that is not floating is carried along whatever stands here.
        params_of: From the whole model, or from `params`, to `params`.
        state_of: From what users give as a state, or from `state`, to `state`.
        param_paths: The name of each array of `params`; None to read them off the pytree.
        state_paths: The name of each array of `state`, likewise.
        flat: The traced step, from a library that must run the step to find out what it carries; None for all others.
    """

    step: Step
    params: Any
    state: Any
    hidden: tuple[bool, ...] | None = None
    params_of: Callable[[Any], Any] = same
    state_of: Callable[[Any], Any] = same
    param_paths: tuple[Path, ...] | None = None
    state_paths: tuple[Path, ...] | None = None
    flat: FlatStep | None = None

    @one_line
    def __repr__(self) -> Iterator[str]:
        yield getattr(self.step, "__name__", type(self.step).__name__)
        yield f"parameters: {arrays_text(self.params)}; state: {arrays_text(self.state)}"

    def evaluated(self, params: Any, state: Any, *inputs: Any) -> tuple[Any, Any]:
        """The step as it is used after training, without dropout and the like."""
        return self.step(params, state, *inputs)

    def owner(self, leaf: Leaf) -> Any:
        """The object of the library that holds an array of the program; the leaf itself where there is none."""
        return leaf


class Frontend(Protocol):
    """The way from the models of one library to `Split`.

    The file of a library is its frontend, with these names at its top; any object that has them is one too.

    Attributes:
        name: The library.
        options: What `split` takes beside `params` and `state`; `compile` hands these options on.

    A frontend may also have `holder`, the name of a module with `make_learner`, for models that hold their own state:
    `compile` then gives what that makes, a learner that holds the model's values, in place of the pure `Learner`.
    """

    name: str
    options: tuple[str, ...]

    def accepts(self, model: Any) -> bool:
        """Whether this is a model of the library."""
        ...

    def split(self, model: Any, inputs: tuple[Any, ...], *, params: Any = None, state: Any = None, **how: Any) -> Split:
        """Takes a model apart.

        Args:
            model: The model.
            inputs: The example inputs of one step.
            params: The parameters, for libraries that keep them apart from the model.
            state: The state before the first step; None where the model holds or makes it.
            **how: The frontend's own options.
        """
        ...


# The module that must be loaded for a frontend to be tried, and the file that is the frontend. Plain functions come
# last: a module of a library can be called too.
_TABLE = (
    ("brainstate", "foretrace.frontends.brainstate"),
    ("flax.nnx", "foretrace.frontends.nnx"),
    ("flax.linen", "foretrace.frontends.linen"),
    ("equinox", "foretrace.frontends.equinox"),
    ("jax", "foretrace.frontends.function"),
)
_registered: list[Frontend] = []


def register_frontend(frontend: Frontend) -> Frontend:
    """Adds a frontend for the models of another library; it is tried before those that are there.

    Args:
        frontend: An object with `name`, `options`, `accepts` and `split`.

    Returns:
        The same frontend.

    Examples:
        >>> import jax.numpy as jnp, foretrace as ft
        >>> from foretrace.frontends import Split, register_frontend
        >>> class Leaky:
        ...     decay = 0.5
        >>> class LeakyFrontend:
        ...     name, options = "leaky", ()
        ...     def accepts(self, model):
        ...         return type(model).__name__ == "Leaky"
        ...     def split(self, model, inputs, *, params=None, state=None):
        ...         def step(params, state, x):
        ...             state = params["decay"] * state + x
        ...             return state, state
        ...         return Split(step, {"decay": jnp.float32(model.decay)}, jnp.zeros_like(inputs[0]))
        >>> frontend = register_frontend(LeakyFrontend())
        >>> ft.compile(Leaky(), "D_RTRL", jnp.ones(3)).params
        {'decay': Array(0.5, dtype=float32)}
    """
    require_parts("frontend", frontend, ("accepts", "split"), "one with `name`, `options`, `accepts` and `split`")
    _registered.insert(0, frontend)
    return frontend


def frontends() -> Iterator[Frontend]:
    """The frontends whose libraries are loaded, in the order in which they are tried."""
    yield from _registered
    for library, module in _TABLE:
        if library in sys.modules:
            found: Any = importlib.import_module(module)
            yield found


def frontend_of(model: Any) -> Frontend:
    """The frontend that takes a model; a `TypeError` says what a model may be."""
    for frontend in frontends():
        if frontend.accepts(model):
            return frontend
    shown = model if isinstance(model, type) else type(model).__name__
    hint = " Pass an instance, not the class." if isinstance(model, type) else ""
    raise TypeError(
        f"Got {shown}, which is no model.{hint} A model is a module of brainstate, Flax NNX, Flax linen or Equinox, or "
        "a function `step(params, state, *inputs) -> (state, out)` together with `params=` and `state=`."
    )


class Carried(NamedTuple):
    """The state of a model that carries something beside what its call takes and returns.

    Attributes:
        carry: What the call takes and returns.
        others: What is carried beside it: an NNX state, collections of linen, random keys.
    """

    carry: Any
    others: Any


@dataclass(frozen=True)
class Packing:
    """How a carry and what is carried beside it make one state: alone where there is one of them, else as `Carried`.

    Attributes:
        carry: Whether the call takes and returns a carry.
        others: What is carried beside it before the first step; None for nothing.
    """

    carry: bool
    others: Any = None

    def join(self, carry: Any, others: Any) -> Any:
        """The state of these parts."""
        if self.others is None:
            return carry
        return Carried(carry, others) if self.carry else others

    def parts(self, state: Any) -> tuple[Any, Any]:
        """The carry and what is carried beside it; None for a part that there is not."""
        if self.others is None:
            return state, None
        return state if self.carry else (None, state)

    def state_of(self, value: Any) -> Any:
        """A bare carry with what is carried beside it at the beginning; any other state as it is."""
        bare = self.carry and self.others is not None and not isinstance(value, Carried)
        return Carried(value, self.others) if bare else value
