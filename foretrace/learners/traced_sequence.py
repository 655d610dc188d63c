"""A traced `step_fn` over a sequence: what the engine needs of it, block by block and window by window.

`TracedSequence` knows which of the states that `step_fn` touches are what: the model's own, parameters whose gradient
is wanted although the loss reads them directly, and all others, which are carried along. A call of `step_fn` is one
step of the model or, with `MultiStepData`, several; the steps of all calls are laid in one row for the rule.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import brainstate
import jax
import jax.numpy as jnp

from foretrace.engine.finite import parameter_flags, require_finite
from foretrace.engine.linearise import Cotangents
from foretrace.engine.sequence import States, scan_or_run
from foretrace.learners.blocks import BlockSize, steps_in_block
from foretrace.learners.differentiable import last_of
from foretrace.learners.drive import Ran, drive, drive_windows
from foretrace.learners.executor import ModuleExecutor
from foretrace.learners.recording import Called, TracedStep, zero_shifts
from foretrace.learners.sequences import length_of
from foretrace.rules.rule import Rule

Values = Mapping[int, Any]
"""Values of states, by the identity of the state."""


class Begin(NamedTuple):
    """What a sequence starts from."""

    states: States
    trace: Any


class TracedSequence:
    """A `step_fn` over a sequence.

    Args:
        executor: The learner's executor.
        rule: Its rule.
        traced: The traced `step_fn`.
        trained: The parameters whose gradient is wanted.
        block: How large a block is.
    """

    def __init__(
        self,
        executor: ModuleExecutor,
        rule: Rule,
        traced: TracedStep,
        trained: Sequence[brainstate.ParamState] = (),
        block: BlockSize = None,
    ) -> None:
        self.executor, self.rule, self.traced, self.block = executor, rule, traced, block
        self.plan, self.model = executor.plan, executor.traced
        bound, form = executor.split.bound(), executor.split.param_form
        self._params = {path: state for path, state in bound.items() if path in form.parts}
        self._paths = {id(state): path for path, state in bound.items() if path not in form.parts}
        wanted = set(map(id, trained))
        owners = {path for path, state in self._params.items() if id(state) in wanted}
        places = enumerate(self.plan.program.params)
        # Of what is not asked for, no gradient is added up; the traces of all that learns run on.
        self._asked = frozenset(i for i, leaf in places if leaf.owner in owners and i in self.plan.learned)
        self._further: dict[int, tuple[brainstate.ParamState, Any]] = {
            id(state): (state, jax.tree.structure(state.value)) for state in traced.states if id(state) in wanted
        }
        inside = {*self._paths, *self._further}
        self._extra = [state for state in traced.states if id(state) not in inside]
        self._refuse_written_parameters()

    def _refuse_written_parameters(self) -> None:
        own = {*map(id, self._params.values()), *self._further}
        if any(flag and id(state) in own for state, flag in zip(self.traced.states, self.traced.written, strict=True)):
            raise ValueError(
                "`step_fn` writes a parameter that is being trained. Parameters are constant while a sequence is "
                "driven: update them with the gradient afterwards, or use `etrace_train`."
            )

    def params(self, values: Values | None = None) -> list[Any]:
        """The flat parameters: the model's, then those that the loss reads directly."""
        values = {} if values is None else values
        own = {path: values.get(id(state), state.value) for path, state in self._params.items()}
        flat = self.model.flatten_params(own)
        for key, (state, _) in self._further.items():
            flat += jax.tree.leaves(values.get(key, state.value))
        return flat

    def gradients(self, flat: Sequence[Any] | None) -> dict[int, Any]:
        """Gradients in the form of the parameters, by the identity of the state; none without losses."""
        if flat is None:
            return {}
        count = len(self.plan.program.params)
        by_path = self.model.unflatten_params(flat[:count])
        found = {id(state): by_path[path] for path, state in self._params.items()}
        for key, part in self._further_values(flat[count:]).items():
            found[key] = jax.tree.map(jnp.add, found[key], part) if key in found else part
        return found

    def _further_values(self, leaves: Sequence[Any]) -> dict[int, Any]:
        rest = iter(leaves)
        return {
            key: jax.tree.unflatten(tree, [next(rest) for _ in range(tree.num_leaves)])
            for key, (_, tree) in self._further.items()
        }

    def begin(self) -> States:
        """The present values of all states."""
        return States(*self.executor.read_state(), [state.value for state in self._extra])

    def finish(self, states: States) -> None:
        """Writes the states as a run left them."""
        self.executor.write(states.hidden, states.other)
        written = {id(s) for s, flag in zip(self.traced.states, self.traced.written, strict=True) if flag}
        for state, value in zip(self._extra, states.extra, strict=True):
            if id(state) in written:
                state.value = value

    def run(
        self, params: Sequence[Any], begin: Begin, items: Any, window: int | None = None
    ) -> tuple[list[jax.Array] | None, Begin, Any]:
        """Takes the rule over a sequence.

        Args:
            params: From `params`.
            begin: States and trace before the sequence.
            items: `(what step_fn takes, mask)`, with a leading axis of calls.
            window: Calls in a window of exact credit; None for online credit.

        Returns:
            The flat gradient of the summed losses (None without losses), states and trace after the sequence, and
            `(loss, what else step_fn returned, finite flags)` of each call.
        """
        total: list[jax.Array] | None
        start = (self.plan, self.rule, params, *begin, items)
        if window is not None:
            total, states, trace, collected = drive_windows(*start, self._plain, window)
        else:
            losses, size = self.traced.loss_tree.num_leaves > 0, self._calls_in_block(items)
            forward = self._online if losses else lambda *given: self._plain(*given)[1]
            total, states, trace, collected = drive(*start, forward, size, losses, self._asked)
        return total, Begin(states, trace), collected

    def require_finite(self, params: jax.Array, flags: Sequence[jax.Array], begin: Begin) -> None:
        """Raises `NonFiniteError` if anything of a run is not finite, by the flags of parameters and of its calls."""
        require_finite(self.plan, params, jnp.concatenate(list(map(_row, flags))), begin.states.hidden)

    def parameter_flags(self, params: Sequence[Any], steps: int) -> jax.Array:
        """For each of some steps, which of the model's parameters are finite."""
        return parameter_flags(params[: len(self.plan.program.params)], steps)

    def _calls_in_block(self, items: Any) -> int:
        steps = self.traced.length or 1
        return max(1, steps_in_block(self.plan, self.rule, self.block, length_of(items) * steps) // steps)

    def _online(self, params: Sequence[Any], states: States, part: Any) -> Ran:
        weights, further = self._split(params)
        shifts = zero_shifts(self.plan, self.traced.length)

        def one(carry: Any, item: Any) -> Any:
            states, total = carry

            def loss(shifts: Any, further: Any) -> Any:
                called, after = self._call(states, weights, further, shifts, item)
                return _weighted(called, item), (called, after)

            value, pullback, (called, after) = jax.vjp(loss, shifts, further, has_aux=True)
            by_shifts, by_further = pullback(jnp.ones_like(value))
            return (after, [a + b for a, b in zip(total, by_further, strict=True)]), (called, by_shifts)

        carry = (states, [jnp.zeros_like(leaf) for leaf in further])
        (states, total), (called, (outputs, hidden)) = scan_or_run(one, carry, part)
        by_hidden = jax.vmap(lambda values: last_of(values, self.traced.length or 1))(hidden)
        cotangents = Cotangents(_row(outputs), _row(by_hidden))
        collected = (called.loss, called.result, called.flags)
        return Ran(states, _row(called.steps), cotangents, collected, _row(called.external), tuple(total))

    def _plain(self, params: Sequence[Any], states: States, part: Any) -> tuple[jax.Array, Ran]:
        """The calls one after another: their summed losses, and what they gave."""
        weights, further = self._split(params)

        def one(states: Any, item: Any) -> Any:
            called, after = self._call(states, weights, further, None, item)
            return after, (_weighted(called, item), called)

        states, (losses, called) = scan_or_run(one, states, part)
        collected = (called.loss, called.result, called.flags)
        return jnp.sum(losses), Ran(states, _row(called.steps), None, collected, _row(called.external))

    def _split(self, params: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        count = len(self.plan.program.params)
        return self.plan.weights(params[:count]), list(params[count:])

    def _call(
        self, states: States, weights: Sequence[Any], further: Sequence[Any], shifts: Any, item: Any
    ) -> tuple[Called, States]:
        model = self.model.unflatten_state(states.hidden, states.other)
        values = {key: model[path] for key, path in self._paths.items()} | self._further_values(further)
        values |= {id(s): value for s, value in zip(self._extra, states.extra, strict=True)}
        called, after = self.traced([values[id(s)] for s in self.traced.states], weights, shifts, item[0])
        new = {id(s): value for s, value in zip(self.traced.states, after, strict=True)}
        hidden, other = self.model.flatten_state({path: new[key] for key, path in self._paths.items()})
        return called, States(hidden, other, [new[id(state)] for state in self._extra])


def _weighted(called: Called, item: Any) -> jax.Array:
    if called.loss is None:
        return jnp.zeros(())
    return jnp.sum(called.loss if item[1] is None else called.loss * item[1])


def _row(tree: Any) -> Any:
    """Steps of several calls, `(calls, steps, ...)`, in one row."""
    return jax.tree.map(lambda a: a.reshape(a.shape[0] * a.shape[1], *a.shape[2:]), tree)
