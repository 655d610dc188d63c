"""The graph's own names: groups, relations, perturbation, and the finders of the public interface."""

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from zoo import MODELS
from zoo.compiled import compiled

LSTM = next(model for model in MODELS if model.name.startswith("LSTM, fused"))


class Cell(brainstate.nn.Module):
    """A leaky recurrent layer with marked operators and a readout."""

    def __init__(self) -> None:
        super().__init__()
        draw = np.random.default_rng(0).normal
        self.w = brainstate.ParamState(jnp.asarray(draw(size=(3, 4))))
        self.inner = brainstate.ParamState({"weight": jnp.asarray(draw(size=(4, 4))), "bias": jnp.zeros(4)})
        self.v = brainstate.HiddenState(jnp.asarray(draw(size=(2, 4))))

    def update(self, x):
        inner = self.inner.value
        drive = ft.matmul(x, self.w.value) + ft.matmul(jnp.tanh(self.v.value), inner["weight"], inner["bias"])
        self.v.value = 0.9 * self.v.value + drive
        return jnp.sin(self.v.value)


X = jnp.asarray(np.random.default_rng(1).normal(size=(2, 3)))


def test_finders_agree_with_the_graph():
    cell = Cell()
    graph = ft.compile_etrace_graph(cell, X)
    info = ft.extract_module_info(cell, X)
    for groups, by_path in (ft.find_hidden_groups_from_minfo(info), ft.find_hidden_groups_from_module(cell, X)):
        assert [group.hidden_paths for group in groups] == [group.hidden_paths for group in graph.hidden_groups]
        assert set(by_path) == {("v",)}
    for relations in (
        ft.find_hidden_param_op_relations_from_minfo(info, ft.find_hidden_groups_from_minfo(info)[1]),
        ft.find_hidden_param_op_relations_from_module(cell, X),
    ):
        assert [r.path for r in relations] == [r.path for r in graph.hidden_param_op_relations]


def test_relations_name_parameters_states_and_leaves():
    cell = Cell()
    graph = ft.compile_etrace_graph(cell, X)
    found = {
        (relation.primitive.name, relation.path, *relation.trainable_leaf_indices.values())
        for relation in graph.hidden_param_op_relations
    }
    weight, bias = (list(cell.inner.value).index(name) for name in ("weight", "bias"))
    order = {"weight": sorted(cell.inner.value).index("weight"), "bias": sorted(cell.inner.value).index("bias")}
    assert {weight, bias} == {0, 1}
    assert found == {
        ("etp_matmul", ("w",), 0),
        ("etp_matmul", ("inner",), order["weight"]),
        ("etp_element_wise", ("inner",), order["bias"]),
    }
    first = graph.hidden_param_op_relations[0]
    assert first.trainable_param_states["weight"] is cell.w
    assert first.hidden_groups[0].hidden_states == (cell.v,)
    assert first.x is first.x_var
    assert first.y is first.y_var


def test_perturbation_gives_the_derivative_by_the_new_state():
    cell = Cell()
    graph = ft.compile_etrace_graph(cell, X)
    zero = graph.hidden_perturb.init_perturb_data()

    def loss(perturbations):
        out, hidden, _, _ = graph.call_hidden_perturb((X,), perturbations)
        return jnp.sum(out**2), hidden

    gradient, hidden = jax.grad(loss, has_aux=True)(zero)
    v = cell.update(X) is not None and cell.v.value
    np.testing.assert_allclose(hidden[("v",)], v, rtol=1e-12)
    np.testing.assert_allclose(gradient[0], 2 * jnp.sin(v) * jnp.cos(v), rtol=1e-12)


