"""The copy task: a GRU stores symbols, waits, and says them in order.

There is a loss in the recall phase alone. Until then the states and the traces run on without one, in a `for_loop`;
credit reaches back through the traces.
"""

import brainstate
import braintools
import jax
import jax.numpy as jnp

import foretrace as braintrace

SYMBOLS, STORE, DELAY, BATCH, UNITS = 4, 2, 2, 32, 48


class GRUNet(brainstate.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = braintrace.nn.GRUCell(SYMBOLS + 1, UNITS)
        self.readout = braintrace.nn.Linear(UNITS, SYMBOLS)

    def update(self, x):
        return self.readout(self.cell(x))


@brainstate.transform.jit
def make_batch():
    symbols = brainstate.random.randint(0, SYMBOLS, (STORE, BATCH))
    inputs = jnp.zeros((STORE + DELAY + STORE, BATCH, SYMBOLS + 1))
    inputs = inputs.at[:STORE, :, :SYMBOLS].set(jax.nn.one_hot(symbols, SYMBOLS))
    return inputs.at[-STORE:, :, SYMBOLS].set(1.0), symbols


def main():
    brainstate.random.seed(2)
    net = GRUNet()
    learner = braintrace.D_RTRL(net)
    brainstate.nn.init_all_states(net, batch_size=BATCH)
    learner.compile_graph(jnp.zeros((BATCH, SYMBOLS + 1)))
    weights = net.states(brainstate.ParamState)
    optimizer = braintools.optim.Adam(lr=5e-3)
    optimizer.register_trainable_weights(weights)

    def recall(x, symbol):
        return braintools.metric.softmax_cross_entropy_with_integer_labels(learner(x), symbol).mean()

    @brainstate.transform.jit
    def train(inputs, symbols):
        brainstate.nn.reset_all_states(net, batch_size=BATCH)
        learner.reset_state(batch_size=BATCH)
        brainstate.transform.for_loop(learner, inputs[:-STORE])

        def add_gradient(total, item):
            grads, loss = brainstate.transform.grad(recall, weights, return_value=True)(*item)
            return jax.tree.map(jnp.add, total, grads), loss

        zeros = jax.tree.map(jnp.zeros_like, {path: state.value for path, state in weights.items()})
        grads, losses = brainstate.transform.scan(add_gradient, zeros, (inputs[-STORE:], symbols))
        optimizer.update(grads)
        return losses.mean()

    losses = []
    for epoch in range(200):
        losses.append(float(train(*make_batch())))
        if epoch % 50 == 0:
            print(f"epoch {epoch:3d}  loss {losses[-1]:.4f}")
    return losses


if __name__ == "__main__":
    main()
