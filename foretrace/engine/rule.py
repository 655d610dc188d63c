"""The contract of a learning rule: a trace, how a block of steps changes it, and what gradient it gives.

A rule is a record of its options. Everything else comes as arguments: the plan of the model, the derivatives of a
block of steps, the trace. A rule never sees the model's library or the user's loss.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax

from foretrace.engine.evaluate import Step
from foretrace.engine.linearise import Cotangents
from foretrace.engine.plan import Plan
from foretrace.errors import NotSupportedError


@dataclass(frozen=True)
class Block:
    """`K` steps under constant parameters, every array with a leading axis of steps.

    Attributes:
        steps: The values that each step starts from.
        cotangents: Derivatives of each step's loss; None where there is no loss.
        external: What a rule takes beside the model's inputs at each step (a modulator, a target), stacked; or None.
    """

    steps: Step
    cotangents: Cotangents | None
    external: Any = None


class Rule:
    """What a learning rule offers.

    Attributes:
        name: What it is called.
        external: The name of what it takes at each step beside the model's inputs; None for nothing.
    """

    name: ClassVar[str]
    external: ClassVar[str | None] = None

    def init(self, plan: Plan) -> Any:
        """The trace before the first step, a pytree of arrays."""
        raise NotImplementedError

    def advance(
        self, plan: Plan, params: Sequence[Any], block: Block, trace: Any
    ) -> tuple[list[jax.Array] | None, Any]:
        """Takes the trace through a block.

        Args:
            plan: The plan.
            params: The parameters, constant over the block.
            block: The steps and the derivatives of their losses.
            trace: The trace before the block.

        Returns:
            The gradient of the summed losses by the parameters (None where the block has no losses), and the trace.
        """
        raise NotImplementedError

    def credit(self, plan: Plan, params: Sequence[Any], trace: Any, signal: Sequence[jax.Array]) -> list[jax.Array]:
        """The gradient by what is asked of the hidden states now, one array for each state, through the past alone."""
        raise NotImplementedError

    def foretold(self, plan: Plan, trace: Any, hidden: Sequence[jax.Array]) -> list[jax.Array] | None:
        """What later losses are expected to ask of the hidden states at the end of a window; None for nothing."""
        return None


def require_windows(rule: Rule) -> None:
    """Refuses windows of exact credit to a rule whose signal comes from outside, which reverse mode would not hear of.

    Raises:
        NotSupportedError: The rule is of that kind.
    """
    if rule.external is not None:
        raise NotSupportedError(
            f"{rule.name} learns from `{rule.external}`, and windows of exact credit know the loss alone. Leave out "
            "`window` and `chunk_size`, and `vjp_method='multi-step'`."
        )
