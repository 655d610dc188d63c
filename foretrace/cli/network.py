"""The network and the task of the demonstration: adaptive spiking neurons that recall a cue after a delay.

For the first steps of a sequence, one of two sets of input channels is busy. Then comes a delay with noise alone, and
at the end a signal that asks which set it was. Losses count at the end only, so credit has to reach back over the
delay.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

INPUTS, NEURONS, CLASSES = 40, 100, 2
CUE, DELAY, RECALL = 15, 50, 15
STEPS = CUE + DELAY + RECALL
THRESHOLD, ADAPTATION, FILTER = 1.0, 0.3, 0.9

Params = dict[str, jax.Array]
State = dict[str, jax.Array]


@jax.custom_jvp
def spike(potential: jax.Array) -> jax.Array:
    """One where the potential is above zero."""
    return (potential > 0).astype(potential.dtype)


@spike.defjvp
def _spike_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    (potential,), (tangent,) = primals, tangents
    surrogate = 0.3 * jnp.maximum(0.0, 1.0 - jnp.abs(potential))
    return spike(potential), surrogate * tangent


def step(params: Params, state: State, x: jax.Array) -> tuple[State, jax.Array]:
    """One millisecond of adaptive leaky integrate-and-fire neurons and of a readout of their filtered spikes."""
    v, a, spikes = state["v"], state["a"], spike(state["v"] - THRESHOLD - ADAPTATION * state["a"])
    v = jnp.exp(-1.0 / params["tau_v"]) * v + x @ params["w_in"] + spikes @ params["w_rec"] - spikes
    a = jnp.exp(-1.0 / params["tau_a"]) * a + spikes
    trace = FILTER * state["trace"] + spike(v - THRESHOLD - ADAPTATION * a)
    return {"v": v, "a": a, "trace": trace}, trace @ params["w_out"]


def make_params(key: jax.Array) -> Params:
    """Random weights and equal time constants."""
    keys = jax.random.split(key, 3)
    return {
        "w_in": 2.0 * jax.random.normal(keys[0], (INPUTS, NEURONS)) / INPUTS**0.5,
        "w_rec": 0.3 * jax.random.normal(keys[1], (NEURONS, NEURONS)) / NEURONS**0.5,
        "w_out": jax.random.normal(keys[2], (NEURONS, CLASSES)) / NEURONS**0.5,
        "tau_v": jnp.full(NEURONS, 20.0, jnp.result_type(float)),
        "tau_a": jnp.full(NEURONS, 200.0, jnp.result_type(float)),
    }


def make_state(batch: int) -> State:
    """Neurons at rest."""
    return {name: jnp.zeros((batch, NEURONS)) for name in ("v", "a", "trace")}


class Sequences(NamedTuple):
    """A batch of the task.

    Attributes:
        inputs: Spikes, `(STEPS, batch, INPUTS)`.
        targets: Which cue was shown, the same at every step, `(STEPS, batch)`.
        mask: One at the steps whose loss counts, `(STEPS,)`.
    """

    inputs: jax.Array
    targets: jax.Array
    mask: jax.Array


def make_sequences(key: jax.Array, batch: int) -> Sequences:
    """Draws cues and the noisy spikes that show them."""
    cue_key, noise_key = jax.random.split(key)
    cues = jax.random.bernoulli(cue_key, shape=(batch,)).astype(jnp.int32)
    time, channel = jnp.arange(STEPS)[:, None, None], jnp.arange(INPUTS)
    shown = (time < CUE) & (channel // 10 == cues[:, None])
    asked = (time >= STEPS - RECALL) & (channel // 10 == 2)
    rate = jnp.where(shown | asked, 0.3, 0.03)
    inputs = jax.random.bernoulli(noise_key, rate).astype(jnp.result_type(float))
    mask = (jnp.arange(STEPS) >= STEPS - RECALL).astype(jnp.result_type(float))
    return Sequences(inputs, jnp.broadcast_to(cues, (STEPS, batch)), mask)


def loss(out: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The cross entropy of one step, averaged over batch and recall; and how many answers are right."""
    chosen = jnp.take_along_axis(jax.nn.log_softmax(out), target[:, None], axis=-1)
    return -jnp.mean(chosen) / RECALL, jnp.mean(jnp.argmax(out, axis=-1) == target)


def bptt_loss(params: Params, state: State, data: Sequences) -> tuple[jax.Array, jax.Array]:
    """The loss of a whole sequence, to be differentiated back through time, and the accuracy at recall."""

    def one(state: Any, item: Any) -> Any:
        state, out = step(params, state, item[0])
        return state, loss(out, item[1])

    _, (losses, right) = jax.lax.scan(one, state, (data.inputs, data.targets))
    return jnp.sum(losses * data.mask), jnp.sum(right * data.mask) / RECALL


def record_spikes(params: Params, inputs: jax.Array) -> jax.Array:
    """The spikes of every neuron over some sequences, `(STEPS, batch, NEURONS)`."""

    def one(state: State, x: jax.Array) -> tuple[State, jax.Array]:
        state, _ = step(params, state, x)
        return state, spike(state["v"] - THRESHOLD - ADAPTATION * state["a"])

    return jax.lax.scan(one, make_state(inputs.shape[1]), inputs)[1]
