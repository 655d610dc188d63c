"""The deprecated names of braintrace 0.1: served with a warning, and learning as the names that replaced them do."""

import warnings
from collections.abc import Callable
from typing import Any

import brainstate
import brainunit as u
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from foretrace import compat
from foretrace.ops import is_etp_primitive

NAMES = (
    "MatMulOp ElemWiseOp ConvOp SpMatMulOp LoraOp ETraceOp ETraceParam ElemWiseParam NonTempParam FakeETraceParam "
    "FakeElemWiseParam general_y2w stop_param_gradients"
).split()

X = jax.random.normal(jax.random.key(0), (2, 3))
XS = jax.random.normal(jax.random.key(1), (5, 2, 3))
W = jax.random.normal(jax.random.key(2), (3, 4))
V = jax.random.normal(jax.random.key(3), (4, 4)) / 3
BIAS = jnp.linspace(-1.0, 1.0, 4)
MASK = jnp.arange(12.0).reshape(3, 4) % 3 / 2


def has_mark(function: Callable[..., Any], *args: Any) -> bool:
    return any(is_etp_primitive(eqn.primitive) for eqn in jax.make_jaxpr(function)(*args).eqns)


@pytest.mark.parametrize("name", NAMES)
def test_name_is_served_with_a_warning_that_says_what_to_use(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"`foretrace.{name}` is deprecated: use .* instead") as caught:
        served = getattr(ft, name)
    assert served is getattr(compat, name)
    assert served.__doc__
    assert caught[0].filename == __file__


def test_import_of_a_name_warns_at_the_line_of_the_import() -> None:
    with pytest.warns(DeprecationWarning, match="MatMulOp") as caught:
        from foretrace import MatMulOp  # noqa: F401
    assert {warning.filename for warning in caught} == {__file__}


def test_a_name_that_never_was_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'MatMulOperator'"):
        _ = ft.MatMulOperator  # type: ignore[attr-defined]
    assert not hasattr(ft, "MatMulOperator")


def test_names_are_listed_by_dir_and_not_exported() -> None:
    assert set(NAMES) == set(compat.INSTEAD) < set(compat.__all__)
    assert set(NAMES) < set(dir(ft))
    assert not set(NAMES) & set(ft.__all__)


def test_star_import_warns_of_nothing() -> None:
    names: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec("from foretrace import *", names)
    assert names["compile"] is ft.compile


class Old(brainstate.nn.Module):
    """A network as it was written for 0.1."""

    def __init__(self) -> None:
        super().__init__()
        op = compat.MatMulOp(weight_mask=MASK, weight_fn=jnp.tanh)
        self.inp = compat.ETraceParam({"weight": W, "bias": BIAS}, op)
        self.rec = compat.ETraceParam({"B": V[:, :2], "A": V[:2]}, compat.LoraOp(alpha=0.5))
        self.decay = compat.ElemWiseParam({"raw": BIAS}, lambda tree: jax.nn.sigmoid(tree["raw"]))
        self.gate = compat.NonTempParam({"weight": V}, compat.MatMulOp())
        self.out = compat.NonTempParam(V, lambda h, weight: h @ weight, name="out")
        self.fixed = compat.FakeETraceParam({"weight": V}, compat.MatMulOp())
        self.shift = compat.FakeElemWiseParam(BIAS)

    def init_state(self, batch_size: int, **_: Any) -> None:
        self.h = brainstate.HiddenState(jnp.zeros((batch_size, 4)))

    def update(self, x: Any) -> Any:
        h = self.h.value
        drive = self.inp.execute(x) + self.rec.execute(h) + 0.1 * self.gate.execute(h) + self.shift.execute()
        self.h.value = self.decay.execute() * h + jnp.tanh(drive)
        return self.out.execute(self.h.value) + self.fixed.execute(self.h.value)


class New(Old):
    """The same with today's operators."""

    def update(self, x: Any) -> Any:
        h, inp, rec = self.h.value, self.inp.value, self.rec.value
        drive = ft.matmul(x, inp["weight"], inp["bias"], weight_fn=lambda w: jnp.tanh(w * MASK))
        drive += ft.lora_matmul(h, rec["B"], rec["A"], alpha=0.5) + 0.1 * (h @ self.gate.value["weight"]) + BIAS
        decay = ft.element_wise(jax.nn.sigmoid(self.decay.value["raw"]))
        self.h.value = decay * h + jnp.tanh(drive)
        return self.h.value @ self.out.value + self.h.value @ V


@pytest.fixture(scope="module")
def learners() -> list[Any]:
    return [ft.compile(model(), "D_RTRL", X, batch_size=2) for model in (Old, New)]


def test_old_network_learns_as_the_new_one(learners: list[Any]) -> None:
    def gradient(learner: Any) -> Any:
        return learner.etrace_grad(XS, step_fn=lambda x: jnp.mean(learner(x) ** 2))

    old, new = map(gradient, learners)
    assert set(old) == {("inp",), ("rec",), ("decay",), ("gate",), ("out",)}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14), old, new)
    assert all(jnp.abs(leaf).max() > 0 for leaf in jax.tree.leaves(old))


