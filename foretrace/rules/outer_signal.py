"""Rules whose learning signal comes from outside of the model: D-RTRL's traces times a signal on the outputs of groups.

The gradient of a parameter with a relation is `sum_t M_t . (psi_t eps_t)`: the signal, times the trace of the states
taken to the output of their group. Where a loss is given, readouts, and whatever acts otherwise than directly through
the states of a group, keep their exact in-step gradient.

Such a rule learns without a loss as well. A block that brings a signal and no loss counts as one whose losses are zero:
`advance` gives its gradient, in which parameters without a relation have zeros.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from foretrace.compiler.groups import HiddenGroup
from foretrace.engine.linearise import Cotangents, Linearised
from foretrace.engine.outputs import output_pull
from foretrace.engine.plan import Plan
from foretrace.program.records import path_name
from foretrace.rules.d_rtrl import D_RTRL, LearningSignals
from foretrace.rules.rule import Block


@dataclass(frozen=True, eq=False)
class OuterSignal(D_RTRL):
    """D-RTRL's traces with a signal from outside; a subclass says which."""

    def outer(self, block: Block) -> Any:
        """What comes from outside, stacked over the steps; None where nothing came."""
        return block.external

    def on_output(self, group: HiddenGroup, outer: Any) -> jax.Array | None:
        """The signal on a group's output, `(K, *varshape)`; None for the derivative of the losses."""
        raise NotImplementedError

    def cotangents(self, plan: Plan, block: Block) -> Cotangents | None:
        if block.cotangents is not None or self.outer(block) is None:
            return block.cotangents
        count = jax.tree.leaves(block.steps)[0].shape[0]
        outputs, hidden = (
            [jnp.zeros((count, *leaf.aval.shape), leaf.aval.dtype) for leaf in leaves]
            for leaves in (plan.program.outputs, plan.program.hidden)
        )
        return Cotangents(outputs, hidden)

    def learning_signals(self, lin: Linearised, block: Block) -> LearningSignals:
        outer = self.outer(block)
        if outer is None:
            raise ValueError(
                f"{self.name} learns from `{self.external}` and got none. Give it at each step: "
                f"`update(x, {self.external}=...)`, or a sequence of them with one entry for each step."
            )
        assert block.cotangents is not None
        signals = lin.signals(block.cotangents)
        partial, bypass = list(signals.partial), list(signals.bypass)
        for group in lin.plan.graph.hidden_groups:
            signal = self.on_output(group, outer)
            if signal is not None:
                dtype = partial[group.index][0].dtype
                partial[group.index] = output_pull(lin, lin.plan.group_outputs[group.index], signal.astype(dtype))
                bypass[group.index] = None
        return LearningSignals(signals, partial, bypass)


def group_name(group: HiddenGroup) -> str:
    """The states of a group, for messages."""
    return ", ".join(f"`{path_name(path)}`" for path in group.hidden_paths)
