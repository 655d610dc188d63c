"""An operator of one's own: one-to-one synapses, each with a gain, learn to undo unknown gains.

`register_primitive` makes the function a traced operator. The trace rules beside it are what braintrace asks for; the
derivative of the function says the same, so here they may be left out.
"""

import brainstate
import braintools
import jax.numpy as jnp

import foretrace as braintrace

STEPS, BATCH, UNITS = 15, 8, 10

one_to_one_p = braintrace.register_primitive("one_to_one", lambda x, weight: x * weight, batched=True)


def dt_to_t(hidden, trace, **_):
    return {"weight": hidden * trace["weight"]}


def xy_to_dw(x, hidden, weights, **_):
    return {"weight": x * hidden}


def init_drtrl(x, y, weights, num_state):
    return {"weight": jnp.zeros((*y.aval.shape, num_state))}


one_to_one_p.register_etp_rules(dt_to_t=dt_to_t, xy_to_dw=xy_to_dw, init_drtrl=init_drtrl)


class Relay(brainstate.nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = brainstate.ParamState(jnp.ones(UNITS))

    def init_state(self, batch_size=None, **kwargs):
        self.h = brainstate.HiddenState(jnp.zeros((batch_size, UNITS)))

    def reset_state(self, batch_size=None, **kwargs):
        self.h.value = jnp.zeros((batch_size, UNITS))

    def update(self, x):
        self.h.value = 0.9 * self.h.value + one_to_one_p.bind(x, self.gain.value)
        return self.h.value


def main():
    brainstate.random.seed(6)
    wanted = brainstate.random.uniform(-1.0, 2.0, (UNITS,))
    net = Relay()
    learner = braintrace.compile(net, braintrace.D_RTRL, jnp.zeros((BATCH, UNITS)), batch_size=BATCH)
    weights = net.states(brainstate.ParamState)
    optimizer = braintools.optim.SGD(lr=0.2)
    optimizer.register_trainable_weights(weights)

    def step(x, y):
        return jnp.mean((learner(x) - y) ** 2)

    @brainstate.transform.jit
    def train():
        inputs = brainstate.random.normal(0.0, 1.0, (STEPS, BATCH, UNITS))
        leaky = lambda h, x: (0.9 * h + wanted * x,) * 2
        _, targets = brainstate.transform.scan(leaky, jnp.zeros((BATCH, UNITS)), inputs)
        brainstate.nn.reset_all_states(net, batch_size=BATCH)
        learner.reset_state(batch_size=BATCH)
        grads, losses = learner.etrace_grad(inputs, targets, step_fn=step, return_value=True)
        optimizer.update(grads)
        return losses.mean()

    losses = []
    for epoch in range(40):
        losses.append(float(train()))
        if epoch % 10 == 0:
            print(f"epoch {epoch:3d}  loss {losses[-1]:.4f}")
    return losses


if __name__ == "__main__":
    main()
