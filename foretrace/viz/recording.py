"""Eligibility traces over time, whatever the rule keeps them as.

A rule may keep a value per synapse, two factors, a Jacobian or a random projection. What they have in common is what
they answer when something is asked of the states: the gradient through the past. So the trace of a weight on a state
is recorded by asking every neuron for one unit of that state, `sum_j d state_j / d weight` as the rule knows it: before
any learning signal, and of e-prop before its low-pass filter. For rules whose traces stay with their own neuron
(D-RTRL, e-prop, pp_prop, ...) that *is* the eligibility trace of each synapse, in the shape of the weight; for RTRL,
SnAp and UORO it is the influence on all neurons together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from foretrace._checks import require_index, require_list
from foretrace.engine.plan import Plan
from foretrace.engine.sequence import States, run_steps
from foretrace.errors import NotSupportedError
from foretrace.learners.learner import at_start
from foretrace.program.records import Leaf, path_name
from foretrace.rules.rule import Block, Rule

Names = str | Sequence[str] | None


def record_traces(
    learner: Any,
    xs: Any,
    *,
    params: Any = None,
    state: Any = None,
    weights: Names = None,
    states: Names = None,
    trial: int | None = None,
) -> dict[str, np.ndarray]:
    """Runs a learner step by step from empty traces, and records the eligibility traces after every step.

    Nothing changes: neither a model's states, nor the learner's traces.

    Args:
        learner: A learner from `foretrace.compile`.
        xs: Inputs, time first; for a step with several inputs, a tuple of them.
        params: The parameters; None for those that the learner has, or was compiled with.
        state: The state to start from, or a carry whose state is meant; None likewise.
        weights: Names of the parameters to record; None for all that have a trace.
        states: Names of the states; None for all that a parameter acts on directly.
        trial: Which element of the batch, the first axis of the states; None for the sum over all positions.

    Returns:
        For each parameter and state, by a name such as `w_rec -> v`, an array `(T, *shape of the parameter)`.

    Raises:
        NotSupportedError: A rule that keeps no traces.
        TypeError: Not a learner.
        ValueError: An unknown name, or no such trial.

    Examples:
        >>> import jax.numpy as jnp
        >>> import foretrace as ft
        >>> def step(params, v, x):
        ...     v = 0.5 * v + x @ params["w"]
        ...     return v, v
        >>> params, xs = {"w": jnp.ones((1, 1))}, jnp.ones((4, 1))
        >>> learner = ft.compile(step, "D_RTRL", xs[0], params=params, state=jnp.zeros(1))
        >>> traces = record_traces(learner, xs)
        >>> {name: trace.ravel().tolist() for name, trace in traces.items()}
        {'w -> state': [1.0, 1.5, 1.75, 1.875]}
    """
    pure, params, start = at_start(learner, params, state, "`record_traces`")
    if not pure.rule.keeps_traces:
        raise NotSupportedError(f"{pure.rule.name} keeps no traces: there is nothing to record.")
    asked = _asked(pure.plan, weights, states, trial)
    wanted = _Wanted(pure.plan, pure.rule, tuple(asked))
    found = jax.jit(_recorded, static_argnums=0)(wanted, *pure.flatten(params, start, xs))
    return {one.name: np.asarray(values) for one, values in zip(asked, found, strict=True)}


@dataclass(frozen=True)
class _Asked:
    """One trace to record: a parameter, and one unit of a state at every neuron that is looked at."""

    name: str
    param: int
    state: int
    slot: int | None
    trial: int | None

    def signal(self, states: Sequence[jax.Array]) -> list[jax.Array]:
        first = () if self.trial is None else (self.trial,)
        where = (*first, ...) if self.slot is None else (*first, ..., self.slot)
        return [jnp.zeros_like(value).at[where].set(k == self.state) for k, value in enumerate(states)]


@dataclass(frozen=True, eq=False)
class _Wanted:
    plan: Plan
    rule: Rule
    asked: tuple[_Asked, ...]


def _recorded(wanted: _Wanted, params: list[Any], states: States, inputs: list[Any]) -> list[jax.Array]:
    plan, rule = wanted.plan, wanted.rule

    def one(carry: tuple[States, Any], item: Any) -> tuple[Any, list[jax.Array]]:
        states, trace = carry
        states, steps, _ = run_steps(plan, params, states, [x[None] for x in item])
        _, trace = rule.advance(plan, params, Block(steps, None), trace)
        found = [rule.credit(plan, params, trace, one.signal(states.hidden))[one.param] for one in wanted.asked]
        return (states, trace), found

    return jax.lax.scan(one, (states, rule.init(plan)), inputs)[1]


def _asked(plan: Plan, weights: Names, states: Names, trial: int | None) -> list[_Asked]:
    """The traces to record, in the order of the parameters."""
    program = plan.program
    direct = sorted(
        {
            (param, program.hidden_invars.index(link.group.hidden_invars[link.group.slots[slot].state]))
            for link in plan.links
            for param in link.weight.parameters
            for slot in link.slots
        }
    )
    traced = sorted({param for param, _ in direct})
    if not traced:
        raise ValueError("No parameter has a trace: none acts on a hidden state. `learner.report` says why.")
    params = _chosen("weights", weights, program.params, traced)
    if states is None:
        pairs = [(param, state) for param, state in direct if param in params]
    else:
        named = _chosen("states", states, program.hidden, list(range(len(program.hidden))))
        pairs = [(param, state) for param in params for state in named]
    return [one for param, state in pairs for one in _slots(program.params, program.hidden, param, state, trial)]


def _slots(params: Sequence[Leaf], hidden: Sequence[Leaf], param: int, state: int, trial: int | None) -> list[_Asked]:
    """What is asked of a state: one thing, or of a state that holds several in its last axis, each of them."""
    leaf = hidden[state]
    shape = leaf.aval.shape
    if trial is not None:
        require_index("trial", trial)
    if trial is not None and not (shape and -shape[0] <= trial < shape[0]):
        raise ValueError(
            f"The state `{leaf.name}` has shape {shape}: there is no trial {trial}. A model without a batch axis takes "
            "`trial=None`."
        )
    name = f"{params[param].name} -> {leaf.name}"
    if not leaf.packed:
        return [_Asked(name, param, state, None, trial)]
    return [_Asked(f"{name}[{slot}]", param, state, slot, trial) for slot in range(shape[-1])]


def _chosen(what: str, asked: Names, leaves: Sequence[Leaf], known: Sequence[int]) -> list[int]:
    """The numbers of the leaves that were asked for, by their names or those of what they are part of."""
    if asked is None:
        return list(known)
    found: list[int] = []
    for name in [asked] if isinstance(asked, str) else require_list(what, asked, "names"):
        own = [k for k in known if str(name) in (leaves[k].name, path_name(leaves[k].owner))]
        if not own:
            there = ", ".join(f"`{leaves[k].name}`" for k in known)
            raise ValueError(f"`{what}` names `{name}`, of which there is no trace. There are {there}.")
        found += own
    return list(dict.fromkeys(found))
