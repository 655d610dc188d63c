"""braintrace's names, for scripts that were written for it: `import foretrace as braintrace`, or names from here.

Everything stands for something of this package: the classes of learners hold the states of a brainstate module for a
rule, and the functions give parts of the graph. Names that need brainstate are imported when they are first used.

Of braintrace 0.1 there are parameters and operators as objects (`ETraceParam`, `MatMulOp`). Here a parameter is any
`brainstate.ParamState` and an operator a function, so these classes only join the two: `param.execute(x)` is
`foretrace.matmul(x, param.value["weight"], param.value["bias"])`. As `foretrace.NAME` they come with a warning that
says what to write instead.
"""

import warnings
from typing import TYPE_CHECKING, Any

from foretrace._optional import load
from foretrace.compat.graphs import (
    add_hidden_perturbation_from_minfo,
    add_hidden_perturbation_in_module,
    compile_etrace_graph,
    find_hidden_groups_from_minfo,
    find_hidden_groups_from_module,
    find_hidden_param_op_relations_from_minfo,
    find_hidden_param_op_relations_from_module,
)
from foretrace.compat.operators import (
    ConvOp,
    ElemWiseOp,
    ETraceOp,
    LoraOp,
    MatMulOp,
    SpMatMulOp,
    general_y2w,
    stop_param_gradients,
)
from foretrace.compat.perturbation import HiddenPerturbation
from foretrace.compiler import CompilationReport, ETraceGraph, HiddenGroup, HiddenParamOpRelation
from foretrace.entry import compile
from foretrace.errors import CompilationError, NotSupportedError
from foretrace.learners import MultiStepData, SingleStepData, train_synthetic_gradient
from foretrace.ops import (
    ETPPrimitive,
    conv,
    einsum,
    element_wise,
    embedding,
    grouped_matmul,
    lora_matmul,
    matmul,
    register_primitive,
    sparse_matmul,
)
from foretrace.program import CompilationRecord, ControlFlowPolicy, DiagnosticKind, DiagnosticLevel
from foretrace.rules import (
    D_RTRL,
    DNI,
    ES_D_RTRL,
    OSTTP,
    OTPE,
    OTTT,
    RTRL,
    UORO,
    EProp,
    ETraceConfig,
    FixedRandomFeedback,
    Hybrid,
    OSTLFeedforward,
    OSTLRecurrent,
    SnAp,
    SyntheticGradient,
    ThreeFactor,
    pp_prop,
)

if TYPE_CHECKING:
    from foretrace import nn
    from foretrace.compat.executors import ETraceGraphExecutor, ETraceVjpGraphExecutor
    from foretrace.compat.module_info import ModuleInfo, extract_module_info
    from foretrace.compat.parameters import (
        ElemWiseParam,
        ETraceParam,
        FakeElemWiseParam,
        FakeETraceParam,
        NonTempParam,
    )
    from foretrace.learners.driver import SequenceDriverMixin
    from foretrace.learners.helpers import GradExpon, KappaFilter, PresynapticTrace
    from foretrace.learners.module import (
        EligibilityTrace,
        ETraceAlgorithm,
        ETraceVjpAlgorithm,
        HybridDimVjpAlgorithm,
        IODimVjpAlgorithm,
        ParamDimVjpAlgorithm,
        RandomProjectionVjpAlgorithm,
    )
    from foretrace.learners.vmap import ETraceVmap

