"""pp_prop, also known as ES-D-RTRL: D-RTRL with every trace in two factors."""

from dataclasses import dataclass
from typing import Any, ClassVar

from foretrace._checks import is_number, is_whole
from foretrace.rules.factored import Decays, FactoredRule


@dataclass(frozen=True)
class pp_prop(FactoredRule):
    """pp_prop (ES-D-RTRL): the influence of a weight as a product of a presynaptic and a postsynaptic trace.

    Keeps: a running sum of what every operator multiplies and a running average of what its output does to the states.
    Memory: (inputs + outputs x num_state) x batch, for every operator. Time: about half of BPTT, by sequence.
    Paper: Wang et al. 2024, "A differentiable brain simulator bridging brain simulation and brain-inspired computing".

    Attributes:
        decay_or_rank: A decay in [0, 1); or a rank, an integer `r` of at least 1 with decay `(r - 1) / (r + 1)`; or a
            pair of these, for what enters an operator and for what its output does to the states.

    Example:
        >>> from foretrace.rules import pp_prop
        >>> pp_prop(decay_or_rank=(3, 0.9)).decays
        Decays(entered=0.5, effect=0.9)
    """

    name: ClassVar[str] = "pp_prop"
    decay_or_rank: Any

    def __post_init__(self) -> None:
        decays_of(self.decay_or_rank)

    @property
    def decays(self) -> Decays:
        return decays_of(self.decay_or_rank)


def decays_of(decay_or_rank: Any) -> Decays:
    """The two decays that an option names: a decay, a rank, or a pair of these."""
    if isinstance(decay_or_rank, tuple | list):
        if len(decay_or_rank) != 2:
            raise ValueError(f"`decay_or_rank` has {len(decay_or_rank)} entries; give one value or a pair (x, f).")
        return Decays(*map(_decay, decay_or_rank))
    return Decays(_decay(decay_or_rank), _decay(decay_or_rank))


def _decay(value: Any) -> float:
    if is_whole(value) and value >= 1:
        decay = (int(value) - 1) / (int(value) + 1)
        if decay < 1:
            return decay
        raise ValueError(
            f"`decay_or_rank={value!r}` is a rank so large that its decay (r - 1) / (r + 1) rounds to 1, which forgets "
            "nothing. Give a rank of at most 10**15, or a decay below 1."
        )
    if is_number(value) and not is_whole(value) and 0 <= float(value) < 1:
        return float(value)
    raise ValueError(
        f"`decay_or_rank` is {value!r}. Give a decay, a float in [0, 1), or a rank, an integer of at least 1."
    )
