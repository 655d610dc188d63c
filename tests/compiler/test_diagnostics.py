"""What the compiler refuses or only reports, told apart by type and kind and never by text."""

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from foretrace import DiagnosticKind, DiagnosticLevel
from foretrace._jax import Primitive, ShapedArray, mlir

X, STATE = jnp.ones((2, 3)), {"v": jnp.ones((2, 5))}
W = jnp.asarray(np.random.default_rng(0).normal(size=(3, 5)))


def compiled(step, params=None, state=None, **options):
    params = {"w": W} if params is None else params
    return ft.compile_etrace_graph(step, X, params=params, state=STATE if state is None else state, **options)


def kinds(graph, level=None):
    return {record.kind for record in graph.diagnostics if level in (None, record.level)}


def opaque_primitive(name):
    """An identity that JAX knows nothing about but how to run it."""
    primitive = Primitive(name)
    primitive.def_impl(lambda x: x)
    primitive.def_abstract_eval(lambda x: ShapedArray(x.shape, x.dtype))
    mlir.register_lowering(primitive, mlir.lower_fun(lambda x: x, multiple_results=False))
    return primitive


def test_unknown_primitive_is_reported_and_cuts_the_history():
    opaque = opaque_primitive("opaque_identity")

    def step(params, state, x):
        v = opaque.bind(0.9 * state["v"]) + x @ params["w"]
        return {"v": v}, v

    graph = compiled(step)
    (record,) = [r for r in graph.diagnostics if r.kind is DiagnosticKind.PRIMITIVE_UNKNOWN]
    assert record.primitive == "opaque_identity"
    assert record.level is DiagnosticLevel.WARNING
    assert graph.parameters[0].history == "direct"


def test_primitive_with_a_tangent_rule_is_not_unknown():
    from foretrace._jax import ad

    known = opaque_primitive("doubling_tangent")
    ad.primitive_jvps[known] = lambda primals, tangents: (known.bind(*primals), 2.0 * tangents[0])

    def step(params, state, x):
        v = known.bind(0.9 * state["v"]) + x @ params["w"]
        return {"v": v}, v

    graph = compiled(step)
    assert DiagnosticKind.PRIMITIVE_UNKNOWN not in kinds(graph)
    assert graph.parameters[0].history == "all"


def linear_primitives(names):
    """Identities for which JAX knows that they are linear, and nothing else; the tangent of each is the next."""
    from foretrace._jax import ad

    made = [opaque_primitive(name) for name in names]
    for one, following in zip(made, [*made[1:], made[0]], strict=True):
        ad.primitive_jvps[one] = lambda primals, tangents, one=one, following=following: (
            one.bind(*primals),
            following.bind(*tangents),
        )
    return made


@pytest.mark.parametrize("names", [["linear_alone"], ["linear_first", "linear_second"]])
def test_linear_primitive_without_a_rule_is_reported(names):
    linear, *_ = linear_primitives(names)

    def step(params, state, x):
        v = linear.bind(0.9 * state["v"]) + x @ params["w"]
        return {"v": v}, v

    graph = compiled(step)
    (record,) = [r for r in graph.diagnostics if r.kind is DiagnosticKind.PRIMITIVE_UNKNOWN]
    assert (record.primitive, record.level) == (names[0], DiagnosticLevel.WARNING)
    assert graph.parameters[0].history == "direct"


def test_pattern_of_a_linear_primitive_without_a_rule_is_everything():
    from foretrace.compiler.patterns import analyse

    linear, *_ = linear_primitives(["linear_whole"])
    closed = jax.make_jaxpr(lambda v: linear.bind(v))(jnp.ones((2, 3)))
    found = analyse(closed.jaxpr, closed.jaxpr.invars, cut=False)
    assert found.of(closed.jaxpr.outvars[0], closed.jaxpr.invars[0]).matrix.toarray().all()


