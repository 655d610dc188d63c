"""Foretrace: online learning of recurrent and spiking networks with eligibility traces."""

from foretrace import _versions as _versions  # isort: skip  (before anything that imports JAX's parts)
from foretrace import _precision as _precision  # isort: skip  (before anything that imports brainstate)

from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from foretrace import legacy as _legacy
from foretrace import nn as nn
from foretrace.algorithms import (
    ETraceConfig,
    FixedRandomFeedback,
    SyntheticGradient,
)
from foretrace.compiler import (
    CompilationReport,
    ETraceGraph,
    HiddenGroup,
    HiddenParamOpRelation,
    HiddenPerturbation,
    HistoryKind,
    Parameter,
)
from foretrace.entry import (
    add_hidden_perturbation_from_minfo,
    add_hidden_perturbation_in_module,
    compile,
    compile_etrace_graph,
    find_hidden_groups_from_minfo,
    find_hidden_groups_from_module,
    find_hidden_param_op_relations_from_minfo,
    find_hidden_param_op_relations_from_module,
)
from foretrace.errors import (
    CompilationError,
    ControlFlowError,
    EmptyModelError,
    ExampleInputError,
    NonFiniteError,
    NoRecurrentStateError,
    NotSupportedError,
    StateMismatchError,
    StateNotInitializedError,
)
from foretrace.frontends import FunctionModel, ModuleInfo, extract_module_info
from foretrace.learners import (
    D_RTRL,
    DNI,
    ES_D_RTRL,
    OSTTP,
    OTPE,
    OTTT,
    RTRL,
    UORO,
    Carry,
    ComparedGradient,
    EligibilityTrace,
    EProp,
    ETraceAlgorithm,
    ETraceGraphExecutor,
    ETraceVjpAlgorithm,
    ETraceVjpGraphExecutor,
    ETraceVmap,
    FunctionLearner,
    GradExpon,
    GradientComparison,
    Hybrid,
    HybridDimVjpAlgorithm,
    IODimVjpAlgorithm,
    KappaFilter,
    MultiStepData,
    OSTLFeedforward,
    OSTLRecurrent,
    ParamDimVjpAlgorithm,
    PresynapticTrace,
    RandomProjectionVjpAlgorithm,
    SequenceDriverMixin,
    SingleStepData,
    SnAp,
    ThreeFactor,
    compare_gradients,
    pp_prop,
    train_synthetic_gradient,
)
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
from foretrace.program import CompilationRecord, ControlFlowPolicy, DiagnosticKind, DiagnosticLevel, StepProgram

__version__ = "0.1.0"
__version_info__ = (0, 1, 0)

__all__ = [
    # layers
    "nn",
    # from a model to a learner
    "compile",
    "compare_gradients",
    "GradientComparison",
    "ComparedGradient",
    "SingleStepData",
    "MultiStepData",
    "FunctionLearner",
    "Carry",
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
    # rules
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
    # from a model to its graph
    "compile_etrace_graph",
    "extract_module_info",
    "ModuleInfo",
    "FunctionModel",
    "StepProgram",
    "ControlFlowPolicy",
    # the graph
    "ETraceGraph",
    "HiddenGroup",
    "HiddenParamOpRelation",
    "HiddenPerturbation",
    "Parameter",
    "HistoryKind",
    "find_hidden_groups_from_minfo",
    "find_hidden_groups_from_module",
    "find_hidden_param_op_relations_from_minfo",
    "find_hidden_param_op_relations_from_module",
    "add_hidden_perturbation_from_minfo",
    "add_hidden_perturbation_in_module",
    # the report
    "CompilationReport",
    "CompilationRecord",
    "DiagnosticKind",
    "DiagnosticLevel",
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
    # errors
    "CompilationError",
    "NotSupportedError",
    "StateMismatchError",
    "StateNotInitializedError",
    "NoRecurrentStateError",
    "EmptyModelError",
    "ExampleInputError",
    "ControlFlowError",
    "NonFiniteError",
]

if _TYPE_CHECKING:
    from foretrace.legacy import ConvOp as ConvOp
    from foretrace.legacy import ElemWiseOp as ElemWiseOp
    from foretrace.legacy import ElemWiseParam as ElemWiseParam
    from foretrace.legacy import ETraceOp as ETraceOp
    from foretrace.legacy import ETraceParam as ETraceParam
    from foretrace.legacy import FakeElemWiseParam as FakeElemWiseParam
    from foretrace.legacy import FakeETraceParam as FakeETraceParam
    from foretrace.legacy import LoraOp as LoraOp
    from foretrace.legacy import MatMulOp as MatMulOp
    from foretrace.legacy import NonTempParam as NonTempParam
    from foretrace.legacy import SpMatMulOp as SpMatMulOp
    from foretrace.legacy import general_y2w as general_y2w
    from foretrace.legacy import stop_param_gradients as stop_param_gradients
else:

    def __getattr__(name: str) -> _Any:
        return _legacy.serve(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_legacy.INSTEAD})
