"""The top: from a model to its graph, whatever kind of model it is.

This module joins the frontends, which know model libraries, to the compiler, which knows step programs alone.
"""

from typing import Any

from foretrace.compiler import ETraceGraph, HiddenGroup, HiddenParamOpRelation, HiddenPerturbation, compile_program
from foretrace.compiler.graph import Discover
from foretrace.frontends import FunctionModel, ModuleInfo, extract_module_info, trace_model
from foretrace.program.control_flow import ControlFlowPolicy
from foretrace.program.diagnostics import Path


def compile_etrace_graph(
    model: Any,
    *inputs: Any,
    params: Any = None,
    state: Any = None,
    include_hidden_perturb: bool = True,
    control_flow: ControlFlowPolicy | None = None,
    discover: Discover = "auto",
) -> ETraceGraph:
    """Finds where each parameter of a model enters its dynamics, and which positions of which states it reaches.

    Args:
        model: A `brainstate.nn.Module` with initialised states, or a function `step(params, state, *inputs)` that
            returns `(state, out)`.
        *inputs: Example inputs of one step.
        params: The parameters of a step function, any pytree.
        state: The state of a step function, any pytree.
        include_hidden_perturb: Whether to make the step with perturbed states.
        control_flow: What becomes of `cond`, `scan` and `while`.
        discover: `'marked'` traces marked operators alone, `'all'` plain ones too, `'auto'` marked ones where the
            model marks any and all where it marks none.

    Returns:
        The graph. `print(graph.explain())` says what was found.

    Examples:
        >>> import jax.numpy as jnp
        >>> import foretrace as ft
        >>> def step(params, state, x):
        ...     state = 0.9 * state + x @ params["w"]
        ...     return state, state
        >>> graph = ft.compile_etrace_graph(step, jnp.ones(3), params={"w": jnp.ones((3, 2))}, state=jnp.zeros(2))
        >>> [(parameter.name, parameter.history.value) for parameter in graph.parameters]
        [('w', 'all')]
    """
    info = trace_model(model, *inputs, params=params, state=state, control_flow=control_flow)
    return _compile(info, discover=discover, include_hidden_perturb=include_hidden_perturb)


def find_hidden_groups_from_minfo(minfo: ModuleInfo) -> tuple[tuple[HiddenGroup, ...], dict[Path, HiddenGroup]]:
    """The hidden groups of a traced module, and the group of each state by path."""
    graph = _compile(minfo, include_hidden_perturb=False)
    return graph.hidden_groups, graph.hid_path_to_group


def find_hidden_groups_from_module(
    model: Any, *model_args: Any, **model_kwargs: Any
) -> tuple[tuple[HiddenGroup, ...], dict[Path, HiddenGroup]]:
    """The hidden groups of a module, and the group of each state by path."""
    return find_hidden_groups_from_minfo(extract_module_info(model, *model_args, **model_kwargs))


def find_hidden_param_op_relations_from_minfo(
    minfo: ModuleInfo, hid_path_to_group: dict[Path, HiddenGroup] | None = None
) -> tuple[HiddenParamOpRelation, ...]:
    """The relations of a traced module, to the given groups where some are given."""
    relations = _compile(minfo, include_hidden_perturb=False).hidden_param_op_relations
    if hid_path_to_group is None:
        return relations
    return tuple(r for r in relations if any(path in hid_path_to_group for path in r.connected_hidden_paths))


def find_hidden_param_op_relations_from_module(
    model: Any, *model_args: Any, **model_kwargs: Any
) -> tuple[HiddenParamOpRelation, ...]:
    """The relations of a module."""
    return find_hidden_param_op_relations_from_minfo(extract_module_info(model, *model_args, **model_kwargs))


def add_hidden_perturbation_from_minfo(minfo: ModuleInfo) -> HiddenPerturbation:
    """The step of a traced module with a perturbation on every new state."""
    perturbation = _compile(minfo, include_hidden_perturb=True).hidden_perturb
    assert perturbation is not None
    return perturbation


def add_hidden_perturbation_in_module(model: Any, *model_args: Any, **model_kwargs: Any) -> HiddenPerturbation:
    """The step of a module with a perturbation on every new state."""
    return add_hidden_perturbation_from_minfo(extract_module_info(model, *model_args, **model_kwargs))


def _compile(
    info: ModuleInfo | FunctionModel, *, discover: Discover = "auto", include_hidden_perturb: bool
) -> ETraceGraph:
    hidden_states = param_states = None
    if isinstance(info, ModuleInfo):
        by_path = {path: info.retrieved_model_states[path] for path in info.retrieved_model_states}
        hidden_states = [by_path[leaf.owner] for leaf in info.program.hidden]
        param_states = [by_path[leaf.owner] for leaf in info.program.params]
    return compile_program(
        info,
        hidden_states=hidden_states,
        param_states=param_states,
        discover=discover,
        include_hidden_perturb=include_hidden_perturb,
    )
