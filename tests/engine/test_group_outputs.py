"""Which value is found to be the output of a group, and its derivative by the group's states."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import lif_networks as nets
from foretrace.engine.linearise import Cotangents, Linearised
from foretrace.engine.outputs import loss_by_output, output_factor, output_factor_before, output_pull
from foretrace.engine.plan import Plan, make_plan
from foretrace.engine.sequence import States, run_steps
from zoo import MODELS
from zoo.compiled import compiled
from zoo.records import spike

SPIKE = "custom_jvp_call"


def plan_of(name: str) -> Plan:
    (model,) = (m for m in MODELS if m.name == name)
    return make_plan(compiled(model)[0])


def linearised(network: nets.Network) -> tuple[Plan, Linearised, list[Any]]:
    """A plan, the derivatives of three steps, and the new hidden states of each."""
    plan = make_plan(network.graph)
    params, hidden, other, inputs = network.values
    stacked = [jnp.stack(values) for values in zip(*inputs[:3], strict=True)]
    states, steps, _ = run_steps(plan, params, States(hidden, other), stacked)
    new = [jnp.concatenate([old[1:], last[None]]) for old, last in zip(steps.hidden, states.hidden, strict=True)]
    return plan, Linearised(plan, plan.weights(params), steps), new


def found(plan: Plan) -> list[str]:
    """For each group the output: the name of the state that it is, or of the equation that gives it."""
    names = {}
    for eqn in plan.jaxpr.eqns:
        names |= dict.fromkeys(eqn.outvars, eqn.primitive.name)
    for leaf, var in zip(plan.program.hidden, plan.program.hidden_outvars, strict=True):
        names[var] = leaf.name
    for leaf, var in zip(plan.program.hidden, plan.program.hidden_invars, strict=True):
        names[var] = f"previous {leaf.name}"
    return [names[output.var] for output in plan.group_outputs]


@pytest.mark.parametrize(
    ("name", "outputs"),
    [
        ("LIF", [SPIKE]),
        ("vanilla RNN", ["h"]),
        ("GRU, reset before the matmul", ["h"]),
        ("LSTM, separate gates", ["h"]),
        ("peephole LSTM", ["h"]),
        ("two layers of LIF", [SPIKE, SPIKE]),
        ("vanilla RNN with a leaky readout", ["h", "r"]),
        ("recurrent ALIF, adapting within the step", [SPIKE]),
        ("recurrent LIF with short-term plasticity", [SPIKE]),
        ("module: marked ALIF in one packed state", [SPIKE]),
        ("module: plain GIF in a packed state of 3, set by name", [SPIKE]),
        ("brainpy: recurrent AlignPost Expon, marked", ["heaviside_surrogate_gradient"]),
        ("recurrent LIF with delayed spikes", [SPIKE]),
    ],
)
def test_the_output_is_the_value_that_leaves(name: str, outputs: list[str]) -> None:
    assert found(plan_of(name)) == outputs


def test_a_state_that_is_returned_too_does_not_take_the_place_of_the_spike() -> None:
    def step(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
        fired = spike(state["v"] - 1.0 - state["a"])
        v = 0.9 * state["v"] - fired + x @ params["w_in"]
        z = spike(v - 1.0 - state["a"])
        a = 0.95 * state["a"] + z
        return {"v": v, "a": a}, (z @ params["w_out"], a, jnp.mean((v - 1.0) ** 2))

    params, state, xs = nets.draws()
    network = nets.compiled(step, params, state | {"a": 0.1 * state["v"]}, xs)
    assert found(make_plan(network.graph)) == [SPIKE]


def test_the_factor_is_the_derivative_of_the_spike_at_the_new_states() -> None:
    plan, lin, (v,) = linearised(nets.recurrent_lif())
    factor = output_factor(lin, plan.group_outputs[0])
    np.testing.assert_allclose(factor[0], nets.surrogate(np.asarray(v) - 1.0), rtol=1e-12)
    signal = jnp.arange(1.0, 1.0 + v.size).reshape(v.shape)
    np.testing.assert_allclose(output_pull(lin, plan.group_outputs[0], signal)[0], factor[0] * signal, rtol=1e-12)


def _packed_step(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
    v, a = state["h"][..., 0], state["h"][..., 1]
    fired = spike(v - 1.0 - 0.3 * a)
    v, a = 0.9 * v - fired + x @ params["w_in"] + 0.2 * a, 0.95 * a + fired
    return {"h": jnp.stack([v, a], axis=-1)}, spike(v - 1.0 - 0.3 * a) @ params["w_out"]


def test_the_entries_of_a_packed_state_are_states_of_their_own() -> None:
    params, state, xs = nets.draws()
    network = nets.compiled(_packed_step, params, {"h": jnp.stack([state["v"], 0.1 * state["v"]], axis=-1)}, xs)
    plan, lin, (h,) = linearised(network)
    slope = nets.surrogate(np.asarray(h[..., 0] - 1.0 - 0.3 * h[..., 1]))
    np.testing.assert_allclose(output_factor(lin, plan.group_outputs[0]), [slope, -0.3 * slope], rtol=1e-12)


def _old_spikes(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
    fired = spike(state["v"] - 1.0)
    return {"v": 0.9 * state["v"] - fired + x @ params["w_in"] + fired @ params["w_rec"]}, fired @ params["w_out"]


def test_spikes_of_previous_states_are_taken_at_the_new_ones() -> None:
    plan, lin, (v,) = linearised(nets.compiled(_old_spikes, *nets.draws()))
    (output,) = plan.group_outputs
    assert (found(plan), output.from_states) == ([SPIKE], "previous")
    np.testing.assert_allclose(output_factor(lin, output)[0], nets.surrogate(np.asarray(v) - 1.0), rtol=1e-12)
    before = nets.surrogate(np.asarray(lin.steps.hidden[0]) - 1.0)
    np.testing.assert_allclose(output_factor_before(lin, output)[0], before, rtol=1e-12)


def test_a_group_that_nothing_leaves_is_told_by_its_last_state() -> None:
    def step(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
        current = x @ params["w_in"]
        return {"v": 0.9 * state["v"] + current, "w": 0.5 * state["w"] + state["v"]}, current

    params, state, xs = nets.draws()
    plan = make_plan(nets.compiled(step, params, state | {"w": state["v"]}, xs).graph)
    assert found(plan) == ["w"]
    assert "its last state stands for it" in plan.group_outputs[0].reason


@pytest.mark.parametrize("step", [nets.lif_step, _old_spikes], ids=["new spikes", "spikes of previous states"])
def test_the_derivative_of_a_loss_by_the_output(step: Any) -> None:
    network = nets.compiled(step, *nets.draws())
    plan, lin, _ = linearised(network)
    outputs = jnp.cos(jnp.arange(3.0 * nets.BATCH * nets.OUT)).reshape(3, nets.BATCH, nets.OUT)
    cotangents = Cotangents([outputs], [jnp.zeros_like(v) for v in lin.steps.hidden])
    by_output = loss_by_output(lin, plan.group_outputs[0], cotangents)
    np.testing.assert_allclose(by_output, outputs @ network.params["w_out"].T, rtol=1e-12)
