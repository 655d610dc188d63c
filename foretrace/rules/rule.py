"""The contract of a learning rule: a trace, how a block of steps changes it, and what gradient it gives.

A rule is a frozen record of its options. Everything else comes as arguments: the plan of the model, the derivatives of
a block of steps, the trace. A rule never sees the model's library or the user's loss. A rule of one's own is a subclass
of `Rule`, or of a rule that it differs from in one part; `foretrace.compile` takes it wherever it takes a name.
"""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax

from foretrace.engine.evaluate import Step
from foretrace.engine.linearise import Cotangents, Product
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


jax.tree_util.register_dataclass(Block, ["steps", "cotangents", "external"], [])


class Rule:
    """What a learning rule offers.

    Called with a model in the place of its options, `D_RTRL(model)`, a rule gives the learner of a brainstate module.

    Attributes:
        name: What it is called.
        external: The name of what it takes at each step beside the model's inputs; None for nothing.
        exact: Whether credit is by reverse mode over all steps that are given at once, as BPTT's is.
        keeps_traces: Whether anything of the past is kept, so that it can be looked at.
        segment: Steps between the states that an exact rule keeps, where it runs the steps between them again; None
            where it keeps what every step leaves.
        in_pieces: Whether a block is walked in pieces, so that the derivatives of a few steps are held at a time.
        certify: Whether an upper bound on the error of the gradient is carried along.
        collects: Whether products that are parts of the gradient can be collected over some blocks, by `collect`, and
            multiplied out together.
        block_multiple: What the length of a block is a multiple of, the last one of a call aside.
    """

    name: ClassVar[str]
    external: ClassVar[str | None] = None
    exact: ClassVar[bool] = False
    keeps_traces: ClassVar[bool] = True
    in_pieces: ClassVar[bool] = False
    segment: int | None = None
    certify: bool = False

    @property
    def block_multiple(self) -> int:
        return 1

    @property
    def collects(self) -> bool:
        return False

    def __new__(cls, *args: Any, **options: Any) -> Any:
        if args and hasattr(args[0], "states") and callable(args[0]):
            holders = importlib.import_module("foretrace.learners.module")  # above this layer, and needs brainstate
            return holders.learner_of(cls, *args, **options)
        return super().__new__(cls)

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

    def collect(
        self, plan: Plan, params: Sequence[Any], block: Block, trace: Any
    ) -> tuple[list[jax.Array] | None, list[Product], Any]:
        """As `advance`, for a rule that collects: the gradient without some products, these products, and the trace."""
        raise NotImplementedError

    def credit(self, plan: Plan, params: Sequence[Any], trace: Any, signal: Sequence[jax.Array]) -> list[jax.Array]:
        """The gradient by a signal on the present hidden states, one array for each of them, through the past alone."""
        raise NotImplementedError

    def synthetic_gradient(self, plan: Plan, trace: Any, hidden: Sequence[jax.Array]) -> list[jax.Array] | None:
        """The expected derivative of later losses by the hidden states at the end of a window; None for none."""
        return None

    def lasting(self, plan: Plan, trace: Any) -> Any:
        """What of a trace the next steps read. The rest is told by them anew, and is there for who looks at it."""
        return trace

    def traces(self, plan: Plan, trace: Any) -> dict[str, list[Any]] | None:
        """The parts of a trace by name, each with an entry for every link of the plan.

        None where one trace stands for all parameters together.
        """
        return None

    def certificate(self, plan: Plan, trace: Any) -> jax.Array:
        """An upper bound on the norm of the error of all gradients so far, against RTRL's.

        Raises:
            NotSupportedError: The rule has none.
        """
        raise NotSupportedError(
            f"{self.name} has no bound on the error of its gradient. `LowRank(certify=True)` carries one along; "
            "`compare_gradients` measures the error of any rule against BPTT."
        )


def require_windows(rule: Rule) -> None:
    """Refuses windows of exact credit to a rule that would not hear of them: its signal comes from outside, or it
    carries a bound on its error.

    Raises:
        NotSupportedError: The rule is of that kind.
    """
    if rule.external is not None:
        raise NotSupportedError(
            f"{rule.name} learns from `{rule.external}`, and windows of exact credit know the loss alone. Leave out "
            "`window` and `chunk_size`, and `vjp_method='multi-step'`."
        )
    if rule.certify:
        raise NotSupportedError(
            f"The bound that {rule.name} carries along knows nothing of windows of exact credit. Leave out `certify`, "
            "or `window` and `chunk_size` and `vjp_method='multi-step'`: a longer `every` is exact inside of it, too."
        )
