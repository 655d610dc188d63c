"""Backpropagation through time, behind the contract of an online rule: the measure that all others are held against."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from foretrace._checks import optional_count
from foretrace.engine.plan import Plan
from foretrace.rules.rule import Block, Rule


@dataclass(frozen=True)
class BPTT(Rule):
    """BPTT: the exact gradient, by reverse mode over all steps that are given at once.

    Keeps: no trace. Memory: the states of every step of a call, so it grows with the sequence. Between two calls credit
    is cut: given piece by piece, or with `window`, it is truncated BPTT.

    With `segment` the states are kept every so many steps alone, and the steps between them are run again on the way
    back: the same gradient, in the memory of one segment and of the states between segments, for one forward pass more.
    A segment of about the square root of the number of steps takes least.

    Attributes:
        segment: Steps between states that are kept; None to keep what every step leaves.

    Examples:
        >>> from foretrace.rules import BPTT
        >>> BPTT(segment=20).exact
        True
    """

    name: ClassVar[str] = "BPTT"
    exact: ClassVar[bool] = True
    keeps_traces: ClassVar[bool] = False
    segment: int | None = None

    def __post_init__(self) -> None:
        optional_count("segment", self.segment)

    def init(self, plan: Plan) -> tuple[()]:
        return ()

    def advance(
        self, plan: Plan, params: Sequence[Any], block: Block, trace: tuple[()]
    ) -> tuple[list[jax.Array] | None, tuple[()]]:
        """Nothing: whoever drives an exact rule differentiates the steps of a window themselves."""
        return None, trace

    def credit(
        self, plan: Plan, params: Sequence[Any], trace: tuple[()], signal: Sequence[jax.Array]
    ) -> list[jax.Array]:
        """Zero: nothing is kept of the steps before the window."""
        return [jnp.zeros(jnp.shape(p), jnp.result_type(p)) for p in params]
