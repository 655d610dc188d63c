"""The training of DNI's synthesiser, for a learner of any model."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from foretrace.engine.plan import Plan
from foretrace.learners.learner import Losses, at_start
from foretrace.learners.losses import check_loss_call
from foretrace.rules.dni import DNI, SyntheticGradient
from foretrace.rules.dni import train_synthetic_gradient as train_synthesizer


def train_synthetic_gradient(
    learner: Any,
    inputs: Any,
    *,
    chunk_size: int = 1,
    loss_fn: Callable[[Any], Any] | None = None,
    optimizer: Any = None,
    lr: float = 0.01,
    epochs: int = 1,
    reset: bool = True,
    batch_size: int | None = None,
    params: Any = None,
    state: Any = None,
) -> Any:
    """Trains the synthesiser of a DNI learner on a sequence; the model's parameters stay as they are.

    Args:
        learner: A DNI learner with a synthesiser.
        inputs: A sequence of inputs, time first; for a step with several inputs, a tuple of them.
        chunk_size: Steps of the windows that the learner will be driven in.
        loss_fn: `loss_fn(out)`, the loss of one step that the learner is to be trained on; by default the sum of
            squares.
        optimizer: An optax transformation for the synthesiser's parameters; by default plain descent.
        lr: The learning rate of plain descent.
        epochs: Updates, each on the whole sequence.
        reset: Whether a module's states are initialised anew first; else the sequence starts from the present ones.
            The training itself does not move them.
        batch_size: The batch to initialise them for; by default the one they have.
        params: The parameters, for a learner of a function; None for those that it was compiled with.
        state: The state, or a carry, that the sequence starts from, likewise.

    Returns:
        For a module, the errors before each update, as a list; the learner has the trained synthesiser then, and
        `reset_state` keeps it. For a function, whose learner cannot change, a pair of the learner with the trained
        synthesiser and the errors.

    Raises:
        TypeError: Not a DNI learner with a synthesiser.

    Examples:
        >>> import brainstate, jax.numpy as jnp
        >>> import foretrace as ft
        >>> cell = brainstate.nn.GRUCell(3, 4)
        >>> learner = ft.compile(cell, "DNI", jnp.ones(3), synthesizer=ft.SyntheticGradient())
        >>> errors = ft.train_synthetic_gradient(learner, jnp.ones((5, 3)), epochs=20)
        >>> errors[-1] < errors[0]
        True
    """
    rule = _dni_of(learner)
    options: dict[str, Any] = dict(chunk_size=chunk_size, optimizer=optimizer, lr=lr, epochs=epochs)
    loss = _sum_of_squares if loss_fn is None else loss_fn
    check_loss_call(loss, targets=False)
    holds_values = learner.pure is not learner
    if holds_values:
        if params is not None or state is not None:
            raise TypeError(
                "A learner of a module holds its own parameters and states: leave out `params` and `state`."
            )
        if reset:
            from foretrace.learners.helpers import init_states

            init_states(learner, batch_size)
        options["synthesizer_params"] = learner.carry.trace.synthesizer
    pure, params, start = at_start(learner, params, state, "`train_synthetic_gradient`")
    flat, states, xs = pure.flatten(params, start, inputs)
    items = {"inputs": xs, "ys": None, "mask": None, "external": None}
    forward = Losses(pure, loss, targets=False, has_aux=False).forward
    trained, found = train_synthesizer(pure.plan, rule.synthesizer, flat, states, items, forward, **options)
    own, errors = rule.synthesizer, [float(error) for error in found]
    own = own.with_params(trained) if isinstance(own, SyntheticGradient) else _Trained(own, trained)
    made = dataclasses.replace(rule, synthesizer=own)
    if not holds_values:
        return dataclasses.replace(learner, rule=made), errors
    learner.rule = made
    learner.etrace.value = learner.etrace.value._replace(synthesizer=trained)
    return errors


def _dni_of(learner: Any) -> DNI:
    known = hasattr(type(learner), "pure")
    if not known or not isinstance(learner.rule, DNI):
        found = learner.rule.name if known else type(learner).__name__
        raise TypeError(f"Only a DNI learner has a synthesiser to train; got {found}.")
    if learner.rule.synthesizer is None:
        raise TypeError("The learner has no synthesiser. Pass `synthesizer=foretrace.SyntheticGradient()` to the rule.")
    return learner.rule


def _sum_of_squares(out: Any) -> jax.Array:
    return sum((jnp.sum(leaf**2) for leaf in jax.tree.leaves(out)), jnp.zeros(()))


@dataclass(frozen=True, eq=False)
class _Trained:
    """A synthesiser of the user's own, which begins with trained parameters."""

    synthesizer: Any
    params: Any

    def init(self, key: Any, plan: Plan) -> Any:
        return self.params

    def apply(self, params: Any, group_states: Any) -> Any:
        return self.synthesizer.apply(params, group_states)
