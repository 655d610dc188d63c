"""Spiking cells: LIF, mixed LIF and ALIF (Bellec et al. 2018, 2020), and GIF (Wang et al. 2026).

A step of LIF and ALIF neurons, with `z` the spikes of the step before:

    v <- alpha v + w_in x + w_rec z - threshold z          a <- rho a + z
    z <- 1 where v > threshold + beta a, and the neuron is not refractory
    trace <- kappa trace + z                               out = w_out trace + b_out

`alpha`, `rho` and `kappa` are `exp(-dt / tau)` for `tau_m`, `tau_a` and `tau_out`. With `normalised`, what enters `v`
through weights, `a` and the trace is scaled by one minus its decay, as in the publications whose thresholds are 0.01 or
0.03. Spikes are not stored: those of the step before follow from `v`, `a` and the refractory counter, so that a neuron
has as few states to trace as it can.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from foretrace.train.parts import (
    Built,
    Output,
    Params,
    checked,
    decay_of,
    many,
    normal,
    one_or_many,
    suffixes,
    surrogate_spike,
    zeros,
)


@dataclass(frozen=True)
class LIFSettings:
    """Settings of LIF neurons; times in milliseconds.

    Attributes:
        tau_m: Of the membrane.
        tau_out: Of the readout.
        threshold: At which a neuron fires.
        refractory: For how long it cannot fire again.
        damping: The height of the pseudo-derivative at the threshold.
        surrogate: Its form, `'triangle'` or `'fast_sigmoid'`.
        slope: The slope of the fast sigmoid.
        layers: Layers, each fed by the spikes of the one before.
        recurrent: Whether neurons of a layer are connected.
        self_connections: Whether also to themselves.
        normalised: Whether inputs to leaky variables are scaled by one minus their decay.
        detach_reset: Whether learning leaves out the path through the reset, as the publications do.
    """

    tau_m: float = 20.0
    tau_out: float = 20.0
    threshold: float = 0.6
    refractory: float = 5.0
    damping: float = 0.3
    surrogate: str = "triangle"
    slope: float = 25.0
    layers: int = 1
    recurrent: bool = True
    self_connections: bool = False
    normalised: bool = False
    detach_reset: bool = True


@dataclass(frozen=True)
class ALIFSettings(LIFSettings):
    """Settings of a mixed population.

    Attributes:
        tau_a: Of the adaptation.
        beta: How much a spike raises the threshold; None for the published 1.7, scaled to what `normalised` says.
        adaptive: The share of neurons that adapt.
    """

    tau_a: float = 2000.0
    beta: float | None = None
    adaptive: float = 0.5


def lif(key: Any, n_in: int, n_out: int, n_hidden: int, dt: float, settings: Mapping[str, Any]) -> Built:
    """Layers of LIF neurons with a leaky readout."""
    return _spiking(key, n_in, n_out, n_hidden, dt, checked(LIFSettings, "LIF", settings))


def alif(key: Any, n_in: int, n_out: int, n_hidden: int, dt: float, settings: Mapping[str, Any]) -> Built:
    """Layers of LIF and ALIF neurons with a leaky readout."""
    record = checked(ALIFSettings, "ALIF", settings)
    if not 0 <= record.adaptive <= 1:
        raise ValueError(f"`adaptive` is the share of neurons that adapt, in [0, 1]; got {record.adaptive!r}.")
    return _spiking(key, n_in, n_out, n_hidden, dt, record)


class _Layer:
    """One layer of neurons, its constants worked out."""

    def __init__(self, settings: LIFSettings, n_hidden: int, dt: float) -> None:
        self.settings, self.n_hidden = settings, n_hidden
        self.alpha, self.kappa = decay_of(settings.tau_m, dt), decay_of(settings.tau_out, dt)
        self.gain = 1 - self.alpha if settings.normalised else 1.0
        self.out_gain = 1 - self.kappa if settings.normalised else 1.0
        self.refractory = round(settings.refractory / dt)
        self.spike = surrogate_spike(settings.surrogate, settings.damping, settings.slope)
        self.connected = 1.0 if settings.self_connections else 1.0 - jnp.eye(n_hidden)
        self.beta: Any = None
        if isinstance(settings, ALIFSettings):
            self.rho = decay_of(settings.tau_a, dt)
            self.a_gain = 1 - self.rho if settings.normalised else 1.0
            published = 1.7 * (1.0 if settings.normalised else (1 - self.rho) / (1 - self.alpha))
            adapting = jnp.arange(n_hidden) >= n_hidden - round(settings.adaptive * n_hidden)
            beta = published if settings.beta is None else settings.beta
            self.beta = beta * adapting.astype(jnp.result_type(float))

    def rest(self, batch: int) -> dict[str, Any]:
        """The layer before the first step."""
        state: dict[str, Any] = {name: zeros(batch, self.n_hidden) for name in ("v", "trace")}
        if self.beta is not None:
            state["a"] = zeros(batch, self.n_hidden)
        if self.refractory:
            state["counter"] = jnp.full((batch, self.n_hidden), -1, jnp.int32)
        return state

    def crossing(self, state: dict[str, Any]) -> jax.Array:
        """Spikes of neurons above their threshold, whether they may fire or not."""
        adapted = 0.0 if self.beta is None else self.beta * state["a"]
        return self.spike((state["v"] - self.settings.threshold - adapted) / self.settings.threshold)

    def spikes(self, state: dict[str, Any]) -> jax.Array:
        """The spikes of the step that ended in a state."""
        if not self.refractory:
            return self.crossing(state)
        # Who fired is at the top of the counter, who could have fired and did not is at -1.
        return self.crossing(state) * ((state["counter"] == self.refractory) | (state["counter"] == -1))

    def step(self, params: Params, suffix: str, state: dict[str, Any], x: jax.Array) -> tuple[dict[str, Any], Any]:
        """One step: the state after it, and its spikes."""
        before = self.spikes(state)
        current = x @ params[f"w_in{suffix}"]
        if self.settings.recurrent:
            current = current + before @ (params[f"w_rec{suffix}"] * self.connected)
        reset = jax.lax.stop_gradient(before) if self.settings.detach_reset else before
        after = {"v": self.alpha * state["v"] + self.gain * current - self.settings.threshold * reset}
        if self.beta is not None:
            after["a"] = self.rho * state["a"] + self.a_gain * before
        z = self.crossing(after)
        if self.refractory:
            free = state["counter"] <= 0
            z = z * free
            after["counter"] = jnp.where(z > 0, self.refractory, jnp.where(free, -1, state["counter"] - 1))
        after["trace"] = self.kappa * state["trace"] + self.out_gain * z
        return after, z


def _spiking(key: Any, n_in: int, n_out: int, n_hidden: int, dt: float, settings: LIFSettings) -> Built:
    layer, names = _Layer(settings, n_hidden, dt), suffixes(settings.layers)
    keys = iter(jax.random.split(key, 2 * len(names) + 1))
    params: Params = {}
    for place, name in enumerate(names):
        params[f"w_in{name}"] = normal(next(keys), n_hidden if place else n_in, n_hidden)
        if settings.recurrent:
            params[f"w_rec{name}"] = normal(next(keys), n_hidden, n_hidden)
    params |= {"w_out": normal(next(keys), n_hidden, n_out), "b_out": zeros(n_out)}

    def step(params: Params, state: Any, x: jax.Array) -> tuple[Any, Output]:
        states, spikes = [], []
        for name, own in zip(names, many(state), strict=True):
            after, x = layer.step(params, name, own, x)
            states.append(after)
            spikes.append(x)
        out = states[-1]["trace"] @ params["w_out"] + params["b_out"]
        return one_or_many(states), Output(out, one_or_many(spikes))

    return Built(step, params, lambda batch: one_or_many([layer.rest(batch) for _ in names]))


@dataclass(frozen=True)
class GIFSettings:
    """Settings of GIF neurons; times in milliseconds.

    Attributes:
        tau_m: Of the membrane.
        tau_syn: Of the exponential synapse.
        tau_slow: The shortest and the longest time constant of the slow current, drawn uniformly.
        slow_jump: What each spike adds to the slow current.
        tau_out: Of the readout.
        threshold: At which a neuron fires, and by which it is reset.
        damping: The height of the pseudo-derivative.
        weight_scale: The scale of the weights.
        epsilon: Keeps the standardised potential finite.
    """

    tau_m: float = 100.0
    tau_syn: float = 100.0
    tau_slow: Any = (100.0, 2250.0)
    slow_jump: float = -1.0
    tau_out: float = 100.0
    threshold: float = 1.0
    damping: float = 0.3
    weight_scale: float = 1.0
    epsilon: float = 1e-5


def gif(key: Any, n_in: int, n_out: int, n_hidden: int, dt: float, settings: Mapping[str, Any]) -> Built:
    """GIF neurons with a slow current, one dense matrix over input and spikes, and a leaky readout of potentials."""
    slow_times = settings.get("tau_slow", GIFSettings.tau_slow)
    try:
        low, high = map(float, slow_times)
    except (TypeError, ValueError):
        low, high = 0.0, 0.0
    if not 0 < low <= high:
        raise ValueError(f"`tau_slow` is a shortest and a longest time, such as (100, 2250); got {slow_times!r}.")
    record = checked(GIFSettings, "GIF", {k: v for k, v in settings.items() if k != "tau_slow"}, tau_slow=(low, high))
    of_taus, of_weights, of_readout = jax.random.split(key, 3)
    taus = jax.random.uniform(of_taus, (n_hidden,), jnp.result_type(float), low, high)
    alpha, synaptic, kappa = (decay_of(tau, dt) for tau in (record.tau_m, record.tau_syn, record.tau_out))
    slow, spike = decay_of(taus, dt), surrogate_spike("triangle", record.damping, 1.0)
    params = {
        "w": normal(of_weights, n_in + n_hidden, n_hidden, record.weight_scale),
        "w_out": normal(of_readout, n_hidden, n_out),
        "b_out": zeros(n_out),
    }

    def fired(v: jax.Array) -> jax.Array:
        return spike((v - record.threshold) / record.threshold)

    def step(params: Params, state: Any, x: jax.Array) -> tuple[Any, Output]:
        z = fired(state["v"])
        current = synaptic * state["current"] + jnp.concatenate([x, z], axis=-1) @ params["w"]
        adaptation = slow * state["slow"] + record.slow_jump * z
        v = alpha * state["v"] + (1 - alpha) * (current + adaptation) - record.threshold * z
        centred = v - jnp.mean(v, axis=-1, keepdims=True)
        spread = jnp.sqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + record.epsilon)
        trace = kappa * state["trace"] + (1 - kappa) * centred / spread
        after = {"v": v, "current": current, "slow": adaptation, "trace": trace}
        return after, Output(trace @ params["w_out"] + params["b_out"], fired(v))

    names = ("v", "current", "slow", "trace")
    return Built(step, params, lambda batch: {name: zeros(batch, n_hidden) for name in names})
