"""Train a plain step function online with D-RTRL.

The network sees a noisy signal and is to give its running average, which lives over about twenty steps. A gradient is
one forward run over the sequence; nothing is kept of the steps that have passed but a trace of each weight.
"""

import jax
import jax.numpy as jnp

import foretrace as ft

STEPS, BATCH, UNITS, RATE = 100, 16, 32, 0.005


def step(params, state, x):
    """A leaky layer with recurrent weights, and a readout."""
    h = 0.9 * state + 0.1 * jnp.tanh(x @ params["w_in"] + state @ params["w_rec"] + params["bias"])
    return h, h @ params["w_out"]


def make_params(key):
    shapes = {"w_in": (1, UNITS), "w_rec": (UNITS, UNITS), "w_out": (UNITS, 1)}
    keys = jax.random.split(key, len(shapes))
    weights = {
        name: jax.random.normal(key, shape) / shape[0] ** 0.5
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }
    return weights | {"bias": jnp.zeros((UNITS,))}


def make_data(key):
    """Noise, time first, and its running average."""
    xs = jax.random.normal(key, (STEPS, BATCH, 1))
    average = lambda before, x: (0.95 * before + 0.2 * x,) * 2
    return xs, jax.lax.scan(average, jnp.zeros((BATCH, 1)), xs)[1]


def loss(out, y):
    """The loss of one step."""
    return jnp.mean((out - y) ** 2)


def main():
    params, state = make_params(jax.random.key(0)), jnp.zeros((BATCH, UNITS))
    learner = ft.compile(step, "D_RTRL", jnp.zeros((BATCH, 1)), params=params, state=state)
    print(learner.report)

    @jax.jit
    def update(params, key):
        xs, ys = make_data(key)
        grads, _, losses = learner.grad(params, learner.init(state), xs, ys, loss=loss)
        return jax.tree.map(lambda p, g: p - RATE * g, params, grads), jnp.mean(losses)

    print("\nupdates     mean loss")
    keys = jax.random.split(jax.random.key(1), 200)
    for start in range(0, 200, 40):
        values = []
        for key in keys[start : start + 40]:
            params, value = update(params, key)
            values.append(value)
        print(f"{start + 1:3d} to {start + 40:3d}  {jnp.mean(jnp.stack(values)):.4f}")


if __name__ == "__main__":
    main()
