"""Low-rank fine-tuning: the recurrent weights stay as they are, two thin factors beside them learn.

`braintrace.nn.LoRA` adds `x @ lora_a @ lora_b` to what its base layer gives. The optimizer gets the factors and the
readout alone, and so does `etrace_grad`, by `weights=`.
"""

import brainstate
import braintools
import jax.numpy as jnp

import foretrace as braintrace

STEPS, BATCH, UNITS, RANK = 20, 32, 32, 2


class LoRANet(brainstate.nn.Module):
    def __init__(self):
        super().__init__()
        orthogonal = braintools.init.Orthogonal(scale=0.8)
        base = braintrace.nn.Linear(1 + UNITS, UNITS, w_init=orthogonal)
        self.lora = braintrace.nn.LoRA(1 + UNITS, RANK, UNITS, base_module=base)
        self.out = braintrace.nn.Linear(UNITS, 1, w_init=braintools.init.KaimingNormal(scale=0.1))

    def init_state(self, batch_size=None, **kwargs):
        self.h = brainstate.HiddenState(jnp.zeros((batch_size, UNITS)))

    def reset_state(self, batch_size=None, **kwargs):
        self.h.value = jnp.zeros((batch_size, UNITS))

    def update(self, x):
        self.h.value = jnp.tanh(self.lora(jnp.concatenate([x, self.h.value], axis=-1)))
        return self.out(self.h.value)


@brainstate.transform.jit
def make_batch():
    """Noise, and its average with a decay of 0.8."""
    inputs = brainstate.random.normal(0.0, 1.0, (STEPS, BATCH, 1))
    leaky = lambda y, x: (0.8 * y + 0.2 * x,) * 2
    return inputs, brainstate.transform.scan(leaky, jnp.zeros((BATCH, 1)), inputs)[1]


def main():
    brainstate.random.seed(7)
    net = LoRANet()
    learner = braintrace.compile(net, braintrace.D_RTRL, jnp.zeros((BATCH, 1)), batch_size=BATCH)
    everything = net.states(brainstate.ParamState)
    weights = {path: state for path, state in everything.items() if "base_module" not in path}
    optimizer = braintools.optim.Adam(lr=1e-2)
    optimizer.register_trainable_weights(weights)
    base = net.lora.base_module.weight.value["weight"]

    def step(x, y):
        return braintools.metric.squared_error(learner(x), y).mean()

    @brainstate.transform.jit
    def train(inputs, targets):
        brainstate.nn.reset_all_states(net, batch_size=BATCH)
        learner.reset_state(batch_size=BATCH)
        grads, losses = learner.etrace_grad(inputs, targets, step_fn=step, weights=weights, return_value=True)
        optimizer.update(grads)
        return losses.mean()

    losses = []
    for epoch in range(60):
        losses.append(float(train(*make_batch())))
        if epoch % 20 == 0:
            print(f"epoch {epoch:3d}  loss {losses[-1]:.4f}")
    assert jnp.array_equal(base, net.lora.base_module.weight.value["weight"])
    return losses


if __name__ == "__main__":
    main()
