"""Train an Equinox module online: written for one sample, learned on a batch, updated by `eqx.apply_updates`.

The network sees a noisy signal and is to give its running average. `eqx.filter_vmap` maps it over the batch; gradients
have the form of the module itself.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import foretrace as ft

STEPS, BATCH, UNITS = 60, 16, 24


class Network(eqx.Module):
    """A GRU, and a leaky layer with learned decays behind it."""

    cell: eqx.nn.GRUCell
    decay: jax.Array
    readout: eqx.nn.Linear

    def __init__(self, key):
        first, second = jax.random.split(key)
        self.cell = eqx.nn.GRUCell(1, UNITS, key=first)
        self.decay = jnp.zeros(UNITS)
        self.readout = eqx.nn.Linear(UNITS, 1, key=second)

    def __call__(self, x, state):
        h, slow = state
        h = self.cell(x, h)
        a = jax.nn.sigmoid(self.decay)
        slow = a * slow + (1 - a) * h
        return self.readout(slow), (h, slow)


def make_data(key):
    """Noise, time first, and its running average."""
    xs = jax.random.normal(key, (STEPS, BATCH, 1))
    average = lambda before, x: (0.95 * before + 0.2 * x,) * 2
    return xs, jax.lax.scan(average, jnp.zeros((BATCH, 1)), xs)[1]


def loss(out, y):
    """The loss of one step."""
    return jnp.mean((out - y) ** 2)


def main():
    model = Network(jax.random.key(0))
    state = (jnp.zeros((BATCH, UNITS)), jnp.zeros((BATCH, UNITS)))
    learner = ft.compile(eqx.filter_vmap(model), "D_RTRL", jnp.zeros((BATCH, 1)), state=state)
    print(learner.report)
    optimizer = optax.adam(3e-3)
    opt_state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_jit
    def update(model, opt_state, key):
        xs, ys = make_data(key)
        grads, _, losses = learner.grad(model, learner.init(), xs, ys, loss=loss)
        updates, opt_state = optimizer.update(grads, opt_state)
        return eqx.apply_updates(model, updates), opt_state, jnp.mean(losses)

    print("\nupdates     mean loss")
    keys = jax.random.split(jax.random.key(1), 120)
    for start in range(0, 120, 30):
        values = []
        for key in keys[start : start + 30]:
            model, opt_state, value = update(model, opt_state, key)
            values.append(value)
        print(f"{start + 1:3d} to {start + 30:3d}  {jnp.mean(jnp.stack(values)):.4f}")


if __name__ == "__main__":
    main()
