"""Foretrace: online learning of recurrent and spiking networks with eligibility traces."""

from foretrace import _precision as _precision  # isort: skip  (before anything that imports brainstate)

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
    NoRecurrentStateError,
    NotSupportedError,
    StateMismatchError,
    StateNotInitializedError,
)
from foretrace.frontends import FunctionModel, ModuleInfo, extract_module_info
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

__all__ = [
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
]
