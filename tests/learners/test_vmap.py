"""A model for one sample, mapped over a batch, is the batched model and the sum over its samples."""

from collections.abc import Callable
from typing import Any

import brainpy
import brainstate
import brainunit as u
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from brainstate import HiddenState, ParamState
from braintools.init import Constant
from braintools.surrogate import Sigmoid

import foretrace as ft

from .nets import BATCH, HIDDEN, INPUT, MASK, OUT, STEPS, XS, YS, Net, assert_close, squared

_random = np.random.default_rng(5)
WORDS = jnp.asarray(_random.integers(0, 6, size=(STEPS, BATCH)))
IMAGES = jnp.asarray(_random.normal(size=(STEPS, BATCH, 4, 4, 1)))
MODULATORS = jnp.asarray(_random.normal(size=(STEPS, BATCH)))


class Gru(brainstate.nn.Module):
    """A GRU and a linear readout."""

    def __init__(self) -> None:
        super().__init__()
        brainstate.random.seed(1)
        self.cell, self.read = brainstate.nn.GRUCell(INPUT, HIDDEN), brainstate.nn.Linear(HIDDEN, OUT)

    def update(self, x: Any) -> Any:
        return self.read(self.cell(x))


class Spiking(brainstate.nn.Module):
    """Recurrent LIF neurons with units, and a leaky readout."""

    def __init__(self) -> None:
        super().__init__()
        brainstate.random.seed(2)
        self.given, self.recurrent = brainstate.nn.Linear(INPUT, HIDDEN), brainstate.nn.Linear(HIDDEN, HIDDEN)
        scales = dict(R=1.0 * u.ohm, tau=5.0 * u.ms, V_th=1.0 * u.mV, V_reset=0.0 * u.mV, V_rest=0.0 * u.mV)
        self.neurons = brainpy.state.LIF(HIDDEN, V_initializer=Constant(0.5 * u.mV), spk_fun=Sigmoid(), **scales)
        self.read = ParamState(jnp.asarray(np.random.default_rng(4).normal(size=(HIDDEN, OUT))))

    def init_state(self, batch_size: int | None = None, **_: Any) -> None:
        self.out = HiddenState(jnp.zeros((OUT,) if batch_size is None else (batch_size, OUT)))

    def update(self, x: Any) -> Any:
        with brainstate.environ.context(dt=1.0 * u.ms):
            self.neurons(3.0 * (self.given(x) + self.recurrent(self.neurons.get_spike())) * u.mA)
        self.out.value = 0.8 * self.out.value + self.neurons.get_spike() @ self.read.value
        return self.out.value


class Conv(brainstate.nn.Module):
    """A convolution into leaky units, read out by a sum over the picture."""

    def __init__(self) -> None:
        super().__init__()
        brainstate.random.seed(3)
        self.conv = brainstate.nn.Conv2d((4, 4, 1), OUT, 3)

    def init_state(self, batch_size: int | None = None, **_: Any) -> None:
        self.h = HiddenState(jnp.zeros((4, 4, OUT) if batch_size is None else (batch_size, 4, 4, OUT)))

    def update(self, x: Any) -> Any:
        self.h.value = jnp.tanh(0.7 * self.h.value + self.conv(x))
        return jnp.sum(self.h.value, axis=(-3, -2))


class Words(Net):
    """An embedding into the plain net."""

    def __init__(self) -> None:
        super().__init__()
        brainstate.random.seed(4)
        self.words = brainstate.nn.Embedding(6, INPUT)

    def update(self, x: Any) -> Any:
        return super().update(self.words(x))


MODELS: dict[str, tuple[Callable[[], Any], Any]] = {
    "plain": (Net, XS),
    "gru": (Gru, XS),
    "spiking": (Spiking, XS),
    "conv": (Conv, IMAGES),
    "words": (Words, WORDS),
}
RULES: dict[str, tuple[Any, dict[str, Any]]] = {
    "D_RTRL": ("D_RTRL", {}),
    "pp_prop": ("pp_prop", dict(decay_or_rank=0.8)),
    "e-prop": ("e_prop", dict(kappa_filter_decay=0.5)),
    "random e-prop": ("e_prop", dict(feedback="random", random_feedback_key=jax.random.key(0))),
    "SnAp": ("snap", {}),
    "hybrid": ("hybrid", dict(decay_or_rank=0.8)),
    "OSTLRecurrent": ("ostl_recurrent", {}),
    "OSTLFeedforward": ("ostl_feedforward", {}),
    "OTTT": ("ottt", dict(leak=0.7)),
    "OTPE": ("otpe", dict(leak=0.7)),
    "RTRL": ("rtrl", {}),
    "exact": ("D_RTRL", dict(vjp_method="multi-step")),
}
QUICK = [("gru", "D_RTRL"), ("plain", "pp_prop"), ("spiking", "random e-prop"), ("conv", "D_RTRL"), ("words", "SnAp")]


