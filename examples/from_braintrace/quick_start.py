"""Quick start: a GRU learns online to say the sum of its last three inputs.

`compile` initialises the states and builds the graph; `etrace_grad` drives the learner over a sequence and gives the
gradient of the mean loss by the path of each parameter.
"""

import brainstate
import braintools
import jax.numpy as jnp

import foretrace as braintrace

STEPS, BATCH, UNITS = 20, 16, 16


class Net(brainstate.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = braintrace.nn.GRUCell(1, UNITS)
        self.readout = braintrace.nn.Linear(UNITS, 1)

    def update(self, x):
        return self.readout(self.cell(x))


@brainstate.transform.jit
def make_batch():
    xs = brainstate.random.uniform(-1.0, 1.0, (STEPS, BATCH, 1))
    before = jnp.pad(xs, ((2, 0), (0, 0), (0, 0)))
    return xs, before[2:] + before[1:-1] + before[:-2]


def main():
    brainstate.random.seed(0)
    model = Net()
    learner = braintrace.compile(model, braintrace.D_RTRL, jnp.zeros((BATCH, 1)), batch_size=BATCH)
    print(learner.report)
    weights = model.states(brainstate.ParamState)
    optimizer = braintools.optim.Adam(lr=1e-2)
    optimizer.register_trainable_weights(weights)

    def step(x, y):
        return jnp.mean((learner(x) - y) ** 2)

    @brainstate.transform.jit
    def train(xs, ys):
        brainstate.nn.reset_all_states(model, batch_size=BATCH)
        learner.reset_state()
        grads, losses = learner.etrace_grad(xs, ys, step_fn=step, return_value=True)
        optimizer.update(grads)
        return jnp.mean(losses)

    losses = []
    for epoch in range(60):
        losses.append(float(train(*make_batch())))
        if epoch % 20 == 0:
            print(f"epoch {epoch:3d}  loss {losses[-1]:.4f}")
    return losses


if __name__ == "__main__":
    main()
