"""The weight layers: what they compute, how they are made, and that their online gradients are those of BPTT."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import brainevent
import brainstate
import brainunit as u
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from foretrace.nn.conv import Conv1d, Conv2d, Conv3d
from foretrace.nn.embedding import Embedding
from foretrace.nn.linear import GroupedLinear, Linear, LoRA, ScaledWSLinear, SignedWLinear, SparseLinear
from learners.nets import assert_close
from nn.layers import CASES, CSR, DENSE, MASK, ROWS, Case

STEPS, BATCH = 4, 2


def some(*names: str) -> Any:
    """Runs a test for these cases, and for the others among the slow ones."""
    marks = {name: [] if name in names else [pytest.mark.slow] for name in CASES}
    return pytest.mark.parametrize("case", [pytest.param(CASES[name], id=name, marks=marks[name]) for name in CASES])


class Leaky(brainstate.nn.Module):
    """A layer in front of a leaky state: no mixing in time, so that D-RTRL is exact."""

    def __init__(self, layer: Any, x: Any) -> None:
        super().__init__()
        self.layer, self.like = layer, jax.eval_shape(layer, x)

    def init_state(self, *_: Any, **__: Any) -> None:
        self.h = brainstate.HiddenState(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), self.like))

    def update(self, x: Any) -> Any:
        self.h.value = 0.9 * self.h.value + self.layer(x)
        return jnp.tanh(u.get_mantissa(self.h.value))


@functools.cache
def learner_of(case: Case) -> tuple[Leaky, Any, Any]:
    """The net with a layer, its learner, and a sequence for it."""
    xs = case.inputs(STEPS, BATCH)
    net = Leaky(case.build(), xs[0])
    return net, ft.compile(net, "D_RTRL", xs[0]), xs


def gradients(net: Leaky, learner: Any, xs: Any) -> tuple[Any, Any]:
    """By traces and through time, of the summed losses."""
    weights = jnp.linspace(0.5, 1.0, net.like.size).reshape(net.like.shape)
    loss = lambda model, x: jnp.sum(weights * model(x))
    online = learner.etrace_grad(xs, step_fn=lambda x: loss(learner, x), reduction="sum")
    brainstate.nn.init_all_states(net)
    total = lambda: jnp.sum(brainstate.transform.for_loop(lambda x: loss(net, x), xs))
    states = net.states(brainstate.ParamState)
    return online, brainstate.transform.jit(lambda: brainstate.transform.grad(total, states)())()


def leaves(layer: Any) -> list[Any]:
    """The arrays of all parameters, in the order of their paths."""
    return jax.tree.leaves({path: state.value for path, state in layer.states().items()})


@functools.cache
def expected(case: Case) -> Any:
    """What the reference says of six samples."""
    layer, xs = case.build(), case.inputs(6)
    if case.reference is not None:
        return case.reference(jax.tree.map(np.asarray, layer.weight.value), xs)
    twin = case.twin()
    twin.weight.value = layer.weight.value
    return twin(xs)


@functools.cache
def outputs(case: Case) -> dict[str, Any]:
    """The layer's own, compiled together: six samples in two axes, three in one, one alone, and three mapped."""
    layer = case.build()
    call = lambda xs: {"two_axes": layer(xs), "batch": layer(xs[0]), "alone": layer(xs[0, 0]), "mapped": over(xs[0])}
    over = jax.vmap(layer)
    return jax.jit(call)(case.inputs(2, 3))


@pytest.mark.parametrize(("way", "first"), {"two_axes": (), "batch": (0,), "alone": (0, 0), "mapped": (0,)}.items())
@some(*(name for name in CASES if name != "sparse_csc"))
def test_output(case: Case, way: str, first: tuple[int, ...]) -> None:
    found = outputs(case)[way]
    wanted = expected(case).reshape(outputs(case)["two_axes"].shape)[first]
    assert u.get_unit(found) == u.get_unit(wanted)
    assert_close(jnp.asarray(u.get_mantissa(found)), jnp.asarray(u.get_mantissa(wanted)), 1e-12)


TRACED = "linear_with_units signed_several_axes standardised sparse_coo lora_on_a_base grouped".split()


@some(*TRACED, "embedding_by_frequency", "conv1d")
def test_gradient_is_that_of_bptt(case: Case) -> None:
    assert_close(*gradients(*learner_of(case)))


@some(*TRACED, "embedding_by_frequency", "conv1d")
def test_report_says_that_history_is_whole(case: Case) -> None:
    _, learner, _ = learner_of(case)
    assert {parameter.history for parameter in learner.report.parameters} == {"all"}


DEFAULTS = [
    (Linear, (3, 4), {}),
    (SignedWLinear, (3, 4), {}),
    (ScaledWSLinear, (3, 4), {}),
    (LoRA, (3, 2, 4), {}),
    (Embedding, (ROWS, 3), {"padding_idx": 1}),
    (Conv2d, ((2, 4, 5), 3, 2), {"channel_first": True, "b_init": brainstate.nn.init.Normal()}),
]


