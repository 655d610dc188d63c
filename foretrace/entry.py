"""The top: from a model to its graph and to a learner, whatever kind of model it is.

This module joins the frontends, which know model libraries, to the compiler, which knows step programs alone.
"""

from typing import Any

import brainstate
import jax
import jax.numpy as jnp

from foretrace._checks import is_whole, optional_count, require_choice, require_count, require_flag
from foretrace.compiler import ETraceGraph, HiddenGroup, HiddenParamOpRelation, HiddenPerturbation, compile_program
from foretrace.compiler.graph import Discover
from foretrace.errors import ExampleInputError, NotSupportedError
from foretrace.frontends import FunctionModel, ModuleInfo, extract_module_info, trace_model
from foretrace.learners import ETraceAlgorithm, ETraceVmap, FunctionLearner, find_rule
from foretrace.learners.data import one_step
from foretrace.learners.options import check_scope
from foretrace.program.control_flow import ControlFlowPolicy
from foretrace.program.diagnostics import Path


def compile(
    model: Any,
    algorithm: Any,
    *example_inputs: Any,
    params: Any = None,
    state: Any = None,
    batch_size: int | None = None,
    seed: int | None = None,
    verbose: int = 0,
    vmap: bool = False,
    **options: Any,
) -> Any:
    """Makes a learner: a model with a rule that gives its gradients online.

    Args:
        model: A `brainstate.nn.Module`, or a function `step(params, state, *inputs) -> (state, out)`.
        algorithm: A rule by name (`'D_RTRL'`, `'pp_prop'`, ..., in any case), by class, or an `ETraceConfig`.
        *example_inputs: The inputs of one step; only shapes, dtypes and units matter.
        params: The parameters of a step function.
        state: The state of a step function.
        batch_size: The batch that a module's states are initialised for; None for none.
        seed: Seeds brainstate's random numbers before a module's states are initialised.
        verbose: Prints the report, at this level, where it is above 0.
        vmap: Whether the module is written for one sample and mapped over a batch of `batch_size`; example inputs have
            the batch axis in front all the same. The call site does not differ from that of a module with a batch axis.
        **options: Options of the rule, and `control_flow`, `discover`, `block`, `vjp_method`, `check_finite`; for
            functions also `window`.

    Returns:
        For a module a learner of the rule's class, its states initialised and its graph compiled, with `vmap` inside
        of an `ETraceVmap`; for a function a `FunctionLearner`.

    Raises:
        ValueError: No such rule, no example input, or with `vmap` no `batch_size` or example inputs of another batch.
        TypeError: Not a rule, or not an option of it.

    Examples:
        >>> import brainstate, jax.numpy as jnp
        >>> import foretrace as ft
        >>> learner = ft.compile(brainstate.nn.GRUCell(3, 4), "D_RTRL", jnp.ones((2, 3)), batch_size=2)
        >>> learner(jnp.ones((2, 3))).shape
        (2, 4)
    """
    learner_class, chosen = find_rule(algorithm)
    optional_count("batch_size", batch_size, "samples")
    require_flag("vmap", vmap)
    if not isinstance(verbose, bool):
        require_count("verbose", verbose, "levels of detail", least=0)
    if seed is not None and not is_whole(seed):
        raise TypeError(f"`seed` is an int or None; got {seed!r}.")
    if not example_inputs:
        raise ExampleInputError("No example input was given. Pass the input of one step after the rule.")
    if isinstance(model, brainstate.nn.Module):
        if params is not None or state is not None:
            raise TypeError(f"{type(model).__name__} holds its own parameters and states: leave out `params`, `state`.")
        make = _mapped_learner if vmap else _module_learner
        learner: Any = make(model, learner_class, example_inputs, batch_size, seed, {**chosen, **options})
    elif vmap:
        raise NotSupportedError(
            "`vmap=True` is for modules. A function's learner is pure: map its methods by `jax.vmap`."
        )
    elif batch_size is not None or seed is not None:
        raise TypeError(
            "`batch_size` and `seed` are for modules, whose states are made here. A function's state is given: make it "
            "for the batch, and leave `batch_size` and `seed` out."
        )
    else:
        learner = _function_learner(model, learner_class, example_inputs, params, state, {**chosen, **options})
    if verbose:
        print(learner.graph.explain(verbose))
    return learner


def _module_learner(
    model: brainstate.nn.Module,
    learner_class: type[ETraceAlgorithm],
    inputs: tuple[Any, ...],
    batch_size: int | None,
    seed: int | None,
    options: dict[str, Any],
) -> ETraceAlgorithm:
    learner = learner_class(model, **options)
    if seed is not None:
        brainstate.random.seed(seed)
    brainstate.nn.init_all_states(model, **({} if batch_size is None else {"batch_size": batch_size}))
    learner.compile_graph(*inputs)
    return learner


