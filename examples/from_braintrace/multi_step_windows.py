"""Windows of several steps: exact credit inside of each, traces from one to the next.

With `vjp_method='multi-step'` a call with `MultiStepData` runs a whole window, and its gradient is that of
backpropagation inside of it plus the traces for what came before. Weights change after every window.
"""

import brainstate
import braintools
import jax.numpy as jnp

import foretrace as braintrace

WINDOWS, WIDTH, BATCH, UNITS, LAG = 6, 5, 16, 32, 3


class DelayLine(brainstate.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = braintrace.nn.MGUCell(2, UNITS)
        self.readout = braintrace.nn.Linear(UNITS, 2)

    def update(self, x):
        return self.readout(self.cell(x))


@brainstate.transform.jit
def make_batch():
    """Signs, and the same signs some steps later, in windows."""
    inputs = jnp.sign(brainstate.random.normal(0.0, 1.0, (WINDOWS * WIDTH, BATCH, 2)))
    targets = jnp.pad(inputs, ((LAG, 0), (0, 0), (0, 0)))[:-LAG]
    return [sequence.reshape(WINDOWS, WIDTH, BATCH, 2) for sequence in (inputs, targets)]


def main():
    brainstate.random.seed(9)
    net = DelayLine()
    model = braintrace.D_RTRL(net, vjp_method="multi-step")
    brainstate.nn.init_all_states(net, batch_size=BATCH)
    model.compile_graph(jnp.zeros((BATCH, 2)))
    weights = net.states(brainstate.ParamState)
    optimizer = braintools.optim.Adam(lr=5e-3)
    optimizer.register_trainable_weights(weights)

    def train_window(inputs, targets):
        def loss():
            outputs = model(braintrace.MultiStepData(inputs))
            return braintools.metric.squared_error(outputs, targets).mean()

        grads, value = brainstate.transform.grad(loss, weights, return_value=True)()
        optimizer.update(grads)
        return value

    @brainstate.transform.jit
    def train(inputs, targets):
        brainstate.nn.reset_all_states(net, batch_size=BATCH)
        model.reset_state(batch_size=BATCH)
        return brainstate.transform.for_loop(train_window, inputs, targets).mean()

    losses = []
    for epoch in range(60):
        losses.append(float(train(*make_batch())))
        if epoch % 20 == 0:
            print(f"epoch {epoch:3d}  loss {losses[-1]:.4f}")
    return losses


if __name__ == "__main__":
    main()