def test_only_parameters_that_were_traced_have_a_trace(learners: list[Any]) -> None:
    learner = learners[0]
    for name in ("inp", "rec", "decay"):
        assert learner.get_etrace_of(name)
    for name in ("gate", "out"):
        with pytest.raises(ValueError, match=f"`{name}` has no trace"):
            learner.get_etrace_of(name)


def test_constants_are_no_states() -> None:
    for fake in (compat.FakeETraceParam(W, jnp.matmul), compat.FakeElemWiseParam(BIAS, jnp.abs, name="b")):
        assert not isinstance(fake, brainstate.State)
    assert compat.FakeETraceParam(W, jnp.matmul).execute(X).shape == (2, 4)
    assert (compat.FakeElemWiseParam(BIAS, jnp.abs).execute() == jnp.abs(BIAS)).all()


@pytest.mark.parametrize("first", [False, True])
def test_mask_and_function_come_in_the_order_asked_for(first: bool) -> None:
    op = compat.MatMulOp(weight_mask=MASK, weight_fn=lambda w: w + 1, apply_weight_fn_before_mask=first)
    weight = (W + 1) * MASK if first else W * MASK + 1
    found = compat.ETraceParam({"weight": W, "bias": BIAS}, op).execute(X)
    np.testing.assert_allclose(found, X @ weight + BIAS, rtol=1e-12)


LAYOUT = ("NHWC", "HWIO", "NHWC")
IMAGE, KERNEL = jnp.ones((2, 5, 5, 3)), jnp.arange(108.0).reshape(3, 3, 3, 4)
CONV = compat.ConvOp(
    jax.ShapeDtypeStruct((5, 5, 3), IMAGE.dtype), (2, 2), "SAME", dimension_numbers=LAYOUT, weight_fn=jnp.sin
)
COO = u.sparse.COO.fromdense(MASK)
CALLS: dict[str, tuple[Any, Any, Any, Any]] = {
    "MatMulOp": (compat.MatMulOp(), X, {"weight": W}, lambda: X @ W),
    "ConvOp": (
        CONV,
        IMAGE,
        {"weight": KERNEL, "bias": BIAS},
        lambda: ft.conv(IMAGE, jnp.sin(KERNEL), BIAS, strides=(2, 2), dimension_numbers=LAYOUT),
    ),
    "ConvOp of a sample": (
        CONV,
        IMAGE[0],
        {"weight": KERNEL},
        lambda: ft.conv(IMAGE, jnp.sin(KERNEL), strides=(2, 2), dimension_numbers=LAYOUT)[0],
    ),
    "SpMatMulOp": (
        compat.SpMatMulOp(COO, weight_fn=jnp.exp),
        X,
        {"weight": COO.data, "bias": BIAS},
        lambda: X @ jnp.where(MASK > 0, jnp.exp(MASK), 0) + BIAS,
    ),
    "LoraOp": (compat.LoraOp(), X, {"B": W[:, :1], "A": V[:1]}, lambda: X @ W[:, :1] @ V[:1]),
}


@pytest.mark.parametrize("name", CALLS)
def test_operator_computes_its_function_with_a_mark_and_without(name: str) -> None:
    op, x, weights, wanted = CALLS[name]
    np.testing.assert_allclose(op(x, weights), wanted(), rtol=1e-10)
    np.testing.assert_allclose(op.raw_xw_to_y(x, weights), wanted(), rtol=1e-10)
    assert has_mark(op, x, weights)
    assert has_mark(lambda x: compat.ETraceParam(weights, op).execute(x), x)
    assert not has_mark(op.raw_xw_to_y, x, weights)
    assert not has_mark(lambda x: compat.NonTempParam(weights, op).execute(x), x)


def test_elementwise_operator_takes_weights_alone() -> None:
    op = compat.ElemWiseOp(lambda w: 2 * w)
    assert op.is_diagonal
    assert not compat.MatMulOp().is_diagonal
    assert (op(BIAS) == 2 * BIAS).all()
    assert has_mark(op, BIAS)
    assert (compat.ElemWiseParam(BIAS, op).execute() == 2 * BIAS).all()
    assert (compat.ETraceParam(BIAS, op).execute(None) == 2 * BIAS).all()


@pytest.mark.parametrize(("stop", "is_marked"), [(True, True), (False, True), (True, False)])
def test_derivatives_of_marked_operators_can_be_kept_away(stop: bool, is_marked: bool) -> None:
    op = compat.MatMulOp()
    call = op if is_marked else op.raw_xw_to_y

    def total(weight: Any, x: Any) -> Any:
        with compat.stop_param_gradients(), compat.stop_param_gradients(stop):
            return call(x, {"weight": weight}).sum()

    gradients = jax.grad(total, argnums=(0, 1))(W, X)
    assert [bool(g.any()) for g in gradients] == [not (stop and is_marked)] * 2