def test_perturbation_of_one_state_reaches_the_other():
    """An LSTM's new `h` is made of its new `c`."""
    graph, built = compiled(LSTM)
    info = graph.module_info
    hidden, other = info.flatten_state(built["state"])
    flat = [*info.flatten_params(built["params"]), *hidden, *other, *info.flatten_inputs(built["x"])]
    zero = graph.hidden_perturb.init_perturb_data()
    plain = graph.hidden_perturb.eval_jaxpr(flat, zero)
    moved = graph.hidden_perturb.eval_jaxpr(flat, [zero[0] + 0.1, *zero[1:]])
    changed = [not np.allclose(a, b) for a, b in zip(plain, moved, strict=True)]
    assert changed[:2] == [True, True]
    joined = graph.hidden_perturb.perturb_data_to_hidden_group_data(zero, graph.hidden_groups)
    assert [part.shape for part in joined] == [(*g.varshape, g.num_state) for g in graph.hidden_groups]


def test_no_perturbation_unless_asked_for():
    graph = ft.compile_etrace_graph(Cell(), X, include_hidden_perturb=False)
    assert graph.hidden_perturb is None
    with pytest.raises(ValueError, match="include_hidden_perturb"):
        graph.call_hidden_perturb((X,), [])


def test_split_undoes_concat():
    for model in MODELS[:30]:
        graph, _ = compiled(model)
        for group in graph.hidden_groups:
            shapes = [var.aval.shape for var in group.hidden_invars]
            values = [jnp.arange(np.prod(shape, dtype=int)).reshape(shape) + k for k, shape in enumerate(shapes)]
            joined = group.concat_hidden(values)
            assert joined.shape == (*group.varshape, group.num_state)
            for value, part in zip(values, group.split_hidden(joined), strict=True):
                np.testing.assert_array_equal(part, value)


def test_weight_chain_makes_the_weight_of_its_parameters():
    def step(params, state, x):
        h = 0.9 * state + x @ (jnp.abs(params["w"]) * jnp.array([1.0, -1.0, 1.0])[:, None])
        return h, h

    w = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4)))
    graph = ft.compile_etrace_graph(step, X, params={"w": w}, state=jnp.zeros((2, 4)))
    (chain,) = graph.hidden_param_op_relations[0].trainable_processing_chains.values()
    (found,) = jax.core.eval_jaxpr(chain.jaxpr, chain.consts, w)
    np.testing.assert_array_equal(found, jnp.abs(w) * jnp.array([[1.0], [-1.0], [1.0]]))


def test_records_list_their_fields():
    graph = ft.compile_etrace_graph(Cell(), X)
    for record in (graph, graph.hidden_groups[0], graph.hidden_param_op_relations[0], graph.hidden_perturb):
        fields = record.dict()
        assert all(getattr(record, name) is not None or value is None for name, value in fields.items())
    assert "num_state" in graph.hidden_groups[0].dict()


def test_compiling_leaves_the_module_as_it_was():
    cell = Cell()
    before = cell.v.value
    ft.compile_etrace_graph(cell, X)
    assert cell.v.value is before


def test_importing_keeps_float64():
    import subprocess
    import sys

    code = "import jax; jax.config.update('jax_enable_x64', True); import foretrace; print(jax.numpy.ones(1).dtype)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "float64"


def test_records_can_be_keys():
    graph = ft.compile_etrace_graph(Cell(), X)
    records = [graph, *graph.hidden_groups, *graph.hidden_param_op_relations, *graph.parameters, graph.module_info]
    assert len(set(records)) == len(records)


def test_derivatives_of_a_group_run_under_jit_and_vmap():
    graph, _ = compiled(LSTM)
    (group,) = graph.hidden_groups
    draw = np.random.default_rng(3).normal
    hidden = [jnp.asarray(draw(size=(3, *var.aval.shape))) for var in group.hidden_invars]
    fixed = [jnp.asarray(draw(size=var.aval.shape)) for var in group.transition_jaxpr_constvars]
    mapped = jax.jit(jax.vmap(lambda values: group.diagonal_jacobian(values, fixed)))(hidden)
    for k in range(3):
        one = group.diagonal_jacobian([value[k] for value in hidden], fixed)
        np.testing.assert_allclose(mapped[k], one, rtol=1e-12, atol=1e-14)