def _mapped_learner(
    model: brainstate.nn.Module,
    learner_class: type[ETraceAlgorithm],
    inputs: tuple[Any, ...],
    batch_size: int | None,
    seed: int | None,
    options: dict[str, Any],
) -> ETraceVmap:
    if batch_size is None:
        raise ValueError("`vmap=True` maps a model over a batch: say how large it is with `batch_size=`.")
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(one_step(inputs))]
    if any(shape[:1] != (batch_size,) for shape in shapes):
        raise ExampleInputError(
            f"With `vmap=True` and `batch_size={batch_size}`, every example input has {batch_size} samples along its "
            f"first axis; got {', '.join(map(str, shapes))}. Pass the input of one step for the whole batch."
        )
    learner = learner_class(model, **options)
    if seed is not None:
        brainstate.random.seed(seed)
    brainstate.nn.vmap_init_all_states(model, axis_size=batch_size, state_tag="new")
    mapped = ETraceVmap(learner, vmap_states="new")
    mapped.compile_graph(*inputs)
    return mapped


def _function_learner(
    step: Any,
    learner_class: type[ETraceAlgorithm],
    inputs: tuple[Any, ...],
    params: Any,
    state: Any,
    options: dict[str, Any],
) -> FunctionLearner:
    require_flag("fast_solve", options.pop("fast_solve", True))
    own = {name: options.pop(name) for name in ("block", "window", "check_finite") if name in options}
    tracing = {name: options.pop(name) for name in ("control_flow", "discover") if name in options}
    method = options.pop("vjp_method", "single-step")
    require_choice("vjp_method", method, ("single-step", "multi-step"))
    if method == "multi-step" and own.get("window") is None:
        raise ValueError("`vjp_method='multi-step'` gives exact credit within windows: say how long with `window=`.")
    rule = learner_class.make_rule(**options)
    graph = compile_etrace_graph(step, *inputs, params=params, state=state, **tracing)
    return FunctionLearner(graph, rule, **own)


def compile_etrace_graph(
    model: Any,
    *inputs: Any,
    params: Any = None,
    state: Any = None,
    include_hidden_perturb: bool = True,
    include_recurrent_mixing: bool = False,
    sparse_n: int | None = None,
    snap_max_jacobian_elements: int = 2**24,
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
        include_recurrent_mixing: False: the graph is the same for every rule, and the rule says what it follows.
        sparse_n: None, likewise.
        snap_max_jacobian_elements: Checked, and not used.
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
    check_scope(include_recurrent_mixing, sparse_n, snap_max_jacobian_elements)
    info = trace_model(model, *inputs, params=params, state=state, control_flow=control_flow)
    return _compile(info, discover=discover, include_hidden_perturb=include_hidden_perturb)


def find_hidden_groups_from_minfo(
    minfo: ModuleInfo,
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
    graph = _compile(minfo, include_hidden_perturb=False)
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
    info = extract_module_info(model, *model_args, **model_kwargs)
    return find_hidden_groups_from_minfo(info, include_recurrent_mixing, sparse_n, snap_max_jacobian_elements)


def find_hidden_param_op_relations_from_minfo(
    minfo: ModuleInfo, hid_path_to_group: dict[Path, HiddenGroup] | None = None
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
    relations = _compile(minfo, include_hidden_perturb=False).hidden_param_op_relations
    if hid_path_to_group is None:
        return relations
    return tuple(r for r in relations if any(path in hid_path_to_group for path in r.connected_hidden_paths))


def find_hidden_param_op_relations_from_module(
    model: Any, *model_args: Any, **model_kwargs: Any
) -> tuple[HiddenParamOpRelation, ...]:
    """The relations of a module with initialised states, by the inputs of one step.

    Examples:
        >>> import brainstate, jax.numpy as jnp, foretrace as ft
        >>> cell = brainstate.nn.init_all_states(brainstate.nn.GRUCell(3, 4))
        >>> relations = ft.find_hidden_param_op_relations_from_module(cell, jnp.ones(3))
        >>> sorted({relation.path for relation in relations})
        [('Wh', 'weight'), ('Wrz', 'weight')]
    """
    return find_hidden_param_op_relations_from_minfo(extract_module_info(model, *model_args, **model_kwargs))


def add_hidden_perturbation_from_minfo(minfo: ModuleInfo) -> HiddenPerturbation:
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
    perturbation = _compile(minfo, include_hidden_perturb=True).hidden_perturb
    assert perturbation is not None
    return perturbation


def add_hidden_perturbation_in_module(model: Any, *model_args: Any, **model_kwargs: Any) -> HiddenPerturbation:
    """The step of a module with a perturbation on every new state, by its inputs.

    Examples:
        >>> import brainstate, jax.numpy as jnp, foretrace as ft
        >>> cell = brainstate.nn.init_all_states(brainstate.nn.GRUCell(3, 4))
        >>> ft.add_hidden_perturbation_in_module(cell, jnp.ones(3)).perturb_hidden_paths
        (('h',),)
    """
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
