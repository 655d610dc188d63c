"""Foretrace: online learning of recurrent and spiking networks with eligibility traces."""

from foretrace import _precision as _precision  # isort: skip  (before anything that imports brainstate)

from foretrace.compiler import CompilationReport as CompilationReport
from foretrace.compiler import ETraceGraph as ETraceGraph
from foretrace.compiler import HiddenGroup as HiddenGroup
from foretrace.compiler import HiddenParamOpRelation as HiddenParamOpRelation
from foretrace.compiler import HiddenPerturbation as HiddenPerturbation
from foretrace.compiler import HistoryKind as HistoryKind
from foretrace.entry import add_hidden_perturbation_from_minfo as add_hidden_perturbation_from_minfo
from foretrace.entry import add_hidden_perturbation_in_module as add_hidden_perturbation_in_module
from foretrace.entry import compile_etrace_graph as compile_etrace_graph
from foretrace.entry import find_hidden_groups_from_minfo as find_hidden_groups_from_minfo
from foretrace.entry import find_hidden_groups_from_module as find_hidden_groups_from_module
from foretrace.entry import find_hidden_param_op_relations_from_minfo as find_hidden_param_op_relations_from_minfo
from foretrace.entry import find_hidden_param_op_relations_from_module as find_hidden_param_op_relations_from_module
from foretrace.errors import CompilationError as CompilationError
from foretrace.errors import ControlFlowError as ControlFlowError
from foretrace.errors import EmptyModelError as EmptyModelError
from foretrace.errors import ExampleInputError as ExampleInputError
from foretrace.errors import NoRecurrentStateError as NoRecurrentStateError
from foretrace.errors import NotSupportedError as NotSupportedError
from foretrace.errors import StateMismatchError as StateMismatchError
from foretrace.frontends import FunctionModel as FunctionModel
from foretrace.frontends import ModuleInfo as ModuleInfo
from foretrace.frontends import extract_module_info as extract_module_info
from foretrace.ops import ETPPrimitive as ETPPrimitive
from foretrace.ops import conv as conv
from foretrace.ops import einsum as einsum
from foretrace.ops import element_wise as element_wise
from foretrace.ops import embedding as embedding
from foretrace.ops import grouped_matmul as grouped_matmul
from foretrace.ops import lora_matmul as lora_matmul
from foretrace.ops import matmul as matmul
from foretrace.ops import register_primitive as register_primitive
from foretrace.ops import sparse_matmul as sparse_matmul
from foretrace.program import CompilationRecord as CompilationRecord
from foretrace.program import ControlFlowPolicy as ControlFlowPolicy
from foretrace.program import DiagnosticKind as DiagnosticKind
from foretrace.program import DiagnosticLevel as DiagnosticLevel

__version__ = "0.1.0"