def _in_scan(f):
    return lambda v: jax.lax.scan(lambda c, _: (f(c), None), v, length=3)[0]


def _in_tangent(f):
    @jax.custom_jvp
    def same(v):
        return v

    same.defjvp(lambda primals, tangents: (same(*primals), f(*tangents)))
    return same


def _in_cotangent(f):
    same = jax.custom_vjp(lambda v: v)
    same.defvjp(lambda v: (v, None), lambda _, cotangent: (f(cotangent),))
    return same


@pytest.mark.parametrize("place", [_in_scan, _in_tangent, _in_cotangent, jax.checkpoint])
def test_unknown_primitive_inside_other_code_is_reported(place):
    opaque = opaque_primitive(f"opaque_{place.__name__}")

    def step(params, state, x):
        v = place(opaque.bind)(0.9 * state["v"]) + x @ params["w"]
        return {"v": v}, v

    graph = compiled(step)
    assert opaque.name in [r.primitive for r in graph.diagnostics if r.kind is DiagnosticKind.PRIMITIVE_UNKNOWN]


def test_state_that_changes_shape_is_refused():
    with pytest.raises(ft.StateMismatchError, match="`v`"):
        compiled(lambda params, state, x: ({"v": x @ params["w"] @ params["w"].T}, x))


def test_state_that_changes_unit_is_refused():
    import brainunit as u

    def step(params, state, x):
        return {"v": state["v"] * u.mV + (x @ params["w"]) * u.mV**2}, x

    with pytest.raises(ft.StateMismatchError):
        compiled(step, state={"v": jnp.ones((2, 5)) * u.mV})


def while_step(params, state, x):
    v = jax.lax.while_loop(lambda v: jnp.sum(v) < 9.0, lambda v: v + jnp.abs(x @ params["w"]) + 1.0, state["v"])
    return {"v": v}, v


def mixing_while_step(params, state, x):
    v = jax.lax.while_loop(lambda v: jnp.sum(v) < 9.0, lambda v: jnp.cumsum(v, 1) + 1.0, state["v"] + x @ params["w"])
    return {"v": v}, v


def test_while_that_mixes_a_state_and_a_weight_is_refused_by_name():
    with pytest.raises(ft.ControlFlowError, match=r"`w`.*`v`.*`cumsum`"):
        compiled(mixing_while_step)


def test_while_over_elementwise_code_is_followed():
    graph = compiled(while_step)
    assert DiagnosticKind.WHILE_FORWARD_MODE in kinds(graph, DiagnosticLevel.INFO)
    assert graph.parameters[0].history == "all"


def test_while_can_be_held_constant():
    graph = compiled(while_step, control_flow=ft.ControlFlowPolicy(while_hidden="hold"))
    assert DiagnosticKind.WHILE_HELD_CONSTANT in kinds(graph, DiagnosticLevel.WARNING)


def test_model_without_recurrent_state_is_refused():
    with pytest.raises(ft.NoRecurrentStateError):
        compiled(lambda params, state, x: (state, x @ params["w"]), state={})


def test_model_without_parameters_is_refused():
    with pytest.raises(ft.EmptyModelError):
        compiled(lambda params, state, x: ({"v": 0.9 * state["v"]}, x), params={})


def test_wrong_example_input_is_refused():
    def step(params, state, x):
        return {"v": state["v"] + x @ params["w"]}, x

    with pytest.raises(ft.ExampleInputError):
        ft.compile_etrace_graph(step, jnp.ones((2, 7)), params={"w": W}, state=STATE)


def test_wrong_example_input_of_a_module_is_refused():
    cell = brainstate.nn.GRUCell(3, 4)
    brainstate.nn.init_all_states(cell)
    with pytest.raises(ft.ExampleInputError):
        ft.compile_etrace_graph(cell, jnp.ones(7))


def test_unknown_discover_is_refused():
    with pytest.raises(ValueError, match="discover"):
        compiled(lambda params, state, x: ({"v": state["v"] + x @ params["w"]}, x), discover="some")


