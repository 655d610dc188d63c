"""A convolutional spiking network sees a bar move, and tells whether it goes right or down.

Each frame alone says nothing about the direction: the neurons have to remember the last ones. The model is a plain
`Sequential` of traced layers, neurons of `brainpy.state` and pooling, all with a batch axis.
"""

import brainstate
import braintools
import brainunit as u
import jax
import jax.numpy as jnp

import foretrace as braintrace

SIDE, STEPS, BATCH, CHANNELS = 6, 6, 16, 6


def lif(size):
    return braintrace.nn.LIF(size, tau=3.0 * u.ms, V_th=1.0 * u.mV, spk_fun=braintools.surrogate.ReluGrad())


class ConvSNN(brainstate.nn.Module):
    def __init__(self):
        super().__init__()
        weight = braintools.init.KaimingNormal(scale=60.0, unit=u.mA)
        conv = braintrace.nn.Conv2d((SIDE, SIDE, 1), CHANNELS, kernel_size=3, w_init=weight)
        hidden = lif(conv.out_size)
        pool = brainstate.nn.MaxPool2d(2, 2, channel_axis=-1, in_size=hidden.out_size)
        flat = brainstate.nn.Flatten(start_axis=0, in_size=pool.out_size)
        linear = braintrace.nn.Linear(flat.out_size, 16, w_init=weight, b_init=None)
        self.layers = brainstate.nn.Sequential(conv, hidden, pool, flat, linear, lif(16))
        self.out = braintrace.nn.LeakyRateReadout(16, 2, tau=5.0 * u.ms)

    def update(self, frame):
        return self.out(self.layers(frame))


@brainstate.transform.jit
def make_batch():
    """Bars of width one that move by one pixel a step, from a random place and over the border."""
    labels = brainstate.random.randint(0, 2, (BATCH,))
    start = brainstate.random.randint(0, SIDE, (BATCH,))
    bar = jax.nn.one_hot((start + jnp.arange(STEPS)[:, None]) % SIDE, SIDE)
    across, down = jnp.broadcast_arrays(bar[..., None, :], bar[..., :, None])
    return jnp.where(labels[:, None, None] == 0, across, down)[..., None], labels


def main():
    brainstate.random.seed(5)
    brainstate.environ.set(dt=1.0 * u.ms)
    net = ConvSNN()
    learner = braintrace.compile(net, braintrace.D_RTRL, jnp.zeros((BATCH, SIDE, SIDE, 1)), batch_size=BATCH)
    optimizer = braintools.optim.Adam(lr=1e-2)
    optimizer.register_trainable_weights(net.states(brainstate.ParamState))

    @brainstate.transform.jit
    def train(frames, labels):
        brainstate.nn.reset_all_states(net, batch_size=BATCH)
        learner.reset_state(batch_size=BATCH)

        def step(frame):
            return braintools.metric.softmax_cross_entropy_with_integer_labels(learner(frame), labels).mean()

        grads, losses = learner.etrace_grad(frames, step_fn=step, return_value=True)
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
