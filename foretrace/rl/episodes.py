"""What an agent did, episode by episode."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from foretrace._repr import one_line


@dataclass(frozen=True)
class Episodes:
    """The episodes that ended within some steps.

    Attributes:
        ends: The step that each ended with.
        lengths: How many steps each had.
        returns: The sum of each one's rewards.
        last_rewards: The reward of each one's last step, which tells success where a task ends with a decision.
    """

    ends: np.ndarray
    lengths: np.ndarray
    returns: np.ndarray
    last_rewards: np.ndarray

    @one_line
    def __repr__(self) -> Iterator[str]:
        yield f"{len(self.ends)} episodes"
        yield f"mean return of the last 100: {np.mean(self.returns[-100:]):.3f}" if len(self.ends) else ""


def episodes(steps: Any) -> Episodes:
    """Gathers the steps of one run by episode.

    Args:
        steps: The `AgentStep` that `ActorCritic.run` returns, from the start of an episode on, without axes of seeds.

    Returns:
        The episodes; a last one without an end is left out.

    Examples:
        >>> import numpy as np
        >>> from foretrace.rl import AgentStep
        >>> none, ended = np.zeros(5), np.array([False, False, True, False, True])
        >>> rewards = np.array([0.0, 1.0, 2.0, 0.0, -1.0])
        >>> found = episodes(AgentStep(none, rewards, ended, np.zeros(5, bool), none))
        >>> found.lengths.tolist(), found.returns.tolist()
        ([3, 2], [3.0, -1.0])
    """
    rewards, ended = np.asarray(steps.reward, float), np.asarray(steps.ended)
    if rewards.ndim != 1:
        raise ValueError(f"`steps` has rewards of shape {rewards.shape}: take the steps of one seed, with one axis.")
    ends = np.flatnonzero(ended)
    totals = np.cumsum(rewards)[ends]
    return Episodes(ends, np.diff(ends, prepend=-1), np.diff(totals, prepend=0.0), rewards[ends])