def test_value_is_spread_over_weights() -> None:
    y, weights = jnp.array([1.0, 10.0]), {"weight": jnp.ones((3, 2)) * u.ms, "bias": jnp.ones(2) * u.ms}
    found = compat.general_y2w(lambda x, w: (x**2 + 3) @ w["weight"] + w["bias"], jnp.arange(3.0), y, weights)
    np.testing.assert_allclose(found["weight"].to_decimal(u.ms), [[4.0, 40.0]] * 3)  # at x = 1
    np.testing.assert_allclose(found["bias"].to_decimal(u.ms), y)
    with pytest.raises(ValueError, match=r"gives shape \(2,\), but `y` has \(3,\)"):
        compat.general_y2w(jnp.matmul, jnp.ones(3), jnp.ones(3), jnp.ones((3, 2)))


def test_units_pass_through() -> None:
    found = compat.ETraceParam({"weight": W * u.mS}, compat.MatMulOp(weight_mask=MASK)).execute(X * u.mV)
    assert u.get_unit(found) == u.mS * u.mV
    assert u.get_unit(compat.ElemWiseParam(BIAS * u.mV).execute()) == u.mV


def test_derivative_by_the_weights() -> None:
    weights, cotangent = {"weight": W, "bias": BIAS}, jnp.ones((2, 4))
    found = compat.MatMulOp().xy_to_dw(X, cotangent, weights)
    np.testing.assert_allclose(found["weight"], X.T @ cotangent, rtol=1e-12)
    np.testing.assert_allclose(found["bias"], [2.0] * 4)


class Own(compat.ETraceOp):
    """An operator of a user's own, in plain JAX."""

    def xw_to_y(self, inputs: Any, weights: Any) -> Any:
        return 0.5 * (inputs @ weights["weight"]) + weights["bias"]


class Several(compat.ETraceOp):
    """An operator with more data than one array."""

    def xw_to_y(self, inputs: Any, weights: Any) -> Any:
        return (inputs[0] + inputs[1]) @ weights


class OwnNet(brainstate.nn.Module):
    def __init__(self, op: Any) -> None:
        super().__init__()
        self.inp = compat.ETraceParam({"weight": W, "bias": BIAS}, op)

    def init_state(self, **_: Any) -> None:
        self.h = brainstate.HiddenState(jnp.zeros((2, 4)))

    def update(self, x: Any) -> Any:
        self.h.value = 0.9 * self.h.value + jnp.tanh(self.inp.execute(x))
        return self.h.value


class Halved(compat.MatMulOp):
    def __init__(self) -> None:
        super().__init__(weight_fn=lambda w: 0.5 * w)


def test_operator_of_ones_own_is_marked_and_learns() -> None:
    assert has_mark(Own(), X, {"weight": W, "bias": BIAS})
    own, known = (ft.compile(OwnNet(op), "D_RTRL", X) for op in (Own(), Halved()))
    found, wanted = (
        learner.etrace_grad(XS, step_fn=lambda x, learner=learner: jnp.mean(learner(x) ** 2))
        for learner in (own, known)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), found, wanted)


def test_operator_of_ones_own_under_vmap_and_with_units() -> None:
    op = Own(name="own")
    weights = {"weight": W, "bias": BIAS}
    np.testing.assert_allclose(jax.vmap(lambda x: op(x, weights))(X), 0.5 * X @ W + BIAS, rtol=1e-12)
    found = op(X * u.mV, {"weight": W, "bias": BIAS * u.mV})
    assert u.get_unit(found) == u.mV


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: compat.ETraceParam(W, jnp.matmul), TypeError, "takes an `ETraceOp` such as `MatMulOp"),
        (lambda: compat.ETraceParam(W, compat.MatMulOp(), grad="some"), ValueError, "'full', 'approx', 'adaptive'"),
        (lambda: compat.MatMulOp(weight_fn=3), TypeError, "`weight_fn` is a function; got int"),
        (lambda: compat.MatMulOp()(X, W), TypeError, "MatMulOp takes weights as a dict with 'weight'"),
        (lambda: compat.LoraOp()(X, {"A": W}), TypeError, r"'B', 'A', and maybe 'bias'; got the keys \['A'\]"),
        (lambda: compat.ETraceOp()(X, W), NotImplementedError, "ETraceOp does not say what it computes"),
        (lambda: Several()((X, X), W), ft.NotSupportedError, "Several takes 2 arrays of data and returns 1"),
        (lambda: compat.NonTempParam(W, "op"), TypeError, "`op` is a function; got str"),
    ],
)
def test_mistakes_are_named(make: Callable[[], Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_what_a_parameter_is_told_is_kept() -> None:
    op = compat.MatMulOp()
    param = compat.ETraceParam({"weight": W}, op, "full", "mine")
    assert isinstance(param, brainstate.ParamState)
    assert (param.op, param.gradient, param.name, param.is_etrace) == (op, "full", "mine", True)
    assert compat.NonTempParam(W, jnp.matmul, "name", dtype=None).name == "name"
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what was served once works without a word
        param.execute(X)
