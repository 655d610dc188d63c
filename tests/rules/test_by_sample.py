"""One reverse pass serves a vector of every sample, wherever samples are told apart."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from foretrace.rules import low_rank
from foretrace.rules.by_sample import by_sample
from foretrace.rules.low_rank import LowRank
from whole import Case, agree, case, case_of, whole_gradient

BATCHED = [
    "LSTM, fused gates and a tuple of states",
    "recurrent ALIF, adapting within the step",
    "conv LIF layer, strided in two dimensions, with a recurrent kernel",
    "weight normalisation",
]


def drawn(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(sum(shape)).normal(size=shape) / np.sqrt(shape[0]))


def case_with(entering: Any) -> Case:
    """A dense recurrent network of two samples with something more that enters it."""

    def step(p: Any, h: Any, x: Any) -> Any:
        h = jnp.tanh(entering(p, x) + h @ p["rec"] + p["bias"])
        return h, h @ p["out"]

    params = {"in": drawn(3, 4), "rec": drawn(4, 4), "bias": drawn(4), "out": drawn(4, 2)}
    return case_of(step, params, jnp.zeros((2, 4)), drawn(5, 2, 3))


OWN = {
    "product": case_with(lambda p, x: x @ p["in"]),
    "batch last": case_with(lambda p, x: (p["in"].T @ x.T).T),
}


def without_lanes(plan: Any) -> Any:
    """Each vector with a pass of its own."""
    return dataclasses.replace(by_sample(plan), of=None)


@pytest.mark.parametrize("name", [*BATCHED, *OWN])
def test_samples_that_share_a_pass_have_the_gradients_of_passes_of_their_own(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, rule = OWN[name] if name in OWN else case(name), LowRank(2, every=2, certify=True)
    found = whole_gradient(model, rule)
    monkeypatch.setattr(low_rank, "by_sample", without_lanes)
    agree(found, whole_gradient(model, rule))


@pytest.mark.parametrize("name", [*BATCHED, *OWN])
def test_samples_of_usual_models_share_a_pass(name: str) -> None:
    own = by_sample((OWN[name] if name in OWN else case(name)).plan)
    assert own.of is not None
    assert len(own.elements) > 1


@jax.custom_vjp
def scaled(h: jax.Array, gain: jax.Array) -> jax.Array:
    """Values times a gain, with a backward pass of its own."""
    return h * gain


scaled.defvjp(lambda h, gain: (h * gain, (h, gain)), lambda kept, c: (c * kept[1], jnp.sum(c * kept[0], axis=0)))


def test_a_weight_within_a_backward_pass_of_its_own_takes_a_pass_for_each_vector() -> None:
    """Its gradient is summed over the samples in there."""

    def step(p: Any, h: Any, x: Any) -> Any:
        h = jnp.tanh(x + scaled(h, p["gain"]) @ p["rec"])
        return h, h

    model = case_of(step, {"gain": drawn(4), "rec": drawn(4, 4)}, jnp.zeros((2, 4)), drawn(5, 2, 4))
    own = by_sample(model.plan)
    assert own.of is None
    assert len(own.elements) == 2
    agree(whole_gradient(model, LowRank(4, every=2)), model.whole, 1e-8)
