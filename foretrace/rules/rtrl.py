"""RTRL: the derivative of every hidden state by every parameter, carried forward in time without loss.

With `J_t` the derivative of the hidden states after step `t` by the parameters, `J_t = H_t J_{t-1} + P_t`, where `H_t`
and `P_t` are the derivatives of the whole step by previous states and by parameters. `H_t` is never formed: it is
applied to the columns of `J`, side by side, so that the cost of a column is that of a step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from foretrace._checks import require_count
from foretrace._jax import is_float
from foretrace.compiler.history import HistoryKind
from foretrace.engine.plan import Plan
from foretrace.rules.rule import Block, Rule
from foretrace.rules.whole_step import (
    WholeStep,
    added,
    check_memory,
    hidden_dtype,
    hidden_size,
    in_chunks,
    in_step,
    join,
    join_cotangents,
    split,
    weights_of,
)


class Influence(NamedTuple):
    """What RTRL keeps.

    Attributes:
        jacobian: The derivative of every hidden state element by every parameter element, `(parameters, states)`.
    """

    jacobian: jax.Array


@dataclass(frozen=True)
class RTRL(Rule):
    """Real-time recurrent learning: the whole Jacobian, and with it the gradient of BPTT.

    Keeps: the derivative of every hidden state element by every parameter element that reaches a state.
    Memory: hidden states x parameters. Time: one step's work for every parameter element.
    Paper: Williams & Zipser 1989, "A learning algorithm for continually running fully recurrent neural networks".

    Attributes:
        memory_limit: The most bytes that the matrix may take; a step holds about three of them.

    Examples:
        >>> from foretrace.rules import RTRL
        >>> RTRL().memory_limit
        2147483648
    """

    name: ClassVar[str] = "RTRL"
    memory_limit: int = 2**31

    def __post_init__(self) -> None:
        require_count("memory_limit", self.memory_limit, "bytes")

    def init(self, plan: Plan) -> Influence:
        shape, dtype = (sum(aval.size for aval in _kept(plan)), hidden_size(plan)), _dtype(plan)
        check_memory(
            self.name,
            f"the derivatives of {shape[1]:,} hidden state elements by {shape[0]:,} parameter elements in {dtype}",
            shape[0] * shape[1] * jnp.dtype(dtype).itemsize,
            self.memory_limit,
            "`SnAp`, which keeps the nearest of them, `UORO`, or `D_RTRL`",
        )
        return Influence(jnp.zeros(shape, dtype))

    def advance(
        self, plan: Plan, params: Sequence[Any], block: Block, trace: Influence
    ) -> tuple[list[jax.Array] | None, Influence]:
        weights = weights_of(plan, params)
        cotangents = in_step(plan, weights, block)

        def one(carry: tuple[jax.Array, jax.Array], item: tuple[Any, Any]) -> tuple[Any, None]:
            influence, total = carry
            step, signal = item
            if signal is not None:
                total = total + influence @ signal.astype(influence.dtype)
            whole = WholeStep(plan, weights, step)

            def row(cotangent: jax.Array) -> jax.Array:
                by_params = weights.pull_back(whole.pull(cotangent)[0])
                return join([by_params[k] for k in _places(plan)])

            direct = in_chunks(row, jnp.eye(influence.shape[1], dtype=whole.hidden.dtype), influence.shape[0])
            carried = in_chunks(whole.push, influence, influence.shape[1])
            return ((carried + direct.T).astype(influence.dtype), total), None

        before = trace.jacobian
        start = (before, jnp.zeros(before.shape[0], before.dtype))
        (jacobian, total), _ = jax.lax.scan(one, start, (block.steps, None if cotangents is None else cotangents[1]))
        if cotangents is None:
            return None, Influence(jacobian)
        return added(weights.pull_back(cotangents[0]), _gradients(plan, total)), Influence(jacobian)

    def credit(
        self, plan: Plan, params: Sequence[Any], trace: Influence, signal: Sequence[jax.Array]
    ) -> list[jax.Array]:
        return _gradients(plan, trace.jacobian @ join_cotangents(signal).astype(trace.jacobian.dtype))


def _places(plan: Plan) -> list[int]:
    """Parameters that reach a hidden state."""
    return [
        parameter.index
        for parameter in plan.graph.parameters
        if parameter.history is not HistoryKind.NONE_NEEDED and is_float(plan.program.params[parameter.index].aval)
    ]


def _kept(plan: Plan) -> list[Any]:
    return [plan.program.params[k].aval for k in _places(plan)]


def _dtype(plan: Plan) -> Any:
    return jnp.result_type(hidden_dtype(plan), *(aval.dtype for aval in _kept(plan)))


def _gradients(plan: Plan, vector: jax.Array) -> list[jax.Array]:
    """A value for each kept element as one gradient for each parameter."""
    found = [jnp.zeros(leaf.aval.shape, leaf.aval.dtype) for leaf in plan.program.params]
    for place, part in zip(_places(plan), split(vector, _kept(plan)), strict=True):
        found[place] = part
    return found
