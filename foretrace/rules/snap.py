"""SnAp-n: those entries of the whole Jacobian that a parameter's influence reaches within `n` steps.

The update is that of RTRL with all other entries held at zero, `J_t = mask * (H_t J_{t-1} + P_t)`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax

from foretrace._checks import require_count
from foretrace.compiler.neighbourhood import SnapPattern
from foretrace.engine.plan import Plan
from foretrace.rules.jacobian import JacobianRule
from foretrace.rules.rule import Block, Rule
from foretrace.rules.snap_one import SnApOne, one_step


@dataclass(frozen=True)
class SnAp(JacobianRule):
    """Sparse n-step approximation: the entries of RTRL's matrix that fill within `n` steps.

    Keeps: for each parameter element, its derivatives of the states that it reaches within `n` steps. Memory and time
    grow with their number: for `n = 1` as D-RTRL, where elements act on positions of their own and every way back to a
    position runs through one product; for a large `n` as RTRL; sparse weights keep it small in between.
    Paper: Menick et al. 2021, "Practical real time recurrent learning with a sparse approximation to the Jacobian".

    Attributes:
        n: Steps, the one that the parameter acts in counted.
        memory_limit: The most bytes that the entries may take.

    Examples:
        >>> from foretrace.rules import SnAp
        >>> SnAp(n=3).n
        3
    """

    name: ClassVar[str] = "SnAp"
    n: int = 2
    memory_limit: int = 2**31

    def __post_init__(self) -> None:
        require_count("n", self.n)
        super().__post_init__()

    @property
    def steps(self) -> int:
        return self.n

    def _one(self, plan: Plan) -> SnApOne | None:
        return one_step(plan, self.influence(plan)) if self.n == 1 else None

    def init(self, plan: Plan) -> Any:
        self.check(plan, self.kept(plan))
        one = self._one(plan)
        return super().init(plan) if one is None else one.init(one.plan)

    def advance(
        self, plan: Plan, params: Sequence[Any], block: Block, trace: Any
    ) -> tuple[list[jax.Array] | None, Any]:
        one = self._one(plan)
        return (
            super().advance(plan, params, block, trace) if one is None else one.advance(one.plan, params, block, trace)
        )

    def credit(self, plan: Plan, params: Sequence[Any], trace: Any, signal: Sequence[jax.Array]) -> list[jax.Array]:
        one = self._one(plan)
        return (
            super().credit(plan, params, trace, signal) if one is None else one.credit(one.plan, params, trace, signal)
        )

    def refusal(self, plan: Plan, count: str) -> tuple[str, str]:
        instead = "a smaller `n`, `UORO`, or `D_RTRL`" if self.n > 1 else "`UORO` or `pp_prop`"
        return f"{count} for n = {self.n}", instead


def note_neighbourhoods(plan: Plan, rule: Rule) -> None:
    """Tells every group of a compiled step what the rule knows of it: a pattern for SnAp-n with `n > 1`, else None."""
    n = rule.n if isinstance(rule, SnAp) else 1
    for group in plan.graph.hidden_groups:
        known = SnapPattern(n, group.varshape, plan.program, group) if n > 1 else None
        object.__setattr__(group, "snap", known)  # the group is this plan's own
