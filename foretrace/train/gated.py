"""Cells without spikes: the plain RNN, GRU, LSTM, linear recurrent units (Orvieto et al. 2023), trace units.

Complex numbers of the linear recurrent unit are written as pairs of real ones, so that optimizers, checkpoints and
learning rules see real arrays.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from foretrace.train.parts import Built, Output, Params, checked, many, normal, one_or_many, suffixes, zeros


@dataclass(frozen=True)
class GatedSettings:
    """Settings of RNN, GRU and LSTM.

    Attributes:
        layers: Layers, each fed by the one before.
        weight_scale: The scale of the recurrent weights.
    """

    layers: int = 1
    weight_scale: float = 1.0


def rnn(key: Any, n_in: int, n_out: int, n_hidden: int, dt: float, settings: Mapping[str, Any]) -> Built:
    """`h <- tanh(w_in x + w_rec h + b)` with a linear readout."""

    def cell(params: Params, suffix: str, state: Any, x: jax.Array) -> tuple[Any, jax.Array]:
        h = jnp.tanh(_drive(params, suffix, x, state["h"]))
        return {"h": h}, h

    return _stacked(cell, ("h",), 1, key, n_in, n_out, n_hidden, checked(GatedSettings, "RNN", settings))


def gru(key: Any, n_in: int, n_out: int, n_hidden: int, dt: float, settings: Mapping[str, Any]) -> Built:
    """The GRU whose reset gate acts on the recurrent product, with a linear readout."""

    def cell(params: Params, suffix: str, state: Any, x: jax.Array) -> tuple[Any, jax.Array]:
        h = state["h"]
        of_input = x @ params[f"w_in{suffix}"] + params[f"b{suffix}"]
        of_state = h @ params[f"w_rec{suffix}"]
        n = n_hidden
        update = jax.nn.sigmoid(of_input[..., :n] + of_state[..., :n])
        reset = jax.nn.sigmoid(of_input[..., n : 2 * n] + of_state[..., n : 2 * n])
        new = jnp.tanh(of_input[..., 2 * n :] + reset * of_state[..., 2 * n :])
        h = update * h + (1 - update) * new
        return {"h": h}, h

    return _stacked(cell, ("h",), 3, key, n_in, n_out, n_hidden, checked(GatedSettings, "GRU", settings))


def lstm(key: Any, n_in: int, n_out: int, n_hidden: int, dt: float, settings: Mapping[str, Any]) -> Built:
    """The LSTM, its forget gate open by one at first, with a linear readout."""

    def cell(params: Params, suffix: str, state: Any, x: jax.Array) -> tuple[Any, jax.Array]:
        gates = jnp.split(_drive(params, suffix, x, state["h"]), 4, axis=-1)
        enter, forget, leave = (jax.nn.sigmoid(gates[k] + (k == 1)) for k in range(3))
        c = forget * state["c"] + enter * jnp.tanh(gates[3])
        h = leave * jnp.tanh(c)
        return {"h": h, "c": c}, h

    return _stacked(cell, ("h", "c"), 4, key, n_in, n_out, n_hidden, checked(GatedSettings, "LSTM", settings))


def _drive(params: Params, suffix: str, x: jax.Array, h: jax.Array) -> jax.Array:
    return x @ params[f"w_in{suffix}"] + h @ params[f"w_rec{suffix}"] + params[f"b{suffix}"]


def _stacked(
    cell: Any, states: tuple[str, ...], gates: int, key: Any, n_in: int, n_out: int, n_hidden: int, settings: Any
) -> Built:
    names = suffixes(settings.layers)
    keys = iter(jax.random.split(key, 2 * len(names) + 1))
    params: Params = {}
    for place, name in enumerate(names):
        params[f"w_in{name}"] = normal(next(keys), n_hidden if place else n_in, gates * n_hidden)
        params[f"w_rec{name}"] = normal(next(keys), n_hidden, gates * n_hidden, settings.weight_scale)
        params[f"b{name}"] = zeros(gates * n_hidden)
    params |= {"w_out": normal(next(keys), n_hidden, n_out), "b_out": zeros(n_out)}

    def step(params: Params, state: Any, x: jax.Array) -> tuple[Any, Output]:
        after = []
        for name, own in zip(names, many(state), strict=True):
            own, x = cell(params, name, own, x)
            after.append(own)
        return one_or_many(after), Output(x @ params["w_out"] + params["b_out"])

    return Built(step, params, lambda batch: one_or_many([{s: zeros(batch, n_hidden) for s in states} for _ in names]))


@dataclass(frozen=True)
class LRUSettings:
    """Settings of linear recurrent units.

    Attributes:
        layers: Blocks of normalisation, recurrence, gated linear unit and skip connection.
        d_model: The width between blocks; None for that of the hidden state.
        r_min: The smallest first modulus of an eigenvalue.
        r_max: The largest.
        max_phase: The largest first phase.
    """

    layers: int = 1
    d_model: int | None = None
    r_min: float = 0.9
    r_max: float = 0.999
    max_phase: float = 2 * math.pi


def linear_recurrent(key: Any, n_in: int, n_out: int, n_hidden: int, dt: float, settings: Mapping[str, Any]) -> Built:
    """Blocks of linear recurrent units between a linear encoder and a linear readout."""
    record = checked(LRUSettings, "LRU", settings)
    _require_ring(record)
    width, names = record.d_model or n_hidden, suffixes(record.layers)
    first, last, *others = jax.random.split(key, 2 + len(names))
    params = {"w_in": normal(first, n_in, width), "b_in": zeros(width)}
    for name, own in zip(names, others, strict=True):
        params |= {f"{part}{name}": value for part, value in _unit(own, width, n_hidden, record).items()}
    params |= {"w_out": normal(last, width, n_out), "b_out": zeros(n_out)}

    def step(params: Params, state: Any, x: jax.Array) -> tuple[Any, Output]:
        u, after = x @ params["w_in"] + params["b_in"], []
        for name, own in zip(names, many(state), strict=True):
            own, y = _recur(params, name, own, _normalised(u))
            u = u + (y @ params[f"w_value{name}"]) * jax.nn.sigmoid(y @ params[f"w_gate{name}"])
            after.append(own)
        return one_or_many(after), Output(u @ params["w_out"] + params["b_out"])

    rest = lambda batch: one_or_many([{part: zeros(batch, n_hidden) for part in ("re", "im")} for _ in names])
    return Built(step, params, rest)


@dataclass(frozen=True)
class RTUSettings:
    """Settings of recurrent trace units.

    Attributes:
        r_min: The smallest first modulus of an eigenvalue.
        r_max: The largest.
        max_phase: The largest first phase.
    """

    r_min: float = 0.9
    r_max: float = 0.999
    max_phase: float = 2 * math.pi


def trace_units(key: Any, n_in: int, n_out: int, n_hidden: int, dt: float, settings: Mapping[str, Any]) -> Built:
    """A layer of recurrent trace units (Elelimy et al. 2024): rotations fed by the input alone, rectified, read out.

    `h <- lambda h + sqrt(1 - |lambda|^2) W x` with complex `h`, `W` and `lambda`, one of them for each unit, so that
    the trace of every parameter holds its whole history.
    """
    record = checked(RTUSettings, "RTU", settings)
    _require_ring(record)
    keys = jax.random.split(key, 5)
    squared, phase = _ring(keys[0], keys[1], n_hidden, record)
    params = {
        "nu": jnp.log(-0.5 * jnp.log(squared)),
        "theta": jnp.log(phase),
        "w_re": normal(keys[2], n_in, n_hidden),
        "w_im": normal(keys[3], n_in, n_hidden),
        "w_out": normal(keys[4], 2 * n_hidden, n_out, 0.1),
        "b_out": zeros(n_out),
    }

    def step(params: Params, state: Any, x: jax.Array) -> tuple[Any, Output]:
        modulus, phase = jnp.exp(-jnp.exp(params["nu"])), jnp.exp(params["theta"])
        real, imaginary, gain = modulus * jnp.cos(phase), modulus * jnp.sin(phase), jnp.sqrt(1 - modulus**2)
        re = real * state["re"] - imaginary * state["im"] + gain * (x @ params["w_re"])
        im = real * state["im"] + imaginary * state["re"] + gain * (x @ params["w_im"])
        y = jax.nn.relu(jnp.concatenate([re, im], axis=-1))
        return {"re": re, "im": im}, Output(y @ params["w_out"] + params["b_out"])

    return Built(step, params, lambda batch: {part: zeros(batch, n_hidden) for part in ("re", "im")})


def _require_ring(settings: Any) -> None:
    if not 0 < settings.r_min < settings.r_max < 1:
        raise ValueError(f"0 < r_min < r_max < 1 must hold; got {settings.r_min!r} and {settings.r_max!r}.")


def _ring(area: Any, angle: Any, n_hidden: int, settings: Any) -> tuple[jax.Array, jax.Array]:
    """Squared moduli and phases of eigenvalues that are uniform on a ring."""
    uniform = lambda key: jax.random.uniform(key, (n_hidden,), jnp.result_type(float), 1e-6, 1.0)
    squared = settings.r_min**2 + uniform(area) * (settings.r_max**2 - settings.r_min**2)
    return squared, settings.max_phase * uniform(angle)


def _unit(key: Any, width: int, n_hidden: int, settings: LRUSettings) -> Params:
    keys = jax.random.split(key, 9)
    squared, phase = _ring(keys[0], keys[1], n_hidden, settings)
    half = math.sqrt(0.5)
    return {
        "nu": jnp.log(-0.5 * jnp.log(squared)),
        "theta": jnp.log(phase),
        "gamma": 0.5 * jnp.log(1 - squared),
        "b_re": normal(keys[2], width, n_hidden, half),
        "b_im": normal(keys[3], width, n_hidden, half),
        "c_re": normal(keys[4], n_hidden, width),
        "c_im": normal(keys[5], n_hidden, width),
        "d": jax.random.normal(keys[6], (width,), jnp.result_type(float)),
        "w_value": normal(keys[7], width, width),
        "w_gate": normal(keys[8], width, width),
    }


def _recur(params: Params, name: str, state: Any, u: jax.Array) -> tuple[Any, jax.Array]:
    """`h <- lambda h + gamma B u` and `Re(C h) + D u`, with `lambda = exp(-exp(nu) + i exp(theta))`."""
    modulus, phase = jnp.exp(-jnp.exp(params[f"nu{name}"])), jnp.exp(params[f"theta{name}"])
    real, imaginary, gain = modulus * jnp.cos(phase), modulus * jnp.sin(phase), jnp.exp(params[f"gamma{name}"])
    re = real * state["re"] - imaginary * state["im"] + gain * (u @ params[f"b_re{name}"])
    im = real * state["im"] + imaginary * state["re"] + gain * (u @ params[f"b_im{name}"])
    y = re @ params[f"c_re{name}"] - im @ params[f"c_im{name}"] + params[f"d{name}"] * u
    return {"re": re, "im": im}, y


def _normalised(u: jax.Array) -> jax.Array:
    centred = u - jnp.mean(u, axis=-1, keepdims=True)
    return centred / jnp.sqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-6)
