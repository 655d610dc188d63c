"""Compile a plain JAX step function and read what was found.

A leaky layer feeds a layer of adaptive spiking neurons. Nothing is marked: the compiler finds where each parameter
enters by itself.
"""

import jax
import jax.numpy as jnp

import foretrace as ft

BATCH, INPUTS, UNITS, OUTPUTS = 8, 20, 30, 2


@jax.custom_jvp
def spike(potential):
    """One where the potential is above zero, with the derivative of a fast sigmoid."""
    return (potential > 0).astype(potential.dtype)


@spike.defjvp
def _spike_jvp(primals, tangents):
    (potential,), (tangent,) = primals, tangents
    return spike(potential), tangent / (1.0 + 10.0 * jnp.abs(potential)) ** 2


def step(params, state, x):
    """One step of both layers and the readout."""
    leaky = params["decay"] * state["leaky"] + x @ params["w_in"]
    v, threshold = state["v"], state["threshold"]
    fired = spike(v - 1.0 - threshold)
    v = 0.9 * v + jnp.tanh(leaky) @ params["w_hidden"] - fired
    threshold = 0.98 * threshold + 0.1 * fired
    return {"leaky": leaky, "v": v, "threshold": threshold}, v @ params["w_out"]


def build():
    """Parameters and states of the model."""
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = {"w_in": (INPUTS, UNITS), "w_hidden": (UNITS, UNITS), "w_out": (UNITS, OUTPUTS)}
    params = {
        name: 0.2 * jax.random.normal(key, shape) for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }
    params["decay"] = jnp.full(UNITS, 0.9)
    return params, {name: jnp.zeros((BATCH, UNITS)) for name in ("leaky", "v", "threshold")}


def main():
    params, state = build()
    graph = ft.compile_etrace_graph(step, jnp.ones((BATCH, INPUTS)), params=params, state=state)
    print(graph.explain(level=2))


if __name__ == "__main__":
    main()
