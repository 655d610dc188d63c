"""Training a plain function `step(params, state, x) -> (state, out)`: online by its learner, or back through time."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from foretrace.learners import FunctionLearner
from foretrace.train.contract import Held, Items, Loss


@dataclass(frozen=True)
class FunctionTrainable:
    """A `FunctionLearner` behind the contract of `foretrace.train.contract`.

    Attributes:
        learner: The learner.
        params: The parameters to begin with.
        state: The state that every trial begins with.
    """

    learner: FunctionLearner
    params: Any
    state: Any

    @property
    def rule(self) -> str:
        """The rule with its options."""
        window = "" if self.learner.window is None else f" in windows of {self.learner.window}"
        return f"{self.learner.rule.name} {self.learner.rule!r}{window}"

    def start(self) -> tuple[Any, Any]:
        """The parameters; nothing lasts but them."""
        return self.params, None

    def begin(self) -> Any:
        """The state, and empty traces."""
        return self.learner.init(self.state)

    def grad(self, params: Any, held: Held, items: Items, loss: Loss) -> tuple[Any, Held, tuple[Any, Any]]:
        """The learner's gradient."""
        grads, carry, found = self.learner.grad(
            params, held.passing, items.inputs, items.beside, loss=loss, has_aux=True, external=items.external
        )
        return grads, Held(None, carry), found

    def run(self, params: Any, held: Held, inputs: Any) -> Any:
        """The outputs, without traces."""
        return run_function(self.learner.model.step, params, held.passing.state, inputs)

    def weights(self, params: Any, lasting: Any) -> Any:
        """The parameters."""
        return params

    def finish(self, params: Any, held: Held) -> None:
        """Nothing: whoever trains a function holds its values."""


@dataclass(frozen=True)
class FunctionBPTT:
    """A step function, trained by reverse mode through all steps that it is given at once.

    Attributes:
        step: `step(params, state, x) -> (state, out)`.
        params: The parameters to begin with.
        state: The state that every trial begins with.
    """

    step: Callable[..., Any]
    params: Any
    state: Any
    rule: str = "BPTT"

    def start(self) -> tuple[Any, Any]:
        """The parameters; nothing lasts but them."""
        return self.params, None

    def begin(self) -> Any:
        """The state."""
        return self.state

    def grad(self, params: Any, held: Held, items: Items, loss: Loss) -> tuple[Any, Held, tuple[Any, Any]]:
        """JAX's own gradient of the summed losses; the state before the first step is a constant."""

        def total(params: Any) -> tuple[Any, Any]:
            def one(state: Any, item: Items) -> Any:
                state, out = self.step(params, state, item.inputs)
                return state, loss(out, item.beside)

            state, found = jax.lax.scan(one, held.passing, items)
            return jnp.sum(found[0]), (state, found)

        grads, (state, found) = jax.grad(total, has_aux=True)(params)
        return grads, Held(None, state), found

    def run(self, params: Any, held: Held, inputs: Any) -> Any:
        """The outputs."""
        return run_function(self.step, params, held.passing, inputs)

    def weights(self, params: Any, lasting: Any) -> Any:
        """The parameters."""
        return params

    def finish(self, params: Any, held: Held) -> None:
        """Nothing: whoever trains a function holds its values."""


def run_function(step: Callable[..., Any], params: Any, state: Any, inputs: Any) -> Any:
    """The outputs of a step function over a sequence."""
    return jax.lax.scan(lambda state, x: step(params, state, x), state, inputs)[1]


def state_of(learner: FunctionLearner, state: Any) -> Any:
    """The state that trials begin with: the one given, or zeros of the form that the learner was compiled for.

    Raises:
        ValueError: The state holds a random key, for which there is no zero.
    """
    form = learner.model.state_tree
    if state is not None:
        hidden, other = learner.model.flatten_state(state)
        return learner.model.unflatten_state(hidden, other)
    if any(jnp.issubdtype(aval.dtype, jax.dtypes.prng_key) for aval in form.avals):
        raise ValueError("The step's state holds a random key: give the state that trials begin with as `state=`.")
    return form.unflatten([jnp.zeros(aval.shape, aval.dtype) for aval in form.avals])
