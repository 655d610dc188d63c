"""Store and recall: keep a bit until it is asked for (Bellec et al., NeurIPS 2018).

A stream of random bits, each shown for 200 ms by one of two populations of inputs. Now and then a third population
fires with the bit: store it. Some symbols later a fourth fires, and no bit is shown: recall it. Only then does the
output count. Commands take turns, each coming with a probability of one over the expected delay at every symbol. As in
the publication a trial has at least one recall, ends with nothing left to recall, and has at least one symbol between a
store and its recall. Trials that are not so are not thrown away but never drawn: the probability of a command is
weighted with the probability that the rest of the trial then comes out right.
"""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from foretrace.tasks import scores
from foretrace.tasks.spikes import toss
from foretrace.tasks.spiking import Spiking
from foretrace.tasks.task import Goal, Trial, even_mask

# What has happened so far. A command leads from one to the next; `STORED` alone cannot be followed by one.
EMPTY, STORED, HOLDING, RECALLED = range(4)
BY_COMMAND = (STORED, STORED, RECALLED, STORED)
WITHOUT = (EMPTY, HOLDING, HOLDING, RECALLED)


@dataclass(frozen=True, kw_only=True)
class StoreRecall(Spiking):
    """Keep a bit until it is asked for.

    Attributes:
        n_symbols: Symbols of a trial.
        symbol: Duration of a symbol, in ms.
        expected_delay: One over the probability of a command at a symbol: the symbols to wait for it on average, in a
            trial without an end.
        n_channels: Inputs, a fourth for each of the two bits, store and recall.
        rate: Of an active population, in Hz.
        dt: Milliseconds per step.
        n_test: Held-out trials.

    Examples:
        >>> task = StoreRecall()
        >>> task.n_steps, task.n_inputs, task.n_outputs, task.goal
        (2400, 100, 2, ('error', '<', 0.05))
    """

    name = "store-recall"
    population_names = ("bit 0", "bit 1", "store", "recall")

    n_symbols: int = 12
    symbol: float = 200.0
    expected_delay: float = 6.0
    rate: float = 50.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_above(3, "n_symbols", inclusive=True)
        self.require_above(1, "expected_delay")
        self.require_duration("symbol")
        self.require_rate("rate")

    @property
    def n_steps(self) -> int:
        return self.n_symbols * self.steps(self.symbol)

    @property
    def n_outputs(self) -> int:
        return 2

    @property
    def goal(self) -> Goal:
        return ("error", "<", 0.05)

    def trial(self, key: jax.Array) -> Trial:
        for_commands, for_bits, for_spikes = jax.random.split(key, 3)
        store, recall = self._commands(for_commands)
        bits = toss(for_bits, shape=(self.n_symbols,))
        last_store = jax.lax.cummax(jnp.where(store, jnp.arange(self.n_symbols), 0))
        active = jnp.stack([~bits & ~recall, bits & ~recall, store, recall], axis=-1)
        steps = self.steps(self.symbol)
        return Trial(
            inputs=self.spikes(for_spikes, jnp.repeat(active * self.rate, steps, axis=0)),
            targets=jnp.repeat(jnp.asarray(bits[last_store], jnp.int32), steps),
            mask=even_mask(jnp.repeat(recall, steps)),
        )

    def _commands(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Draws at which symbols there is a store, and at which a recall."""

        def one(state: jax.Array, item: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            chance, draw = item
            return jnp.where(draw < chance[state], by_command, without)[state], state

        by_command, without = jnp.array(BY_COMMAND, jnp.int32), jnp.array(WITHOUT, jnp.int32)
        chances = jnp.asarray(command_probabilities(self.n_symbols, self.expected_delay), jnp.float32)
        draws = jax.random.uniform(key, (self.n_symbols,), jnp.float32)
        last, before = jax.lax.scan(one, jnp.int32(EMPTY), (chances, draws))
        after = jnp.append(before[1:], last)
        return after == STORED, (after == RECALLED) & (before == HOLDING)

    def measure(self, outputs: jax.Array, trial: Trial) -> dict[str, jax.Array]:
        """Accuracy and error per recall.

        The decision on a recall is the class with the highest softmax, averaged over the symbol.

        Args:
            outputs: The network's outputs, (T, B, 2).
            trial: The batch.

        Returns:
            `accuracy` and `error`, over all recalls of the batch.
        """
        batch = outputs.shape[1]
        by_symbol = jax.nn.softmax(outputs).reshape(self.n_symbols, -1, batch, self.n_outputs)
        decided = jnp.argmax(jnp.mean(by_symbol, axis=1), axis=-1)
        first = slice(None, None, self.steps(self.symbol))
        return scores.accuracy_and_error(decided == trial.targets[first], trial.mask[first] > 0)


@functools.cache
def command_probabilities(n_symbols: int, expected_delay: float) -> np.ndarray:
    """The probability of a command at each symbol and state, given that the trial comes out right: (symbols, 4)."""
    chance = 1 / expected_delay
    right = np.array([0.0, 0.0, 0.0, 1.0])  # at the end: nothing is stored that was not recalled
    found = []
    for _ in range(n_symbols):
        command = chance * right[list(BY_COMMAND)]
        command[STORED] = 0
        total = command + (1 - chance) * right[list(WITHOUT)]
        found.append(np.divide(command, total, out=np.zeros(4), where=total > 0))
        right = total / total.max()  # only ratios matter, and a long trial must not underflow
    return np.array(found[::-1])
