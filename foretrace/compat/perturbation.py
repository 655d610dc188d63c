"""The step with a perturbation added to every new state: `h' = f(x) + p`.

Everything that uses a new state sees the perturbed value, so at `p = 0` the derivative of a loss by `p` is its
derivative by the new state.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from foretrace._jax import ClosedJaxpr, JaxprEqn, Var, close_jaxpr, eval_jaxpr, new_eqn, new_jaxpr, new_var, primitives
from foretrace._repr import listed, one_line
from foretrace.compiler import ETraceGraph, HiddenGroup
from foretrace.program.diagnostics import Path
from foretrace.program.records import path_name


@dataclass(frozen=True, eq=False)
class HiddenPerturbation:
    """The perturbed step.

    Attributes:
        perturb_vars: One variable for each state.
        perturb_hidden_paths: Their states' paths.
        perturb_hidden_states: The states as the model's library has them.
        perturb_jaxpr: The step, with the perturbations behind its own inputs.
    """

    perturb_vars: tuple[Var, ...]
    perturb_hidden_paths: tuple[Path, ...]
    perturb_hidden_states: tuple[Any, ...]
    perturb_jaxpr: ClosedJaxpr

    @one_line
    def __repr__(self) -> Iterator[str]:
        yield listed(map(path_name, self.perturb_hidden_paths))

    def eval_jaxpr(self, inputs: Sequence[Any], perturb_data: Sequence[Any]) -> list[jax.Array]:
        """Runs the perturbed step on the program's inputs and one perturbation for each state."""
        return eval_jaxpr(self.perturb_jaxpr.jaxpr, self.perturb_jaxpr.consts, *inputs, *perturb_data)

    def init_perturb_data(self) -> list[jax.Array]:
        """Perturbations of zero."""
        return [jnp.zeros(var.aval.shape, var.aval.dtype) for var in self.perturb_vars]

    def perturb_data_to_hidden_group_data(
        self, perturb_data: Sequence[Any], hidden_groups: Sequence[HiddenGroup]
    ) -> list[jax.Array]:
        """Joins values of one array per state into one array per group, of shape `(*varshape, num_state)`."""
        by_path = dict(zip(self.perturb_hidden_paths, perturb_data, strict=True))
        return [group.concat_hidden([by_path[path] for path in group.hidden_paths]) for group in hidden_groups]

    def dict(self) -> dict[str, Any]:
        """The attributes by name."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def hidden_perturb(graph: ETraceGraph) -> HiddenPerturbation:
    """The perturbed step of a graph."""
    program = graph.program
    jaxpr = program.jaxpr
    perturbations = {out: new_var(out.aval) for out in program.hidden_outvars}
    eqns: list[JaxprEqn] = []
    for eqn in jaxpr.eqns:
        states_made = [out for out in eqn.outvars if out in perturbations]
        plain = {out: new_var(out.aval) for out in states_made}
        eqns.append(eqn.replace(outvars=[plain.get(out, out) for out in eqn.outvars]) if plain else eqn)
        eqns += [new_eqn(primitives.add_p, [plain[out], perturbations[out]], [out]) for out in states_made]
    perturbed = new_jaxpr(jaxpr.constvars, [*jaxpr.invars, *perturbations.values()], jaxpr.outvars, eqns)
    return HiddenPerturbation(
        perturb_vars=tuple(perturbations.values()),
        perturb_hidden_paths=tuple(leaf.path for leaf in program.hidden),
        perturb_hidden_states=tuple(graph.model.owner(leaf) for leaf in program.hidden),
        perturb_jaxpr=close_jaxpr(perturbed, list(program.consts)),
    )


def call_hidden_perturb(
    graph: ETraceGraph, args: Any, perturb_data: Sequence[Any], old_state_vals: Sequence[Any] | None = None
) -> tuple[Any, dict[Path, Any], dict[Path, Any], dict[Var, Any]]:
    """Runs the model of a graph for one step with perturbed new states.

    Args:
        graph: The graph; as its method the function is called without.
        args: The model's inputs, as a tuple.
        perturb_data: One perturbation for each state, as `hidden_perturb.init_perturb_data()` gives them.
        old_state_vals: Values of the states before the step; the model's own where None.

    Returns:
        Output, new hidden values, new values of other states, and temporaries, as `ModuleInfo.jaxpr_call`.
    """
    if graph.hidden_perturb is None:
        raise ValueError("The graph has no perturbation: compile it with include_hidden_perturb=True.")
    info = graph.module_info
    params, hidden, other = info.flatten_states(old_state_vals)
    flat = graph.hidden_perturb.eval_jaxpr([*params, *hidden, *other, *info.flatten_inputs(*args)], perturb_data)
    return info.unflatten_step(flat)
