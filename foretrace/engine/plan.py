"""What the engine needs to know of a graph before it computes: worked out once, in numbers and tables.

A step program is seen from here as a function of *weights*: the values `w = g(theta)` that meet data. They are made of
the parameters once for a block of steps, gradients are gathered for them, and pulled back through `g` once at the end.

`Link` is the unit of credit: one weight of one relation, and one group that its `y` reaches.
"""

import dataclasses
import functools
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from foretrace._jax import Jaxpr, Literal, Var, eval_jaxpr, is_complex, is_float, new_jaxpr
from foretrace._repr import counted, one_line
from foretrace.compiler.backward import has_own_backward_pass, nonlinear_calls
from foretrace.compiler.graph import ETraceGraph
from foretrace.compiler.groups import HiddenGroup
from foretrace.compiler.occurrences import Occurrence, OccurrenceKind, Weight
from foretrace.compiler.outputs import GroupOutput, find_output
from foretrace.compiler.paths import acts_aside, is_bypassed, reached_slots
from foretrace.compiler.relations import HiddenParamOpRelation
from foretrace.compiler.structure import Known
from foretrace.engine.edges import Bilinear, Edges, Sparse, edges_for, structured_edges
from foretrace.engine.memory import trace_records
from foretrace.engine.places import Places
from foretrace.program.diagnostics import CompilationRecord, DiagnosticKind, DiagnosticLevel
from foretrace.program.records import StepProgram
from foretrace.program.walks import needed_eqns


@dataclass(frozen=True, eq=False)
class Link:
    """One weight of a relation and one group that it reaches: what one trace is kept for.

    Attributes:
        index: Its number among all links.
        relation: The relation.
        relation_index: Its number among all relations.
        weight: The value of parameters that enters there.
        weight_index: Its place among the plan's weights.
        group: The group.
        y_jaxpr: The group's next states by `y` along direct paths.
        edges: How the weight's elements meet the elements of `y`.
        places: The positions that the elements of `y` reach, now and later.
        slots: The group's slots that `y` can reach, now or later; a trace is kept for these alone.
        source: The number of what its edges have as data: the same for links that share it.
    """

    index: int
    relation: HiddenParamOpRelation
    relation_index: int
    weight: Weight
    weight_index: int
    group: HiddenGroup
    y_jaxpr: Jaxpr
    edges: Edges
    places: Places
    slots: tuple[int, ...]
    source: int

    @one_line
    def __repr__(self) -> Iterator[str]:
        yield f"{self.index}: {self.name}"

    @property
    def y_var(self) -> Var:
        return self.relation.y_var

    @property
    def name(self) -> str:
        """The parameter and the group, for messages."""
        states = ", ".join(".".join(map(str, path)) for path in self.group.hidden_paths)
        return f"{'.'.join(map(str, self.relation.path))} -> {states}"

    @functools.cached_property
    def by_tangents(self) -> bool:
        """Whether `F` takes fewer forward passes than reverse ones; only code with a tangent rule can go forward."""
        reach = self.places.reach
        fewer = reach.fan > 1 and reach.fan > int(reach.source_colors.max(initial=0)) + 1
        # A complex `y` has two directions, which one cotangent tells and one tangent does not.
        return fewer and not is_complex(self.y_var.aval) and not any(map(has_own_backward_pass, self.y_jaxpr.eqns))

    @property
    def trace_shape(self) -> tuple[int, ...]:
        """The shape of the trace of one slot."""
        return (self.places.width, *self.edges.shape)

    @property
    def dtype(self) -> Any:
        """The dtype that a trace has by default."""
        return jnp.result_type(self.group.dtype, self.y_var.aval.dtype)


