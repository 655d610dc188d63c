"""The marked operators: they say where a trained weight enters the dynamics, and are plain JAX functions otherwise."""

from foretrace.ops.conv import conv
from foretrace.ops.einsum import einsum
from foretrace.ops.elementwise import element_wise
from foretrace.ops.embedding import embedding
from foretrace.ops.matmul import grouped_matmul, lora_matmul, matmul
from foretrace.ops.primitive import (
    ETPPrimitive,
    etp_primitives,
    get_etp_primitive,
    is_etp_primitive,
    register_primitive,
    unmarked,
)
from foretrace.ops.sparse import connection_indices, sparse_matmul
from foretrace.ops.untraced import untraced, untraced_p

__all__ = [
    "ETPPrimitive",
    "connection_indices",
    "conv",
    "einsum",
    "element_wise",
    "embedding",
    "etp_primitives",
    "get_etp_primitive",
    "grouped_matmul",
    "is_etp_primitive",
    "lora_matmul",
    "matmul",
    "register_primitive",
    "sparse_matmul",
    "unmarked",
    "untraced",
    "untraced_p",
]
