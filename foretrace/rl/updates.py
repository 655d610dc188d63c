"""From a TD error and eligibility to a change of the parameters: bounded steps, or any optimizer of optax."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from foretrace._checks import require_positive


class Eligibility(NamedTuple):
    """The eligibility of the parameters, like them: `z <- discount * decay * z + gradient`.

    Attributes:
        actor: For the logarithm of the policy.
        critic: For the value.
    """

    actor: Any
    critic: Any


@dataclass(frozen=True)
class ObGD:
    """Gradient steps that cannot overshoot (Elsayed et al. 2024).

    The actor and the critic each change the parameters by `step * delta * z`, with `delta` the TD error and `step` the
    smaller of `learning_rate` and `1 / (kappa * max(|delta|, 1) * |z|)`, where `|z|` is the sum of absolute values.

    Attributes:
        learning_rate: The largest step.
        actor_kappa: How far below the bound the actor stays.
        critic_kappa: The same for the critic.

    Examples:
        >>> import jax.numpy as jnp
        >>> z = Eligibility(actor=jnp.array([0.0, 0.0]), critic=jnp.array([3.0, -1.0]))
        >>> ObGD().update(jnp.zeros(2), (), 2.0, z)[0].tolist()
        [0.375, -0.125]
    """

    learning_rate: float = 1.0
    actor_kappa: float = 3.0
    critic_kappa: float = 2.0

    def __post_init__(self) -> None:
        for name in ("learning_rate", "actor_kappa", "critic_kappa"):
            require_positive(name, getattr(self, name), "a number above 0")

    def init(self, params: Any) -> tuple[()]:
        """Nothing is kept."""
        return ()

    def update(self, params: Any, state: tuple[()], delta: Any, eligibility: Eligibility) -> tuple[Any, tuple[()]]:
        """The parameters after a step.

        Args:
            params: The parameters.
            state: What is kept, nothing.
            delta: The TD error.
            eligibility: The eligibility.
        """
        for z, kappa in zip(eligibility, (self.actor_kappa, self.critic_kappa), strict=True):
            size = sum(jnp.sum(jnp.abs(leaf)) for leaf in jax.tree.leaves(z))
            bound = kappa * self.learning_rate * jnp.maximum(jnp.abs(delta), 1.0) * size
            step = self.learning_rate / jnp.maximum(bound, 1.0)
            params = jax.tree.map(lambda p, e, step=step: (p + step * delta * e).astype(p.dtype), params, z)
        return params, state


@dataclass(frozen=True)
class Ascent:
    """Steps of an optax optimizer along `delta * (z_actor + critic_weight * z_critic)`.

    Attributes:
        optimizer: A gradient transformation.
        critic_weight: What the critic's part counts.
    """

    optimizer: Any
    critic_weight: float = 0.5

    def init(self, params: Any) -> Any:
        """The optimizer's state."""
        return self.optimizer.init(params)

    def update(self, params: Any, state: Any, delta: Any, eligibility: Eligibility) -> tuple[Any, Any]:
        """The parameters and the optimizer's state after a step."""
        descent = jax.tree.map(lambda a, c: -delta * (a + self.critic_weight * c), *eligibility)
        changes, state = self.optimizer.update(descent, state, params)
        return jax.tree.map(lambda p, change: (p + change).astype(p.dtype), params, changes), state
