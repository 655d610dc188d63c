"""A model of the table, compiled."""

from typing import Any

import foretrace as ft

from .records import Model
from .run import initialised


def compiled(model: Model) -> tuple[ft.ETraceGraph, Any]:
    """The graph of a model, and what was built: a dict for a function, the module with its states otherwise."""
    built = model.build()
    if model.kind == "function":
        graph = ft.compile_etrace_graph(built["step"], built["x"], params=built["params"], state=built["state"])
        return graph, built
    module = initialised(model)
    return ft.compile_etrace_graph(module, built[1]), module
