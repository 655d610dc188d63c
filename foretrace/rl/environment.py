"""What an environment is: pure functions of a key and a state, in the form of gymnax 1.0.

An environment has `num_actions`, and two functions that JAX can trace:

- `reset(key, params)` gives the first observation and state of an episode;
- `step(key, state, action, params)` gives `(observation, state, reward, terminated, truncated, info)`. Where an episode
  ends, observation and state are already those of the next one, and `info["final_observation"]` is the last of the old.

An environment of gymnax is one as it is. `Episodic` makes one of two functions that know of a single episode.
"""

import abc
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp


class Environment(Protocol):
    """What an agent needs of its surroundings; see the module for what the functions give."""

    @property
    def num_actions(self) -> int:
        """How many actions there are; an action is an integer from 0 on."""
        ...

    def reset(self, key: jax.Array, params: Any = None) -> tuple[Any, Any]:
        """Begins an episode."""
        ...

    def step(self, key: jax.Array, state: Any, action: Any, params: Any = None) -> tuple[Any, ...]:
        """Takes an action."""
        ...


class Moved(NamedTuple):
    """What follows an action.

    Attributes:
        observation: The next observation; after an end, that of the next episode.
        state: The environment's state, likewise.
        reward: The reward.
        terminated: Whether the episode came to its end: nothing is to be expected of what follows.
        truncated: Whether it was cut off.
        final: What was observed last, before a new episode began.
    """

    observation: Any
    state: Any
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    final: Any


def moved(found: tuple[Any, ...]) -> Moved:
    """What `step` of an environment gave, in one form.

    Args:
        found: As in the module; or of older versions, `(observation, state, reward, done, info)`.

    Raises:
        ValueError: Another number of parts.
    """
    if len(found) not in (5, 6):
        raise ValueError(
            f"`step` of the environment gives {len(found)} values. It gives `(observation, state, reward, terminated, "
            "truncated, info)`, or `done` in the place of the two."
        )
    observation, state, reward, *ends, info = found
    terminated, truncated = ends if len(ends) == 2 else (ends[0], jnp.zeros_like(ends[0]))
    final = info.get("final_observation", observation) if isinstance(info, dict) else observation
    return Moved(observation, state, reward, terminated, truncated, final)


class Episodic(abc.ABC):
    """An environment made of the functions of one episode, which begins anew at its end.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> class Coin(Episodic):
        ...     num_actions = 2
        ...     def begin(self, key):
        ...         side = jax.random.bernoulli(key).astype(int)
        ...         return jnp.ones(1) * side, side
        ...     def advance(self, key, state, action):
        ...         return jnp.zeros(1), state, 1.0 * (action == state), True, False
        >>> observation, state = Coin().reset(jax.random.key(0))
        >>> Coin().step(jax.random.key(1), state, state)[2].item()
        1.0
    """

    num_actions: ClassVar[Any]

    @property
    def default_params(self) -> None:
        """Nothing: settings stand in the record."""
        return None

    @abc.abstractmethod
    def begin(self, key: jax.Array) -> tuple[Any, Any]:
        """The first observation and state of an episode."""

    @abc.abstractmethod
    def advance(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Observation, state, reward, and whether the episode terminates or is cut off."""

    def reset(self, key: jax.Array, params: Any = None) -> tuple[Any, Any]:
        """Begins an episode; `params` is not looked at."""
        return self.begin(key)

    def step(self, key: jax.Array, state: Any, action: Any, params: Any = None) -> tuple[Any, ...]:
        """Takes an action, and begins the next episode where this one ends."""
        onward, anew = jax.random.split(key)
        final, state, reward, terminated, truncated = self.advance(onward, state, action)
        ended = jnp.logical_or(terminated, truncated)
        first = self.begin(anew)
        observation, state = jax.tree.map(lambda new, old: jnp.where(ended, new, old), first, (final, state))
        ends = jnp.asarray(terminated), jnp.asarray(truncated)
        return observation, state, jnp.asarray(reward), *ends, {"final_observation": final}
