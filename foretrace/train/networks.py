"""Networks as plain functions, with the settings of the publications that the tasks come from.

`network("ALIF", ...)` gives a step, its parameters and a first state: all that `foretrace.compile` and `fit` take. A
step returns a record of its readout and, for spiking cells, of its spikes, so that `fit` can show and pull rates.

Readouts filter *before* they mix: every neuron's spikes run through a leaky trace of their own, and the weights of the
readout stand behind it. By the order of sums that is the leaky readout of the publications. For an online rule it makes
a difference: the filter belongs to the neuron's own state, so the trace of a weight knows all of it, where a filter
behind the readout's weights would be reached through mixing, and credit across time would be lost there.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from foretrace._repr import arrays_text, one_line
from foretrace.entry import compile as compile_learner
from foretrace.train.checkpoint import is_key
from foretrace.train.gated import gru, linear_recurrent, lstm, rnn, trace_units
from foretrace.train.parts import Built
from foretrace.train.spiking import alif, gif, lif

CELLS: dict[str, Callable[..., Built]] = {
    "LIF": lif,
    "ALIF": alif,
    "GIF": gif,
    "RNN": rnn,
    "GRU": gru,
    "LSTM": lstm,
    "LRU": linear_recurrent,
    "RTU": trace_units,
}
"""What makes a network of each cell, by its name."""


@dataclass(frozen=True)
class Network:
    """A network as a plain function.

    Attributes:
        cell: What its neurons are.
        step: `step(params, state, x) -> (state, Output(out, spikes))`.
        params: Its first parameters.
        n_inputs: Inputs.
        n_outputs: Outputs.
        n_hidden: Neurons or units, in each layer.
        settings: The settings that were given.
    """

    cell: str
    step: Callable[..., Any]
    params: dict[str, jax.Array]
    n_inputs: int
    n_outputs: int
    n_hidden: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    _rest: Callable[[int], Any] = field(repr=False, default=lambda batch_size: None)

    @one_line
    def __repr__(self) -> Iterator[str]:
        yield self.cell
        yield f"{self.n_inputs} inputs, {self.n_hidden} hidden, {self.n_outputs} outputs"
        yield f"parameters: {arrays_text(self.params)}"

    def init_state(self, batch_size: int) -> Any:
        """The state of a network at rest, for a batch."""
        return self._rest(batch_size)

    def compile(self, rule: Any, batch_size: int, **options: Any) -> Any:
        """The network's learner; options are those of `foretrace.compile`."""
        example, state = jnp.zeros((batch_size, self.n_inputs)), self.init_state(batch_size)
        return compile_learner(self.step, rule, example, params=self.params, state=state, **options)


def network(
    cell: str,
    n_inputs: int,
    n_outputs: int,
    n_hidden: int,
    dt: float = 1.0,
    key: Any = 0,
    **settings: Any,
) -> Network:
    """Makes a network.

    Args:
        cell: `'LIF'`, `'ALIF'` (a mixed population of plain and adaptive neurons), `'GIF'`, `'RNN'`, `'GRU'`, `'LSTM'`,
            `'LRU'` or `'RTU'`.
        n_inputs: Inputs.
        n_outputs: Outputs.
        n_hidden: Neurons or units; with `layers`, in each layer.
        dt: Milliseconds per step, for spiking cells.
        key: A random key, or a seed, for the weights.
        **settings: Settings of the cell; `docs/training.md` lists them, and so does the error for a wrong one.

    Returns:
        The network.

    Raises:
        ValueError: No such cell, or a size below 1.
        TypeError: No such setting.

    Examples:
        >>> from foretrace import train
        >>> net = train.network("ALIF", n_inputs=40, n_outputs=2, n_hidden=20, tau_a=2000.0)
        >>> sorted(net.params)
        ['b_out', 'w_in', 'w_out', 'w_rec']
        >>> learner = net.compile("D_RTRL", batch_size=4)
        >>> learner.rule.name
        'D_RTRL'
    """
    by_name = {name.lower(): name for name in CELLS}
    if str(cell).lower() not in by_name:
        raise ValueError(f"There is no cell {cell!r}. There are {', '.join(CELLS)}.")
    name = by_name[str(cell).lower()]
    sizes = {"n_inputs": n_inputs, "n_outputs": n_outputs, "n_hidden": n_hidden}
    for what, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"`{what}` is a whole number from 1 on; got {size!r}.")
    key = key if is_key(key) else jax.random.key(key)
    built = CELLS[name](key, n_inputs, n_outputs, n_hidden, dt, settings)
    return Network(name, built.step, built.params, **sizes, settings=dict(settings), _rest=built.rest)


class Published(NamedTuple):
    """The settings that a task was published with.

    Attributes:
        network: Arguments of `network`, sizes of input and output aside.
        training: Arguments of `fit`, and the name and rate of the optimizer.
    """

    network: dict[str, Any]
    training: dict[str, Any]


def _adam(rate: float, **further: Any) -> dict[str, Any]:
    return {"optimizer": "adam", "learning_rate": rate, **further}


PUBLISHED: dict[str, Published] = {
    "evidence": Published(  # Bellec et al. 2020, Fig. 3
        dict(cell="ALIF", n_hidden=100, tau_m=20.0, tau_out=20.0, tau_a=2000.0, threshold=0.6, refractory=5.0),
        _adam(5e-3, batch_size=64, rate_target=10.0, rate_cost=1.0),
    ),
    "pattern": Published(  # Bellec et al. 2020, Fig. S7
        dict(cell="LIF", n_hidden=100, tau_m=30.0, tau_out=30.0, threshold=0.03, normalised=True),
        # The publication's loss is half the sum over 1000 steps where ours is their mean: 1 / 500 of it, so its rate of
        # 1e-4 and its cost of 300 stand here times 500 and divided by it.
        {"optimizer": "sgd", "learning_rate": 5e-2, "batch_size": 1, "rate_target": 10.0, "rate_cost": 0.6},
    ),
    "store-recall": Published(  # Bellec et al. 2018
        dict(cell="ALIF", n_hidden=20, tau_a=1200.0, beta=1.7, threshold=0.01, refractory=3.0, normalised=True),
        _adam(1e-2, batch_size=128, decay=0.3, decay_every=100, iterations=200),
    ),
    "dms": Published(dict(cell="GIF", n_hidden=200), _adam(1e-3, batch_size=128, clip=1.0)),  # Wang et al. 2026
    "copy": Published(dict(cell="LRU", n_hidden=64, d_model=128, layers=4), _adam(1e-3, batch_size=50)),
    "adding": Published(dict(cell="GRU", n_hidden=128), _adam(1e-3, batch_size=50, clip=1.0)),
    "randman": Published(  # as in OTPE, 2024
        dict(cell="LIF", n_hidden=128, layers=3, recurrent=False, tau_m=10.0, tau_out=10.0, threshold=1.0)
        | dict(refractory=0.0, surrogate="fast_sigmoid", slope=25.0),
        _adam(1e-3, batch_size=128),
    ),
}
"""By the name of the task: the settings of network and training that it was published with."""
