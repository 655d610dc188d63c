"""Recurrent LIF neurons with exponential synapses learn by pp_prop to tell which half of the inputs fires more.

Neurons, synapses and currents are those of `brainpy.state`, with their units; `braintrace.nn.Linear` is the traced
connection, and a leaky readout gathers the spikes.
"""

import brainpy
import brainstate
import braintools
import brainunit as u
import jax
import jax.numpy as jnp

import foretrace as braintrace

STEPS, BATCH, INPUTS, UNITS = 25, 32, 20, 32


class LIFNet(brainstate.nn.Module):
    def __init__(self):
        super().__init__()
        self.neu = brainpy.state.LIF(
            UNITS, tau=10.0 * u.ms, V_th=1.0 * u.mV, spk_fun=braintools.surrogate.ReluGrad(), spk_reset="soft"
        )
        weight = braintools.init.KaimingNormal(scale=8.0, unit=u.mA)
        self.syn = brainpy.state.AlignPostProj(
            comm=braintrace.nn.Linear(INPUTS + UNITS, UNITS, w_init=weight, b_init=braintools.init.ZeroInit(unit=u.mA)),
            syn=brainpy.state.Expon(UNITS, tau=5.0 * u.ms, g_initializer=braintools.init.ZeroInit(unit=u.mA)),
            out=brainpy.state.CUBA(scale=1.0),
            post=self.neu,
        )
        self.out = braintrace.nn.LeakyRateReadout(UNITS, 2, tau=10.0 * u.ms)

    def update(self, spikes):
        self.syn(jnp.concatenate([spikes, self.neu.get_spike()], axis=-1))
        self.neu(0.0 * u.mA)
        return self.out(self.neu.get_spike())


@brainstate.transform.jit
def make_batch():
    labels = brainstate.random.randint(0, 2, (BATCH,))
    first_half = jnp.arange(INPUTS) < INPUTS // 2
    rates = jnp.where(first_half == labels[:, None].astype(bool), 0.25, 0.1)
    return (brainstate.random.random((STEPS, BATCH, INPUTS)) < rates).astype(float), labels


def main():
    brainstate.random.seed(3)
    brainstate.environ.set(dt=1.0 * u.ms)
    net = LIFNet()
    learner = braintrace.compile(
        net, braintrace.pp_prop, jnp.zeros((BATCH, INPUTS)), batch_size=BATCH, decay_or_rank=0.9
    )
    weights = net.states(brainstate.ParamState)
    optimizer = braintools.optim.Adam(lr=5e-3)
    optimizer.register_trainable_weights(weights)

    @brainstate.transform.jit
    def train(inputs, labels):
        brainstate.nn.reset_all_states(net, batch_size=BATCH)
        learner.reset_state(batch_size=BATCH)

        def loss_of_step(x):
            return braintools.metric.softmax_cross_entropy_with_integer_labels(learner(x), labels).mean()

        def add_gradient(total, x):
            grads, loss = brainstate.transform.grad(loss_of_step, weights, return_value=True)(x)
            return jax.tree.map(jnp.add, total, grads), loss

        zeros = jax.tree.map(jnp.zeros_like, weights.to_dict_values())
        grads, losses = brainstate.transform.scan(add_gradient, zeros, inputs)
        optimizer.update(brainstate.nn.clip_grad_norm(grads, 1.0))
        return losses.mean()

    losses = []
    for epoch in range(50):
        losses.append(float(train(*make_batch())))
        if epoch % 20 == 0:
            print(f"epoch {epoch:3d}  loss {losses[-1]:.4f}")
    return losses


if __name__ == "__main__":
    main()
