"""The executor of a learner as braintrace makes it, with arguments that the rule decides here."""

from typing import Any

import brainstate

from foretrace.compat.graphs import check_scope
from foretrace.compiler.graph import Discover
from foretrace.learners.executor import ModuleExecutor
from foretrace.program.control_flow import ControlFlowPolicy


class _AnyExecutor(type):
    """Every executor is an instance of braintrace's classes, which differ in their arguments alone."""

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, ModuleExecutor)


class ETraceGraphExecutor(ModuleExecutor, metaclass=_AnyExecutor):
    """A brainstate module with its compiled graph.

    Args:
        model: The module.
        include_recurrent_mixing: False: the graph is the same for every rule, and the rule says what it follows.
        sparse_n: None, likewise.
        snap_max_jacobian_elements: Checked, and not used: `SnAp` and `RTRL` have a `memory_limit` in bytes.
        control_flow: What becomes of `cond`, `scan` and `while`.
        discover: Which operators are traced; see `foretrace.compile_etrace_graph`.

    Examples:
        >>> import brainstate, jax.numpy as jnp
        >>> cell = brainstate.nn.GRUCell(3, 4)
        >>> _ = brainstate.nn.init_all_states(cell)
        >>> executor = ETraceGraphExecutor(cell)
        >>> _ = executor.compile_graph(jnp.ones(3))
        >>> executor(jnp.ones(3)).shape
        (4,)
    """

    def __init__(
        self,
        model: brainstate.nn.Module,
        include_recurrent_mixing: bool = False,
        sparse_n: int | None = None,
        snap_max_jacobian_elements: int = 2**24,
        control_flow: ControlFlowPolicy | None = None,
        discover: Discover = "auto",
    ) -> None:
        check_scope(include_recurrent_mixing, sparse_n, snap_max_jacobian_elements)
        super().__init__(model, control_flow=control_flow, discover=discover)


class ETraceVjpGraphExecutor(ETraceGraphExecutor):
    """An executor that also says how credit is given inside a call.

    Args:
        model: The module.
        vjp_method: `'single-step'` for online credit, `'multi-step'` for exact credit inside a window.
        include_recurrent_mixing: As for `ETraceGraphExecutor`, and so what is not said here.
        sparse_n: None.
        snap_max_jacobian_elements: Not used.
        control_flow: What becomes of control flow.
        full_jacobian: False: the rule says what it follows.
        discover: Which operators are traced.
    """

    def __init__(
        self,
        model: brainstate.nn.Module,
        vjp_method: str = "single-step",
        include_recurrent_mixing: bool = False,
        sparse_n: int | None = None,
        snap_max_jacobian_elements: int = 2**24,
        control_flow: ControlFlowPolicy | None = None,
        full_jacobian: bool = False,
        discover: Discover = "auto",
    ) -> None:
        check_scope(include_recurrent_mixing, sparse_n, snap_max_jacobian_elements, full_jacobian)
        ModuleExecutor.__init__(self, model, vjp_method, control_flow, discover)
