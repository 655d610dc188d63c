"""A learner on an NNX module, called like the module: `out = online(x)`.

It is a module itself and holds what the pure learner hands back: the carry, in Variables. The module's own Variables
(parameters, and a recurrent state that it holds) stay in the module, so `nnx.grad`, `nnx.jit` and `nnx.Optimizer` see
them where they are. The derivative of a call by the parameters is the rule's.
"""

from collections.abc import Iterator
from typing import Any

from flax import nnx

from foretrace._repr import one_line
from foretrace.frontends.base import Carried
from foretrace.learners.learner import Carry, Learner


class OnlineState(nnx.Variable):
    """What a learner carries from call to call: the state that the module's call takes, and the eligibility traces."""


class OnlineModule(nnx.Module):
    """An NNX module that learns online, one call for each step.

    Args:
        learner: The pure learner.
        model: The module that it was compiled from, or one of the same form.

    Attributes:
        learner: The pure learner.
        model: The module, with the parameters.
        state: The state that the module's call takes; None where the module holds it itself.
        trace: The rule's trace.

    Examples:
        >>> import jax.numpy as jnp, foretrace as ft
        >>> from flax import nnx
        >>> cell = nnx.GRUCell(3, 4, rngs=nnx.Rngs(0))
        >>> online = ft.compile(cell, "D_RTRL", jnp.ones((2, 3))).stateful(cell)
        >>> loss = lambda online: jnp.sum(online(jnp.ones((2, 3))) ** 2)
        >>> grads = nnx.grad(loss, argnums=nnx.DiffState(0, nnx.Param))(online)
        >>> sorted(grads["model"])
        ['dense_h', 'dense_i']
    """

    def __init__(self, learner: Learner, model: nnx.Module) -> None:
        self.learner, self.model = learner, model
        self.state, self.trace = OnlineState(None), OnlineState(None)
        self.reset()

    @one_line
    def __repr__(self) -> Iterator[str]:
        yield f"{self.learner.rule.name} of {type(self.model).__name__}"
        yield self.learner.graph.sizes

    def __call__(self, *inputs: Any, external: Any = None) -> Any:
        """Runs the module for one step, and takes the traces through it.

        Args:
            *inputs: The inputs of the step.
            external: What the rule takes at each step beside the inputs (a modulator, targets to project).

        Returns:
            What the module returns beside its state.
        """
        carry, out = self.learner.step(self.model, self.carry, *inputs, external=external)
        self.put(carry)
        return out

    @property
    def carry(self) -> Carry:
        """State and traces as they are now."""
        held = _held(self.learner.state)
        if held is None:
            return Carry(self.state.get_value(), self.trace.get_value())
        names = set(dict(nnx.to_flat_state(held)))
        held = nnx.state(self.model, lambda path, _: path in names)
        taken = isinstance(self.learner.state, Carried)
        return Carry(Carried(self.state.get_value(), held) if taken else held, self.trace.get_value())

    def reset(self, state: Any = None) -> None:
        """Empties the traces and begins with a state; None for that which the model was compiled with."""
        self.put(self.learner.init(state))

    def put(self, carry: Carry) -> None:
        """Gives the module and the traces the values of a carry, as `learner.grad` and its like hand it back."""
        held = _held(carry.state)
        if held is not None:
            nnx.update(self.model, held)
        taken = carry.state.carry if isinstance(carry.state, Carried) else None if held is not None else carry.state
        self.state.set_value(taken)
        self.trace.set_value(carry.trace)


def _held(state: Any) -> Any:
    """What of a learner's state lives in Variables of the module; None for nothing."""
    state = state.others if isinstance(state, Carried) else state
    return state if isinstance(state, nnx.State) else None
