"""Train a brainstate module online: a GRU that remembers the first item of a sequence.

`etrace_grad` drives the learner over whole sequences and gives the gradient of the mean loss, by parameter. The model
is written as always; `brainstate.nn.GRUCell` marks nothing, so the compiler finds its weights by itself.
"""

import brainstate
import jax
import jax.numpy as jnp
import optax

import foretrace as ft

STEPS, BATCH, UNITS = 12, 32, 24


class Memory(brainstate.nn.Module):
    """A GRU and a readout."""

    def __init__(self):
        super().__init__()
        self.cell = brainstate.nn.GRUCell(2, UNITS)
        self.readout = brainstate.nn.Linear(UNITS, 1)

    def update(self, x):
        return self.readout(self.cell(x))


def make_data(key):
    """Signs, a mark at the first of them, and that first sign as the target of every step."""
    signs = jax.random.rademacher(key, (STEPS, BATCH)).astype(jnp.float32)
    mark = jnp.zeros((STEPS, BATCH)).at[0].set(1.0)
    return jnp.stack([signs, mark], axis=-1), jnp.broadcast_to(signs[0], (STEPS, BATCH))


def main():
    brainstate.random.seed(0)
    model = Memory()
    learner = ft.compile(model, "D_RTRL", jnp.zeros((BATCH, 2)), batch_size=BATCH)
    print(learner.report)

    optimizer = optax.adam(1e-2)
    opt_state = brainstate.State(optimizer.init({path: state.value for path, state in learner.param_states.items()}))

    def loss(x, y):
        return jnp.mean(jax.nn.softplus(-y * learner(x)[:, 0]))

    @brainstate.transform.jit
    def update(key):
        xs, ys = make_data(key)
        brainstate.nn.reset_all_states(model, batch_size=BATCH)
        learner.reset_state()
        grads, losses = learner.etrace_grad(xs, ys, step_fn=loss, return_value=True)
        values = {path: state.value for path, state in learner.param_states.items()}
        changes, opt_state.value = optimizer.update(grads, opt_state.value, values)
        for path, value in optax.apply_updates(values, changes).items():
            learner.param_states[path].value = value
        return jnp.mean(losses)

    print("\nupdate  loss")
    for number, key in enumerate(jax.random.split(jax.random.key(1), 100)):
        value = update(key)
        if number in (0, 24, 49, 74, 99):
            print(f"{number + 1:6d}  {value:.4f}")


if __name__ == "__main__":
    main()
