"""Environments that need memory: what the last decision must be is told at the first step alone."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from foretrace._checks import optional_count, require_count, require_number
from foretrace.rl.environment import Episodic

NORTH, EAST, SOUTH, WEST = range(4)


class MazeState(NamedTuple):
    """Where an agent is in a T-maze.

    Attributes:
        cue: 0 where the reward lies in the north, 1 where it lies in the south.
        position: Steps from the start of the corridor.
        time: Steps of the episode.
    """

    cue: jax.Array
    position: jax.Array
    time: jax.Array


@dataclass(frozen=True)
class TMaze(Episodic):
    """The T-maze (Bakker 2001): a sign at the start of a corridor says which way to turn at its end.

    Actions are north, east, south and west. Observations are `(0, 1, 1)` or `(1, 1, 0)` at the start, for a reward in
    the north or in the south, `(1, 0, 1)` in the corridor and `(0, 1, 0)` at the junction. The right turn gives 4, the
    wrong one -0.1, and so does every action that does not lead nearer to the junction. A turn ends the episode.

    Attributes:
        length: Steps from the start to the junction.
        noisy: Whether the corridor shows `(a, 0, b)`, with `a` and `b` drawn between 0 and 1 at each step.
        penalty: What an action costs that leads no nearer.
        limit: Steps after which an episode is cut off; None for four times the length and 20.

    Examples:
        >>> import jax
        >>> maze = TMaze(length=10)
        >>> observation, state = maze.reset(jax.random.key(0))
        >>> observation.shape, maze.num_actions
        ((3,), 4)
    """

    length: int = 30
    noisy: bool = False
    penalty: float = 0.1
    limit: int | None = None
    num_actions: ClassVar[int] = 4

    def __post_init__(self) -> None:
        require_count("length", self.length)
        require_number("penalty", self.penalty, "a number from 0 on", low=0.0)
        optional_count("limit", self.limit)

    def begin(self, key: jax.Array) -> tuple[jax.Array, MazeState]:
        """At the start, with the reward on either side."""
        start = jnp.zeros((), jnp.int32)
        state = MazeState(jax.random.bernoulli(key).astype(jnp.int32), start, start)
        return self._observed(key, state), state

    def advance(self, key: jax.Array, state: MazeState, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        """One step of the walk, or the turn at its end."""
        junction = state.position == self.length
        turned = junction & ((action == NORTH) | (action == SOUTH))
        right = turned & (action == jnp.where(state.cue == 0, NORTH, SOUTH))
        action = jnp.asarray(action)
        walked = jnp.where(junction, 0, (action == EAST).astype(jnp.int32) - (action == WEST))
        position = jnp.clip(state.position + walked, 0, self.length)
        cost = jnp.where(position > state.position, 0.0, -self.penalty)
        reward = jnp.where(turned, jnp.where(right, 4.0, -0.1), cost)
        after = MazeState(state.cue, position, state.time + 1)
        limit = 4 * self.length + 20 if self.limit is None else self.limit
        return self._observed(key, after), after, reward, turned, ~turned & (after.time >= limit)

    def _observed(self, key: jax.Array, state: MazeState) -> jax.Array:
        north, south, end = (jnp.array(bits) for bits in ((0.0, 1.0, 1.0), (1.0, 1.0, 0.0), (0.0, 1.0, 0.0)))
        way = jnp.array([1.0, 0.0, 1.0])
        corridor = way * jax.random.uniform(key, (3,), way.dtype) if self.noisy else way
        sign = jnp.where(state.cue == 0, north, south)
        return jnp.where(state.position == 0, sign, jnp.where(state.position == self.length, end, corridor))


class ChainState(NamedTuple):
    """Where an agent is in a memory chain.

    Attributes:
        cue: The bit to remember.
        time: Steps of the episode.
    """

    cue: jax.Array
    time: jax.Array


@dataclass(frozen=True)
class MemoryChain(Episodic):
    """The memory chain (as in bsuite, Osband et al. 2020): a bit is shown first, and asked for after some steps.

    Observations are the share of time that is left, whether the bit is asked for, and -1 or 1 for the bit at the first
    step, then 0. The action at the last step, 0 or 1, is rewarded by 1 where it is the bit and by -1 where it is not;
    all before it have no effect.

    Attributes:
        length: Steps from the bit to the question.

    Examples:
        >>> import jax
        >>> observation, state = MemoryChain(length=10).reset(jax.random.key(0))
        >>> observation.shape
        (3,)
    """

    length: int = 30
    num_actions: ClassVar[int] = 2

    def __post_init__(self) -> None:
        require_count("length", self.length)

    def begin(self, key: jax.Array) -> tuple[jax.Array, ChainState]:
        """With either bit."""
        state = ChainState(jax.random.bernoulli(key).astype(jnp.int32), jnp.zeros((), jnp.int32))
        return self._observed(state), state

    def advance(self, key: jax.Array, state: ChainState, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        """One step, or the answer at the end."""
        asked = state.time == self.length
        reward = jnp.where(asked, jnp.where(action == state.cue, 1.0, -1.0), 0.0)
        after = ChainState(state.cue, state.time + 1)
        return self._observed(after), after, reward, asked, jnp.zeros((), bool)

    def _observed(self, state: ChainState) -> jax.Array:
        left, asked = 1 - state.time / self.length, state.time == self.length
        bit = jnp.where(state.time == 0, 2 * state.cue - 1, 0)
        return jnp.stack([part.astype(jnp.result_type(float)) for part in (left, asked, bit)])
