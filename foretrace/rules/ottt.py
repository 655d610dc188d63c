"""OTTT: online training through time, with a presynaptic trace alone."""

from dataclasses import dataclass
from typing import Any, ClassVar

from foretrace._checks import require_choice, require_number
from foretrace.engine.plan import Link, Plan
from foretrace.errors import NotSupportedError
from foretrace.rules.factored import Decays, FactoredRule


@dataclass(frozen=True, kw_only=True)
class OTTT(FactoredRule):
    """OTTT: the leaky sum of what entered an operator, times what its output does to the states now.

    Keeps: `p <- leak p + x` for every operator; the influence of a weight is `F_t (x) p_t`.
    Memory: inputs x batch, for every operator (and the last `F`). Time: about half of BPTT, by sequence.
    Paper: Xiao et al. 2022, "Online training through time for spiking neural networks" (NeurIPS).

    Attributes:
        leak: What is left of the presynaptic trace after a step, in [0, 1]; the leak of the neurons' potential.
        mode: `A` adds the gradients up over a sequence, `O` is for an update after every step. The gradients are the
            same; `update_every` tells a training loop.

    Examples:
        >>> from foretrace.rules import OTTT
        >>> OTTT(leak=0.9).mode
        'A'
    """

    name: ClassVar[str] = "OTTT"
    leak: float
    mode: str = "A"

    def __post_init__(self) -> None:
        check_leak(self.leak)
        require_choice("mode", self.mode, ("A", "O"), ("updates after a sequence", "after every step"))

    def init(self, plan: Plan) -> Any:
        refuse_moving(self.name, plan)
        return super().init(plan)

    @property
    def decays(self) -> Decays:
        return Decays(float(self.leak), 0.0)

    @property
    def update_every(self) -> int | None:
        """After how many steps the parameters are meant to be updated; None for the end of a sequence."""
        return 1 if self.mode == "O" else None


def check_leak(leak: Any) -> None:
    """Refuses a leak that is not a number in [0, 1]."""
    require_number("leak", leak, "a number in [0, 1], such as the decay of the potential in a step", 0, 1)


def refuse_moving(rule: str, plan: Plan) -> None:
    """Refuses groups whose elements move from step to step: a leak at one position cannot follow them."""
    for link in plan.links:
        if link.places.moves or _shifts(link):
            raise NotSupportedError(
                f"{rule} cannot follow {link.name}: the elements of this state move to other positions from step to "
                "step, and a leaky trace stays where it is. Use D_RTRL or pp_prop, which follow them."
            )


def _shifts(link: Link) -> bool:
    """Whether what enters goes on to another slot of its state and leaves nothing behind, as in a delay line."""
    group, reached = link.group, link.relation.connected_hidden_paths
    return any(
        slot.part is not None and group.hidden_paths[slot.state] in reached and group.positions.patterns[k][k].is_empty
        for k, slot in enumerate(group.slots)
    )
