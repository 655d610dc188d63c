"""One sample at a time: the compiled programs of a network that predicts, learns, and goes on.

`predict` runs the step from a state and leaves the state as it is. `learn` is `learner.train` over a sequence of one
step: the gradient by the rule, one update, and the carry after the step. `advance` takes state and traces through a
step without learning. Each is compiled once; samples are arguments of one form.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from foretrace.learners import Learner
from foretrace.train.iteration import fixed
from foretrace.train.losses import take_readout
from foretrace.train.streaming.learning import StreamState


@dataclass(frozen=True, eq=False)
class OnlineSteps:
    """A learner, an optimizer and a loss as programs for single samples.

    Attributes:
        learner: The learner.
        optimizer: An optax gradient transformation.
        n_inputs: Inputs.
        n_outputs: Outputs.
        dtype: The dtype of the inputs.
        predict: `predict(position, x) -> readout`.
        learn: `learn(position, x, target, weight) -> (position, loss, whether all is finite)`.
        advance: `advance(position, x) -> position`.
    """

    learner: Learner
    optimizer: Any
    n_inputs: int
    n_outputs: int
    dtype: Any
    predict: Callable[..., Any]
    learn: Callable[..., Any]
    advance: Callable[..., Any]

    def start(self) -> StreamState:
        """Before the first sample: the parameters and the state that the model was compiled with."""
        params = self.learner.params
        return jax.tree.map(fixed, StreamState(params, self.optimizer.init(params), self.learner.init()))


def online_steps(learner: Learner, optimizer: Any, loss: Callable[[Any, Any], Any]) -> OnlineSteps:
    """The programs of a learner.

    Args:
        learner: A learner whose step takes one row of numbers, `(n,)`, or a batch of one, `(1, n)`.
        optimizer: An optax gradient transformation.
        loss: `loss(readout, target)`, of a readout without its batch axis.

    Raises:
        ValueError: The step takes something else.
    """
    row = _input_of(learner)
    shaped = lambda x: jnp.reshape(x, (1, *row.shape))
    of_step = lambda out, target: loss(jnp.ravel(take_readout(out)), target)

    def predict(at: StreamState, x: jax.Array) -> jax.Array:
        _, out = learner.run(at.params, at.carry, shaped(x))
        return jnp.ravel(take_readout(out))

    def learn(
        at: StreamState, x: jax.Array, target: Any, weight: jax.Array
    ) -> tuple[StreamState, jax.Array, jax.Array]:
        ys = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], target)
        mask, given = jnp.asarray(weight)[None], dict(optimizer=optimizer, opt_state=at.opt_state)
        params, opt_state, carry, losses = learner.train(
            at.params, at.carry, shaped(x), ys, loss=of_step, mask=mask, **given
        )
        finite = [jnp.all(jnp.isfinite(leaf)) for leaf in (losses, *jax.tree.leaves(params))]
        return StreamState(params, opt_state, carry), losses[0], jnp.all(jnp.stack(finite))

    def advance(at: StreamState, x: jax.Array) -> StreamState:
        return at._replace(carry=learner.evolve(at.params, at.carry, shaped(x))[0])

    n_inputs = row.shape[-1]
    position = StreamState(learner.params, None, learner.init())
    output = jax.eval_shape(predict, position, jax.ShapeDtypeStruct((n_inputs,), row.dtype))
    programs = (jax.jit(predict), jax.jit(learn), jax.jit(advance))
    return OnlineSteps(learner, optimizer, n_inputs, output.shape[0], row.dtype, *programs)


def _input_of(learner: Learner) -> Any:
    """The form of what the step takes."""
    avals = learner.model.flat.inputs.avals
    if len(avals) != 1 or len(avals[0].shape) not in (1, 2) or (len(avals[0].shape) == 2 and avals[0].shape[0] != 1):
        found = ", ".join(str(tuple(aval.shape)) for aval in avals)
        raise ValueError(
            f"Samples come one by one: the step takes a row of numbers, of shape (n,), or a batch of one, (1, n). This "
            f"learner was compiled with {found}. Compile it with such an example input."
        )
    return avals[0]
