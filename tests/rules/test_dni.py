"""DNI: the in-step gradient without a synthesiser, BPTT with a right one, and how near training comes to that."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import lif_networks as nets
from foretrace.engine.linearise import Cotangents
from foretrace.engine.plan import Plan, make_plan
from foretrace.engine.sequence import States, run_steps
from foretrace.learners.drive import Ran
from foretrace.rules.dni import DNI, SyntheticGradient, train_synthetic_gradient
from online import walked_gradient
from oracle import bptt

UNITS, BATCH, STEPS = 3, 8, 30
TURN = 0.8 * np.linalg.qr(np.random.default_rng(1).normal(size=(UNITS, UNITS)))[0] @ np.diag([1.0, 0.8, 0.6])


def linear_network() -> nets.Network:
    """`h' = h w` with the loss `|h|^2 / 2`, whose future is linear in `h`; nothing comes in after the start."""

    def step(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
        h = state["h"] @ params["w"] + x
        return {"h": h}, h

    start = jnp.asarray(np.random.default_rng(2).normal(size=(BATCH, UNITS)))
    return nets.compiled(step, {"w": jnp.asarray(TURN)}, {"h": start}, jnp.zeros((STEPS, BATCH, UNITS)))


def half_square(outputs: list[Any]) -> Any:
    return 0.5 * jnp.sum(outputs[0] ** 2)


def future() -> np.ndarray:
    """The matrix `F` for which `h F` is the derivative of all later losses by `h`."""
    return scipy.linalg.solve_discrete_lyapunov(TURN, np.eye(UNITS)) - np.eye(UNITS)


def forward_of(plan: Plan) -> Any:
    def forward(params: Any, states: States, items: Any) -> Ran:
        states, steps, outputs = run_steps(plan, params, states, items)
        by_outputs = jax.vmap(jax.grad(half_square))(outputs)
        return Ran(states, steps, Cotangents(by_outputs, [jnp.zeros_like(h) for h in steps.hidden]), None)

    return forward


def trained(network: nets.Network, epochs: int, **options: Any) -> tuple[Any, np.ndarray]:
    plan = make_plan(network.graph)
    params, hidden, other, inputs = network.values
    items = [jnp.stack(values) for values in zip(*inputs, strict=True)]
    found, errors = train_synthetic_gradient(
        plan, SyntheticGradient(), params, States(hidden, other), items, forward_of(plan), epochs=epochs, **options
    )
    return found, np.asarray(errors)


def gradient(network: nets.Network, rule: Any, loss: Any = half_square, block: int = STEPS) -> np.ndarray:
    found = walked_gradient(network.graph, rule, loss, *network.values, block=block)
    return np.concatenate([np.ravel(g) for g in found])


def whole(network: nets.Network, loss: Any = half_square) -> np.ndarray:
    return np.concatenate([np.ravel(g) for g in bptt(network.graph, loss, *network.values)])


def cosine(one: np.ndarray, two: np.ndarray) -> float:
    return float(one @ two / np.linalg.norm(one) / np.linalg.norm(two))


def test_the_untrained_synthesiser_leaves_the_in_step_gradient() -> None:
    network = nets.recurrent_lif()
    params, hidden, other, inputs = network.values
    network = network._replace(values=(params, hidden, other, inputs[:3]))
    by_steps = 0.0
    for x in inputs[:3]:
        by_steps = by_steps + np.concatenate(
            [np.ravel(g) for g in bptt(network.graph, nets.loss, params, hidden, other, [x])]
        )
        hidden, other, _ = network.graph.program(params, hidden, other, x)
    for rule in (DNI(), DNI(SyntheticGradient()), DNI(SyntheticGradient(hidden_width=5))):
        np.testing.assert_allclose(gradient(network, rule, nets.loss, block=3), by_steps, rtol=1e-10, atol=1e-12)


def test_the_true_future_gives_the_gradient_of_bptt() -> None:
    network = linear_network()
    exact = {"group_0": {"weight": jnp.asarray(future()), "bias": jnp.zeros(UNITS)}}
    rule = DNI(SyntheticGradient(params=exact))
    wanted = whole(network)
    # The sequence ends where the true future goes on: what is missing after 30 steps is below 0.8^60.
    np.testing.assert_allclose(gradient(network, rule), wanted, rtol=1e-5)
    for block in (1, 3):
        np.testing.assert_allclose(gradient(network, rule, block=block), gradient(network, rule), rtol=1e-10)


def test_training_approaches_the_true_future_and_bptt() -> None:
    network = linear_network()
    found, errors = trained(network, epochs=1500, lr=0.1)
    assert errors[-1] < 1e-9 * errors[0]
    np.testing.assert_allclose(found["group_0"]["weight"], future(), atol=1e-4)
    wanted = whole(network)
    before, after = (cosine(gradient(network, DNI(s)), wanted) for s in (None, SyntheticGradient(params=found)))
    assert before < 0.997
    assert after > 1 - 1e-8


def test_an_optimiser_of_ones_own_takes_the_place_of_descent() -> None:
    optax = pytest.importorskip("optax")
    network = linear_network()
    by_name, errors = trained(network, epochs=5, lr=0.1)
    by_hand, others = trained(network, epochs=5, optimizer=optax.sgd(0.1))
    np.testing.assert_allclose(errors, others, rtol=1e-12)
    np.testing.assert_allclose(by_name["group_0"]["weight"], by_hand["group_0"]["weight"], rtol=1e-12)


def test_the_last_step_has_a_target_only_where_the_sequence_ends() -> None:
    network = linear_network()
    start = {"group_0": {"weight": jnp.zeros((UNITS, UNITS)), "bias": jnp.ones(UNITS)}}
    open_error, closed_error = (
        trained(network, epochs=1, synthesizer_params=start, ends=ends)[1][0] for ends in (False, True)
    )
    np.testing.assert_allclose(closed_error - open_error, 0.5 * BATCH * UNITS / STEPS, rtol=1e-10)
