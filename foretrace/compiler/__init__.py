"""From a step program to its eligibility-trace graph."""

from foretrace.compiler.graph import ETraceGraph as ETraceGraph
from foretrace.compiler.graph import compile_program as compile_program
from foretrace.compiler.groups import HiddenGroup as HiddenGroup
from foretrace.compiler.history import HistoryKind as HistoryKind
from foretrace.compiler.history import Parameter as Parameter
from foretrace.compiler.relations import HiddenParamOpRelation as HiddenParamOpRelation
from foretrace.compiler.reporting.report import CompilationReport as CompilationReport