def gradient(learner: Any, xs: Any, ys: Any, **options: Any) -> Any:
    """What a user writes, whatever the learner: the gradient of the losses, summed over time and batch."""
    options = dict(reduction="sum") | options
    return learner.etrace_grad(xs, ys, step_fn=lambda x, y: squared(learner(x), y), **options)


def mapped(model: str, rule: str = "D_RTRL", **more: Any) -> Any:
    """The learner of a model for one sample, mapped over the batch."""
    make, xs = MODELS[model]
    name, options = RULES[rule]
    return ft.compile(make(), name, xs[0], batch_size=BATCH, vmap=True, **options, **more)


def batched(model: str, rule: str = "D_RTRL", **more: Any) -> Any:
    """The learner of a model with a batch axis."""
    make, xs = MODELS[model]
    name, options = RULES[rule]
    return ft.compile(make(), name, xs[0], batch_size=BATCH, **options, **more)


def summed(model: str, rule: str) -> Any:
    """The gradient as a sum over a learner for each sample."""
    make, xs = MODELS[model]
    name, options = RULES[rule]
    learner = ft.compile(make(), name, xs[0, 0], **options)
    one = brainstate.transform.jit(lambda xs, ys: gradient(learner, xs, ys))
    begin = {path: state.value for path, state in learner.states().items()}
    each = []
    for k in range(BATCH):
        for path, state in learner.states().items():
            state.value = begin[path]
        each.append(one(xs[:, k], YS[:, k]))
    return jax.tree.map(lambda *parts: sum(parts), *each)


def manual(wrap: Any, learner_class: Any = ft.D_RTRL, **options: Any) -> tuple[Any, Any]:
    """A learner whose states were made under `vmap_new_states`, and the module that maps it."""
    net = Net()
    learner = learner_class(net, **options)

    @brainstate.transform.vmap_new_states(state_tag="new", axis_size=BATCH)
    def init() -> None:
        brainstate.nn.init_all_states(net)
        learner.compile_graph(XS[0, 0])

    init()
    return learner, wrap(learner, vmap_states="new")


@pytest.fixture(scope="module")
def wanted() -> Any:
    return gradient(batched("plain"), XS, YS)


@pytest.mark.parametrize(("model", "rule"), QUICK)
def test_map_is_the_sum_over_samples(model: str, rule: str) -> None:
    found = gradient(mapped(model, rule), MODELS[model][1], YS)
    assert_close(found, summed(model, rule))
    assert max(float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree.leaves(found)) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("model", MODELS)
def test_map_is_the_batched_model_and_the_sum_over_samples(model: str, rule: str) -> None:
    found = gradient(mapped(model, rule), MODELS[model][1], YS)
    assert_close(found, gradient(batched(model, rule), MODELS[model][1], YS))
    assert_close(found, summed(model, rule))


def test_map_is_the_batched_model(wanted: Any) -> None:
    assert_close(gradient(mapped("plain"), XS, YS), wanted)


@pytest.mark.slow
def test_random_projections_are_those_of_the_batched_model() -> None:
    options = dict(batch_size=BATCH, projection_key=3)
    found = gradient(ft.compile(Net(), "uoro", XS[0], vmap=True, **options), XS, YS)
    assert_close(found, gradient(ft.compile(Net(), "uoro", XS[0], **options), XS, YS))


def test_modulator_of_each_sample() -> None:
    def reinforced(learner: Any, xs: Any, modulators: Any) -> Any:
        step = lambda x, m: 0.0 * jnp.sum(learner(x, modulator=m))
        return learner.etrace_grad(xs, modulators, step_fn=step, reduction="sum")

    options = dict(batch_size=BATCH)
    found = reinforced(ft.compile(Net(), "three_factor", XS[0], vmap=True, **options), XS, MODULATORS)
    each = [reinforced(ft.compile(Net(), "three_factor", XS[0, 0]), XS[:, k], MODULATORS[:, k]) for k in range(BATCH)]
    assert_close(found, jax.tree.map(jnp.add, *each))
    assert float(jnp.max(jnp.abs(found[("u",)]))) > 1e-3


def test_what_a_rule_offers_is_that_of_the_module() -> None:
    learner = ft.compile(Net(), "three_factor", XS[0], batch_size=BATCH, vmap=True)
    learner.modulator = MODULATORS[0]
    assert learner.module.modulator is learner.modulator
    held = {name: value for name, value in vars(learner.module).items() if name not in vars(learner)}
    assert {"rule", "etrace", "_executor", "model"} <= set(held)
    assert all(getattr(learner, name) is value for name, value in held.items())
    with pytest.raises(AttributeError, match="synthesizer"):
        _ = learner.synthesizer


