"""What was found, for people: the report as text, and the graph as a picture."""

from foretrace.compiler.reporting.drawing import draw_graph as draw_graph
from foretrace.compiler.reporting.report import CompilationReport as CompilationReport
