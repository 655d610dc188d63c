"""The derivatives that a graph offers, `D` of its groups and `F` of its relations, against full Jacobians."""

import functools
from typing import Any

import jax
import numpy as np
import pytest

from foretrace._jax import eval_jaxpr
from foretrace.compiler.positions import TransitionKind
from oracle import run
from zoo.solved import BY_NAME, solved

# The gradients of all models by these derivatives are held against the oracle in `tests/engine`; here every fourth
# model is looked at by itself, and the others among the slow tests.
every_model = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.xdist_group(name), *([] if number % 4 == 0 else [pytest.mark.slow])])
        for number, name in enumerate(BY_NAME)
    ],
)


@functools.cache
def first_step(name: str) -> tuple[Any, list[Any], dict[Any, Any]]:
    """The graph of a model, what goes into its first step, and the values of all variables there."""
    model = solved(name)
    params, hidden, other, inputs = model.values
    flat, jaxpr = [*params, *hidden, *other, *inputs[0]], model.graph.program.jaxpr
    variables = [*jaxpr.constvars, *jaxpr.invars, *(var for eqn in jaxpr.eqns for var in eqn.outvars)]
    values = jax.jit(lambda: run(model.graph.program, flat, wanted=variables)[1])()
    return model.graph, flat, dict(zip(variables, values, strict=True))


def dense(function: Any, value: Any, rows: int) -> np.ndarray:
    return np.asarray(jax.jit(jax.jacrev(function))(value)).reshape(rows, -1)


@every_model
def test_diagonal_jacobian_is_the_direct_jacobian_at_each_position(name: str) -> None:
    graph, flat, values = first_step(name)
    program = graph.program
    for group in graph.hidden_groups:
        places = [program.hidden_invars.index(var) for var in group.hidden_invars]
        start = len(program.params)
        old = [flat[start + k] for k in places]

        def new(joined: Any, group: Any = group, places: Any = places, start: Any = start) -> Any:
            changed = list(flat)
            for k, value in zip(places, group.split_hidden(joined), strict=True):
                changed[start + k] = value
            outs, _ = run(program, changed, cut=True)
            return group.concat_hidden([outs[k] for k in places])

        constants = [values[v] for v in group.transition_jaxpr_constvars]
        found = np.asarray(jax.jit(group.diagonal_jacobian)(old, constants))
        count, slots = int(np.prod(group.varshape, dtype=int)), group.num_state
        whole = dense(new, group.concat_hidden(old), count * slots).reshape(count, slots, count, slots)
        expected, seen = np.zeros((count, slots, slots)), np.zeros_like(whole)
        for i, j, p in np.argwhere(group.positions.targets >= 0):
            target = group.positions.targets[i, j, p]
            expected[p, i, j] = seen[target, i, p, j] = whole[target, i, p, j]
        np.testing.assert_allclose(found.reshape(count, slots, slots), expected, rtol=1e-12, atol=1e-14)
        if group.positions.kind is not TransitionKind.COLLAPSED:
            np.testing.assert_array_equal(whole, seen)


@every_model
def test_targets_name_every_derivative_by_y(name: str) -> None:
    graph, flat, values = first_step(name)
    for relation in graph.hidden_param_op_relations:
        y_var = relation.y_var
        y = values[y_var]
        groups = zip(relation.hidden_groups, relation.y_to_hidden_group_jaxprs, relation.reaches, strict=True)
        for group, jaxpr, reach in groups:
            constants = [values[v] for v in jaxpr.constvars]
            places = [graph.program.hidden_outvars.index(var) for var in group.hidden_outvars]

            def states(added: Any, group: Any = group, places: Any = places, y_var: Any = y_var) -> Any:
                outs, _ = run(graph.program, flat, cut=True, added={y_var: added})
                return group.concat_hidden([outs[k] for k in places])

            count, slots = int(np.prod(group.varshape, dtype=int)), group.num_state
            whole = dense(states, np.zeros(y.shape), count * slots).reshape(count, slots, y.size)
            named = np.zeros((count, y.size), bool)
            for color, source in np.argwhere(reach.targets >= 0):
                assert reach.colors[reach.targets[color, source]] == color
                named[reach.targets[color, source], source] = True
            assert not np.any((whole != 0).any(axis=1) & ~named)

            def sliced(value: Any, jaxpr: Any = jaxpr, constants: Any = constants, group: Any = group) -> Any:
                return group.concat_hidden(eval_jaxpr(jaxpr, constants, value))

            found = dense(sliced, y, count * slots).reshape(count, slots, y.size)
            np.testing.assert_allclose(found, whole, rtol=1e-12, atol=1e-14)