def test_states_and_traces_have_the_batch_axis() -> None:
    one, two = mapped("plain"), batched("plain")
    outputs = one.etrace_evolve(XS, return_outputs=True)
    assert_close(outputs, two.etrace_evolve(XS, return_outputs=True))
    assert_close(one.model.h.value, two.model.h.value)
    assert_close(one.get_etrace_of("u"), two.get_etrace_of("u"))
    assert one.model.h.value.shape == (BATCH, HIDDEN)
    assert str(one.report) == str(two.report)


def test_module_inside_is_the_same_learner(wanted: Any) -> None:
    learner = mapped("plain")
    assert isinstance(learner, brainstate.nn.Vmap)
    assert isinstance(learner.module, ft.ParamDimVjpAlgorithm)
    found = learner.etrace_grad(XS, YS, step_fn=lambda x, y: squared(learner.module(x), y), reduction="sum")
    assert_close(found, wanted)
    assert learner.module.graph is learner.graph
    assert_close(learner.module.get_etrace_of(learner.model.u), learner.get_etrace_of("u"))


def test_options_of_a_sequence() -> None:
    options = dict(mask=MASK, chunk_size=3, reduction="mean", return_value=True, loss_output="masked")
    assert_close(gradient(mapped("plain"), XS, YS, **options), gradient(batched("plain"), XS, YS, **options))


def stepwise(learner: Any, weights: Any) -> Any:
    """The same gradient by brainstate's `grad` around a loop over calls."""
    total = lambda: jnp.sum(brainstate.transform.for_loop(lambda x, y: squared(learner(x), y), XS, YS))
    return brainstate.transform.jit(lambda: brainstate.transform.grad(total, weights)())()


@pytest.mark.parametrize("wrap", [brainstate.nn.Vmap, ft.ETraceVmap])
def test_mapping_by_hand(wrap: Any, wanted: Any) -> None:
    learner, called = manual(wrap)
    assert_close(stepwise(called, learner.param_states), wanted)
    assert bool(jnp.any(jax.tree.leaves(learner.etrace.value)[0]))


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["pp_prop", "random e-prop", "SnAp", "RTRL", "hybrid", "OTPE", "exact"])
@pytest.mark.parametrize("wrap", [brainstate.nn.Vmap, ft.ETraceVmap])
def test_mapping_by_hand_of_other_rules(wrap: Any, rule: str) -> None:
    same = batched("plain", rule)
    learner, called = manual(wrap, type(same.rule), **RULES[rule][1])
    assert_close(stepwise(called, learner.param_states), stepwise(same, same.param_states))


def test_calls_under_grad(wanted: Any) -> None:
    learner = mapped("plain")
    assert_close(stepwise(learner, learner.param_states), wanted)


def test_many_steps_at_once(wanted: Any) -> None:
    learner = mapped("plain")
    loss = lambda: squared(learner(ft.MultiStepData(XS)), YS)
    assert_close(brainstate.transform.grad(loss, learner.param_states)(), wanted)


def test_mapping_by_hand_drives_sequences(wanted: Any) -> None:
    _, called = manual(ft.ETraceVmap)
    assert_close(gradient(called, XS, YS), wanted)


def test_mapping_inside_of_jit_is_made_anew_at_every_trace(wanted: Any) -> None:
    net = Net()
    learner = ft.D_RTRL(net)

    @brainstate.transform.jit
    def whole(xs: Any, ys: Any) -> Any:
        @brainstate.transform.vmap_new_states(state_tag="new", axis_size=xs.shape[1])
        def init() -> None:
            brainstate.nn.init_all_states(net)
            learner.compile_graph(xs[0, 0])

        init()
        return gradient(ft.ETraceVmap(learner, vmap_states="new"), xs, ys)

    whole(XS[:2], YS[:2])
    assert_close(whole(XS, YS), wanted)


def test_axes_of_inputs_and_outputs(wanted: Any) -> None:
    learner, _ = manual(brainstate.nn.Vmap)
    turned = ft.ETraceVmap(learner, in_axes=1, out_axes=1)  # the states are found by their shapes
    assert_close(gradient(turned, jnp.swapaxes(XS, 1, 2), jnp.swapaxes(YS, 1, 2)), wanted)


def test_learning_on_the_way() -> None:
    learners = [mapped("plain"), batched("plain")]
    for learner in learners:
        learner.etrace_train(
            XS, YS, step_fn=lambda x, y, run=learner: squared(run(x), y), optimizer=optax.sgd(1e-2), update_every=3
        )
    assert_close(*[{path: s.value for path, s in learner.param_states.items()} for learner in learners])


