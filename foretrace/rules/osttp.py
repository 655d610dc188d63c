"""OSTTP: targets, projected to each layer by fixed random matrices, in the place of errors brought back by weights."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from foretrace._checks import require_choice
from foretrace.compiler.groups import HiddenGroup
from foretrace.engine.plan import Plan
from foretrace.rules.outer_signal import OuterSignal, group_name


@dataclass(frozen=True, eq=False)
class OSTTP(OuterSignal):
    """OSTTP: D-RTRL's trace times a fixed projection of the target, which no backward pass has to wait for.

    Keeps: D-RTRL's traces. Memory and time: D-RTRL's. Takes `y_target` at each step, `(n_target,)` or, with a batch,
    `(batch, n_target)`; a step whose target is zero changes no projected layer.
    Paper: Ortner et al. 2023, "Online spatio-temporal learning with target projection".

    Attributes:
        B_list: For each group, in the graph's order, a matrix `(n_target, units)` (an array or a
            `FixedRandomFeedback`), or None for a group that keeps the exact signal, as the paper's last layer does.
        target_timing: `'per-step'`: the target of a step acts on the traces of that step.
        trace_dtype: As in `D_RTRL`.

    Examples:
        >>> from foretrace.rules import OSTTP
        >>> OSTTP().external
        'y_target'
    """

    name: ClassVar[str] = "OSTTP"
    external: ClassVar[str | None] = "y_target"
    B_list: Any = ()
    target_timing: str = "per-step"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice(
            "target_timing", self.target_timing, ("per-step",), ("for some steps alone, give zeros at others",)
        )
        if not isinstance(self.B_list, tuple | list):
            raise TypeError(f"`B_list` is a list with one entry for each group; got a {type(self.B_list).__name__}.")
        matrices = tuple(None if b is None else _matrix(k, getattr(b, "value", b)) for k, b in enumerate(self.B_list))
        object.__setattr__(self, "B_list", matrices)

    def init(self, plan: Plan) -> Any:
        groups = plan.graph.hidden_groups
        if len(self.B_list) != len(groups):
            listed = "; ".join(f"{g.index}: {group_name(g)}" for g in groups)
            raise ValueError(
                f"`B_list` has {len(self.B_list)} entries for {len(groups)} groups ({listed}). Give one for each "
                "group; None keeps the exact signal."
            )
        for group, matrix in zip(groups, self.B_list, strict=True):
            if matrix is not None and matrix.shape[1] not in _sizes(group):
                raise ValueError(
                    f"`B_list[{group.index}]` has shape {matrix.shape}, and the group of {group_name(group)} has "
                    f"{_sizes(group)[0]} units: give a matrix (n_target, {_sizes(group)[0]})."
                )
        return super().init(plan)

    def on_output(self, group: HiddenGroup, outer: Any) -> jax.Array | None:
        matrix = self.B_list[group.index]
        if matrix is None:
            return None
        target = jnp.asarray(outer)
        if target.ndim < 2 or target.shape[-1] != matrix.shape[0]:
            raise ValueError(
                f"`y_target` has shape {target.shape[1:]} at each step, and `B_list[{group.index}]`, for the group of "
                f"{group_name(group)}, takes vectors of {matrix.shape[0]} elements."
            )
        return self._placed(group, target @ matrix, target.shape)

    def _placed(self, group: HiddenGroup, projected: jax.Array, given: tuple[int, ...]) -> jax.Array:
        """The projection at the group's positions; one without a batch is the same for all of its elements."""
        steps, units = projected.shape[0], projected.shape[-1]
        whole = int(np.prod(group.varshape))
        if projected[0].size == whole:
            return projected.reshape(steps, *group.varshape)
        if projected[0].size == units == _sizes(group)[0]:
            return jnp.broadcast_to(projected.reshape(steps, 1, *group.varshape[1:]), (steps, *group.varshape))
        raise ValueError(
            f"`y_target` has shape {given[1:]} at each step, which fits neither one target nor one for each batch "
            f"element of the group of {group_name(group)}, whose positions are {group.varshape}."
        )


def _matrix(place: int, given: Any) -> jax.Array:
    try:
        matrix = jnp.asarray(given)
    except (TypeError, ValueError) as error:
        raise TypeError(f"`B_list[{place}]` is a matrix (n_target, units) or None; got {given!r}.") from error
    if matrix.ndim != 2:
        raise ValueError(f"`B_list[{place}]` is a matrix (n_target, units), not an array of shape {matrix.shape}.")
    return matrix


def _sizes(group: HiddenGroup) -> tuple[int, ...]:
    """How many units a group may be said to have: those of one element of a batch first, then all positions."""
    whole = int(np.prod(group.varshape))
    return (whole // group.varshape[0], whole) if len(group.varshape) > 1 else (whole,)
