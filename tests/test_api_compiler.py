"""Every operator, compiler function and record, called with the arguments that scripts of the field pass."""

from typing import Any

import brainevent
import brainstate
import brainunit as u
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from api_net import Net, X, fresh

W, BIAS = jnp.arange(12.0).reshape(3, 4), jnp.ones(4)


def twice(value: Any) -> Any:
    return 2 * value


def test_dense_operators_take_their_arguments() -> None:
    np.testing.assert_allclose(ft.matmul(X, W, BIAS, weight_fn=twice, bias_fn=twice), 2 * (X @ W + BIAS))
    np.testing.assert_allclose(ft.matmul(X, W), X @ W)
    grouped = ft.grouped_matmul(X[:, None], W[None], BIAS[None], weight_fn=twice, bias_fn=twice)
    np.testing.assert_allclose(grouped[:, 0], 2 * (X @ W + BIAS))
    low = ft.lora_matmul(X, W, W.T, alpha=0.5, bias=jnp.ones(3), b_fn=twice, a_fn=twice, bias_fn=twice)
    np.testing.assert_allclose(low, 2 * X @ W @ W.T + 2)
    np.testing.assert_allclose(ft.einsum("bi,io->bo", X, W, weight_fn=twice), 2 * X @ W)
    np.testing.assert_allclose(ft.embedding(jnp.array([2, 0]), W, weight_fn=twice), 2 * W[jnp.array([2, 0])])


def test_elementwise_operator_takes_its_arguments() -> None:
    assert ft.element_wise(BIAS, weight_fn=twice).tolist() == ft.element_wise(BIAS, twice).tolist() == [2.0] * 4
    with pytest.raises(TypeError, match="`fn` and `weight_fn` are the same"):
        ft.element_wise(BIAS, twice, weight_fn=twice)


def test_convolution_takes_its_arguments() -> None:
    image, kernel = jnp.ones((4, 6, 2)), jnp.ones((3, 1, 4))
    found = ft.conv(
        image,
        kernel,
        BIAS,
        strides=(1,),
        padding="SAME",
        lhs_dilation=(1,),
        rhs_dilation=(2,),
        feature_group_count=2,
        batch_group_count=1,
        dimension_numbers=("NHC", "HIO", "NHC"),
        kernel_fn=twice,
        bias_fn=twice,
    )
    assert found.shape == (4, 6, 4)
    assert found[0, 2].tolist() == [8.0] * 4


@pytest.mark.parametrize("form", [brainevent.CSR, brainevent.CSC, u.sparse.COO])
def test_sparse_operator_takes_its_arguments(form: Any) -> None:
    dense = jnp.eye(3, 4)
    matrix = form.fromdense(dense)
    call = lambda x, w: ft.sparse_matmul(x, w, sparse_mat=matrix, bias=BIAS, weight_fn=twice, bias_fn=twice)
    out = jax.eval_shape(call, X, matrix.data)  # values are held against dense products in tests/ops
    assert out.shape == (2, 4)


def test_primitive_takes_its_arguments() -> None:
    def impl(x: Any, weight: Any, *, scale: float) -> tuple[Any, Any]:
        return x.sum(), scale * (x @ weight)

    options: dict[str, Any] = dict(
        batched=True,
        gradient_enabled=False,
        trainable_invars_fn=lambda params: {"weight": 1},
        x_invar_index=0,
        y_outvar_index=1,
    )
    primitive = ft.register_primitive("api_names_scaled", impl, **options)
    assert isinstance(primitive, ft.ETPPrimitive)
    np.testing.assert_allclose(primitive.bind(X, W, scale=3.0)[1], 3 * X @ W)
    plain = ft.register_primitive("api_names_plain", lambda x, w: x @ w)
    assert jax.vmap(plain.bind, in_axes=(0, None))(X, W).shape == (2, 4)


def test_trace_rules_of_an_operator_are_taken_and_not_needed() -> None:
    primitive = ft.register_primitive("api_names_ruled", lambda x, w: x @ w)
    primitive.register_etp_rules(dt_to_t=twice, xy_to_dw=twice, init_drtrl=twice, init_pp=twice, fast_path=None)
    for rule in ("dt_to_t", "yw_to_w", "xy_to_dw", "init_drtrl", "init_pp"):
        getattr(primitive, f"register_{rule}")(twice)
    with pytest.raises(TypeError, match="no trace rule `dt_to_w`"):
        primitive.register_etp_rules(dt_to_w=twice)
    with pytest.raises(TypeError, match="`dt_to_t` is a function; got 3"):
        primitive.register_dt_to_t(3)


