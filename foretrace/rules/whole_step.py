"""A step as a whole: new hidden states by the parameters and by all previous hidden states.

The rules that follow the whole Jacobian know neither groups nor operators. They need three things of a step: the
pullback of a cotangent of the new states to weights and previous states, the pushforward of a tangent of the previous
states, and the derivative of the step's own loss by both. Hidden states are one flat vector, in the program's order.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from foretrace._jax import is_complex, is_float
from foretrace.engine.evaluate import Step, run_forward
from foretrace.engine.plan import Plan
from foretrace.errors import NotSupportedError
from foretrace.rules.rule import Block


def hidden_size(plan: Plan) -> int:
    """Numbers in all hidden states together; a complex one is two."""
    return sum(leaf.aval.size * (1 + is_complex(leaf.aval)) for leaf in plan.program.hidden)


def hidden_dtype(plan: Plan) -> Any:
    """The dtype of the vector of all hidden states, which is real."""
    return jnp.finfo(jnp.result_type(*(leaf.aval.dtype for leaf in plan.program.hidden))).dtype


def join(values: Sequence[Any], lead: int = 0) -> jax.Array:
    """Arrays as one vector, behind some leading axes that they share; no arrays are an empty vector."""
    parts = [jnp.reshape(v, (*jnp.shape(v)[:lead], -1)) for v in values]
    return jnp.concatenate(parts, axis=-1) if parts else jnp.zeros(0)


def split(vector: jax.Array, like: Sequence[Any]) -> list[jax.Array]:
    """The last axis of an array as arrays of the shapes and dtypes of others, which `join` undoes."""
    found, start = [], 0
    for one in like:
        part = vector[..., start : start + one.size].reshape(*vector.shape[:-1], *one.shape)
        found.append(part if jnp.iscomplexobj(part) else part.astype(one.dtype))
        start += one.size
    return found


def join_hidden(values: Sequence[Any], lead: int = 0) -> jax.Array:
    """Hidden states as one real vector: of a complex one the real parts, then the imaginary ones."""
    sides = [[jnp.real(v), jnp.imag(v)] if jnp.iscomplexobj(v) else [v] for v in values]
    return join([side for both in sides for side in both], lead)


def join_cotangents(values: Sequence[Any], lead: int = 0) -> jax.Array:
    """Cotangents of hidden states as those of that vector: in JAX that of `x + iy` is that of `x` minus `i` that of
    `y`."""
    return join_hidden([jnp.conj(v) if jnp.iscomplexobj(v) else v for v in values], lead)


def split_hidden(plan: Plan, vector: jax.Array) -> list[jax.Array]:
    """The vector of hidden states as the states."""
    found, start = [], 0
    for leaf in plan.program.hidden:
        count = 1 + is_complex(leaf.aval)
        sides = vector[start : start + count * leaf.aval.size].reshape(count, *leaf.aval.shape)
        found.append((jax.lax.complex(*sides) if count == 2 else sides[0]).astype(leaf.aval.dtype))
        start += count * leaf.aval.size
    return found


class Weights(NamedTuple):
    """What a plan's parameters make for a block of steps.

    Attributes:
        values: The weights, which have derivatives.
        marks: Booleans and integers made of parameters, which have none.
        pull_back: Gradients of the parameters from those of the weights.
    """

    values: list[jax.Array]
    marks: list[jax.Array]
    pull_back: Callable[[Sequence[Any]], list[jax.Array]]


class WholeStep:
    """One step, linearised.

    A tangent is pushed by the transpose of the pull, not by forward mode: a user's own backward pass (`custom_vjp`) has
    no forward mode, and what it says is what BPTT follows. One that is not linear is the transpose of no derivative: as
    in D-RTRL, nothing of the past passes through it.

    Args:
        plan: The plan.
        weights: Its weights.
        step: The values that the step starts from.
    """

    def __init__(self, plan: Plan, weights: Weights, step: Step) -> None:
        self.plan, self.weights, self.step = plan, weights, step
        self.hidden = join_hidden(step.hidden)
        new, self._pull = jax.vjp(self._run, weights.values, self.hidden)
        _, self._push = jax.vjp(lambda cotangent: self._pull(cotangent)[1], jnp.zeros_like(new))

    def _run(self, weights: Any, hidden: jax.Array) -> jax.Array:
        step = Step(split_hidden(self.plan, hidden), self.step.other, self.step.inputs, [])
        return join_hidden(run_forward(self.plan, [*weights, *self.weights.marks], step, self.plan.nonlinear)[0])

    def pull(self, cotangent: jax.Array) -> tuple[list[jax.Array], jax.Array]:
        """Pulls a cotangent of the new hidden states back to the weights and the previous hidden states."""
        return self._pull(cotangent.astype(self.hidden.dtype))

    def push(self, tangent: jax.Array) -> jax.Array:
        """Where a tangent of the previous hidden states goes."""
        if jnp.iscomplexobj(tangent):
            return self.push(tangent.real) + 1j * self.push(tangent.imag)
        return self._push(tangent.astype(self.hidden.dtype))[0]


def in_step(plan: Plan, weights: Weights, block: Block) -> tuple[list[jax.Array], jax.Array] | None:
    """The derivatives of the losses of a block by the weights within each step, and by the hidden states before it.

    Returns:
        Gradients of the weights, summed over the steps, and the derivatives of each step's loss by the previous hidden
        states, `(K, hidden)`, through the whole step but backward passes that are not linear. None where the block has
        no losses.
    """
    cotangents, marks = block.cotangents, weights.marks
    if cotangents is None:
        return None

    def paired(weights: Any, step: Step, given: Any, stopped: Any) -> jax.Array:
        bare = Step(step.hidden, step.other, step.inputs, [])
        hidden, _, outputs, _ = run_forward(plan, [*weights, *marks], bare, stopped)
        pairs = zip([*outputs, *hidden], given, strict=True)
        return sum((jnp.real(jnp.sum(c * v)) for v, c in pairs if c is not None), start=jnp.zeros(()))

    def total(weights: Any, hidden: Any, stopped: Any = None) -> jax.Array:
        steps = Step(hidden, block.steps.other, block.steps.inputs, [])
        return jnp.sum(jax.vmap(lambda step, given: paired(weights, step, given, stopped))(steps, fitting))

    floating = [is_float(getattr(atom, "aval", atom)) for atom in plan.program.output_outvars]
    outputs = [c if usable else None for c, usable in zip(cotangents.outputs, floating, strict=True)]
    fitting = [*outputs, *cotangents.hidden]
    hidden = list(block.steps.hidden)
    by_weights, by_hidden = jax.grad(total, argnums=(0, 1))(weights.values, hidden)
    if plan.nonlinear:
        by_hidden = jax.grad(total, argnums=1)(weights.values, hidden, plan.nonlinear)
    return by_weights, join_cotangents(by_hidden, lead=1)


def weights_of(plan: Plan, params: Sequence[Any]) -> Weights:
    """What the parameters are worth where they meet data, and the way back."""
    count = len(plan.weight_vars)

    def made(*values: Any) -> tuple[list[jax.Array], list[jax.Array]]:
        found = plan.weights(values)
        return found[:count], found[count:]

    values, pull_back, marks = jax.vjp(made, *params, has_aux=True)
    return Weights(values, marks, lambda gradients: list(pull_back(list(gradients))))


def added(first: Sequence[Any], second: Sequence[Any]) -> list[jax.Array]:
    """Sums of gradients, in the dtypes of the first."""
    return [a + b.astype(a.dtype) for a, b in zip(first, second, strict=True)]


def in_chunks(function: Callable[[jax.Array], Any], rows: jax.Array, width: int) -> Any:
    """Maps over rows side by side, or in chunks where a map over all at once would hold too much between.

    Args:
        function: Of one row.
        rows: The rows.
        width: Values that the function holds for one row.
    """
    most = max(1, CHUNK_VALUES // max(1, width))
    return jax.vmap(function)(rows) if most >= rows.shape[0] else jax.lax.map(function, rows, batch_size=most)


CHUNK_VALUES = 2**22


def check_memory(rule: str, kept: str, size: int, limit: int, instead: str) -> None:
    """Refuses a trace that is too large.

    Args:
        rule: The rule's name.
        kept: What it would keep, in words.
        size: Its bytes.
        limit: The most bytes allowed.
        instead: What to use instead.

    Raises:
        NotSupportedError: If the trace is past the limit.
    """
    if size > limit:
        raise NotSupportedError(
            f"{rule} would keep {kept}: {size:,} bytes, past its `memory_limit` of {limit:,} bytes. "
            f"Use {instead}, or raise `memory_limit`."
        )
