"""One iteration of training as one pure function: draw trials, find gradients, update, measure.

Everything that changes is in `TrainState`, a pytree: whoever has it has the whole run. The function is traced once and
compiled once; the number of the iteration is a value in the state and no constant of the program.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from foretrace._repr import arrays_text, one_line
from foretrace.engine.sequence import scan_blocks
from foretrace.learners.training import Trainable
from foretrace.train.checkpoint import is_key
from foretrace.train.losses import Beside, Rates, StepLoss, mean_rate, pull_of, rate_cost, rates_of

if TYPE_CHECKING:
    from foretrace.train.placement import Placement


class TrainState(NamedTuple):
    """All that changes while a network is trained.

    Attributes:
        params: The parameters.
        opt_state: The optimizer's state.
        key: The random key that trials are drawn from.
        iteration: Iterations done.
        persistent: What of the network outlives a trial.
        carry: In a stream, states and traces at the end of the last piece; None where every trial begins anew.
        rates: The estimated rate of every neuron, in spikes per millisecond; None where rates cost nothing.
    """

    params: Any
    opt_state: Any
    key: Any
    iteration: Any
    persistent: Any
    carry: Any
    rates: Any

    @one_line
    def __repr__(self) -> Iterator[str]:
        yield f"parameters: {arrays_text(self.params)}; optimizer: {arrays_text(self.opt_state)}"
        yield "" if self.carry is None else f"carry: {arrays_text(self.carry)}"


@dataclass(frozen=True)
class Training:
    """What stays the same while a network is trained.

    Attributes:
        trainable: The network and the way to its gradients.
        task: The task.
        optimizer: An optax gradient transformation.
        loss: The loss of one step.
        batch_size: Trials in a batch.
        update_every: Steps between updates; None for one update at the end of a trial.
        stream: Whether states and traces run on from one batch of trials to the next.
        rates: How firing rates are pulled; None for not at all.
        external: From a batch of trials to what the rule takes at each step; None for most rules.
        dt: The time step in milliseconds.
        placement: Where arrays are on many devices; None for one.
    """

    trainable: Trainable
    task: Any
    optimizer: Any
    loss: StepLoss
    batch_size: int
    update_every: int | None
    stream: bool
    rates: Rates | None
    external: Callable[[Any], Any] | None
    dt: float
    placement: "Placement | None" = None

    def start(self, seed: int) -> TrainState:
        """The state before the first iteration."""
        params = jax.tree.map(fixed, self.trainable.params)
        persistent = jax.tree.map(fixed, self.trainable.persistent_of(self.trainable.state))
        key = jax.random.key(seed)
        seen = jax.eval_shape(self._first_output, params, persistent, key)
        estimate = None
        if self.rates is not None:
            target = self.rates.target
            estimate = jax.tree.map(lambda s: jnp.full(s.shape[1:], target, s.dtype), seen[1])
        return TrainState(
            params=params,
            opt_state=jax.tree.map(fixed, self.optimizer.init(params)),
            key=key,
            iteration=jnp.zeros((), jnp.int32),
            persistent=persistent,
            carry=jax.tree.map(fixed, self.trainable.begin(persistent)) if self.stream else None,
            rates=estimate,
        )

    def sizes(self, state: TrainState) -> tuple[Any, Any]:
        """The forms of the readout and of the spikes of one step."""
        return jax.eval_shape(self._first_output, state.params, state.persistent, state.key)

    def _first_output(self, params: Any, persistent: Any, key: Any) -> tuple[Any, Any]:
        inputs = self.task.sample(key, self.batch_size).inputs
        outputs = self.run(params, persistent, inputs[:1])
        first = jax.tree.map(lambda a: a[0], outputs)
        spikes = self.loss.spikes(first)
        return self.loss.readout(first), spikes if spikes is None else jax.tree.map(lambda s: s * 1.0, spikes)

    def run(self, params: Any, persistent: Any, inputs: Any) -> Any:
        """The outputs of all steps of a batch of trials, without learning."""
        return self.trainable.learner.run(params, self.begin(persistent), inputs)[1]

    def begin(self, persistent: Any) -> Any:
        """The carry before the first step of a trial, where it belongs."""
        carry = self.trainable.begin(persistent)
        return (
            carry if self.placement is None else jax.lax.with_sharding_constraint(carry, self.placement.shardings.carry)
        )

    def iterate(self, state: TrainState, trial: Any = None) -> tuple[TrainState, dict[str, jax.Array]]:
        """One iteration on a batch of trials, or on one that is drawn from the task; and its metrics."""
        key, of_trials = jax.random.split(state.key)
        trial = self.task.sample(of_trials, self.batch_size) if trial is None else trial
        trial = (
            trial if self.placement is None else jax.lax.with_sharding_constraint(trial, self.placement.of_trial(trial))
        )
        steps = trial.inputs.shape[0]
        pull = None if self.rates is None else pull_of(self.rates, state.rates, steps, self.dt)
        external = None if self.external is None else self.external(trial)
        items = {"xs": trial.inputs, "ys": Beside(trial.targets, trial.mask, pull), "external": external}
        carry = state.carry if self.stream else self.begin(state.persistent)
        before = (state.params, state.opt_state, carry)
        every = min(self.update_every or steps, steps)
        (params, opt_state, carry), (losses, seen, norms, bounds) = scan_blocks(self._period, before, items, every)
        found = None if seen.spikes is None else rates_of(seen.spikes, self.dt)
        after = TrainState(
            params=params,
            opt_state=opt_state,
            key=key,
            iteration=state.iteration + 1,
            persistent=self.trainable.persistent_of(carry.state),
            carry=carry if self.stream else None,
            rates=self._estimate(state.rates, found),
        )
        pulled = 0.0 if pull is None else _pulled(pull, seen.spikes)
        metrics = {"loss": jnp.sum(losses) - pulled, **self._measured(seen.output, trial, found)}
        if self.rates is not None:
            metrics["rate_loss"] = rate_cost(self.rates, found)
        metrics["gradient_norm"] = jnp.mean(norms)
        return after, metrics if bounds is None else metrics | {"certificate": jnp.mean(bounds)}

    def _period(self, before: Any, items: dict[str, Any]) -> tuple[Any, Any]:
        """Some steps under constant parameters, and one update."""
        params, opt_state, start = before
        learner = self.trainable.learner
        grads, carry, (losses, seen) = learner.grad(params, start, **items, loss=self.loss, has_aux=True)
        updates, opt_state = self.optimizer.update(grads, opt_state, params)
        params = jax.tree.map(lambda p, change: (p + change).astype(p.dtype), params, updates)
        norm = jnp.sqrt(sum(jnp.sum(jnp.abs(g) ** 2) for g in jax.tree.leaves(grads)))
        bound = learner.certificate(carry) - learner.certificate(start) if learner.rule.certify else None
        found = [None if value is None else jnp.broadcast_to(value, losses.shape) for value in (norm, bound)]
        return (params, opt_state, carry), (losses, seen, *found)

    def _estimate(self, before: Any, found: Any) -> Any:
        if self.rates is None:
            return None
        share = self.rates.memory
        return jax.tree.map(lambda old, new: (share * old + (1 - share) * new).astype(old.dtype), before, found)

    def _measured(self, output: Any, trial: Any, rates: Any) -> dict[str, jax.Array]:
        measured = {name: value for name, value in self.task.measure(output, trial).items() if name != "loss"}
        return measured if rates is None else measured | {"rate": mean_rate(rates)}

    def evaluate(self, params: Any, persistent: Any, trial: Any) -> dict[str, jax.Array]:
        """The metrics of a batch of trials, without learning."""
        outputs = self.run(params, persistent, trial.inputs)
        losses, seen = jax.vmap(self.loss)(outputs, Beside(trial.targets, trial.mask, None))
        found = None if seen.spikes is None else rates_of(seen.spikes, self.dt)
        return {"loss": jnp.sum(losses), **self._measured(seen.output, trial, found)}


def _pulled(pull: Any, spikes: Any) -> jax.Array:
    """What the linear term added to the losses."""
    return jnp.asarray(sum(jax.tree.leaves(jax.tree.map(lambda p, s: jnp.sum(p * s), pull, spikes))))


def fixed(leaf: Any) -> jax.Array:
    """A leaf as an array of its own and of a definite dtype, so that an update does not change its type."""
    return leaf if is_key(leaf) else jnp.array(leaf, dtype=jnp.result_type(leaf))
