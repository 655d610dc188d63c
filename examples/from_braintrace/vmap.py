"""A model for one sample, mapped over a batch: by hand, and with `vmap=True`.

By hand, the states are made under `vmap_new_states`, each sample with its own, and the learner is wrapped in `Vmap`.
`compile(..., vmap=True)` does both. The two give the same numbers.
"""

import brainstate
import braintools
import jax
import jax.numpy as jnp

import foretrace as braintrace

STEPS, BATCH, UNITS = 12, 16, 24


class Net(brainstate.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = braintrace.nn.MinimalRNNCell(1, UNITS)
        self.readout = braintrace.nn.Linear(UNITS, 1)

    def update(self, x):
        return self.readout(self.cell(x))


def map_by_hand(net, inputs):
    learner = braintrace.D_RTRL(net)

    @brainstate.transform.vmap_new_states(state_tag="new", axis_size=BATCH)
    def init():
        brainstate.nn.init_all_states(net)
        learner.compile_graph(inputs[0, 0])

    init()
    return brainstate.nn.Vmap(learner, vmap_states="new")


def map_by_option(net, inputs):
    return braintrace.compile(net, braintrace.D_RTRL, inputs[0], batch_size=BATCH, vmap=True)


def train(make_learner):
    brainstate.random.seed(10)
    net = Net()
    weights = net.states(brainstate.ParamState)
    optimizer = braintools.optim.Adam(lr=1e-2)
    optimizer.register_trainable_weights(weights)

    @brainstate.transform.jit
    def epoch(inputs, targets):
        learner = make_learner(net, inputs)

        def loss_of_step(x, y):
            return braintools.metric.squared_error(learner(x), y).mean()

        def add_gradient(total, item):
            grads, loss = brainstate.transform.grad(loss_of_step, weights, return_value=True)(*item)
            return jax.tree.map(jnp.add, total, grads), loss

        zeros = jax.tree.map(jnp.zeros_like, weights.to_dict_values())
        grads, losses = brainstate.transform.scan(add_gradient, zeros, (inputs, targets))
        optimizer.update(grads)
        return losses.mean()

    losses = []
    for number in range(40):
        inputs = brainstate.random.normal(0.0, 1.0, (STEPS, BATCH, 1))
        losses.append(float(epoch(inputs, 0.3 * jnp.cumsum(inputs, axis=0))))
        if number % 10 == 0:
            print(f"epoch {number:3d}  loss {losses[-1]:.4f}")
    return losses


def main():
    by_hand, by_option = train(map_by_hand), train(map_by_option)
    assert jnp.allclose(jnp.array(by_hand), jnp.array(by_option), rtol=1e-3)
    return by_hand


if __name__ == "__main__":
    main()
