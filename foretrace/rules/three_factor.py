"""Three-factor learning: a third factor (reward, novelty, error) turns eligibility traces into change."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from foretrace._checks import require_numeric
from foretrace.compiler.groups import HiddenGroup
from foretrace.rules.outer_signal import OuterSignal, group_name
from foretrace.rules.rule import Block


@dataclass(frozen=True, eq=False)
class ThreeFactor(OuterSignal):
    """Three-factor rule: `sum_t M_t . e_t`, the trace of each group's output times a modulator.

    Keeps: D-RTRL's traces. Memory and time: D-RTRL's. Takes `modulator` at each step, with or without a loss. It stands
    where the derivative of a loss by the output would: descent with a positive one makes the output smaller, so a
    reward enters with a minus.
    Paper: Gerstner et al. 2018, "Eligibility traces and plasticity on behavioral time scales".

    Attributes:
        modulator: The third factor where a step brings none: a number, one for each batch element, or anything that
            broadcasts to the positions of each group. An array as long as the batch is read as one for each element.
        trace_dtype: As in `D_RTRL`.

    Examples:
        >>> from foretrace.rules import ThreeFactor
        >>> ThreeFactor().external
        'modulator'
    """

    name: ClassVar[str] = "ThreeFactor"
    external: ClassVar[str | None] = "modulator"
    modulator: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.modulator is not None:
            require_numeric("modulator", self.modulator, "a number, or an array of them")

    def outer(self, block: Block) -> Any:
        if block.external is not None or self.modulator is None:
            return block.external
        count = jax.tree.leaves(block.steps)[0].shape[0]
        return jnp.broadcast_to(jnp.asarray(self.modulator), (count, *jnp.shape(self.modulator)))

    def on_output(self, group: HiddenGroup, outer: Any) -> jax.Array:
        given = jnp.asarray(outer)
        shape = group.varshape
        steps, rest = given.shape[0], given.shape[1:]
        if len(shape) > 1 and rest == shape[:1]:
            rest = (shape[0], *[1] * (len(shape) - 1))
        rest = (*[1] * (len(shape) - len(rest)), *rest)
        if len(rest) > len(shape) or any(a not in (1, b) for a, b in zip(rest, shape, strict=True)):
            raise ValueError(
                f"`modulator` has shape {given.shape[1:]} at each step, which does not broadcast to the positions "
                f"{shape} of the group of {group_name(group)}. Give a number, one for each batch element, or one for "
                "each position."
            )
        return jnp.broadcast_to(given.reshape(steps, *rest), (steps, *shape))
