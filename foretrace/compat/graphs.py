"""The graph of a model as braintrace asks for it: whole, or in parts, groups, relations, perturbations."""

from typing import TYPE_CHECKING, Any

from foretrace import entry
from foretrace._optional import load
from foretrace.compat.perturbation import HiddenPerturbation, hidden_perturb
from foretrace.compiler import ETraceGraph, HiddenGroup, HiddenParamOpRelation, compile_program
from foretrace.errors import NotSupportedError
from foretrace.program.control_flow import ControlFlowPolicy
from foretrace.program.diagnostics import Path
from foretrace.rules.options import is_count

if TYPE_CHECKING:
    from foretrace.compat.module_info import ModuleInfo


def compile_etrace_graph(
    model: Any,
    *inputs: Any,
    include_hidden_perturb: bool = True,
    include_recurrent_mixing: bool = False,
    sparse_n: int | None = None,
    snap_max_jacobian_elements: int = 2**24,
    control_flow: ControlFlowPolicy | None = None,
    **options: Any,
) -> ETraceGraph:
    """Finds where each parameter of a model enters its dynamics, and which positions of which states it reaches.

    Args:
        model: As for `compile`; the states of a brainstate module are initialised.
        *inputs: Example inputs of one step.
        include_hidden_perturb: Whether the graph has the step with perturbed states.
        include_recurrent_mixing: False: the graph is the same for every rule, and the rule says what it follows.
        sparse_n: None, likewise.
        snap_max_jacobian_elements: Checked, and not used.
        control_flow: What becomes of `cond`, `scan` and `while`.
        **options: `params` and `state`, and the options of the model's frontend, as for `compile`; `discover`:
            `'marked'` traces marked operators alone, `'all'` plain ones too, `'auto'` marked ones where the model marks
            any and all where it marks none.

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
    check_scope(include_recurrent_mixing, sparse_n, snap_max_jacobian_elements)
    graph = entry.compile_etrace_graph(model, *inputs, control_flow=control_flow, **options)
    if not include_hidden_perturb:
        vars(graph)["hidden_perturb"] = None
    return graph


def check_scope(
    include_recurrent_mixing: bool, sparse_n: int | None, snap_max_jacobian_elements: int, full_jacobian: bool = False
) -> None:
    """Refuses a choice of the graph's recurrence: here the rule says which one it follows.

    Raises:
        NotSupportedError: Mixing, neighbourhoods or whole Jacobians are chosen.
    """
    is_count("snap_max_jacobian_elements", snap_max_jacobian_elements)
    chosen = {
        "include_recurrent_mixing": (include_recurrent_mixing, "'ostl_recurrent'"),
        "sparse_n": (sparse_n, "'snap', with its option `n`"),
        "full_jacobian": (full_jacobian, "'rtrl'"),
    }
    for name, (value, rule) in chosen.items():
        if value:
            raise NotSupportedError(
                f"`{name}={value!r}`: the graph is the same for every rule here, and the rule says which recurrence it "
                f"follows. Compile the model with {rule}, and leave `{name}` out."
            )


def _info(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> "ModuleInfo":
    found = load("foretrace.compat.module_info", "foretrace.extract_module_info")
    return found.extract_module_info(model, *args, **kwargs)


def find_hidden_groups_from_minfo(
    minfo: "ModuleInfo",
    include_recurrent_mixing: bool = False,
    sparse_n: int | None = None,
    snap_max_jacobian_elements: int = 2**24,
) -> tuple[tuple[HiddenGroup, ...], dict[Path, HiddenGroup]]:
    """The hidden groups of a traced module, and the group of each state by path.

    Args:
        minfo: The traced module.
        include_recurrent_mixing: False, as for `compile_etrace_graph`.
        sparse_n: None.
        snap_max_jacobian_elements: Not used.

    Examples:
        >>> import brainstate, jax.numpy as jnp, foretrace as ft
        >>> cell = brainstate.nn.init_all_states(brainstate.nn.GRUCell(3, 4))
        >>> groups, group_of = ft.find_hidden_groups_from_minfo(ft.extract_module_info(cell, jnp.ones(3)))
        >>> [group.hidden_paths for group in groups], sorted(group_of)
        ([(('h',),)], [('h',)])
    """
    check_scope(include_recurrent_mixing, sparse_n, snap_max_jacobian_elements)
    graph = compile_program(minfo.traced)
    return graph.hidden_groups, graph.hid_path_to_group


def find_hidden_groups_from_module(
    model: Any,
    *model_args: Any,
    include_recurrent_mixing: bool = False,
    sparse_n: int | None = None,
    snap_max_jacobian_elements: int = 2**24,
    **model_kwargs: Any,
) -> tuple[tuple[HiddenGroup, ...], dict[Path, HiddenGroup]]:
    """The hidden groups of a module, and the group of each state by path.

    Args:
        model: The module, with initialised states.
        *model_args: Inputs of one step.
        include_recurrent_mixing: As for `find_hidden_groups_from_minfo`, and so the next two.
        sparse_n: None.
        snap_max_jacobian_elements: Not used.
        **model_kwargs: Named inputs of one step.

    Examples:
        >>> import brainstate, jax.numpy as jnp, foretrace as ft
        >>> cell = brainstate.nn.init_all_states(brainstate.nn.GRUCell(3, 4))
        >>> groups, _ = ft.find_hidden_groups_from_module(cell, jnp.ones(3))
        >>> [group.num_state for group in groups]
        [1]
    """
    info = _info(model, model_args, model_kwargs)
    return find_hidden_groups_from_minfo(info, include_recurrent_mixing, sparse_n, snap_max_jacobian_elements)


def find_hidden_param_op_relations_from_minfo(
    minfo: "ModuleInfo", hid_path_to_group: dict[Path, HiddenGroup] | None = None
) -> tuple[HiddenParamOpRelation, ...]:
    """The relations of a traced module, to the given groups where some are given.

    Args:
        minfo: The traced module.
        hid_path_to_group: Groups by the paths of their states; None for all.

    Examples:
        >>> import brainstate, jax.numpy as jnp, foretrace as ft
        >>> cell = brainstate.nn.init_all_states(brainstate.nn.GRUCell(3, 4))
        >>> relations = ft.find_hidden_param_op_relations_from_minfo(ft.extract_module_info(cell, jnp.ones(3)))
        >>> sorted({relation.path for relation in relations})
        [('Wh', 'weight'), ('Wrz', 'weight')]
    """
    relations = compile_program(minfo.traced).hidden_param_op_relations
    if hid_path_to_group is None:
        return relations
    return tuple(r for r in relations if any(path in hid_path_to_group for path in r.connected_hidden_paths))


def find_hidden_param_op_relations_from_module(
    model: Any, *model_args: Any, **model_kwargs: Any
) -> tuple[HiddenParamOpRelation, ...]:
    """The relations of a module with initialised states, by the inputs of one step.

    Args:
        model: The module, with initialised states.
        *model_args: Inputs of one step.
        **model_kwargs: Named inputs of one step.

    Examples:
        >>> import brainstate, jax.numpy as jnp, foretrace as ft
        >>> cell = brainstate.nn.init_all_states(brainstate.nn.GRUCell(3, 4))
        >>> relations = ft.find_hidden_param_op_relations_from_module(cell, jnp.ones(3))
        >>> sorted({relation.path for relation in relations})
        [('Wh', 'weight'), ('Wrz', 'weight')]
    """
    return find_hidden_param_op_relations_from_minfo(_info(model, model_args, model_kwargs))


def add_hidden_perturbation_from_minfo(minfo: "ModuleInfo") -> HiddenPerturbation:
    """The step of a traced module with a perturbation on every new state.

    Args:
        minfo: The traced module.

    Examples:
        >>> import brainstate, jax.numpy as jnp, foretrace as ft
        >>> cell = brainstate.nn.init_all_states(brainstate.nn.GRUCell(3, 4))
        >>> perturbation = ft.add_hidden_perturbation_from_minfo(ft.extract_module_info(cell, jnp.ones(3)))
        >>> [data.shape for data in perturbation.init_perturb_data()]
        [(4,)]
    """
    return hidden_perturb(compile_program(minfo.traced))


def add_hidden_perturbation_in_module(model: Any, *model_args: Any, **model_kwargs: Any) -> HiddenPerturbation:
    """The step of a module with a perturbation on every new state, by its inputs.

    Args:
        model: The module, with initialised states.
        *model_args: Inputs of one step.
        **model_kwargs: Named inputs of one step.

    Examples:
        >>> import brainstate, jax.numpy as jnp, foretrace as ft
        >>> cell = brainstate.nn.init_all_states(brainstate.nn.GRUCell(3, 4))
        >>> ft.add_hidden_perturbation_in_module(cell, jnp.ones(3)).perturb_hidden_paths
        (('h',),)
    """
    return add_hidden_perturbation_from_minfo(_info(model, model_args, model_kwargs))
