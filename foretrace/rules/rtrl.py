"""RTRL: the derivative of every hidden state by every parameter, carried forward in time without loss.

Entries that no number of steps can fill are not kept: those of other samples, of layers below, of units that never
meet.
"""

from dataclasses import dataclass
from typing import ClassVar

from foretrace.engine.plan import Plan
from foretrace.rules.jacobian import JacobianRule
from foretrace.rules.whole_step import hidden_size


@dataclass(frozen=True)
class RTRL(JacobianRule):
    """Real-time recurrent learning: the whole Jacobian, and with it the gradient of BPTT.

    Keeps: the derivatives of hidden state elements by parameter elements, all that can be other than zero.
    Memory: hidden states x parameters, for a layer whose units all meet. Time: 2 x states x states x parameters for
    each sample and step, as products of matrices; for sparse recurrent weights, as sparse products.
    Paper: Williams & Zipser 1989, "A learning algorithm for continually running fully recurrent neural networks".

    Attributes:
        memory_limit: The most bytes that the entries may take; a step holds about three times as much.

    Examples:
        >>> from foretrace.rules import RTRL
        >>> RTRL().memory_limit
        2147483648
    """

    name: ClassVar[str] = "RTRL"
    memory_limit: int = 2**31

    @property
    def steps(self) -> None:
        return None

    def refusal(self, plan: Plan, count: str) -> tuple[str, str]:
        instead = "`SnAp`, which keeps the nearest of them, `UORO`, or `D_RTRL`"
        return f"{count}, of {hidden_size(plan):,} hidden state elements", instead