@pytest.mark.parametrize(("make", "args", "options"), DEFAULTS, ids=[make.__name__ for make, _, _ in DEFAULTS])
def test_starts_as_brainstates_from_the_same_seed(make: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    made = []
    for one in (make, getattr(brainstate.nn, make.__name__)):
        brainstate.random.seed(0)
        made.append(one(*args, **options))
    assert_close(made[0].weight.value, made[1].weight.value, 0.0)
    assert (made[0].in_size, made[0].out_size) == (made[1].in_size, made[1].out_size)


@some("linear_with_units", "signed", "standardised", "sparse_coo", "lora_on_a_base", "grouped", "embedding", "conv1d")
def test_parameters_are_saved_and_restored(case: Case, tmp_path: Path) -> None:
    saved, fresh, xs = case.build(), case.build(seed=8), case.inputs(2)
    np.savez(tmp_path / "weights.npz", *leaves(saved))
    with np.load(tmp_path / "weights.npz") as file:
        values = iter([file[name] for name in file.files])
    for state in fresh.states().values():
        state.value = jax.tree.map(lambda _: jnp.asarray(next(values)), state.value)
    assert_close(fresh(xs), saved(xs), 0.0)


def of_embedding(make: type, options: dict[str, Any]) -> Any:
    """The gradient of a call that reads some rows twice."""
    brainstate.random.seed(0)
    layer, indices = make(ROWS, 3, **options), jnp.array([[1, 3], [3, 0], [3, -1]])
    loss = lambda: jnp.sum(jnp.sin(layer(indices)) * jnp.arange(18.0).reshape(3, 2, 3))
    return brainstate.transform.grad(brainstate.transform.jit(loss), layer.weight)()


OPTIONS: list[dict[str, Any]] = [
    {"padding_idx": 3},
    {"max_norm": 0.3},
    {"scale_grad_by_freq": True, "padding_idx": 0},
    {"freeze": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "_".join(options))
def test_embedding_learns_as_brainstates(options: dict[str, Any]) -> None:
    assert_close(of_embedding(Embedding, options), of_embedding(brainstate.nn.Embedding, options), 1e-12)


def test_row_of_the_padding_starts_at_zero_and_stays() -> None:
    layer = Embedding(ROWS, 3, padding_idx=2, max_norm=1.0)
    assert not layer.weight.value[2].any()
    assert not of_embedding(Embedding, {"padding_idx": 3})[3].any()


def test_index_outside_the_table_is_nan() -> None:
    assert jnp.isnan(Embedding(ROWS, 3)(jnp.array(ROWS))).all()


def test_pretrained_table_is_read_and_frozen() -> None:
    table = jnp.arange(6.0).reshape(3, 2)
    layer = Embedding.from_pretrained(table)
    assert_close(layer(jnp.array([2, 0])), table[jnp.array([2, 0])])
    assert isinstance(layer, Embedding)
    assert layer.freeze


def test_frozen_table_keeps_no_trace() -> None:
    case = Case(Embedding, (ROWS, 3), {"freeze": True})
    _, learner, _ = learner_of(case)
    assert [parameter.history for parameter in learner.report.parameters] == ["none-needed"]
    assert not jax.tree.leaves(learner.etrace.value)


def test_unmarked_base_is_reported() -> None:
    case = Case(lambda: LoRA(3, 2, 4, base_module=brainstate.nn.Linear(3, 4)), (), {}, (3,))
    _, learner, _ = learner_of(case)
    history = {parameter.name: parameter.history for parameter in learner.report.parameters}
    assert history["layer.weight.lora_a"] == "all"
    assert history["layer.base_module.weight.weight"] == "in-step"


def test_base_of_lora_stays_out_where_it_is_not_asked_for() -> None:
    net, learner, xs = learner_of(CASES["lora_on_a_base"])
    step = lambda x: jnp.sum(learner(x))
    assert list(learner.etrace_grad(xs, step_fn=step, weights=[net.layer.weight])) == [("layer", "weight")]


def test_events_give_the_product_with_ones() -> None:
    layer, spikes = SparseLinear(CSR), jnp.array([True, False, True, True])
    assert_close(layer(brainevent.BinaryArray(spikes)), spikes @ DENSE)


def test_groups_start_as_single_layers_do() -> None:
    brainstate.random.seed(0)
    weights = GroupedLinear(50, 8, 20).weight.value["weight"]
    np.testing.assert_allclose(weights.std(axis=(1, 2)), np.sqrt(2 / 8), rtol=0.25)
    np.testing.assert_allclose(weights.std(), np.sqrt(2 / 8), rtol=0.02)


def test_number_fills_the_parameter() -> None:
    params = Linear(3, 4, w_init=2, b_init=np.array([1])).weight.value
    assert_close(params, {"weight": jnp.full((3, 4), 2.0), "bias": jnp.ones(4)})


def test_kind_of_state_is_the_users() -> None:
    class Own(brainstate.ParamState):
        pass

    names = "linear signed standardised sparse_csr lora grouped embedding conv1d conv2d conv3d".split()
    made = [dataclasses.replace(CASES[name], options={"param_type": Own}).build() for name in names]
    assert {type(layer.weight) for layer in made} == {Own}


ERRORS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "sizes": (lambda: Linear((2, 3), (3, 4)), ValueError, r"Linear: `in_size` \(2, 3\) and `out_size` \(3, 4\)"),
    "fraction": (lambda: Linear(3.0, 4), TypeError, "Linear: `in_size` must be a positive number.*3.0"),
    "zero": (lambda: SignedWLinear(3, 0), ValueError, "SignedWLinear: `out_size` must be positive, got 0"),
    "mask": (lambda: Linear(3, 4, w_mask=MASK.T), ValueError, r"Linear: `w_mask` of shape \(4, 3\).*\(3, 4\)"),
    "sign": (lambda: SignedWLinear(3, 4, w_sign=np.ones(3)), ValueError, r"SignedWLinear: `w_sign` of shape \(3,\)"),
    "weight": (lambda: ScaledWSLinear(3, 4, w_init=np.ones((4, 3))), ValueError, "ScaledWSLinear: `w_init` of shape"),
    "no_weight": (lambda: Linear(3, 4, w_init=None), TypeError, "Linear: `w_init` must be an initialiser.*None"),
    "text": (lambda: Linear(3, 4, b_init="zeros"), TypeError, "Linear: `b_init` must be an array"),
    "data": (lambda: Linear(3, 4)(jnp.ones(4)), ValueError, r"matmul: `x` of shape \(4,\)"),
    "dense": (lambda: SparseLinear(DENSE), TypeError, "SparseLinear: `spar_mat` must be a sparse matrix.*ndarray"),
    "integers": (
        lambda: SparseLinear(brainevent.CSR.fromdense(jnp.eye(3, dtype=int))),
        TypeError,
        "SparseLinear: the values of `spar_mat`.*int64",
    ),
    "rows": (lambda: SparseLinear(CSR, in_size=3), ValueError, r"SparseLinear: `in_size` \(3,\) does not end with 4"),
    "base": (lambda: LoRA(3, 2, 4, base_module=5), TypeError, "LoRA: `base_module` must be a module.*5"),
    "kernel": (lambda: LoRA(3, 2, 4, kernel_init=0.1), TypeError, "LoRA: `kernel_init` must be an initialiser.*0.1"),
    "rank": (lambda: LoRA(3, 0, 4), ValueError, "LoRA: `lora_rank` must be positive, got 0"),
    "features": (lambda: LoRA(3, 2, 4, in_size=(2, 5)), ValueError, r"LoRA: `in_size` \(2, 5\).*`in_features`, 3"),
    "groups": (
        lambda: GroupedLinear(2.5, 3, 4),
        TypeError,
        "GroupedLinear: `num_groups` must be.*whole number, got 2.5",
    ),
    "group_data": (lambda: GroupedLinear(2, 3, 4)(jnp.ones(6)), ValueError, r"grouped_matmul: `x` of shape \(6,\)"),
    "padding_row": (lambda: Embedding(5, 3, padding_idx=5), ValueError, "Embedding: `padding_idx` must be.*4, got 5"),
    "norm": (lambda: Embedding(5, 3, max_norm=0.0), ValueError, "Embedding: `max_norm` must be positive.*0.0"),
    "indices": (lambda: Embedding(5, 3)(jnp.ones(2)), TypeError, "embedding: `indices` must be integers"),
    "channels": (lambda: Conv2d((4, 4, 3), 4, 3, groups=2), ValueError, r'"in_channels" \(3\)'),
    "space": (lambda: Conv1d((4, 4, 3), 4, 3), ValueError, "in_size must have 2 entries"),
    "stride": (lambda: Conv3d((4, 4, 4, 3), 4, 3, stride=0), ValueError, "Conv3d: `stride` must be positive, got 0"),
    "kernel_mask": (lambda: Conv1d((4, 3), 4, 3, w_mask=np.ones(3)), ValueError, r"Conv1d: `w_mask` of shape \(3,\)"),
    "image": (lambda: Conv1d((4, 3), 4, 3)(jnp.ones((3, 4))), ValueError, r"Conv1d: the input of shape \(3, 4\)"),
    "units": (
        lambda: Linear(3, 4, w_init=0.3 * u.mS)(jnp.ones(3) * u.mV) + Linear(3, 4, b_init=1.0 * u.mV)(jnp.ones(3)),
        ValueError,
        "matmul: `bias` is in",
    ),
}


@pytest.mark.parametrize(("call", "error", "words"), ERRORS.values(), ids=ERRORS)
def test_bad_argument_is_named(call: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
