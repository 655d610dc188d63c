"""Training a brainstate module: its states as a pytree that goes in and comes out, as the training loop wants it.

A module keeps values in `State` objects. For the time of a trace they are given the values that a pure function was
called with, and afterwards the ones they had before, so that nothing of the trace is left in the module. What a trial
begins with are the states that `brainstate.nn.init_all_states` makes; states that it leaves alone, such as running
statistics and random numbers, last over trials.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import brainstate
import brainunit as u
import jax
import jax.numpy as jnp

from foretrace.learners import ETraceAlgorithm, ETraceVmap
from foretrace.train.checkpoint import is_quantity
from foretrace.train.contract import Held, Items, Loss

States = Mapping[Any, brainstate.State]


class ModuleStates:
    """The states of a module, sorted by how long they live, and their values as pytrees.

    Args:
        model: The module.
        batch_size: The batch that its states are made for.
        seed: Seeds brainstate's random numbers, for states that begin at random values and for noise within steps.
        learner: The module's learner, which knows of states outside of the module, and of its mapping over a batch.
    """

    def __init__(
        self, model: brainstate.nn.Module, batch_size: int, seed: int, learner: ETraceAlgorithm | None = None
    ) -> None:
        self.call = model if learner is None else learner.executor.model
        outside = {} if learner is None else dict(learner.path_to_states.items())
        brainstate.random.seed(seed)
        found, kept = _made(model, batch_size, mapped=isinstance(learner, ETraceVmap))
        held = {id(state) for state in found.values()}
        outside = {path: state for path, state in outside.items() if id(state) not in held and path not in found}
        if brainstate.random.DEFAULT not in (*found.values(), *outside.values()):
            outside[("random",)] = brainstate.random.DEFAULT
        found, kept = found | outside, kept | set(outside)
        self.params = {path: state for path, state in found.items() if isinstance(state, brainstate.ParamState)}
        self.lasting = {path: s for path, s in found.items() if path in kept and path not in self.params}
        self.passing = {path: s for path, s in found.items() if path not in kept and path not in self.params}
        self.first = read(self.passing)
        self.own = set(found) - set(outside)

    @contextmanager
    def holding(self, params: Any, lasting: Any, passing: Any) -> Iterator[None]:
        """Within the block, the states have these values."""
        states = {**_tagged(0, self.params), **_tagged(1, self.lasting), **_tagged(2, self.passing)}
        values = {**_tagged(0, dressed(params, self.params)), **_tagged(1, lasting), **_tagged(2, passing)}
        with brainstate.StateTraceStack():  # brainstate lets no traced value into a state elsewhere
            before = read(states)
            try:
                write(states, values)
                yield
            finally:
                write(states, before)

    def weights(self, params: Any, lasting: Any) -> dict[Any, Any]:
        """The module's own parameters, with their units, and the other states of it that outlive a trial, by path."""
        values = {**dressed(params, self.params), **lasting}
        return {path: value for path, value in values.items() if path in self.own}

    def values(self) -> Held:
        """The present values of everything but the parameters."""
        return Held(read(self.lasting), read(self.passing))


def _made(model: brainstate.nn.Module, batch_size: int, mapped: bool) -> tuple[dict[Any, Any], set[Any]]:
    """Makes the states for a batch: all states afterwards, and the paths of those that were left alone."""
    before: dict[Any, Any] = {path: (state, state.value) for path, state in model.states().items()}
    if mapped:
        brainstate.nn.vmap_init_all_states(model, axis_size=batch_size, state_tag="new")
    else:
        brainstate.nn.init_all_states(model, batch_size=batch_size)
    after: dict[Any, Any] = dict(model.states().items())
    same = lambda path, state, value: path in after and after[path] is state and state.value is value
    kept = {path for path, (state, value) in before.items() if same(path, state, value)}
    return after, kept - {path for path, state in after.items() if isinstance(state, brainstate.HiddenState)}


def _tagged(tag: int, tree: Mapping[Any, Any]) -> dict[Any, Any]:
    return {(tag, path): value for path, value in tree.items()}


def read(states: States) -> dict[Any, Any]:
    """The values of states, by path."""
    return {path: state.value for path, state in states.items()}


def write(states: States, values: Mapping[Any, Any]) -> None:
    """Gives states their values."""
    for path, state in states.items():
        state.value = values[path]


def bare(values: Any) -> Any:
    """Values without their units, as optimizers take them."""
    return jax.tree.map(lambda v: v.mantissa if is_quantity(v) else v, values, is_leaf=is_quantity)


def dressed(values: Mapping[Any, Any], like: States) -> dict[Any, Any]:
    """Bare values of parameters, with the units that the parameters have."""
    return {path: _dressed(values[path], state.value) for path, state in like.items()}


def _dressed(value: Any, like: Any) -> Any:
    dress = lambda old, new: u.Quantity(new, unit=old.unit) if is_quantity(old) else new
    return jax.tree.map(dress, like, value, is_leaf=is_quantity)


