"""How close the gradients of several rules come to that of BPTT, on a small recurrent network of spiking neurons.

`ft.compare_gradients` takes both gradients of the same losses over the same sequence. RTRL is exact; the others trade
some of it for memory, locality or a simpler signal. Random feedback and a random projection look bad in one gradient:
the first counts on the readout to align with it, the second on the mean of many. What a rule loses depends on the model
and the task, so it is worth a look at your own.
"""

import jax
import jax.numpy as jnp

import foretrace as ft

STEPS, BATCH, INPUTS, UNITS, OUTPUTS = 30, 4, 10, 16, 2
RULES = {
    "RTRL": {},
    "OSTL_recurrent": {},
    "D_RTRL": {},
    "pp_prop": {"decay_or_rank": 0.9},
    "OTTT": {"leak": 0.9},
    "EProp": {"feedback": "random"},
    "UORO": {},
}


@jax.custom_jvp
def spike(potential):
    """One where the potential is above zero, with a triangle for its derivative."""
    return (potential > 0).astype(potential.dtype)


@spike.defjvp
def _spike_jvp(primals, tangents):
    (potential,), (tangent,) = primals, tangents
    return spike(potential), 0.5 * jnp.maximum(0.0, 1.0 - jnp.abs(potential)) * tangent


def step(params, state, x):
    """Leaky integrate-and-fire neurons with a soft reset, and a readout of their filtered spikes."""
    fired = spike(state["v"] - 1.0)
    v = 0.9 * state["v"] - fired + x @ params["w_in"] + fired @ params["w_rec"]
    trace = 0.9 * state["trace"] + spike(v - 1.0)
    return {"v": v, "trace": trace}, trace @ params["w_out"]


def main():
    keys = jax.random.split(jax.random.key(0), 5)
    shapes = {"w_in": (INPUTS, UNITS), "w_rec": (UNITS, UNITS), "w_out": (UNITS, OUTPUTS)}
    params = {
        name: jax.random.normal(key, shape) / shape[0] ** 0.5
        for key, (name, shape) in zip(keys, shapes.items(), strict=False)
    }
    state = {name: jnp.zeros((BATCH, UNITS)) for name in ("v", "trace")}
    xs = jax.random.bernoulli(keys[3], 0.3, (STEPS, BATCH, INPUTS)).astype(jnp.float32)
    ys = jax.random.normal(keys[4], (STEPS, BATCH, OUTPUTS))

    print("rule            cosine  w_in    w_rec   w_out")
    for rule, options in RULES.items():
        learner = ft.compile(step, rule, xs[0], params=params, state=state, **options)
        found = ft.compare_gradients(
            learner, xs, ys, loss=lambda out, y: jnp.mean((out - y) ** 2), params=params, state=state
        )
        each = {row.name: row.cosine for row in found.rows}
        cosines = [found.overall.cosine, each["w_in"], each["w_rec"], each["w_out"]]
        print(f"{rule:<14}  " + "  ".join(f"{cosine:6.3f}" for cosine in cosines))


if __name__ == "__main__":
    main()
