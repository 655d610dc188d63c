"""pp_prop against its recursions in NumPy, against BPTT over one step, and against itself in blocks."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from foretrace.learners import blocks
from foretrace.rules.pp_prop import pp_prop
from online import online_gradient
from oracle import bptt
from recursions import NETWORKS, assert_same, blocks_of, in_factors
from zoo import MODELS
from zoo.compiled import compiled
from zoo.flat import flat_values

ONE_STEP = [
    "LSTM, fused gates and a tuple of states",
    "peephole LSTM",
    "conv LIF layer",
    "marked sparse recurrent weights",
    "marked embedding",
    "delay line of the input current",
    "one projection shared out to two states",
    "a weight used directly and behind a weight",
]


def loss(outputs: list[Any]) -> Any:
    return sum(jnp.sum(jnp.cos(jnp.arange(out.size)).reshape(out.shape) * out + 0.5 * out**2) for out in outputs)


CASES = [*blocks_of("recurrent LIF", (0.5, 0.9)), ("vanilla RNN", (0.9, 0.5), 3)]


@pytest.mark.parametrize(("name", "decays", "block"), CASES)
def test_equals_its_recursions_in_any_block(name: str, decays: tuple[float, float], block: int) -> None:
    network = NETWORKS[name]()
    assert_same(network.gradient(pp_prop(decays), block), in_factors(network, *decays))


@pytest.mark.parametrize("name", ONE_STEP)
def test_one_step_is_that_of_bptt(name: str) -> None:
    model = next(model for model in MODELS if model.name == name)
    graph, built = compiled(model)
    values = flat_values(graph, model, built, 1)
    found, wanted = online_gradient(graph, pp_prop(0.9), loss, *values), bptt(graph, loss, *values)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["delay line that feeds a neuron"])
def test_blocks_agree_where_positions_move(name: str) -> None:
    model = next(model for model in MODELS if model.name == name)
    graph, built = compiled(model)
    values = flat_values(graph, model, built, 7)
    found = [online_gradient(graph, pp_prop((0.5, 0.9)), loss, *values, block=block) for block in (1, 3)]
    for one, other in zip(*found, strict=True):
        assert np.all(np.isfinite(one))
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


def test_a_rank_is_a_decay() -> None:
    assert pp_prop(3).decays == pp_prop(0.5).decays
    assert pp_prop(1).decays == (0.0, 0.0)
    assert pp_prop((np.int64(3), np.float32(0.25))).decays == (0.5, 0.25)


@pytest.mark.parametrize(
    "bad", [1.0, -0.1, 0, -2, True, "0.9", None, (0.9,), (0.9, 0.9, 0.9), (0.9, 1.5), float("nan")]
)
def test_refuses_what_is_neither_a_decay_nor_a_rank(bad: Any) -> None:
    with pytest.raises(ValueError, match="decay_or_rank"):
        pp_prop(bad)


def gated(params: Any, state: Any, x: Any) -> Any:
    """Three gates that see the same, and a fourth one that sees what they let through."""
    gate = lambda name, h: jnp.concatenate([x, h]) @ params[name] + params["bias"][name]
    h, c = state
    c = jax.nn.sigmoid(gate("keep", h)) * c + jnp.tanh(gate("enter", h))
    leave = jax.nn.sigmoid(gate("leave", h))
    return (leave * jnp.tanh(gate("last", leave * c)), c), None


def test_gates_that_see_the_same_share_what_entered() -> None:
    names = ("keep", "enter", "leave", "last")
    params = {name: jnp.full((5, 3), 0.1) for name in names}
    params["bias"] = {name: jnp.zeros(3) for name in names}
    learner = ft.compile(gated, pp_prop(0.9), jnp.zeros(2), params=params, state=(jnp.zeros(3), jnp.zeros(3)))
    kept = learner.rule.init(learner.plan).entered
    assert sorted(part.shape for part in kept) == [(), (5,), (5,)]  # of all biases, of three gates, of the last one


def rnn_gradient(**options: Any) -> tuple[Any, Any]:
    draw = lambda *shape: jnp.asarray(np.random.default_rng(sum(shape)).normal(size=shape))
    params = {"w": draw(7, 4), "out": draw(4, 3)}

    def step(params: Any, h: Any, x: Any) -> tuple[Any, Any]:
        h = jnp.tanh(jnp.concatenate([x, h], axis=-1) @ params["w"])
        return h, h @ params["out"]

    xs = draw(9, 2, 3)
    learner = ft.compile(step, pp_prop(0.9), xs[0], params=params, state=jnp.zeros((2, 4)), **options)
    return params, lambda params: learner.grad(params, learner.init(), xs, loss=lambda out: jnp.sum(out**2))[0]


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_any_number_of_single_steps_is_collected(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    params, gradient = rnn_gradient(block=3)
    wanted = gradient(params)
    monkeypatch.setattr(blocks, "SMALLEST_BUDGET", steps * 8 * 2 * (7 + 4 + 4 + 3))
    params, gradient = rnn_gradient(block=1)
    for one, other in zip(jax.tree.leaves(gradient(params)), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


def test_products_of_single_steps_are_multiplied_out_together() -> None:
    params, gradient = rnn_gradient(block=1)
    (loop,) = [eqn for eqn in jax.make_jaxpr(gradient)(params).eqns if eqn.primitive.name == "scan"]
    made = [eqn.outvars[0].aval.shape for eqn in loop.params["jaxpr"].eqns if eqn.primitive.name == "dot_general"]
    assert made
    assert not any(shape[-2:] in ((7, 4), (4, 3)) for shape in made)
