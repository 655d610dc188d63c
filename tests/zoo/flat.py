"""The values of a compiled model as flat lists, the way a step program takes them."""

from typing import Any

import jax

import foretrace as ft

from .records import Model, inputs


def flat_values(
    graph: ft.ETraceGraph, model: Model, built: Any, steps: int
) -> tuple[list[Any], list[Any], list[Any], list[list[Any]]]:
    """Parameters, hidden states, other states, and the inputs of each of some steps."""
    info = graph.module_info
    if model.kind == "function":
        params = info.flatten_params(built["params"])
        hidden, other = info.flatten_state(built["state"])
    else:
        params, hidden, other = info.flatten_states()
    # Steps give strong types back: a first state of a weak one would have every program compiled twice.
    hidden, other = ([jax.lax.convert_element_type(v, v.dtype) for v in values] for values in (hidden, other))
    xs = inputs(model, steps)
    return params, hidden, other, [info.flatten_inputs(jax.tree.map(lambda a, t=t: a[t], xs)) for t in range(steps)]
