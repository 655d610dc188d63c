"""The loss of one step: the task's, and a pull on firing rates that an online rule can follow.

Rates are pulled as in Bellec et al. (2020): with `f_j` the mean rate of neuron `j` over a trial and a batch, in spikes
per millisecond, the cost is `c / 2 * sum_j (f_j - f_target)^2`. Its derivative by one spike is
`c (f_j - f_target) / (T dt B)`: a number for each neuron, the same at every step. While a trial runs `f_j` is not known
yet, so an estimate `r_j` from the trials before stands in its place, and the loss of a step gets the linear term
`c (r_j - f_target) / (T dt) * (mean over the batch of the spikes of j)`, summed over neurons. After each trial
`r_j <- m r_j + (1 - m) f_j`; before the first one `r_j` is the target, so that nothing is pulled. With `m = 0` the
estimate is the rate of the trial before. The term is part of the loss of a step: every rule handles it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from foretrace._units import is_quantity, unit_package

OUT, SPIKES = "out", "spikes"


class Beside(NamedTuple):
    """What the loss of a step takes beside the output.

    Attributes:
        target: The task's target.
        mask: The task's weights of trials.
        pull: What a spike of each neuron costs; None without a cost of rates.
    """

    target: Any
    mask: Any
    pull: Any


class Seen(NamedTuple):
    """What is kept of each step for the metrics.

    Attributes:
        output: The readout.
        spikes: The mean over the batch of every neuron's spikes; None where the network shows none.
    """

    output: Any
    spikes: Any


@dataclass(frozen=True)
class Rates:
    """How firing rates are pulled.

    Attributes:
        target: In spikes per millisecond.
        cost: The coefficient `c`.
        memory: The share `m` of the old estimate that is kept after a trial.
    """

    target: float
    cost: float
    memory: float


@dataclass(frozen=True)
class StepLoss:
    """The loss of one step, for one task and network.

    Attributes:
        task: The task.
        readout: Takes the readout from what a step returns.
        spikes: Takes the spikes; it returns None where there are none.
    """

    task: Any
    readout: Callable[[Any], Any]
    spikes: Callable[[Any], Any]

    def __call__(self, out: Any, beside: Beside) -> tuple[Any, Seen]:
        output, spikes = self.readout(out), self.spikes(out)
        per_neuron = None if spikes is None else jax.tree.map(lambda s: jnp.mean(s, axis=0), spikes)
        value = self.task.loss(output, beside.target, beside.mask)
        if beside.pull is not None:
            pulled = jax.tree.map(lambda pull, s: jnp.sum(pull * s), beside.pull, per_neuron)
            value = value + jnp.asarray(sum(jax.tree.leaves(pulled)), value.dtype)
        return value, jax.lax.stop_gradient(Seen(output, per_neuron))


def pull_of(rates: Rates, estimate: Any, steps: int, dt: float) -> Any:
    """What one spike costs at each step, from the estimated rates; with a leading axis of steps."""
    cost = lambda r: rates.cost * (r - rates.target) / (steps * dt)
    return jax.tree.map(lambda r: jnp.broadcast_to(cost(r), (steps, *r.shape)), estimate)


def rates_of(spikes: Any, dt: float) -> Any:
    """The rate of every neuron over a trial, in spikes per millisecond."""
    return jax.tree.map(lambda s: jnp.mean(s, axis=0) / dt, spikes)


def mean_rate(rates: Any) -> jax.Array:
    """The rate of all neurons together, in Hz."""
    leaves = jax.tree.leaves(rates)
    return 1000.0 * sum(jnp.sum(r) for r in leaves) / sum(r.size for r in leaves)


def rate_cost(rates: Rates, found: Any) -> jax.Array:
    """What the rates of a trial cost."""
    parts = [jnp.sum((r - rates.target) ** 2) for r in jax.tree.leaves(found)]
    return 0.5 * rates.cost * jnp.asarray(sum(parts))


def take_readout(out: Any) -> Any:
    """The readout of a step: `out` of a record or a dictionary that has it, else everything that was returned."""
    return part(out, OUT, out)


def take_spikes(out: Any) -> Any:
    """The spikes of a step: `spikes` of a record or a dictionary that has them, else None."""
    return part(out, SPIKES, None)


def part(out: Any, name: str, default: Any) -> Any:
    """A named part of what a step returned."""
    if isinstance(out, dict):
        return out.get(name, default)
    return getattr(out, name) if name in getattr(out, "_fields", ()) else default


def milliseconds(dt: Any) -> float:
    """A time step as a number of milliseconds; plain numbers are taken as such."""
    return float(dt.to_decimal(unit_package().ms)) if is_quantity(dt) else float(dt)
