"""Train a Flax NNX module online: cells of Flax, a dropout, and `nnx.Optimizer`.

The network sees a noisy signal and is to give its running average. It holds the states of its two cells in Variables,
so one step is `out = model(x)`. The learner reads the module as it is; its gradients go into the optimizer of NNX.
"""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import foretrace as ft

STEPS, BATCH, UNITS = 60, 16, 24


class Network(nnx.Module):
    """Two recurrent cells, their states, and a readout."""

    def __init__(self, rngs):
        self.cells = nnx.List([nnx.GRUCell(1, UNITS, rngs=rngs), nnx.GRUCell(UNITS, UNITS, rngs=rngs)])
        self.states = nnx.List([nnx.Variable(jnp.zeros((BATCH, UNITS))) for _ in range(2)])
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.readout = nnx.Linear(UNITS, 1, rngs=rngs)

    def __call__(self, x):
        for cell, state in zip(self.cells, self.states, strict=True):
            state[...], x = cell(state[...], x)
        return self.readout(self.dropout(x))


def make_data(key):
    """Noise, time first, and its running average."""
    xs = jax.random.normal(key, (STEPS, BATCH, 1))
    average = lambda before, x: (0.95 * before + 0.2 * x,) * 2
    return xs, jax.lax.scan(average, jnp.zeros((BATCH, 1)), xs)[1]


def loss(out, y):
    """The loss of one step."""
    return jnp.mean((out - y) ** 2)


def main():
    model = Network(nnx.Rngs(0))
    learner = ft.compile(model, "D_RTRL", jnp.zeros((BATCH, 1)))
    print(learner.report)
    optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)

    @nnx.jit
    def update(model, optimizer, key):
        xs, ys = make_data(key)
        grads, _, losses = learner.grad(model, learner.init(), xs, ys, loss=loss)
        optimizer.update(model, grads)
        return jnp.mean(losses)

    print("\nupdates     mean loss")
    keys = jax.random.split(jax.random.key(1), 120)
    for start in range(0, 120, 30):
        values = [update(model, optimizer, key) for key in keys[start : start + 30]]
        print(f"{start + 1:3d} to {start + 30:3d}  {jnp.mean(jnp.stack(values)):.4f}")


if __name__ == "__main__":
    main()