__all__ = [
    # from a model to a learner
    "compile",
    "SingleStepData",
    "MultiStepData",
    "ETraceAlgorithm",
    "ETraceVjpAlgorithm",
    "ParamDimVjpAlgorithm",
    "IODimVjpAlgorithm",
    "HybridDimVjpAlgorithm",
    "RandomProjectionVjpAlgorithm",
    "SequenceDriverMixin",
    "ETraceVmap",
    "EligibilityTrace",
    "ETraceGraphExecutor",
    "ETraceVjpGraphExecutor",
    # rules and what they are made of
    "D_RTRL",
    "pp_prop",
    "ES_D_RTRL",
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
    "ETraceConfig",
    "SyntheticGradient",
    "train_synthetic_gradient",
    "GradExpon",
    "FixedRandomFeedback",
    "KappaFilter",
    "PresynapticTrace",
    # operators
    "matmul",
    "grouped_matmul",
    "conv",
    "sparse_matmul",
    "lora_matmul",
    "element_wise",
    "embedding",
    "einsum",
    "ETPPrimitive",
    "register_primitive",
    # the graph and its parts
    "compile_etrace_graph",
    "ETraceGraph",
    "extract_module_info",
    "ModuleInfo",
    "find_hidden_groups_from_minfo",
    "find_hidden_groups_from_module",
    "HiddenGroup",
    "find_hidden_param_op_relations_from_minfo",
    "find_hidden_param_op_relations_from_module",
    "HiddenParamOpRelation",
    "add_hidden_perturbation_from_minfo",
    "add_hidden_perturbation_in_module",
    "HiddenPerturbation",
    # the report
    "CompilationRecord",
    "DiagnosticKind",
    "DiagnosticLevel",
    "CompilationReport",
    "ControlFlowPolicy",
    "CompilationError",
    "NotSupportedError",
    # layers
    "nn",
    # deprecated
    "ETraceOp",
    "MatMulOp",
    "ElemWiseOp",
    "ConvOp",
    "SpMatMulOp",
    "LoraOp",
    "ETraceParam",
    "ElemWiseParam",
    "NonTempParam",
    "FakeETraceParam",
    "FakeElemWiseParam",
    "general_y2w",
    "stop_param_gradients",
]

INSTEAD: dict[str, str] = {
    "ETraceOp": "a function with `foretrace.register_primitive`",
    "MatMulOp": "`foretrace.matmul`",
    "ElemWiseOp": "`foretrace.element_wise`",
    "ConvOp": "`foretrace.conv`",
    "SpMatMulOp": "`foretrace.sparse_matmul`",
    "LoraOp": "`foretrace.lora_matmul`",
    "ETraceParam": "`brainstate.ParamState` with an operator such as `foretrace.matmul`",
    "ElemWiseParam": "`brainstate.ParamState` with `foretrace.element_wise`",
    "NonTempParam": "`brainstate.ParamState` with plain JAX",
    "FakeETraceParam": "a plain array",
    "FakeElemWiseParam": "a plain array",
    "general_y2w": "`jax.vjp`; operators need no such rule",
    "stop_param_gradients": "`jax.lax.stop_gradient`",
}
"""The names of braintrace 0.1 that later versions dropped, with what to use instead."""


# The files of names that need brainstate.
_LAZY = {
    "compat.executors": "ETraceGraphExecutor ETraceVjpGraphExecutor",
    "compat.module_info": "ModuleInfo extract_module_info",
    "compat.parameters": "ElemWiseParam ETraceParam FakeElemWiseParam FakeETraceParam NonTempParam",
    "learners.driver": "SequenceDriverMixin",
    "learners.helpers": "GradExpon KappaFilter PresynapticTrace",
    "learners.module": "EligibilityTrace ETraceAlgorithm ETraceVjpAlgorithm HybridDimVjpAlgorithm IODimVjpAlgorithm "
    "ParamDimVjpAlgorithm RandomProjectionVjpAlgorithm",
    "learners.vmap": "ETraceVmap",
}


def __getattr__(name: str) -> Any:
    if name == "nn":
        return load("foretrace.nn", "foretrace.nn")
    home = next((file for file, names in _LAZY.items() if name in names.split()), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(load(f"foretrace.{home}", f"foretrace.{name}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def serve(name: str) -> Any:
    """A name of braintrace as an attribute of the package; a deprecated one with a warning at the line that asks.

    Raises:
        AttributeError: The package has no such name.
    """
    if name not in __all__:
        raise AttributeError(f"module 'foretrace' has no attribute {name!r}")
    if name in INSTEAD:
        said = f"`foretrace.{name}` is deprecated: use {INSTEAD[name]} instead."
        warnings.warn(said, DeprecationWarning, stacklevel=3)
    return globals()[name] if name in globals() else __getattr__(name)
