"""What the training loop asks of anything that can be trained: a handful of pure functions.

A learner of a function, a learner of a module and backpropagation through time are three ways to one thing: the
gradient of the losses of some steps. Behind this contract they look alike, so that there is one loop, one kind of
checkpoint and one way to update within a trial.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

Loss = Callable[[Any, Any], tuple[Any, Any]]
"""From the output of a step and what stands beside it, to the loss and whatever is to be observed."""


class Held(NamedTuple):
    """What a network holds besides its parameters.

    Attributes:
        lasting: What outlives a trial: running statistics and random numbers of a module. None where there is nothing.
        passing: What begins anew with every trial: the network's state, and the rule's trace.
    """

    lasting: Any
    passing: Any


class Items(NamedTuple):
    """Some steps of a batch of trials; time first.

    Attributes:
        inputs: The network's inputs.
        beside: What the loss takes beside the output.
        external: What the rule takes at each step; None for most.
    """

    inputs: Any
    beside: Any
    external: Any = None


class Trainable(Protocol):
    """Something that can be trained. Everything but `start` and `finish` is pure, and may stand inside `jax.jit`."""

    @property
    def rule(self) -> str:
        """How the gradient is found, in words that tell one setting from another."""

    def start(self) -> tuple[Any, Any]:
        """The parameters to begin with, and what lasts over trials."""

    def begin(self) -> Any:
        """What passes with a trial, as it is before the first step: states, and empty traces."""

    def grad(self, params: Any, held: Held, items: Items, loss: Loss) -> tuple[Any, Held, tuple[Any, Any]]:
        """The gradient of the summed losses, what is held afterwards, and `(losses, observed)` of each step."""

    def run(self, params: Any, held: Held, inputs: Any) -> Any:
        """The outputs of all steps, without learning."""

    def weights(self, params: Any, lasting: Any) -> Any:
        """What a file of weights holds: a function's parameters, or the states of a module that outlive a trial."""

    def finish(self, params: Any, held: Held) -> None:
        """Hands the trained values to whoever holds them; nothing for plain functions."""
