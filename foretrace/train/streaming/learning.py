"""A piece of a stream as one pure function: step by step predict, measure, learn, and after every k-th step update.

The number of steps is a value and no constant of the program, so one program serves pieces of every length up to its
own. Parameters change inside of it: a step is predicted with what was learned from all steps before it, and from none
after. Steps without a target take states and traces along; a period in which no step had a target makes no update.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from foretrace._repr import arrays_text, one_line
from foretrace.learners.losses import reads_params
from foretrace.train.iteration import fixed
from foretrace.train.streaming.items import Form, Piece


class StreamState(NamedTuple):
    """All that changes while a network learns from a stream.

    Attributes:
        params: The parameters.
        opt_state: The optimizer's state.
        carry: The network's state and the rule's trace.
        pending: The gradient since the last update; None where every step makes one.
        labelled: Steps with a target since then; None likewise.
    """

    params: Any
    opt_state: Any
    carry: Any
    pending: Any = None
    labelled: Any = None

    @one_line
    def __repr__(self) -> Iterator[str]:
        yield f"parameters: {arrays_text(self.params)}; optimizer: {arrays_text(self.opt_state)}"
        yield f"carry: {arrays_text(self.carry)}"


class Observed(NamedTuple):
    """What is seen of each step of a piece.

    Attributes:
        measured: The loss and the metrics, `(steps, 1 + metrics)`; NaN where there is no target.
        prediction: The readout of each step; None where nobody asks for it.
        spikes: The spikes of each step; None likewise, and where the network shows none.
    """

    measured: Any
    prediction: Any = None
    spikes: Any = None


@dataclass(frozen=True)
class Learning:
    """What stays the same while a network learns from a stream.

    Attributes:
        learner: The pure learner.
        optimizer: An optax gradient transformation.
        loss: The loss of one step, `loss(out, y)`.
        metrics: Further functions of the readout and the target, with their names.
        readout: Takes the prediction from what a step returns.
        spikes: Takes the spikes.
        every: Steps between updates.
        shown: Whether predictions are asked for.
        x: The form of inputs.
        y: The form of targets; None before the first one is seen.
        external: The form of what the rule takes beside the inputs; None for most rules.
    """

    learner: Any
    optimizer: Any
    loss: Callable[..., Any]
    metrics: tuple[tuple[str, Callable[[Any, Any], Any]], ...]
    readout: Callable[[Any], Any]
    spikes: Callable[[Any], Any]
    every: int
    shown: bool
    x: Form
    y: Form | None = None
    external: Form | None = None

    @property
    def names(self) -> list[str]:
        """What is measured at each step."""
        return ["loss", *(name for name, _ in self.metrics)]

    def start(self, params: Any, carry: Any) -> StreamState:
        """The state before the first step."""
        params, carry = jax.tree.map(fixed, params), jax.tree.map(fixed, carry)
        opt_state = jax.tree.map(fixed, self.optimizer.init(params))
        if self.every == 1:
            return StreamState(params, opt_state, carry)
        pending = jax.tree.map(jnp.zeros_like, params)
        return StreamState(params, opt_state, carry, pending, jnp.zeros((), jnp.int32))

    def advance(self, state: StreamState, arrays: Any, length: Any, since: Any) -> tuple[StreamState, Observed]:
        """Learns from some steps.

        Args:
            state: The state before them.
            arrays: Those of a `Piece`.
            length: How many of their steps count, a traced number; None for all of them.
            since: Steps since the last update; None where every step makes one.

        Returns:
            The state after them, and what was seen of each.
        """
        x, y, labelled, external = arrays
        piece, room = Piece(x, y, labelled, external, length), x[0].shape[0]
        step = jax.jit(self._step)  # jitted to be traced once
        at: Callable[[Any], Piece] = lambda place: piece.each(
            lambda a: jax.lax.dynamic_index_in_dim(a, place, keepdims=False), place
        )
        if room == 1:
            state, seen = self._step(state, at(jnp.int32(0)), since)
            return state, jax.tree.map(lambda a: a[None], seen)
        like = jax.eval_shape(lambda s: step(s, at(jnp.int32(0)), since)[1], state)
        empty = jax.tree.map(lambda a: jnp.full((room, *a.shape), jnp.nan if _real(a) else 0, a.dtype), like)

        def one(place: Any, before: Any) -> Any:
            state, seen = before
            state, found = step(state, at(place), since)
            put = lambda a, b: jax.lax.dynamic_update_index_in_dim(a, b, place, 0)
            return state, jax.tree.map(put, seen, found)

        return jax.lax.fori_loop(0, room if length is None else length, one, (state, empty))

    def _step(self, state: StreamState, step: Piece, since: Any) -> tuple[StreamState, Observed]:
        """One step, whose arrays have no axis of steps; `step.length` is its place in the piece."""
        if step.y is None:
            state, seen = self._pass(state, step)
        elif step.labelled is None:
            state, seen = self._learn(state, step)
        else:
            state, seen = jax.lax.cond(step.labelled, self._learn, self._pass, state, step)
        if self.every == 1:
            return state, seen
        due = (since + step.length + 1) % self.every == 0
        state = jax.lax.cond(due & (state.labelled > 0), self._update_pending, lambda same: same, state)
        return state, seen

    def _learn(self, state: StreamState, step: Piece) -> tuple[StreamState, Observed]:
        one = jax.tree.map(lambda a: a[None], (step.x, step.y, step.external))
        y = None if self.y is None else jax.tree.unflatten(self.y.tree, one[1])
        grads, carry, (_, seen) = self.learner.grad(
            state.params, state.carry, self.inputs(one[0]), y, loss=self._own_loss, has_aux=True, **self._beside(one[2])
        )
        state, seen = state._replace(carry=carry), jax.tree.map(lambda a: a[0], seen)
        if self.every == 1:
            return self._updated(state, grads), seen
        pending = jax.tree.map(jnp.add, state.pending, grads)
        return state._replace(pending=pending, labelled=state.labelled + 1), seen

    def _pass(self, state: StreamState, step: Piece) -> tuple[StreamState, Observed]:
        """A step without a target: states and traces run on."""
        one = jax.tree.map(lambda a: a[None], (step.x, step.external))
        carry, outputs = self.learner.evolve(state.params, state.carry, self.inputs(one[0]), **self._beside(one[1]))
        nothing = jnp.full((len(self.names),), jnp.nan, jnp.result_type(float))
        return state._replace(carry=carry), self._observed(jax.tree.map(lambda a: a[0], outputs), nothing)

    def measure(self, out: Any, y: Any, params: Any) -> tuple[Any, Observed]:
        """The loss of a step, and what is seen of it."""
        given = {"params": params} if reads_params(self.loss) else {}
        return self._measured(self.loss(out, y, **given), out, y)

    @property
    def _own_loss(self) -> Callable[..., Any]:
        """`measure` with the arguments of the user's loss: with the parameters where that reads them."""
        if not reads_params(self.loss):
            return lambda out, y: self.measure(out, y, None)
        return lambda out, y, params: self.measure(out, y, params)

    def _measured(self, value: Any, out: Any, y: Any) -> tuple[Any, Observed]:
        read = self.readout(out)
        numbers = [value, *(metric(read, y) for _, metric in self.metrics)]
        row = jnp.stack([jnp.asarray(number, jnp.result_type(float)).reshape(()) for number in numbers])
        return value, jax.lax.stop_gradient(self._observed(out, row))

    def _observed(self, out: Any, row: jax.Array) -> Observed:
        if not self.shown:
            return Observed(row)
        return Observed(row, self.readout(out), self.spikes(out))

    def inputs(self, arrays: Any) -> Any:
        """Flat arrays as the inputs that the learner takes."""
        args, _ = jax.tree.unflatten(self.x.tree, arrays)
        return args[0] if len(args) == 1 else args

    def _beside(self, arrays: Any) -> dict[str, Any]:
        return {} if self.external is None else {"external": jax.tree.unflatten(self.external.tree, arrays)}

    def _update_pending(self, state: StreamState) -> StreamState:
        zeros = jax.tree.map(jnp.zeros_like, state.pending)
        return self._updated(state, state.pending)._replace(pending=zeros, labelled=jnp.zeros_like(state.labelled))

    def _updated(self, state: StreamState, grads: Any) -> StreamState:
        updates, opt_state = self.optimizer.update(grads, state.opt_state, state.params)
        params = jax.tree.map(lambda p, change: (p + change).astype(p.dtype), state.params, updates)
        opt_state = jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), opt_state, state.opt_state)
        return state._replace(params=params, opt_state=opt_state)


def compiled(learning: Learning, tree: Any) -> Callable[..., tuple[list[Any], Observed]]:
    """`learning.advance` jitted, with the leaves of a state in place of the state.

    A step of a small network takes no longer than JAX needs to take a nested state apart and to put it together. The
    new state is written over the old one, unless each step is looked at. A stream that is taken up again in one process
    is not compiled again; but a learner or a loss without a hash has a function of its own.
    """
    try:
        return _compiled(learning, tree)
    except TypeError:
        return _compiled.__wrapped__(learning, tree)


@functools.lru_cache(maxsize=8)
def _compiled(learning: Learning, tree: Any) -> Any:
    def advance(leaves: Any, *piece: Any) -> tuple[list[Any], Observed]:
        state, seen = learning.advance(jax.tree.unflatten(tree, leaves), *piece)
        return jax.tree.leaves(state), seen

    return jax.jit(advance, donate_argnums=() if learning.shown else 0)


@jax.jit
def copied(state: Any) -> Any:
    """A state in memory of its own."""
    return jax.tree.map(jnp.copy, state)


@jax.jit
def all_finite(params: Any) -> jax.Array:
    """Whether all parameters are finite."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(params)]))


def _real(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jnp.floating))
