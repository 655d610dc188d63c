"""A learner's call: the model's own numbers forward, the rule's gradient backward, in every transformation."""

from dataclasses import dataclass
from typing import Any, ClassVar

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from brainstate import ParamState

from foretrace.errors import ExampleInputError, NotSupportedError
from foretrace.learners.data import MultiStepData, SingleStepData
from foretrace.learners.module import (
    EligibilityTrace,
    ETraceVjpAlgorithm,
    IODimVjpAlgorithm,
    ParamDimVjpAlgorithm,
)
from foretrace.rules import OTTT
from foretrace.rules.d_rtrl import D_RTRL
from learners.nets import BATCH, HIDDEN, INPUT, STEPS, XS, YS, Net, assert_close, backpropagated, make, restart, squared
from learners.nets import step_by_step as looped


@pytest.fixture(scope="module")
def online() -> dict[Any, Any]:
    """The online gradient of the summed losses over the sequence, which other tests hold against the oracle."""
    _, learner = make()
    return learner.etrace_grad(XS, YS, step_fn=lambda x, y: squared(learner(x), y), reduction="sum")


class Counting(Net):
    """A net that also counts: an integer beside the floating input and output."""

    def update(self, x: Any, start: Any) -> Any:
        return super().update(x), start + jnp.int32(1)


def counting() -> ParamDimVjpAlgorithm:
    net = Counting()
    brainstate.nn.init_all_states(net, batch_size=BATCH)
    learner = ParamDimVjpAlgorithm(net)
    learner.compile_graph(XS[0], jnp.int32(0))
    return learner


def test_call_is_the_models_step() -> None:
    net, learner = make()
    plain = Net()
    brainstate.nn.init_all_states(plain, batch_size=BATCH)
    found = [learner(x) for x in XS[:3]]
    assert_close(found, [plain(x) for x in XS[:3]])
    assert_close(net.h.value, plain.h.value)


def test_gradients_of_single_steps_add_up(online: dict[Any, Any]) -> None:
    _, learner = make()
    summed = jax.tree.map(jnp.zeros_like, online)
    step = brainstate.transform.jit(
        lambda x, y: brainstate.transform.grad(lambda: squared(learner(x), y), learner.param_states)()
    )
    for x, y in zip(XS, YS, strict=True):
        summed = jax.tree.map(jnp.add, summed, step(x, y))
    assert_close(summed, online)


def test_loops_under_grad(online: dict[Any, Any]) -> None:
    net, learner = make()
    assert_close(looped(learner), online)
    restart(net, learner)
    total = lambda: sum(squared(learner(x), y) for x, y in zip(XS, YS, strict=True))
    assert_close(brainstate.transform.grad(total, learner.param_states)(), online)


def test_online_gradient_is_not_that_of_bptt(online: dict[Any, Any]) -> None:
    exact = backpropagated()
    assert_close(online[("read",)], exact[("read",)])
    assert float(jnp.max(jnp.abs(online[("u",)] - exact[("u",)]))) > 1.0


def test_loss_may_read_a_state() -> None:
    net, learner = make()
    of_state = lambda: squared(jnp.zeros(()) * jnp.sum(learner(XS[0])) + net.h.value @ net.read.value, YS[0])
    of_output = lambda: squared(learner(XS[0]), YS[0])
    found = brainstate.transform.grad(of_state, learner.param_states)()
    restart(net, learner)
    assert_close(found, brainstate.transform.grad(of_output, learner.param_states)())


def test_model_in_front_learns() -> None:
    encoder = ParamState(jnp.eye(INPUT))
    _, learner = make()
    found = brainstate.transform.grad(lambda: squared(learner(XS[0] @ encoder.value), YS[0]), encoder)()
    plain = Net()
    brainstate.nn.init_all_states(plain, batch_size=BATCH)
    assert_close(found, brainstate.transform.grad(lambda: squared(plain(XS[0] @ encoder.value), YS[0]), encoder)())


def test_vmapped_learner_is_a_batch(online: dict[Any, Any]) -> None:
    net = Net()
    learner = ParamDimVjpAlgorithm(net)

    @brainstate.transform.vmap_new_states(state_tag="new", axis_size=BATCH)
    def init() -> None:
        brainstate.nn.init_all_states(net)
        learner.compile_graph(XS[0, 0])

    init()
    mapped = brainstate.nn.Vmap(learner, vmap_states="new")
    assert_close(looped(learner, loss=lambda x, y: squared(mapped(x), y)), online)
    learner.reset_state()
    assert all(leaf.shape[0] == BATCH and not leaf.any() for leaf in jax.tree.leaves(learner.etrace.value))


