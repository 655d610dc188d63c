"""Learn while a stream runs: the weights change after every single step, states and traces run on.

A small network predicts the next value of a signal. Halfway through the stream the signal changes, and the network
follows, without a pause, a replay or a second look at the past. The stream is fed in pieces; the carry joins them.
"""

import jax
import jax.numpy as jnp
import optax

import foretrace as ft

PIECE, UNITS = 500, 24


def step(params, state, x):
    """A layer of leaky units and a readout."""
    h = 0.8 * state + 0.2 * jnp.tanh(x @ params["w_in"] + state @ params["w_rec"])
    return h, h @ params["w_out"]


def make_params(key):
    shapes = {"w_in": (1, UNITS), "w_rec": (UNITS, UNITS), "w_out": (UNITS, 1)}
    keys = jax.random.split(key, len(shapes))
    return {
        name: jax.random.normal(key, shape) / shape[0] ** 0.5
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def main():
    time = jnp.arange(8 * PIECE + 1)
    changed = time > 4 * PIECE
    signal = jnp.where(changed, jnp.sin(time / 2.0), jnp.sin(time / 6.0))[:, None]
    params, state = make_params(jax.random.key(0)), jnp.zeros(UNITS)
    learner = ft.compile(step, "D_RTRL", signal[0], params=params, state=state)
    print(learner.report)

    optimizer = optax.sgd(0.02)
    opt_state, carry = optimizer.init(params), learner.init(state)

    @jax.jit
    def learn(params, opt_state, carry, xs, ys):
        return learner.train(
            params,
            carry,
            xs,
            ys,
            loss=lambda out, y: jnp.sum((out - y) ** 2),
            optimizer=optimizer,
            opt_state=opt_state,
            update_every=1,
        )

    print("\nsteps          loss  signal")
    for start in range(0, 8 * PIECE, PIECE):
        xs, ys = signal[start : start + PIECE], signal[start + 1 : start + PIECE + 1]
        params, opt_state, carry, losses = learn(params, opt_state, carry, xs, ys)
        kind = "fast" if start >= 4 * PIECE else "slow"
        print(f"{start:5d} to {start + PIECE:5d}  {jnp.mean(losses):.4f}  {kind}")


if __name__ == "__main__":
    main()