def test_begins_anew_by_the_call_of_a_batched_model(wanted: Any) -> None:
    learner = mapped("plain")
    learner(XS[3])
    brainstate.nn.init_all_states(learner.model, batch_size=BATCH)
    learner.reset_state()
    assert_close(gradient(learner, XS, YS), wanted)


def test_another_batch() -> None:
    learner = mapped("plain")
    brainstate.nn.vmap_init_all_states(learner.model, axis_size=1)
    learner.reset_state(batch_size=1)
    assert_close(learner(XS[0, :1]), mapped("plain")(XS[0])[:1])


class Dropping(Net):
    """A net whose outputs are dropped at random."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = brainstate.nn.Dropout(0.5)

    def update(self, x: Any) -> Any:
        return self.drop(super().update(x))


def test_every_sample_draws_its_own_numbers() -> None:
    plain, net = Dropping(), Dropping()
    brainstate.nn.vmap_init_all_states(plain, axis_size=BATCH, state_tag="new")
    by_brainstate = brainstate.nn.Vmap(plain, vmap_states="new")
    same = jnp.broadcast_to(XS[:1, :1], XS.shape)
    with brainstate.environ.context(fit=True):
        learner = ft.compile(net, "D_RTRL", XS[0], batch_size=BATCH, vmap=True)
        brainstate.random.seed(11)
        found = learner.etrace_evolve(same, return_outputs=True)
        brainstate.random.seed(11)
        assert_close(found, brainstate.transform.for_loop(by_brainstate, same))
    assert not np.allclose(found[:, 0], found[:, 1])


class Counting(Net):
    """Counts steps in a state that the samples share, and maybe sums inputs in one."""

    def __init__(self, summing: bool) -> None:
        super().__init__()
        self.count, self.total = brainstate.ShortTermState(jnp.zeros(())), brainstate.ShortTermState(jnp.zeros(()))
        self.summing = summing

    def update(self, x: Any) -> Any:
        self.count.value += 1.0
        if self.summing:
            self.total.value += jnp.sum(x)
        return super().update(x) * self.count.value


def test_samples_may_share_a_state() -> None:
    learner = ft.compile(Counting(False), "D_RTRL", XS[0], batch_size=BATCH, vmap=True)
    out = learner.etrace_evolve(XS[:3], return_outputs=True)
    assert_close(out[2], 3.0 * mapped("plain").etrace_evolve(XS[:3], return_outputs=True)[2])
    assert float(learner.model.count.value) == 3.0


def test_shared_state_takes_no_value_of_a_sample() -> None:
    with pytest.raises(ft.NotSupportedError, match=r"Counting writes .* one of `count`, `total`\. Make that state in"):
        ft.compile(Counting(True), "D_RTRL", XS[0], batch_size=BATCH, vmap=True)


def test_wrong_batches_are_named() -> None:
    learner = mapped("plain")
    with pytest.raises(ft.ExampleInputError, match=r"float64\[3, 3\], where float64\[2, 3\]"):
        learner(jnp.ones((3, INPUT)))
    with pytest.raises(ft.ExampleInputError, match=r"batch sizes found: \{2, 3\}"):
        learner.compile_graph(jnp.ones((3, INPUT)))
    with pytest.raises(ft.ExampleInputError, match=r"`batch_size=4`, every .* 4 samples .* got \(2, 3\)"):
        ft.compile(Net(), "D_RTRL", XS[0], batch_size=4, vmap=True)
    with pytest.raises(ValueError, match="how large it is with `batch_size=`"):
        ft.compile(Net(), "D_RTRL", XS[0], vmap=True)


def test_what_cannot_be_mapped() -> None:
    with pytest.raises(ft.NotSupportedError, match="for brainstate modules"):
        ft.compile(lambda p, h, x: (h, h), "D_RTRL", XS[0], params=(), state=(), vmap=True)
    with pytest.raises(TypeError, match="got Net"):
        ft.ETraceVmap(Net())
    with pytest.raises(ValueError, match="Pass `vmap_states`"):
        ft.ETraceVmap(ft.D_RTRL(Net()))
    with pytest.raises(ValueError, match="No state of Net has a batch axis"):
        ft.ETraceVmap(ft.D_RTRL(Net()), vmap_states="new")


def test_model_is_not_called_past_its_learner() -> None:
    learner = mapped("plain")
    with pytest.raises(ValueError, match="calls the model, Net, itself"):
        learner.etrace_grad(XS, YS, step_fn=lambda x, y: squared(learner.model(x), y))
