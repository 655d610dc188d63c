"""UORO: an unbiased estimate of the whole Jacobian by the product of two vectors.

With `H` and `P` the derivatives of a step by previous states and by parameters, `s` and `theta` with
`E[s theta^T] = J`, and `nu` random signs, one for each state element,

    s'     = rho0 H s + rho1 nu
    theta' = theta / rho0 + (nu^T P) / rho1

have `E[s' theta'^T] = H J + P`, since `E[nu nu^T] = 1` and the cross terms are odd in `nu`. The factors `rho` make the
two vectors of each product equally long, which is the choice of least variance.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from foretrace._checks import require_positive
from foretrace.engine.plan import Plan
from foretrace.rules.helpers import as_key
from foretrace.rules.rule import Block, Rule
from foretrace.rules.whole_step import WholeStep, added, hidden_dtype, hidden_size, in_step, join_cotangents, weights_of


class RankOne(NamedTuple):
    """The two vectors, and the key that the next signs are drawn from.

    Attributes:
        states: `s`, one value for each hidden state element.
        params: `theta`, in the shapes of the parameters.
        key: A PRNG key, typed or as its words.
    """

    states: jax.Array
    params: list[jax.Array]
    key: jax.Array


@dataclass(frozen=True)
class UORO(Rule):
    """Unbiased online recurrent optimisation: a random rank-one estimate of the whole Jacobian.

    Keeps: a value for each hidden state element and one for each parameter element. Memory: states + parameters.
    Time: about that of BPTT. Its mean is the gradient of BPTT; its variance grows with the size of the model.
    Paper: Tallec & Ollivier 2018, "Unbiased online recurrent optimization".

    Attributes:
        projection_key: Where the random signs come from: a seed or a PRNG key.
        projection_eps: Added to the lengths that are divided by, so that none is zero.

    Examples:
        >>> from foretrace.rules import UORO
        >>> UORO(projection_key=7).projection_eps
        1e-07
    """

    name: ClassVar[str] = "UORO"
    projection_key: Any = 42
    projection_eps: float = 1e-7

    def __post_init__(self) -> None:
        require_positive("projection_eps", self.projection_eps, "a small number above zero")
        as_key(self.projection_key, "projection_key")

    def init(self, plan: Plan) -> RankOne:
        params = [jnp.zeros(leaf.aval.shape, leaf.aval.dtype) for leaf in plan.program.params]
        return RankOne(jnp.zeros(hidden_size(plan), hidden_dtype(plan)), params, _key(self.projection_key))

    def advance(
        self, plan: Plan, params: Sequence[Any], block: Block, trace: RankOne
    ) -> tuple[list[jax.Array] | None, RankOne]:
        weights = weights_of(plan, params)
        cotangents = in_step(plan, weights, block)

        def one(carry: tuple[RankOne, Any], item: tuple[Any, Any]) -> tuple[Any, None]:
            trace, total = carry
            step, signal = item
            if signal is not None:
                total = added(total, _along(trace, signal))
            whole = WholeStep(plan, weights, step)
            key, own = jax.random.split(trace.key)
            signs = jax.random.rademacher(own, trace.states.shape, trace.states.dtype)
            direct = weights.pull_back(whole.pull(signs)[0])
            return (self._next(trace, whole.push(trace.states), signs, direct)._replace(key=key), total), None

        start = (trace, [jnp.zeros_like(value) for value in trace.params])
        (trace, total), _ = jax.lax.scan(one, start, (block.steps, None if cotangents is None else cotangents[1]))
        return None if cotangents is None else added(weights.pull_back(cotangents[0]), total), trace

    def _next(self, trace: RankOne, carried: jax.Array, signs: jax.Array, direct: Sequence[jax.Array]) -> RankOne:
        """The two vectors after a step, given `H s`, `nu` and `nu^T P`."""
        past = self._ratio(_length(trace.params), _length([carried]))
        now = self._ratio(_length(direct), _length([signs]))
        states = (past * carried + now * signs).astype(carried.dtype)
        params = [(old / past + new / now).astype(old.dtype) for old, new in zip(trace.params, direct, strict=True)]
        return trace._replace(states=states, params=params)

    def _ratio(self, params: jax.Array, states: jax.Array) -> jax.Array:
        return jnp.sqrt(params / (states + self.projection_eps)) + self.projection_eps

    def credit(self, plan: Plan, params: Sequence[Any], trace: RankOne, signal: Sequence[jax.Array]) -> list[jax.Array]:
        return _along(trace, join_cotangents(signal))


def _along(trace: RankOne, signal: jax.Array) -> list[jax.Array]:
    scale = jnp.vdot(signal.astype(trace.states.dtype), trace.states)
    return [scale.astype(value.dtype) * value for value in trace.params]


def _length(values: Sequence[jax.Array]) -> jax.Array:
    """The norm of all values, in float32 at least: float16 holds neither large squares nor `projection_eps`."""
    squares = (jnp.sum(jnp.square(jnp.abs(v).astype(_wide(v.dtype)))) for v in values)
    return jnp.sqrt(sum(squares, start=jnp.zeros(())))


def _wide(dtype: Any) -> Any:
    return jnp.promote_types(jnp.finfo(dtype).dtype, jnp.float32)


def _key(given: Any) -> jax.Array:
    """A key from a seed, a typed key or the raw words of one; as words where JAX reads them, since brainstate's `vmap`
    maps no states with typed keys."""
    key = as_key(given)
    return jax.random.key_data(key) if key.dtype == jax.random.key(0).dtype else key
