"""The credit of a single step: what a network gives for an observation, with the rule's derivative by the parameters.

By default that is `learner.step`: the derivative goes through this step and, by the rule's trace, through all steps
before it. With `window=k` the last k steps are kept and run anew, so that reverse mode sees them as they are, and the
trace stands for what lies before them. A rule without a trace, BPTT, is thereby truncated to the last k steps.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from foretrace.learners import Carry, Learner


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Memory:
    """What is kept of an episode.

    Attributes:
        state: The network's state after the last step.
        carry: The carry before the first step of the window.
        after: The carry after it, where the next window begins.
        inputs: The inputs of the window, those that have come first; None for a window of one step.
        count: How many have come.
    """

    state: Any
    carry: Carry
    after: Carry
    inputs: Any
    count: jax.Array


@dataclass(frozen=True, eq=False)
class Credit:
    """A learner, one observation at a time.

    Attributes:
        learner: The pure learner; its `window` says how many steps have exact credit.
        shape: The shape of one step's input.
        dtype: Its dtype.
    """

    learner: Learner
    shape: tuple[int, ...]
    dtype: Any

    @property
    def window(self) -> int:
        """Steps whose credit is by reverse mode."""
        return self.learner.window or 1

    def init(self, carry: Carry) -> Memory:
        """What is kept before the first step of an episode."""
        inputs = None if self.window == 1 else jnp.zeros((self.window, *self.shape), self.dtype)
        return Memory(carry.state, carry, carry, inputs, jnp.zeros((), jnp.int32))

    def step(self, params: Any, memory: Memory, x: jax.Array) -> tuple[Memory, Any]:
        """Takes one observation.

        Args:
            params: The parameters, by which what follows from the output may be differentiated.
            memory: From `init`, or from the step before.
            x: The input of the step.

        Returns:
            What is kept, which has no derivative, and the output.
        """
        if self.window == 1:
            carry, out = self.learner.step(params, memory.after, x)
            return _fixed(Memory(carry.state, memory.after, carry, None, memory.count + 1), memory), out
        full = memory.count == self.window
        carry = _where(full, memory.after, memory.carry)
        inputs, count = jnp.where(full, jnp.roll(memory.inputs, -1, 0), memory.inputs), memory.count + ~full
        inputs = inputs.at[count - 1].set(x)
        after, out = self.learner.step(params, carry, inputs[0])

        def further(before: Any, item: Any) -> tuple[Any, None]:
            x, number = item
            state, out = self.learner.run(params, before[0], x[None])
            found = state, jax.tree.map(lambda a: a[0], out)
            return _where(number < count, found, before), None

        items = inputs[1:], jnp.arange(1, self.window)
        (state, out), _ = jax.lax.scan(further, (after.state, out), items)
        return _fixed(Memory(state, carry, after, inputs, count), memory), out


def _where(chosen: Any, new: Any, old: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(chosen, a, b), new, old)


def _fixed(memory: Memory, like: Memory) -> Memory:
    """Without a derivative, and of the dtypes that it began with."""
    same = lambda a, b: jax.lax.stop_gradient(a).astype(b.dtype) if hasattr(b, "dtype") else jax.lax.stop_gradient(a)
    return jax.tree.map(same, memory, like)
