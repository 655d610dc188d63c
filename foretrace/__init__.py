"""Foretrace: online learning of recurrent and spiking networks with eligibility traces.

`__all__` is the surface to begin with. The names of braintrace are served too, from `foretrace.compat`, so that
`import foretrace as braintrace` runs what was written for it. What needs more than JAX, NumPy and SciPy is imported
when it is first used.
"""

from foretrace import _interrupt as _interrupt  # isort: skip  (before anything that takes a while to import)
from foretrace import _versions as _versions  # isort: skip  (before anything that imports JAX's parts)

import importlib as _importlib
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from foretrace.compiler import CompilationReport, ETraceGraph, HistoryKind
from foretrace.compiler import Parameter as Parameter
from foretrace.entry import compile
from foretrace.errors import (
    CompilationError,
    NonFiniteError,
    NotSupportedError,
)
from foretrace.errors import ControlFlowError as ControlFlowError
from foretrace.errors import EmptyModelError as EmptyModelError
from foretrace.errors import ExampleInputError as ExampleInputError
from foretrace.errors import NoRecurrentStateError as NoRecurrentStateError
from foretrace.errors import StateMismatchError as StateMismatchError
from foretrace.errors import StateNotInitializedError as StateNotInitializedError
from foretrace.errors import UnjittedWarning as UnjittedWarning
from foretrace.frontends import TracedModel as TracedModel
from foretrace.frontends import register_frontend
from foretrace.learners import Carry, GradientComparison, Learner, compare_gradients
from foretrace.learners import ComparedGradient as ComparedGradient
from foretrace.ops import (
    conv,
    einsum,
    element_wise,
    embedding,
    grouped_matmul,
    lora_matmul,
    matmul,
    register_primitive,
    sparse_matmul,
    untraced,
)
from foretrace.program import ControlFlowPolicy
from foretrace.program import StepProgram as StepProgram
from foretrace.rules import (
    BPTT,
    D_RTRL,
    DNI,
    OSTTP,
    OTPE,
    OTTT,
    RTRL,
    UORO,
    EProp,
    Hybrid,
    LowRank,
    OSTLFeedforward,
    OSTLRecurrent,
    Rule,
    SnAp,
    ThreeFactor,
    pp_prop,
    register_rule,
)

if _TYPE_CHECKING:
    from foretrace import nn, rl, tasks, train, viz
    from foretrace.compat import *  # noqa: F403

__version__ = "0.1.0"
__version_info__ = (0, 1, 0)

__all__ = [
    # a model becomes a learner
    "compile",
    "Learner",
    "Carry",
    "compare_gradients",
    "GradientComparison",
    "register_frontend",
    # rules
    "Rule",
    "register_rule",
    "D_RTRL",
    "pp_prop",
    "EProp",
    "OSTLRecurrent",
    "OSTLFeedforward",
    "OTTT",
    "OTPE",
    "OSTTP",
    "SnAp",
    "RTRL",
    "UORO",
    "ThreeFactor",
    "DNI",
    "Hybrid",
    "LowRank",
    "BPTT",
    # operators that mark where a weight is trained
    "matmul",
    "grouped_matmul",
    "conv",
    "sparse_matmul",
    "lora_matmul",
    "element_wise",
    "embedding",
    "einsum",
    "untraced",
    "register_primitive",
    # the graph and its report
    "ETraceGraph",
    "CompilationReport",
    "HistoryKind",
    "ControlFlowPolicy",
    # errors; all of them are in `foretrace.errors`
    "CompilationError",
    "NotSupportedError",
    "NonFiniteError",
    # subpackages
    "nn",
    "rl",
    "tasks",
    "train",
    "viz",
]

if not _TYPE_CHECKING:

    def __getattr__(name: str) -> _Any:
        if name.startswith("_"):
            raise AttributeError(f"module 'foretrace' has no attribute {name!r}")
        if name in ("rl", "tasks", "train", "viz"):
            return _importlib.import_module(f"foretrace.{name}")
        return _importlib.import_module("foretrace.compat").serve(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_importlib.import_module("foretrace.compat").__all__})