def test_learner_may_be_made_inside_jit(online: dict[Any, Any]) -> None:
    @brainstate.transform.jit
    def gradient(xs: Any, ys: Any) -> Any:
        net = Net()
        brainstate.nn.init_all_states(net, batch_size=BATCH)
        learner = ParamDimVjpAlgorithm(net)
        learner.compile_graph(xs[0])
        return learner.etrace_grad(xs, ys, step_fn=lambda x, y: squared(learner(x), y), reduction="sum")

    assert_close(gradient(XS, YS), online)


def test_many_steps_at_once_are_one_after_another(online: dict[Any, Any]) -> None:
    _, learner = make(block=3)
    loss = lambda: squared(learner(MultiStepData(XS)), YS)
    assert_close(brainstate.transform.grad(loss, learner.param_states)(), online)


def test_exact_credit_over_a_whole_sequence_is_bptt() -> None:
    _, learner = make("multi-step")
    loss = lambda: squared(learner(MultiStepData(XS)), YS)
    assert_close(brainstate.transform.grad(loss, learner.param_states)(), backpropagated())


def test_integers_pass_beside_the_gradient(online: dict[Any, Any]) -> None:
    learner = counting()

    def loss() -> Any:
        out, count = learner(MultiStepData(XS), SingleStepData(jnp.int32(4)))
        return squared(out, YS), count

    found, count = brainstate.transform.grad(loss, learner.param_states, has_aux=True)()
    assert_close(found, online)
    assert count.tolist() == [5] * STEPS


def test_states_made_anew_are_found() -> None:
    net, learner = make()
    learner(XS[0])
    first = net.h
    restart(net, learner)
    assert net.h is not first
    assert_close(learner(XS[0]), make()[1](XS[0]))
    assert bool(net.h.value.any())


def test_compiling_again_for_the_same_form_keeps_everything() -> None:
    _, learner = make()
    learner(XS[0])
    graph, trace = learner.graph, learner.etrace.value
    learner.compile_graph(SingleStepData(XS[1]))
    assert learner.graph is graph
    assert learner.etrace.value is trace


def test_reset_empties_traces_and_leaves_the_model_alone() -> None:
    net, learner = make()
    learner(XS[0])
    before = net.h.value
    assert any(leaf.any() for leaf in jax.tree.leaves(learner.etrace.value))
    learner.reset_state()
    assert not any(leaf.any() for leaf in jax.tree.leaves(learner.etrace.value))
    assert net.h.value is before


def test_reset_for_another_batch() -> None:
    net, learner = make()
    brainstate.nn.init_all_states(net, batch_size=5)
    learner.reset_state(batch_size=5)
    assert learner(jnp.ones((5, INPUT))).shape[0] == 5


def test_traces_of_a_parameter() -> None:
    net, learner = make()
    ((name, trace),) = learner.get_etrace_of("w").items()
    assert name == "w -> h"
    assert trace[0].size == BATCH * INPUT * HIDDEN
    assert learner.get_etrace_of(net.u).keys() == learner.get_etrace_of(("u",)).keys() == {"u -> h"}
    with pytest.raises(ValueError, match=r"`read` has no trace. These have one: `w`, `u`"):
        learner.get_etrace_of("read")
    with pytest.raises(ValueError, match="no parameter `nothing`"):
        learner.get_etrace_of("nothing")


def test_states_by_role() -> None:
    net, learner = make()
    assert set(learner.param_states) == {("w",), ("u",), ("read",)}
    assert list(learner.hidden_states.items()) == [(("h",), net.h)]
    assert not learner.other_states
    assert list(learner.states(EligibilityTrace).values()) == [learner.etrace]
    assert learner.executor.model is net
    assert "w" in str(learner.report)


@dataclass(frozen=True)
class Modulated(D_RTRL):
    """D-RTRL whose gradient is scaled by a number from outside."""

    external: ClassVar[str | None] = "modulator"

    def advance(self, plan: Any, params: Any, block: Any, trace: Any) -> Any:
        gradients, trace = super().advance(plan, params, block, trace)
        scale = 1.0 if block.external is None else block.external[0]
        return gradients and [scale * g for g in gradients], trace


