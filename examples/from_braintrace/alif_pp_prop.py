"""Adaptive neurons remember a cue over a delay, by pp_prop with traces of a given rank.

The threshold of an ALIF neuron rises with each spike and falls slowly: that is its memory. There is a loss at the last
steps alone, by `mask`; the traces carry the credit back to the cue.
"""

import brainpy
import brainstate
import braintools
import brainunit as u
import jax.numpy as jnp

import foretrace as braintrace

CUE, DELAY, ANSWER, BATCH, INPUTS, UNITS = 8, 12, 4, 32, 12, 24
STEPS = CUE + DELAY + ANSWER


class ALIFNet(brainstate.nn.Module):
    def __init__(self):
        super().__init__()
        self.neu = brainpy.state.ALIF(
            UNITS, tau=10.0 * u.ms, tau_a=100.0 * u.ms, beta=0.3 * u.mV, spk_fun=braintools.surrogate.ReluGrad()
        )
        weight = braintools.init.KaimingNormal(scale=200.0, unit=u.mA)
        self.linear = braintrace.nn.Linear(INPUTS + UNITS, UNITS, w_init=weight, b_init=None)
        self.out = braintrace.nn.LeakyRateReadout(UNITS, 2, tau=5.0 * u.ms)

    def update(self, spikes):
        self.neu(self.linear(jnp.concatenate([spikes, self.neu.get_spike()], axis=-1)))
        return self.out(self.neu.get_spike())


@brainstate.transform.jit
def make_batch():
    """A third of the inputs fires for the left cue, a third for the right one, and a third during the answer."""
    labels = brainstate.random.randint(0, 2, (BATCH,))
    step, group = jnp.arange(STEPS)[:, None, None], jnp.arange(INPUTS) // (INPUTS // 3)
    cue = (step < CUE) & (group == labels[:, None])
    go = (step >= CUE + DELAY) & (group == 2)
    return (brainstate.random.random((STEPS, BATCH, INPUTS)) < 0.02 + 0.5 * (cue | go)).astype(float), labels


def main():
    brainstate.random.seed(4)
    brainstate.environ.set(dt=1.0 * u.ms)
    net = ALIFNet()
    learner = braintrace.compile(net, "pp_prop", jnp.zeros((BATCH, INPUTS)), batch_size=BATCH, decay_or_rank=19)
    optimizer = braintools.optim.Adam(lr=2e-2)
    optimizer.register_trainable_weights(net.states(brainstate.ParamState))
    mask = (jnp.arange(STEPS) >= CUE + DELAY).astype(float)

    @brainstate.transform.jit
    def train(inputs, labels):
        brainstate.nn.reset_all_states(net, batch_size=BATCH)
        learner.reset_state(batch_size=BATCH)

        def step(x):
            return braintools.metric.softmax_cross_entropy_with_integer_labels(learner(x), labels).mean()

        grads, loss = learner.etrace_grad(inputs, step_fn=step, mask=mask, loss_output="scalar", return_value=True)
        optimizer.update(grads)
        return loss

    losses = []
    for epoch in range(60):
        losses.append(float(train(*make_batch())))
        if epoch % 20 == 0:
            print(f"epoch {epoch:3d}  loss {losses[-1]:.4f}")
    return losses


if __name__ == "__main__":
    main()
