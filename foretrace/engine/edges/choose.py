"""Which edges an occurrence has: a table of families, and coloured edges for everything else."""

from foretrace.compiler.occurrences import Occurrence, OccurrenceKind, Weight
from foretrace.compiler.structure import Known
from foretrace.engine.edges.base import Edges, Elementwise
from foretrace.engine.edges.bilinear import bilinear
from foretrace.engine.edges.coloured import Coloured
from foretrace.engine.edges.convolution import convolution
from foretrace.engine.edges.lookup import embedding_lookup, gather_lookup, slice_lookup
from foretrace.engine.edges.sparse import sparse


def edges_for(occurrence: Occurrence, weight: Weight, known: Known) -> Edges:
    """The edges of one weight of an occurrence.

    Args:
        occurrence: A linear or elementwise occurrence.
        weight: One of its weights.
        known: Values that are known before the step runs, such as the indices of connections.

    Returns:
        The most structured edges that fit.
    """
    if occurrence.kind is OccurrenceKind.ELEMENTWISE:
        return Elementwise(tuple(occurrence.y_var.aval.shape))
    found = structured_edges(occurrence, weight, known)
    return found or Coloured(occurrence.eqn, _y_index(occurrence), weight.index, known)


def structured_edges(occurrence: Occurrence, weight: Weight, known: Known) -> Edges | None:
    """The edges of one weight of a linear occurrence that is of a known family; None for any other."""
    eqn = occurrence.eqn
    match eqn.primitive.name:
        case "etp_embedding":
            return embedding_lookup(eqn)
        case "gather":
            return gather_lookup(eqn, known)
        case "dynamic_slice":
            return slice_lookup(eqn)
        case "etp_sparse_matmul":
            index = [known.array(atom) for atom in eqn.invars[2:]]
            return None if any(value is None for value in index) else sparse(eqn, index)
        case "etp_conv" | "conv_general_dilated":
            return convolution(eqn, 1 - weight.index, weight.index)
        case "etp_matmul" | "etp_grouped_matmul" | "etp_einsum" | "dot_general":
            return bilinear(eqn, _y_index(occurrence), 1 - weight.index, weight.index)
    return None


def _y_index(occurrence: Occurrence) -> int:
    return occurrence.eqn.outvars.index(occurrence.y_var)