@pytest.fixture(scope="module")
def info() -> Any:
    return ft.extract_module_info(fresh(), X)


@pytest.fixture(scope="module")
def graph() -> Any:
    policy = ft.ControlFlowPolicy(
        cond="convert",
        scan_unroll_limit=16,
        while_hidden="opaque-fwd",
        etp_in_control_flow="error",
        scan_descent="auto",
        fixpoint_iteration_limit=64,
    )
    return ft.compile_etrace_graph(fresh(), X, include_hidden_perturb=True, control_flow=policy)


def test_graph_has_its_parts(graph: Any) -> None:
    assert [group.hidden_paths for group in graph.hidden_groups] == [(("h",),)]
    assert graph.hid_path_to_group == {("h",): graph.hidden_groups[0]}
    assert [relation.path for relation in graph.hidden_param_op_relations] == [("w",)]
    assert isinstance(graph.module_info, ft.ModuleInfo)
    assert isinstance(graph.hidden_perturb, ft.HiddenPerturbation)
    assert all(isinstance(record, ft.CompilationRecord) for record in graph.diagnostics)
    assert {"module_info", "hidden_groups", "hidden_perturb", "diagnostics"} <= set(graph.dict())
    assert ft.compile_etrace_graph(fresh(), X, include_hidden_perturb=False).hidden_perturb is None


def test_graph_explains_itself(graph: Any) -> None:
    assert "history keeps" in str(graph.explain())
    kept = graph.explain(weight_path=("read",), hidden_path=None, kind=None)
    assert {record.weight_path for record in kept} == {("read",)}
    assert "tanh" in graph.to_code()
    compile(graph.to_code(), "step", "exec")


def test_other_recurrences_are_asked_of_the_rule() -> None:
    for option, rule in (({"include_recurrent_mixing": True}, "ostl_recurrent"), ({"sparse_n": 2}, "snap")):
        with pytest.raises(ft.NotSupportedError, match=f"Compile the model with '{rule}'"):
            ft.compile_etrace_graph(fresh(), X, **option)
        with pytest.raises(ft.NotSupportedError, match=rule):
            ft.find_hidden_groups_from_module(fresh(), X, **option)
        with pytest.raises(ft.NotSupportedError, match=rule):
            ft.ETraceGraphExecutor(Net(), **option)
    with pytest.raises(ft.NotSupportedError, match="rtrl"):
        ft.ETraceVjpGraphExecutor(Net(), full_jacobian=True)


def test_executors_take_their_arguments() -> None:
    executor = ft.ETraceGraphExecutor(fresh(), False, None, 2**24, ft.ControlFlowPolicy())
    executor.compile_graph(X)
    assert executor(X).shape == (2, 2)
    assert ft.ETraceVjpGraphExecutor(Net(), "multi-step", False, None, 2**24, None, False).is_multi_step_vjp


def test_info_has_its_parts(info: Any) -> None:
    assert info.jaxpr is info.closed_jaxpr.jaxpr
    assert set(info.retrieved_model_states) == {("w",), ("read",), ("count",), ("h",)}
    assert len(info.compiled_model_states) == len(info.state_tree_invars) == len(info.state_tree_outvars) == 4
    assert set(info.state_id_to_path.values()) == set(info.retrieved_model_states)
    (before,), (after,) = info.hidden_path_to_invar.values(), info.hidden_path_to_outvar.values()
    assert info.invar_to_hidden_path == {before: ("h",)}
    assert info.outvar_to_hidden_path == {after: ("h",)}
    assert info.hidden_outvar_to_invar == {after: before}
    assert set(info.weight_path_to_invars) == {("w",), ("read",)}
    assert set(info.invar_to_weight_path) == set(info.weight_invars)
    assert (info.num_var_out, info.num_var_state) == (1, 4)
    assert callable(info.stateful_model)
    assert "closed_jaxpr" in info.dict()


def test_info_is_called(info: Any) -> None:
    out, hidden, other, temporaries = info.jaxpr_call(X)
    assert out.shape == (2, 2)
    assert (set(hidden), set(other), temporaries) == ({("h",)}, {("count",)}, {})
    old = [state.value for state in info.compiled_model_states]
    assert jnp.array_equal(info.jaxpr_call(X, old_state_vals=old)[0], out)
    variable = info.jaxpr.eqns[0].outvars[0]
    assert variable in info.add_jaxpr_outs([variable]).jaxpr_call(X)[3]
    assert len(info.split_state_outvars()) == 3


