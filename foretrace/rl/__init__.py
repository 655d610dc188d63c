"""Streaming reinforcement learning: an actor-critic on any network and rule, and environments that need memory."""

from foretrace.rl.agent import ActorCritic, AgentState, AgentStep
from foretrace.rl.environment import Environment, Episodic
from foretrace.rl.episodes import Episodes, episodes
from foretrace.rl.memory_tasks import MemoryChain, TMaze
from foretrace.rl.updates import Eligibility, ObGD

__all__ = [
    "ActorCritic",
    "AgentState",
    "AgentStep",
    "Eligibility",
    "Environment",
    "Episodes",
    "Episodic",
    "MemoryChain",
    "ObGD",
    "TMaze",
    "episodes",
]