@dataclass(frozen=True, eq=False)
class Plan:
    """The tables of one graph.

    Attributes:
        graph: The compiled graph.
        weight_vars: Values made of parameters that the data equations use.
        mark_vars: Values made of parameters that have no derivative, such as signs and comparisons.
        weights_jaxpr: From the parameters to these values, the weights first.
        linear: The linear occurrences, by the equation where they stand.
        products: For each weight of a linear occurrence that is a plain product, by `y` and weight, its edges.
        links: The traces to keep.
        bypassed: The numbers of the groups whose past an output reads beside their new states.
        differentiable: Variables through which a derivative can run within the step.
        aside: Relations, by the identity of their `y`, whose `y` also acts otherwise than directly on its one group.
        learned: The places of the parameters that learn. All others are constants: values made of them alone are among
            `mark_vars`, and have neither links nor gradients.
    """

    graph: ETraceGraph
    weight_vars: tuple[Var, ...]
    mark_vars: tuple[Var, ...] = field(repr=False)
    weights_jaxpr: Jaxpr = field(repr=False)
    linear: dict[int, Occurrence] = field(repr=False)
    products: dict[tuple[Var, Var], Edges] = field(repr=False)
    links: tuple[Link, ...] = field(repr=False)
    bypassed: frozenset[int]
    differentiable: frozenset[Var] = field(repr=False)
    aside: frozenset[Var] = field(repr=False)
    learned: frozenset[int]

    @one_line
    def __repr__(self) -> Iterator[str]:
        yield self.graph.sizes
        yield counted(len(self.links), "trace")

    @property
    def program(self) -> StepProgram:
        return self.graph.program

    @property
    def jaxpr(self) -> Jaxpr:
        """The equations on data."""
        return self.graph.values.data_jaxpr

    def of_group(self, group: HiddenGroup, values: Sequence[Any]) -> list[Any]:
        """Of one value for each hidden state, those of a group's states."""
        return [values[self.program.hidden_invars.index(var)] for var in group.hidden_invars]

    def lasting_slots(self, link: Link) -> tuple[int, ...]:
        """The slots of a link that the next step reads otherwise than through mixing."""
        if link.group.index in self.bypassed:
            return link.slots
        patterns = link.group.positions.patterns
        return tuple(slot for slot in link.slots if any(not row[slot].is_empty for row in patterns))

    def weights(self, params: Sequence[Any]) -> list[jax.Array]:
        """The values `w = g(theta)`, and behind them those without a derivative."""
        return eval_jaxpr(self.weights_jaxpr, self.program.consts, *params)

    def pull_back(self, params: Sequence[Any], gradients: Sequence[Any]) -> list[jax.Array]:
        """Gradients of parameters from those of weights."""
        _, pullback = jax.vjp(lambda *values: self.weights(values)[: len(self.weight_vars)], *params)
        return list(pullback(list(gradients)))

    def zero_gradients(self) -> list[jax.Array]:
        """Zeros in the place of every weight."""
        return [jnp.zeros(var.aval.shape, var.aval.dtype) for var in self.weight_vars]

    @functools.cached_property
    def own_parameters(self) -> dict[int, int]:
        """The weights that are parameters themselves: the place of the parameter by the place of the weight."""
        params = self.program.param_invars
        return {place: params.index(var) for place, var in enumerate(self.weight_vars) if var in params}

    @functools.cached_property
    def pulls_each_step(self) -> bool:
        """Whether gradients must be pulled back to parameters step by step: where a user's own backward pass is not
        linear (it may clip), the pullback of a sum is not the sum of pullbacks."""
        return any(var in self.graph.values.nonlinear for var in self.weight_vars)

    @functools.cached_property
    def nonlinear(self) -> dict[int, frozenset[int]]:
        """Equations on data with a backward pass that is not linear, by identity, and the operands that it concerns."""
        found = ((id(eqn), nonlinear_calls(eqn)) for eqn in self.jaxpr.eqns)
        return {key: operands for key, calls in found if (operands := frozenset().union(*(own for _, own in calls)))}

    @functools.cached_property
    def saved_vars(self) -> tuple[Var, ...]:
        """Outputs of linear operators, which the forward pass keeps so that no product is computed twice."""
        return tuple(occurrence.y_var for occurrence in self.linear.values())

    @functools.cached_property
    def group_outputs(self) -> tuple[GroupOutput, ...]:
        """The value by which the states of each group act on the rest of the network."""
        return tuple(find_output(self.graph, group) for group in self.graph.hidden_groups)

    @functools.cached_property
    def needed_vars(self) -> tuple[Var, ...]:
        """Values within the step that derivatives are taken at."""
        needed: dict[Any, None] = dict.fromkeys(self.program.hidden_outvars)
        for group in self.graph.hidden_groups:
            needed |= dict.fromkeys([*group.transition_jaxpr_constvars, *self.group_outputs[group.index].needed_vars])
            needed |= dict.fromkeys(group.coupling[0].constvars if group.coupled else ())
        for link in self.links:
            needed |= dict.fromkeys([*link.y_jaxpr.constvars, link.y_var])
        for occurrence in self.linear.values():
            needed |= dict.fromkeys(a for a in occurrence.eqn.invars if not isinstance(a, Literal))
        return tuple(var for var in needed if var not in self.fixed_vars)

    @functools.cached_property
    def fixed_vars(self) -> frozenset[Var]:
        """Values that are the same in every step of a block."""
        return frozenset([*self.jaxpr.constvars, *self.weight_vars, *self.mark_vars, *self.program.param_invars])