class ModulatedLearner(ETraceVjpAlgorithm):
    rule_class = Modulated


def test_rule_takes_what_comes_from_outside() -> None:
    def gradient(**named: Any) -> Any:
        net = Net()
        brainstate.nn.init_all_states(net, batch_size=BATCH)
        learner = ModulatedLearner(net)
        learner.compile_graph(XS[0])
        return brainstate.transform.grad(lambda: squared(learner(XS[0], **named), YS[0]), learner.param_states)()

    assert_close(gradient(modulator=3.0), jax.tree.map(lambda g: 3.0 * g, gradient()))


def test_failed_call_leaves_everything_as_it_was() -> None:
    net, learner = make()
    learner(XS[0])
    state, trace = net.h.value, learner.etrace.value
    with pytest.raises(ExampleInputError, match=r"input\[0\]"):
        learner(XS[0, :1])
    with pytest.raises(TypeError, match="takes no argument `modulator`"):
        learner(XS[0], modulator=1.0)
    with pytest.raises(ExampleInputError, match=r"\[2, 7\] steps"):
        learner(MultiStepData({"a": XS, "b": XS[:2]}))
    assert net.h.value is state
    assert learner.etrace.value is trace


def test_what_is_asked_too_early_or_wrongly() -> None:
    net = Net()
    brainstate.nn.init_all_states(net, batch_size=BATCH)
    with pytest.raises(ValueError, match="not compiled yet"):
        ParamDimVjpAlgorithm(net)(XS[0])
    with pytest.raises(ExampleInputError, match="No example input"):
        ParamDimVjpAlgorithm(net).compile_graph()
    with pytest.raises(TypeError, match="no option `leak`"):
        ParamDimVjpAlgorithm(net, leak=0.5)
    with pytest.raises(ValueError, match="'single-step' or 'multi-step'"):
        ParamDimVjpAlgorithm(net, vjp_method="double-step")
    with pytest.raises(TypeError, match=r"brainstate\.nn\.Module"):
        ParamDimVjpAlgorithm(lambda x: x)  # type: ignore[arg-type]
    with pytest.raises(NotSupportedError, match="no rule of its own"):
        ETraceVjpAlgorithm(net)


def test_options_by_position_are_those_of_the_class() -> None:
    net = Net()
    assert IODimVjpAlgorithm(net, 0.9).rule == IODimVjpAlgorithm(net, decay_or_rank=0.9).rule
    assert ParamDimVjpAlgorithm(net, "mine", "multi-step").vjp_method == "multi-step"
    with pytest.raises(TypeError, match=r"`name`, `vjp_method`.*by position.*`name` is 0.9"):
        ParamDimVjpAlgorithm(net, 0.9)
    with pytest.raises(TypeError, match="`model`, `mode` by position"):
        OTTT(net, "A", 0.9)
    with pytest.raises(TypeError, match="`decay_or_rank` by position and by name"):
        IODimVjpAlgorithm(net, 0.9, decay_or_rank=0.8)
    with pytest.raises(TypeError, match="`vjp_method` by position and by name"):
        ParamDimVjpAlgorithm(net, "mine", "multi-step", vjp_method="multi-step")


def test_traces_of_another_precision() -> None:
    _, learner = make(trace_dtype=jnp.float32)
    learner(XS[0])
    assert {leaf.dtype for leaf in jax.tree.leaves(learner.etrace.value)} == {np.dtype("float32")}


def test_the_phase_is_that_of_the_compilation_where_it_matters() -> None:
    class Dropping(Net):
        def update(self, x: Any) -> Any:
            return super().update(self.drop(x))

    for rate, refused in ((0.5, True), (1.0, False)):  # what is kept: all of it in the second
        model = Dropping()
        model.drop = brainstate.nn.Dropout(rate)
        brainstate.nn.init_all_states(model, batch_size=BATCH)
        with brainstate.environ.context(fit=True):
            learner = ParamDimVjpAlgorithm(model)
            learner.compile_graph(XS[0])
            learner(XS[0])
        with brainstate.environ.context(fit=False):
            if refused:
                with pytest.raises(NotSupportedError, match="under `fit=True` and is called under `fit=False`"):
                    learner(XS[0])
            else:
                learner(XS[0])
