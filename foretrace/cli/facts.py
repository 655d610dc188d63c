"""What there is to say about a compiled model, as plain values: for JSON, and for the page."""

from typing import Any

import jax
import numpy as np

from foretrace.compiler import ETraceGraph, Parameter
from foretrace.compiler.reporting.words import HISTORY, POSITIONS, Wording
from foretrace.engine.plan import Plan
from foretrace.learners.blocks import trace_bytes
from foretrace.program.records import path_name
from foretrace.rules.rule import Rule


def graph_facts(learner: Any, target: str) -> dict[str, Any]:
    """Everything that a report says, and what the traces cost.

    Args:
        learner: A learner of a function or a module.
        target: What the model is called.

    Returns:
        A dictionary that JSON can hold.
    """
    import foretrace

    graph, rule, plan = learner.graph, learner.rule, learner.pure.plan
    sizes = trace_sizes(plan, rule)
    wording = Wording(graph)
    return {
        "target": target,
        "foretrace": foretrace.__version__,
        "jax": jax.__version__,
        "summary": str(graph.explain(level=0)).splitlines(),
        "rule": {"name": rule.name, "trace_bytes": trace_bytes(plan, rule)},
        "parameters": [
            _parameter(p, graph, wording, None if sizes is None else sizes[p.index]) for p in graph.parameters
        ],
        "groups": _groups(graph),
        "other_states": [leaf.name for leaf in graph.program.other],
        "diagnostics": [
            {
                "level": record.level.value,
                "kind": record.kind.value,
                "message": record.message,
                "parameter": None if record.weight_path is None else path_name(record.weight_path),
                "states": [path_name(path) for path in record.hidden_paths],
            }
            for record in graph.diagnostics
        ],
        "code": graph.to_code(),
    }


def trace_sizes(plan: Plan, rule: Rule) -> list[int] | None:
    """Bytes of the traces of each parameter, in the graph's order; a shared trace counts for each that shares it.

    None where a rule keeps one trace for all parameters together.
    """
    parts = rule.traces(plan, jax.eval_shape(lambda: rule.init(plan)))
    if parts is None:
        return None
    sizes = [0] * len(plan.program.params)
    for kept in parts.values():
        for link, trace in zip(plan.links, kept, strict=True):
            for parameter in set(link.weight.parameters):
                sizes[parameter] += sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(trace))
    return sizes


def _parameter(parameter: Parameter, graph: ETraceGraph, wording: Wording, size: int | None) -> dict[str, Any]:
    leaf = graph.program.params[parameter.index]
    reached = [path for relation in parameter.relations for path in relation.connected_hidden_paths]
    return {
        "name": parameter.name,
        "shape": list(leaf.aval.shape),
        "dtype": str(leaf.aval.dtype),
        "elements": int(np.prod(leaf.aval.shape, dtype=int)),
        "enters": list(dict.fromkeys(wording.occurrence(o) for o in parameter.occurrences)),
        "reaches": [path_name(path) for path in dict.fromkeys(reached)],
        "history": parameter.history.value,
        "history_keeps": HISTORY[parameter.history],
        "reasons": list(parameter.reasons),
        "trace_bytes": size,
    }


def _groups(graph: ETraceGraph) -> list[dict[str, Any]]:
    return [
        {
            "index": group.index,
            "states": [path_name(path) for path in group.hidden_paths],
            "shape": list(group.varshape),
            "values_each": group.num_state,
            "positions": POSITIONS[group.positions.kind],
            "coupled": bool(group.coupled),
        }
        for group in graph.hidden_groups
    ]
