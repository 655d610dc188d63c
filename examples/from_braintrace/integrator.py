"""A recurrent network integrates noise, with the gradient added up step by step in a scan.

The learner is made inside of the compiled function, from the states of the batch at hand, and stands for the network
wherever that would be called. `brainstate.transform.grad` gives the online gradient of each step.
"""

import brainstate
import braintools
import jax
import jax.numpy as jnp

import foretrace as braintrace

STEPS, BATCH, UNITS, DT = 25, 32, 32, 0.04


class RNN(brainstate.nn.Module):
    def __init__(self):
        super().__init__()
        orthogonal = braintools.init.Orthogonal()
        self.rnn = braintrace.nn.ValinaRNNCell(1, UNITS, w_init=orthogonal, activation="tanh")
        self.out = braintrace.nn.Linear(UNITS, 1)

    def update(self, x):
        return self.out(self.rnn(x))


@brainstate.transform.jit
def build_inputs_and_targets():
    bias = brainstate.random.uniform(-1.0, 1.0, (1, BATCH, 1))
    noise = brainstate.random.normal(0.0, 0.5, (STEPS, BATCH, 1))
    inputs = bias + noise
    return inputs, jnp.cumsum(inputs, axis=0) * DT


def main():
    brainstate.random.seed(1)
    net = RNN()
    weights = net.states().subset(brainstate.ParamState)
    opt = braintools.optim.Adam(lr=5e-3)
    opt.register_trainable_weights(weights)

    @brainstate.transform.jit
    def train(inputs, targets):
        brainstate.nn.init_all_states(net, batch_size=BATCH)
        model = braintrace.D_RTRL(net)
        model.compile_graph(inputs[0])

        def loss_of_step(x, y):
            return braintools.metric.squared_error(model(x), y).mean()

        def add_gradient(total, item):
            grads, loss = brainstate.transform.grad(loss_of_step, weights, return_value=True)(*item)
            return jax.tree.map(jnp.add, total, grads), loss

        zeros = jax.tree.map(jnp.zeros_like, weights.to_dict_values())
        grads, losses = brainstate.transform.scan(add_gradient, zeros, (inputs, targets))
        opt.update(jax.tree.map(lambda g: g / STEPS, grads))
        return losses.mean()

    losses = []
    for epoch in range(60):
        losses.append(float(train(*build_inputs_and_targets())))
        if epoch % 20 == 0:
            print(f"epoch {epoch:3d}  loss {losses[-1]:.4f}")
    return losses


if __name__ == "__main__":
    main()