def test_groups_are_found_and_called(info: Any) -> None:
    groups, group_of = ft.find_hidden_groups_from_minfo(info)
    assert [g.hidden_paths for g in ft.find_hidden_groups_from_module(fresh(), X)[0]] == [(("h",),)]
    (group,) = groups
    assert group_of == {("h",): group}
    assert (group.index, group.varshape, group.num_state) == (0, (2, 4), 1)
    assert len(group.hidden_states) == len(group.hidden_invars) == len(group.hidden_outvars) == 1
    held = [jnp.ones(var.aval.shape) for var in group.transition_jaxpr.constvars]
    (new,) = group.transition([jnp.zeros((2, 4))], held)
    assert new.shape == (2, 4)
    assert group.diagonal_jacobian([jnp.zeros((2, 4))], held).shape == (2, 4, 1, 1)
    assert jnp.array_equal(group.split_hidden(group.concat_hidden([new]))[0], new)


def test_relations_are_found_and_called(info: Any) -> None:
    _, group_of = ft.find_hidden_groups_from_minfo(info)
    (relation,) = ft.find_hidden_param_op_relations_from_minfo(info, group_of)
    assert [r.path for r in ft.find_hidden_param_op_relations_from_module(fresh(), X)] == [("w",)]
    assert relation.primitive.name == "etp_matmul"
    assert (relation.x, relation.y) == (relation.x_var, relation.y_var)
    assert relation.connected_hidden_paths == (("h",),)
    assert set(relation.path_classification.values()) == {"all_direct"}
    assert [group.index for group in relation.hidden_groups] == [0]
    for table in ("vars", "paths", "leaf_indices", "param_states", "processing_chains"):
        assert set(getattr(relation, f"trainable_{table}")) == {"weight"}
    assert isinstance(relation.eqn_params, dict)
    (jaxpr,) = relation.y_to_hidden_group_jaxprs
    consts = {var: jnp.zeros(var.aval.shape) for var in jaxpr.constvars}
    (joined,) = relation.y_to_hidden_groups(jnp.ones((2, 4)), consts, concat_hidden_vals=True)
    assert joined.shape == (2, 4, 1)
    assert "y_var" in relation.dict()


def test_perturbation_is_found_and_called(graph: Any, info: Any) -> None:
    for found in (ft.add_hidden_perturbation_from_minfo(info), ft.add_hidden_perturbation_in_module(fresh(), X)):
        assert list(found.perturb_hidden_paths) == [("h",)]
    perturbation = graph.hidden_perturb
    assert len(perturbation.perturb_vars) == len(perturbation.perturb_hidden_states) == 1
    data = perturbation.init_perturb_data()
    out, hidden, _, _ = graph.call_hidden_perturb((X,), data, old_state_vals=None)
    moved = graph.call_hidden_perturb((X,), [d + 1 for d in data])[1]
    np.testing.assert_allclose(moved["h",] - hidden["h",], 1.0)
    flat = [leaf for part in graph.module_info.flatten_states() for leaf in part]
    evaluated = graph.module_info.unflatten_step(perturbation.eval_jaxpr([*flat, X], data))
    assert jnp.array_equal(evaluated[0], out)
    (joined,) = perturbation.perturb_data_to_hidden_group_data(data, graph.hidden_groups)
    assert joined.shape == (2, 4, 1)
    assert "perturb_jaxpr" in perturbation.dict()


def test_order_is_the_same_in_every_run() -> None:
    first, second = (ft.compile_etrace_graph(fresh(), X) for _ in range(2))
    assert list(first.hid_path_to_group) == list(second.hid_path_to_group)
    assert [r.path for r in first.hidden_param_op_relations] == [r.path for r in second.hidden_param_op_relations]


def test_records_are_made_and_filtered() -> None:
    record = ft.CompilationRecord(
        kind=ft.DiagnosticKind.RELATION_INCLUDED,
        level=ft.DiagnosticLevel.INFO,
        message="found",
        primitive=None,
        weight_path=("w",),
        hidden_paths=(("h",),),
        context={},
    )
    assert (record.kind, record.level) == ("relation_included", "info")


class Writes(Net):
    def update(self, x: Any) -> Any:
        self.w.value = 2 * self.w.value
        return super().update(x)


class Changes(Net):
    def update(self, x: Any) -> Any:
        out = super().update(x)
        self.h.value = self.h.value * u.mV
        return out


def test_steps_that_cannot_be_compiled_are_refused() -> None:
    for model, error, message in ((Writes, ft.NotSupportedError, "w"), (Changes, ValueError, "mV")):
        net = model()
        brainstate.nn.init_all_states(net, batch_size=2)
        with pytest.raises(error, match=message):
            ft.extract_module_info(net, X)
    assert issubclass(ft.NotSupportedError, ft.CompilationError)