def test_marked_operator_without_a_trained_weight_is_reported():
    def step(params, state, x):
        v = ft.matmul(x, params["w"]) + ft.matmul(jnp.tanh(state["v"]), state["fast"])
        return {"v": v, "fast": 0.9 * state["fast"]}, v

    graph = compiled(step, state={**STATE, "fast": jnp.eye(5)})
    assert DiagnosticKind.RELATION_EXCLUDED_NO_PARAMSTATE in kinds(graph, DiagnosticLevel.WARNING)


def test_marked_operator_with_one_weight_that_is_data_is_reported():
    def scaled(x, weight, gain):
        return (x @ weight) * gain

    both = ft.register_primitive(
        "test_weight_and_gain", scaled, trainable_invars_fn=lambda params: {"weight": 1, "gain": 2}
    )

    def step(params, state, x):
        v = both.bind(x, params["w"], jnp.tanh(state["v"]))
        return {"v": v}, v

    graph = compiled(step)
    assert DiagnosticKind.TRAINABLE_INVAR_NOT_PARAMSTATE in kinds(graph, DiagnosticLevel.WARNING)
    assert graph.parameters[0].relations


def test_unmarked_weight_beside_marked_ones_is_reported():
    def step(params, state, x):
        v = 0.9 * state["v"] + ft.matmul(x, params["w"]) + x @ params["plain"]
        return {"v": v}, v

    graph = compiled(step, params={"w": W, "plain": W})
    assert DiagnosticKind.RELATION_EXCLUDED_UNMARKED in kinds(graph, DiagnosticLevel.WARNING)
    assert {p.name: p.history.value for p in graph.parameters} == {"w": "all", "plain": "in-step"}
    everything = compiled(step, params={"w": W, "plain": W}, discover="all")
    assert {p.name: p.history.value for p in everything.parameters} == {"w": "all", "plain": "all"}


def test_marked_only_leaves_plain_models_untraced():
    def step(params, state, x):
        v = 0.9 * state["v"] + x @ params["w"]
        return {"v": v}, v

    assert compiled(step, discover="marked").parameters[0].history == "in-step"


def test_unused_parameter_is_reported():
    def step(params, state, x):
        v = 0.9 * state["v"] + x @ params["w"]
        return {"v": v}, v

    graph = compiled(step, params={"w": W, "unused": W})
    (record,) = [r for r in graph.diagnostics if r.kind is DiagnosticKind.PARAMETER_UNUSED]
    assert record.weight_path == ("unused",)


def test_parameter_in_a_nonlinear_mixing_primitive_is_reported():
    def step(params, state, x):
        ordered = jnp.sort(params["w"][0] * 1.0 + 0.0 * jnp.sum(x) + state["v"], axis=-1)
        mixed = jax.lax.linalg.triangular_solve(
            params["a"], jnp.tanh(state["v"])[..., None], left_side=True, lower=True
        )
        return {"v": 0.9 * ordered + mixed[..., 0]}, x

    lower = jnp.broadcast_to(jnp.eye(5) * 2.0, (2, 5, 5))
    graph = compiled(step, params={"w": W, "a": lower})
    by_path = {(r.weight_path, r.kind) for r in graph.diagnostics}
    assert (("a",), DiagnosticKind.RELATION_EXCLUDED_NONLINEAR) in by_path
    assert (("w",), DiagnosticKind.RELATION_EXCLUDED_WEIGHT_TO_WEIGHT) in by_path


def _scattered(buffer, place, row):
    return buffer.at[place].set(row)


def _updated(buffer, place, row):
    return jax.lax.dynamic_update_slice(buffer, row[None], (place, 0, 0))


def _gathered(buffer, place, row):
    return 0.9 * buffer + jnp.tile(row, (4, 1, 1))[(place + jnp.arange(4)) % 4]


