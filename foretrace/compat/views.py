"""Attributes of the graph's records and of operators in braintrace's form; `foretrace._optional.view` reads them here.

The trace rules that operators written for braintrace register are taken, checked, and neither needed nor kept: every
rule follows from an operator's `impl_fn`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from foretrace._jax import ClosedJaxpr, Var, close_jaxpr, eval_jaxpr, new_jaxpr
from foretrace.compiler import ETraceGraph, HiddenGroup, HiddenParamOpRelation
from foretrace.engine.transition import jacobian_entries
from foretrace.ops import ETPPrimitive
from foretrace.program.records import StepProgram, path_name
from foretrace.program.walks import needed_eqns, variables

RULES = ("dt_to_t yw_to_w xy_to_dw init_drtrl init_pp fast_path pp_x_repr snap_anchor snap_adjacency").split()


def module_info(graph: ETraceGraph) -> Any:
    """A traced brainstate module as a `ModuleInfo`; any other traced model as it is."""
    if not hasattr(graph.model.split, "stateful"):
        return graph.model
    from foretrace.compat.module_info import ModuleInfo

    return ModuleInfo(graph.model)


def diagonal_jacobian(group: HiddenGroup, hidden_vals: Sequence[Any], input_vals: Sequence[Any]) -> jax.Array:
    """The derivative of a group's next by its previous states at each position, mixing outputs held constant.

    Args:
        group: The group; as its method the function is called without.
        hidden_vals: One array for each state, in the order of `hidden_paths`.
        input_vals: Values of `transition_jaxpr_constvars`.

    Returns:
        An array `(*varshape, num_state, num_state)`: entry `[p, i, j]` is that of new slot `i` by old slot `j`.
    """
    zero = jnp.zeros(group.varshape, group.dtype)
    entries = jacobian_entries(group, lambda states: group.transition(states, input_vals), hidden_vals)
    return jnp.stack([jnp.stack([zero if e is None else e for e in row], axis=-1) for row in entries], axis=-2)


def eqn_params(relation: HiddenParamOpRelation) -> dict[str, Any]:
    """The operator's own parameters."""
    return dict(relation.occurrence.eqn.params)


def _by_name(read: Callable[[HiddenParamOpRelation, int], Any]) -> Callable[[HiddenParamOpRelation], dict[str, Any]]:
    """What is read of each parameter that enters, by its name in the operator."""
    return lambda relation: {name: read(relation, i) for name, i in _trainable(relation).items()}


trainable_vars = _by_name(lambda relation, i: relation.program.param_invars[i])
trainable_paths = _by_name(lambda relation, i: relation.program.params[i].owner)
trainable_leaf_indices = _by_name(lambda relation, i: _leaf_index(relation.program, i))
trainable_param_states = _by_name(lambda relation, i: relation.owners[i])


def trainable_processing_chains(relation: HiddenParamOpRelation) -> dict[str, ClosedJaxpr]:
    """For each value that the operator uses, the jaxpr that makes it of parameters."""
    return {weight.name: _weight_chain(relation.program, weight.var) for weight in relation.occurrence.weights}


def y_to_hidden_groups(
    relation: HiddenParamOpRelation, y_val: Any, const_vals: Mapping[Var, Any], concat_hidden_vals: bool = True
) -> list[Any]:
    """Next states of each group by `y`.

    Args:
        relation: The relation; as its method the function is called without.
        y_val: A value of `y`.
        const_vals: Values of the constvars of `y_to_hidden_group_jaxprs`.
        concat_hidden_vals: Whether to join a group's states along a last axis.

    Returns:
        One entry for each group.
    """
    results: list[Any] = []
    for group, jaxpr in zip(relation.hidden_groups, relation.y_to_hidden_group_jaxprs, strict=True):
        hidden = eval_jaxpr(jaxpr, [const_vals[var] for var in jaxpr.constvars], y_val)
        results.append(group.concat_hidden(hidden) if concat_hidden_vals else hidden)
    return results


def register_etp_rules(primitive: ETPPrimitive, **rules: Any) -> None:
    """Takes the trace rules of an operator.

    Args:
        primitive: The operator; as its method the function is called without.
        **rules: Functions by the names that they have in braintrace, such as `dt_to_t` and `xy_to_dw`.

    Raises:
        TypeError: Not the name of such a rule, or not a function.
    """
    for name, rule in rules.items():
        if name not in RULES:
            known = ", ".join(f"`{known}`" for known in RULES)
            raise TypeError(f"Operator `{primitive.name}`: there is no trace rule `{name}`. There are {known}.")
        if rule is not None and not callable(rule) and name != "fast_path":
            raise TypeError(f"Operator `{primitive.name}`: the trace rule `{name}` is a function; got {rule!r}.")


def _one(name: str) -> Callable[[ETPPrimitive, Any], None]:
    return lambda primitive, fn: register_etp_rules(primitive, **{name: fn})


register_dt_to_t, register_yw_to_w, register_xy_to_dw, register_init_drtrl, register_init_pp = map(_one, RULES[:5])


def _weight_chain(program: StepProgram, var: Var) -> ClosedJaxpr:
    """The jaxpr `w = g(theta)`: the parameters a value is made of (in the program's order) to that value."""
    kept = needed_eqns(program.jaxpr.eqns, [var])
    needed = {var}.union(*(variables(eqn.invars) for eqn in kept))
    constants = [(v, c) for v, c in zip(program.jaxpr.constvars, program.consts, strict=True) if v in needed]
    invars = [v for v in program.param_invars if v in needed]
    return close_jaxpr(new_jaxpr([v for v, _ in constants], invars, [var], kept), [c for _, c in constants])


def _trainable(relation: HiddenParamOpRelation) -> dict[str, int]:
    """Parameters by name: the operator's name for a weight, with the path behind it where a weight has several."""
    named: dict[str, int] = {}
    for weight in relation.occurrence.weights:
        for i in weight.parameters:
            several = len(weight.parameters) > 1
            named[f"{weight.name}:{path_name(relation.program.params[i].path)}" if several else weight.name] = i
    return named


def _leaf_index(program: StepProgram, param: int) -> int:
    owner = program.params[param].owner
    return [i for i, leaf in enumerate(program.params) if leaf.owner == owner].index(param)