class ModuleTrainable:
    """A learner of a module behind the contract of `foretrace.train.contract`."""

    def __init__(self, learner: ETraceAlgorithm, batch_size: int, seed: int) -> None:
        self.learner = learner
        self.states = ModuleStates(learner.model, batch_size, seed, learner)
        learner.reset_state(batch_size)
        assert learner.etrace is not None
        self.trace = learner.etrace
        self.empty = self.trace.value

    @property
    def rule(self) -> str:
        """The rule with its options."""
        return f"{self.learner.rule.name} {self.learner.rule!r} {self.learner.vjp_method}"

    def start(self) -> tuple[Any, Any]:
        """The module's parameters, and what lasts of its other states."""
        return bare(read(self.states.params)), read(self.states.lasting)

    def begin(self) -> Any:
        """The states as they were made, and empty traces."""
        return self.states.first, self.empty

    def grad(self, params: Any, held: Held, items: Items, loss: Loss) -> tuple[Any, Held, tuple[Any, Any]]:
        """The learner's gradient."""
        passing, trace = held.passing
        external = self.learner.rule.external

        def step_fn(x: Any, beside: Any, *given: Any) -> Any:
            return loss(self.learner(x, **({str(external): given[0]} if given else {})), beside)

        sequences = (items.inputs, items.beside) + (() if items.external is None else (items.external,))
        with self.states.holding(params, held.lasting, passing), _with_value(self.trace, trace):
            grads, losses, seen = self.learner.etrace_grad(
                *sequences, step_fn=step_fn, reduction="sum", has_aux=True, return_value=True
            )
            after = self.states.values()
            held = Held(after.lasting, (after.passing, self.trace.value))
        return bare({path: grads[path] for path in self.states.params}), held, (losses, seen)

    def run(self, params: Any, held: Held, inputs: Any) -> Any:
        """The outputs, without traces."""
        return run_module(self.states, params, Held(held.lasting, held.passing[0]), inputs)

    def weights(self, params: Any, lasting: Any) -> Any:
        """The states of the module that outlive a trial."""
        return self.states.weights(params, lasting)

    def finish(self, params: Any, held: Held) -> None:
        """Puts the trained values into the module, and states and traces as they are at the end."""
        passing, trace = held.passing
        _put(self.states, params, Held(held.lasting, passing))
        self.trace.value = trace


class ModuleBPTT:
    """A module trained by reverse mode through all steps that it is given at once."""

    rule = "BPTT"

    def __init__(self, model: brainstate.nn.Module, batch_size: int, seed: int) -> None:
        learner = model if isinstance(model, ETraceAlgorithm) else None
        self.states = ModuleStates(model if learner is None else learner.model, batch_size, seed, learner)

    def start(self) -> tuple[Any, Any]:
        """The module's parameters, and what lasts of its other states."""
        return bare(read(self.states.params)), read(self.states.lasting)

    def begin(self) -> Any:
        """The states as they were made."""
        return self.states.first

    def grad(self, params: Any, held: Held, items: Items, loss: Loss) -> tuple[Any, Held, tuple[Any, Any]]:
        """JAX's own gradient of the summed losses; the states before the first step are constants."""

        def total(params: Any) -> tuple[Any, Any]:
            def one(held: Held, item: Items) -> Any:
                held, out = step_module(self.states, params, held, item.inputs)
                return held, loss(out, item.beside)

            after, found = jax.lax.scan(one, held, items)
            return jnp.sum(found[0]), (after, found)

        with brainstate.environ.context(fit=True):
            grads, (held, found) = jax.grad(total, has_aux=True)(params)
        return grads, held, found

    def run(self, params: Any, held: Held, inputs: Any) -> Any:
        """The outputs."""
        return run_module(self.states, params, held, inputs)

    def weights(self, params: Any, lasting: Any) -> Any:
        """The states of the module that outlive a trial."""
        return self.states.weights(params, lasting)

    def finish(self, params: Any, held: Held) -> None:
        """Puts the trained values into the module, and its states as they are at the end."""
        _put(self.states, params, held)


def step_module(states: ModuleStates, params: Any, held: Held, x: Any) -> tuple[Held, Any]:
    """One step of a module as a pure function."""
    with states.holding(params, *held):
        out = states.call(x)
        return states.values(), out


def run_module(states: ModuleStates, params: Any, held: Held, inputs: Any) -> Any:
    """The outputs of a module over a sequence, as it is used after training (`fit=False` for dropout and the like)."""
    with brainstate.environ.context(fit=False):
        return jax.lax.scan(lambda held, x: step_module(states, params, held, x), held, inputs)[1]


def _put(states: ModuleStates, params: Any, held: Held) -> None:
    write(states.params, dressed(params, states.params))
    write(states.lasting, held.lasting)
    write(states.passing, held.passing)


@contextmanager
def _with_value(state: brainstate.State, value: Any) -> Iterator[None]:
    before = state.value
    try:
        state.value = value
        yield
    finally:
        state.value = before
