"""How the elements of a weight meet the elements of `y`, one file for each family of operators."""

from foretrace.engine.edges.base import Edges, Elementwise
from foretrace.engine.edges.bilinear import Bilinear
from foretrace.engine.edges.choose import edges_for, structured_edges
from foretrace.engine.edges.sparse import Sparse

__all__ = ["Bilinear", "Edges", "Elementwise", "Sparse", "edges_for", "structured_edges"]