def make_plan(graph: ETraceGraph, learned: frozenset[int] | None = None) -> Plan:
    """Works out the tables of a graph.

    Args:
        graph: The graph.
        learned: The places of the parameters that learn; None for all.
    """
    every = frozenset(range(len(graph.program.params)))
    learned = every if learned is None else learned
    made = graph.values.meeting_data()
    weight_vars = tuple(var for var in made if is_float(var.aval) and graph.values.parameters[var] & learned)
    mark_vars = tuple(var for var in made if var not in weight_vars)
    jaxpr = graph.program.jaxpr
    linear = {id(o.eqn): o for o in graph.occurrences if o.kind is OccurrenceKind.LINEAR}
    known = Known(graph.values.data_jaxpr, graph.program.consts)
    links = _links(graph, weight_vars, known)
    return Plan(
        graph=dataclasses.replace(
            graph, further_records=lambda: [*trace_records(links), *_constant_records(graph, every - learned)]
        ),
        weight_vars=weight_vars,
        mark_vars=mark_vars,
        weights_jaxpr=new_jaxpr(
            jaxpr.constvars, graph.program.param_invars, [*weight_vars, *mark_vars], needed_eqns(jaxpr.eqns, made)
        ),
        linear=linear,
        products=_products(linear.values(), known),
        links=links,
        bypassed=frozenset(g.index for g in graph.hidden_groups if is_bypassed(graph, g)),
        differentiable=_differentiable(graph, linear, weight_vars),
        aside=frozenset(r.y_var for r in graph.hidden_param_op_relations if acts_aside(graph, r)),
        learned=learned,
    )


def _constant_records(graph: ETraceGraph, constant: Iterable[int]) -> list[CompilationRecord]:
    """What is said of the parameters that do not learn."""
    kind, level = DiagnosticKind.PARAMETER_CONSTANT, DiagnosticLevel.INFO
    text = "`{}` is not among `weights`: it is a constant here, without a trace, and its gradient is zero."
    leaves = [graph.program.params[index] for index in sorted(constant)]
    return [CompilationRecord(kind, level, text.format(leaf.name), "", leaf.path) for leaf in leaves]


def _products(linear: Iterable[Occurrence], known: Known) -> dict[tuple[Var, Var], Edges]:
    found = {(o.y_var, weight.var): structured_edges(o, weight, known) for o in linear for weight in o.weights}
    # The transposes of convolutions and lookups need neither patches nor one-hot vectors: those are left to JAX.
    return {key: edges for key, edges in found.items() if edges is not None and type(edges) in (Bilinear, Sparse)}


def _links(graph: ETraceGraph, weight_vars: Sequence[Var], known: Known) -> tuple[Link, ...]:
    links: list[Link] = []
    sources: dict[Hashable, int] = {}
    for number, relation in enumerate(graph.hidden_param_op_relations):
        parts = zip(relation.hidden_groups, relation.reaches, relation.y_to_hidden_group_jaxprs, strict=True)
        reached = [
            (
                group,
                jaxpr,
                Places(group, tuple(relation.y_var.aval.shape), reach),
                reached_slots(graph, relation.y_var, group),
            )
            for group, reach, jaxpr in parts
        ]
        for weight in relation.occurrence.weights:
            if weight.var not in weight_vars:
                continue
            edges, place = edges_for(relation.occurrence, weight, known), weight_vars.index(weight.var)
            data = edges.source(relation.occurrence.eqn.invars) or (relation.y_var, weight.index)
            for group, jaxpr, places, slots in reached:
                key = (data, group.dtype, relation.y_var.aval.dtype)
                source = sources.setdefault(key, len(sources))
                links.append(
                    Link(len(links), relation, number, weight, place, group, jaxpr, edges, places, slots, source)
                )
    return tuple(links)


def _differentiable(graph: ETraceGraph, linear: dict[int, Occurrence], weight_vars: Sequence[Var]) -> frozenset[Var]:
    """Weights, and what perturbed states, perturbed `y` and weights that enter otherwise than linearly can change."""
    jaxpr = graph.values.data_jaxpr
    begin = {*graph.program.hidden_outvars, *(o.y_var for o in linear.values())}
    reached: set[Any] = set(begin)
    weights = set(weight_vars)
    for eqn in jaxpr.eqns:
        stopped = {w.index for w in linear[id(eqn)].weights} if id(eqn) in linear else set()
        entering = [a for i, a in enumerate(eqn.invars) if not isinstance(a, Literal) and i not in stopped]
        if any(a in reached or a in weights for a in entering):
            reached |= {out for out in eqn.outvars if is_float(out.aval)}
    return frozenset(reached | weights)
