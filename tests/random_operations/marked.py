"""Foretrace's own operators, which stand for their plain products and are exact like them."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from foretrace import ops
from random_operations.draft import Draft, Operation, family, fit

MARKED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "matmul": lambda v, w, b: ops.matmul(fit(v, (2, 3)), fit(w, (3, 4)), fit(b, (4,))),
    "matmul_vector": lambda v, w, b: ops.matmul(fit(v, (3,)), fit(w, (3, 2))),
    "matmul_mapped": lambda v, w, b: ops.matmul(fit(v, (2, 3)), fit(w, (3, 2)), weight_fn=jnp.abs),
    "element_wise": lambda v, w, b: fit(v, (2, 3)) * ops.element_wise(fit(w, (3,)), weight_fn=jnp.tanh),
    "einsum": lambda v, w, b: ops.einsum("bi,bij->bj", fit(v, (2, 3)), fit(w, (2, 3, 2))),
    "conv": lambda v, w, b: ops.conv(fit(v, (1, 2, 5)), fit(w, (2, 2, 3)), strides=(1,), padding="SAME"),
    "lora_matmul": lambda v, w, b: ops.lora_matmul(fit(v, (2, 3)), fit(w, (3, 2)), fit(b, (2, 3)), alpha=0.7),
    "grouped_matmul": lambda v, w, b: ops.grouped_matmul(fit(v, (2, 2, 3)), fit(w, (2, 3, 2))),
    "embedding": lambda v, w, b: ops.embedding(np.array([2, 0, 2]), fit(w, (4, 2))) * fit(v, (3, 2)),
}


@family("marked")
def marked(draft: Draft) -> Operation:
    name = draft.choose(MARKED)
    operands = (draft.pick(2), draft.pick_param(), draft.pick_param())
    exact = name != "embedding"  # its indices count as data
    return Operation(f"marked_{name}", lambda v, w, b: 0.5 * MARKED[name](v, w, b), operands, exact, "product")
