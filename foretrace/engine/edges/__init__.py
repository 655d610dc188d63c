"""How the elements of a weight meet the elements of `y`, one file for each family of operators."""

from foretrace.engine.edges.base import Edges, Elementwise
from foretrace.engine.edges.choose import edges_for

__all__ = ["Edges", "Elementwise", "edges_for"]
