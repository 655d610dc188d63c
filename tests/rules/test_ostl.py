"""OSTL against its recursion in NumPy, and the diagonal of the whole step against its Jacobian."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from foretrace._jax import eval_jaxpr
from foretrace.compiler.positions import TransitionKind
from foretrace.compiler.recurrence import recurrent_group
from foretrace.engine.linearise import Linearised
from foretrace.engine.plan import make_plan
from foretrace.engine.sequence import States, run_steps
from foretrace.rules.ostl import OSTLFeedforward, OSTLRecurrent
from recursions import NETWORKS, assert_same, blocks_of, in_factors, per_parameter
from zoo import MODELS
from zoo.compiled import compiled
from zoo.flat import flat_values

CASES = [*blocks_of("recurrent LIF"), ("vanilla RNN", 3)]
DIAGONALS = [
    "LSTM, fused gates and a tuple of states",
    "lateral coupling by a roll",
    "module: marked ALIF in one packed state",
    "module: marked GRU, reset after the matmul",
    "marked weight for each group",
]
EVERY = [name if name in DIAGONALS else pytest.param(name, marks=pytest.mark.slow) for name in [m.name for m in MODELS]]


@pytest.mark.parametrize(("name", "block"), CASES)
def test_recurrent_equals_its_recursion_in_any_block(name: str, block: int) -> None:
    network = NETWORKS[name]()
    assert_same(network.gradient(OSTLRecurrent(), block), per_parameter(network, lambda step: step.whole))


def test_recurrent_weights_count() -> None:
    """With the direct transition alone the same recursion gives something else."""
    network = NETWORKS["vanilla RNN"]()
    whole, direct = (per_parameter(network, lambda step, name=name: getattr(step, name)) for name in ("whole", "D"))
    assert not np.allclose(whole["w_in"], direct["w_in"], rtol=1e-2)


@pytest.mark.parametrize("name", EVERY)
def test_carries_by_the_diagonal_of_the_whole_step(name: str) -> None:
    model = next(model for model in MODELS if model.name == name)
    graph, built = compiled(model)
    params, hidden, other, inputs = flat_values(graph, model, built, 1)
    plan = make_plan(graph)
    steps = run_steps(plan, params, States(hidden, other), [jnp.stack([x]) for x in inputs[0]])[1]
    found = jax.jit(lambda: OSTLRecurrent().transitions(Linearised(plan, plan.weights(params), steps)))()
    for group, carrying in zip(graph.hidden_groups, found, strict=True):
        if group.positions.kind is TransitionKind.RELABELLED:
            continue
        zero = jnp.zeros(group.varshape)
        rows = [jnp.stack([zero if entry is None else entry[0] for entry in row], axis=-1) for row in carrying]
        np.testing.assert_allclose(
            jnp.stack(rows, axis=-2), _diagonal(graph, group, params, hidden, other, inputs[0]), atol=1e-12
        )


@pytest.mark.parametrize(
    ("name", "operators"),
    [
        ("LSTM, fused gates and a tuple of states", 1),
        ("module: marked GRU, reset after the matmul", 3),
        ("marked GRU, reset before the matmul", None),
    ],
)
def test_a_way_back_through_one_product_is_read_off_its_weight(name: str, operators: int | None) -> None:
    graph, _ = compiled(next(model for model in MODELS if model.name == name))
    found = recurrent_group(graph, graph.hidden_groups[0])
    assert found is not None
    assert (None if found.returns is None else len(found.returns)) == operators


def _diagonal(graph: Any, group: Any, params: Any, hidden: Any, other: Any, x: Any) -> np.ndarray:
    """By the whole Jacobian of the step."""
    program = graph.program
    old = [program.hidden_invars.index(var) for var in group.hidden_invars]

    def states(own: jax.Array) -> jax.Array:
        values = list(hidden)
        for place, value in zip(old, group.split_hidden(own), strict=True):
            values[place] = value
        outs = eval_jaxpr(program.jaxpr, program.consts, *params, *values, *other, *x)
        return group.concat_hidden([outs[program.hidden_outvars.index(var)] for var in group.hidden_outvars])

    whole = jax.jit(jax.jacrev(states))(group.concat_hidden([hidden[place] for place in old]))
    size = int(np.prod(group.varshape))
    whole = np.asarray(whole).reshape(size, group.num_state, size, group.num_state)
    own = np.stack([whole[p, :, p, :] for p in range(size)])
    return own.reshape(*group.varshape, group.num_state, group.num_state)


def test_feedforward_is_pp_prop_with_a_decay_of_almost_nothing() -> None:
    network = NETWORKS["recurrent LIF"]()
    assert_same(network.gradient(OSTLFeedforward(), 7), in_factors(network, 1e-6, 1e-6))


def test_feedforward_refuses_a_bad_decay() -> None:
    with pytest.raises(ValueError, match="decay_or_rank"):
        OSTLFeedforward(2.5)