@pytest.mark.parametrize("store", [_scattered, _updated, _gathered])
def test_index_by_data_between_a_weight_and_its_state_is_named(store):
    def step(params, state, x):
        place = jnp.argmax(jnp.abs(state["buffer"][:, 0, 0]))
        buffer = store(state["buffer"], place, x @ params["w"])
        return {"buffer": buffer}, buffer

    graph = compiled(step, state={"buffer": jnp.zeros((4, 2, 5))})
    kept = [r for r in graph.diagnostics if r.kind is DiagnosticKind.RELATION_EXCLUDED_INDEX_BY_DATA]
    assert [record.weight_path for record in kept] == [("w",)]
    assert graph.parameters[0].reasons == ("reaches a state only through an index that data decides",)


def test_another_weight_between_a_weight_and_its_state_is_named():
    def step(params, state, x):
        return {"v": 0.9 * state["v"] + (x @ params["first"]) @ params["w"]}, x

    graph = compiled(step, params={"first": jnp.eye(3), "w": W})
    assert graph.parameters[0].reasons == ("reaches a state only through another weight",)


def test_states_of_different_shapes_that_meet_directly_are_reported():
    def step(params, state, x):
        v = 0.9 * state["v"] + x @ params["w"]
        return {"v": v, "sum": 0.9 * state["sum"] + v[:, :1]}, v

    graph = compiled(step, state={**STATE, "sum": jnp.ones((2, 1))})
    assert DiagnosticKind.GROUP_DIRECT_ACROSS_SHAPES in kinds(graph, DiagnosticLevel.WARNING)


def test_packed_state_of_a_plain_function_is_found():
    def step(params, state, x):
        real, imaginary = state["z"][..., 0], state["z"][..., 1]
        drive = x @ params["w"]
        new = [0.9 * real - 0.2 * imaginary + drive, 0.2 * real + 0.9 * imaginary]
        return {"z": jnp.stack(new, axis=-1)}, real

    for shape in [(2, 5, 2), (5, 2)]:
        x = X if len(shape) == 3 else X[0]
        graph = ft.compile_etrace_graph(step, x, params={"w": W}, state={"z": jnp.ones(shape)})
        assert graph.hidden_groups[0].num_state == 2
        assert DiagnosticKind.STATE_PACKED in kinds(graph)
        assert graph.parameters[0].history == "all"


def test_every_record_is_typed():
    graph = compiled(lambda params, state, x: ({"v": 0.9 * state["v"] + x @ params["w"]}, x))
    assert graph.diagnostics
    for record in graph.diagnostics:
        assert isinstance(record.kind, DiagnosticKind)
        assert isinstance(record.level, DiagnosticLevel)


class Filtered(brainstate.nn.Module):
    """A leaky layer behind a filter of its input weights' output, which is not a hidden state."""

    def __init__(self, read: bool) -> None:
        super().__init__()
        self.read = read
        self.w = brainstate.ParamState(W)
        self.v = brainstate.HiddenState(jnp.ones((2, 5)))
        self.filter = brainstate.ShortTermState(jnp.ones((2, 5)))

    def update(self, x):
        drive = x @ self.w.value
        self.filter.value = 0.5 * self.filter.value + drive
        self.v.value = 0.9 * self.v.value + (self.filter.value if self.read else drive)
        return self.v.value


def test_state_that_carries_a_derivative_without_credit_is_reported():
    graph = ft.compile_etrace_graph(Filtered(read=True), X)
    assert DiagnosticKind.STATE_WITHOUT_CREDIT in kinds(graph, DiagnosticLevel.WARNING)
    assert graph.parameters[0].history == "direct"


def test_state_that_is_only_written_needs_no_credit():
    graph = ft.compile_etrace_graph(Filtered(read=False), X)
    assert DiagnosticKind.STATE_WITHOUT_CREDIT not in kinds(graph)
    assert graph.parameters[0].history == "all"
