"""Around learning: running gradients and traces as states of brainstate, and states made anew."""

import math
from typing import Any

import brainstate
import brainunit as u
import jax
import jax.numpy as jnp

from foretrace._checks import BELOW_ONE, require_array_like, require_number
from foretrace.learners.module import ETraceAlgorithm
from foretrace.rules.helpers import unit_interval


class GradExpon(brainstate.nn.Module):
    """A running gradient with exponential forgetting, `g <- decay * g + grad`.

    Args:
        grad_shape: The form of the gradients: a pytree of arrays, of shapes, or of anything with a shape and a dtype.
        tau_or_decay: What is kept at each update, between 0 and 1; or a time constant with a unit, which gives
            `exp(-dt / tau)` by the `dt` of `brainstate.environ`.

    Attributes:
        gradients: The state with the running gradient.
        decay: What is kept at each update.

    Examples:
        >>> import jax.numpy as jnp
        >>> running = GradExpon({"w": jnp.zeros(2)}, 0.5)
        >>> for _ in range(2):
        ...     found = running({"w": jnp.ones(2)})
        >>> found["w"].tolist()
        [1.5, 1.5]
    """

    def __init__(self, grad_shape: Any, tau_or_decay: Any) -> None:
        super().__init__()
        self.decay = _decay(tau_or_decay)
        self.gradients = brainstate.LongTermState(jax.tree.map(_zeros, grad_shape, is_leaf=_is_shape))

    def init_state(self, *_: Any, **__: Any) -> None:
        """Back to zero."""
        self.gradients.value = jax.tree.map(jnp.zeros_like, self.gradients.value)

    def reset_state(self, *_: Any, **__: Any) -> None:
        """Back to zero."""
        self.init_state()

    def update(self, grads: Any) -> Any:
        """Takes new gradients in and gives the running ones, which `gradients` holds."""
        self.gradients.value = jax.tree.map(lambda g, new: self.decay * g + new, self.gradients.value, grads)
        return self.gradients.value


class _Leaky(brainstate.ShortTermState):
    """A running value, `value <- kept * value + taken * x`, of any pytree of arrays."""

    value: Any

    def __init__(self, init_value: Any, kept: float, taken: float) -> None:
        for leaf in jax.tree.leaves(init_value):
            require_array_like("init_value", leaf)
        super().__init__(jax.tree.map(jnp.asarray, init_value))
        self._kept, self._taken = kept, taken

    def update(self, x: Any) -> Any:
        """Takes one more value in and gives the running one."""
        self.value = jax.tree.map(lambda old, new: self._kept * old + self._taken * new, self.value, x)
        return self.value

    def reset_state(self, batch_size: int | None = None, **_: Any) -> None:
        """Back to zero; with a batch, the first axis is as long as that."""
        first = () if batch_size is None else (batch_size,)
        self.value = jax.tree.map(lambda v: jnp.zeros((*first, *v.shape[len(first) :]), v.dtype), self.value)


class KappaFilter(_Leaky):
    """A low-pass filter, `value <- kappa * value + (1 - kappa) * x`, as a state.

    Args:
        init_value: Its value before the first update, any pytree of arrays.
        kappa: What is kept at each update, from 0 to 1.

    Examples:
        >>> import jax.numpy as jnp
        >>> smooth = KappaFilter(jnp.zeros(()), 0.5)
        >>> float(smooth.update(1.0)), float(smooth.update(1.0))
        (0.5, 0.75)
    """

    def __init__(self, init_value: Any, kappa: float) -> None:
        super().__init__(init_value, unit_interval("kappa", kappa), 1 - kappa)
        self.kappa = float(kappa)


class PresynapticTrace(_Leaky):
    """A leaky count of what arrives, `value <- leak * value + x`, as a state.

    Args:
        init_value: Its value before the first update, any pytree of arrays.
        leak: What is kept at each update, from 0 to 1.

    Examples:
        >>> import jax.numpy as jnp
        >>> trace = PresynapticTrace(jnp.zeros(()), 0.5)
        >>> float(trace.update(1.0)), float(trace.update(1.0))
        (1.0, 1.5)
    """

    def __init__(self, init_value: Any, leak: float) -> None:
        super().__init__(init_value, unit_interval("leak", leak), 1.0)
        self.leak = float(leak)


def _decay(tau_or_decay: Any) -> Any:
    if isinstance(tau_or_decay, u.Quantity) and not tau_or_decay.is_unitless:
        dt = brainstate.environ.get("dt", None)
        if dt is None:
            raise ValueError(
                f"A time constant of {tau_or_decay} needs the time step of the simulation: set it by "
                "`brainstate.environ.set(dt=...)`, or give the decay of one step as a number."
            )
        return u.math.exp(-dt / tau_or_decay)
    accepted = "a decay between 0 and 1, or a time constant with a unit, as `10 * u.ms`"
    smallest = math.nextafter(0.0, 1.0)
    return require_number("tau_or_decay", u.get_magnitude(tau_or_decay), accepted, smallest, BELOW_ONE)


def _is_shape(node: Any) -> bool:
    return isinstance(node, tuple) and all(isinstance(size, int) for size in node)


def _zeros(leaf: Any) -> jax.Array:
    if _is_shape(leaf):
        return jnp.zeros(leaf)
    require_array_like("grad_shape", leaf)
    return jnp.zeros(jnp.shape(leaf), jnp.result_type(leaf))


def init_states(learner: ETraceAlgorithm, batch_size: int | None) -> None:
    """New states for the model, of the form that the graph was compiled for."""
    executor = learner.executor
    sizes: list[int | None] = [batch_size]
    if batch_size is None:
        sizes += [leaf.aval.shape[0] for leaf in executor.graph.program.hidden if leaf.aval.shape][:1]
    for size in sizes:
        brainstate.nn.init_all_states(learner.model, **({} if size is None else {"batch_size": size}))
        if executor.states_fit():
            return
    raise ValueError(
        f"The model's states do not have the form of the compiled graph after `init_all_states` for a batch of "
        f"{batch_size}. Pass the `batch_size` that the learner was compiled for, or `reset=False`."
    )
