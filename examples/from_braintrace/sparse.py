"""Sparse recurrent weights: a tenth of all connections, which stay where they are while their weights learn.

The connections are a CSR matrix of `brainevent`; the weights, their gradient and their trace have one number for each
connection.
"""

import brainevent
import brainstate
import braintools
import jax.numpy as jnp
import numpy as np

import foretrace as braintrace

STEPS, BATCH, INPUTS, UNITS, DENSITY = 15, 16, 2, 60, 0.1


def random_connections():
    rng = np.random.default_rng(8)
    dense = rng.normal(0.0, 1.0, (UNITS, UNITS)) * (rng.random((UNITS, UNITS)) < DENSITY)
    return brainevent.CSR.fromdense(jnp.asarray(dense / np.sqrt(DENSITY * UNITS), jnp.float32))


class SparseNet(brainstate.nn.Module):
    def __init__(self):
        super().__init__()
        self.w_in = braintrace.nn.Linear(INPUTS, UNITS)
        self.w_rec = braintrace.nn.SparseLinear(random_connections())
        self.out = braintrace.nn.Linear(UNITS, 1, w_init=braintools.init.KaimingNormal(scale=0.1))

    def init_state(self, batch_size=None, **kwargs):
        self.h = brainstate.HiddenState(jnp.zeros((batch_size, UNITS)))

    def reset_state(self, batch_size=None, **kwargs):
        self.h.value = jnp.zeros((batch_size, UNITS))

    def update(self, x):
        h = self.h.value
        self.h.value = 0.8 * h + 0.2 * jnp.tanh(self.w_in(x) + self.w_rec(h))
        return self.out(self.h.value)


@brainstate.transform.jit
def make_batch():
    """Two inputs; what is asked is how much more the first one has brought than the second one."""
    inputs = brainstate.random.normal(0.0, 1.0, (STEPS, BATCH, INPUTS))
    return inputs, 0.2 * jnp.cumsum(inputs[..., :1] - inputs[..., 1:], axis=0)


def main():
    brainstate.random.seed(8)
    net = SparseNet()
    learner = braintrace.compile(net, braintrace.D_RTRL, jnp.zeros((BATCH, INPUTS)), batch_size=BATCH)
    optimizer = braintools.optim.Adam(lr=5e-3)
    optimizer.register_trainable_weights(net.states(brainstate.ParamState))

    def step(x, y):
        return braintools.metric.squared_error(learner(x), y).mean()

    @brainstate.transform.jit
    def train(inputs, targets):
        brainstate.nn.reset_all_states(net, batch_size=BATCH)
        learner.reset_state(batch_size=BATCH)
        grads, losses = learner.etrace_grad(inputs, targets, step_fn=step, return_value=True)
        optimizer.update(grads)
        return losses.mean()

    losses = []
    for epoch in range(45):
        losses.append(float(train(*make_batch())))
        if epoch % 20 == 0:
            print(f"epoch {epoch:3d}  loss {losses[-1]:.4f}")
    return losses


if __name__ == "__main__":
    main()
