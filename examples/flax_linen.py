"""Train a Flax linen module online: its variables are given, and optax changes them.

The network sees a noisy signal and is to give its running average. The statistics of its normalisation are written in
every step, so the learner carries them from step to step beside the states of the cells.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import foretrace as ft

STEPS, BATCH, UNITS = 60, 16, 24


class Network(nn.Module):
    """Two recurrent cells, a normalisation, and a readout."""

    @nn.compact
    def __call__(self, carry, x, train=True):
        first, x = nn.SimpleCell(UNITS)(carry[0], x)
        second, x = nn.MGUCell(UNITS)(carry[1], x)
        x = nn.BatchNorm(use_running_average=not train)(x)
        return (first, second), nn.Dense(1)(x)


def make_data(key):
    """Noise, time first, and its running average."""
    xs = jax.random.normal(key, (STEPS, BATCH, 1))
    average = lambda before, x: (0.95 * before + 0.2 * x,) * 2
    return xs, jax.lax.scan(average, jnp.zeros((BATCH, 1)), xs)[1]


def loss(out, y):
    """The loss of one step."""
    return jnp.mean((out - y) ** 2)


def main():
    model, x = Network(), jnp.zeros((BATCH, 1))
    carry = (jnp.zeros((BATCH, UNITS)), jnp.zeros((BATCH, UNITS)))
    variables = model.init(jax.random.key(0), carry, x)
    learner = ft.compile(model, "D_RTRL", x, params=variables, state=carry)
    print(learner.report)
    optimizer = optax.adam(3e-3)

    @jax.jit
    def update(params, opt_state, key):
        xs, ys = make_data(key)
        grads, _, losses = learner.grad(params, learner.init(), xs, ys, loss=loss)
        updates, opt_state = optimizer.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, jnp.mean(losses)

    params = variables["params"]
    opt_state = optimizer.init(params)
    print("\nupdates     mean loss")
    keys = jax.random.split(jax.random.key(1), 120)
    for start in range(0, 120, 30):
        values = []
        for key in keys[start : start + 30]:
            params, opt_state, value = update(params, opt_state, key)
            values.append(value)
        print(f"{start + 1:3d} to {start + 30:3d}  {jnp.mean(jnp.stack(values)):.4f}")


if __name__ == "__main__":
    main()
