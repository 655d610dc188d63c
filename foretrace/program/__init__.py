"""The step program: one step of a model as a jaxpr with roles and paths, and the passes that make it."""

from foretrace.program.build import build_program as build_program
from foretrace.program.control_flow import ControlFlowPolicy as ControlFlowPolicy
from foretrace.program.diagnostics import CompilationRecord as CompilationRecord
from foretrace.program.diagnostics import DiagnosticKind as DiagnosticKind
from foretrace.program.diagnostics import DiagnosticLevel as DiagnosticLevel
from foretrace.program.inline import inline_calls as inline_calls
from foretrace.program.inline import inline_jaxpr as inline_jaxpr
from foretrace.program.printing import to_code as to_code
from foretrace.program.records import Leaf as Leaf
from foretrace.program.records import StepProgram as StepProgram
