"""A task of your own, trained until it is learned: did the two pulses have the same sign?

A task names its sizes and writes one trial, as a function of a random key; batches, held-out trials, a loss, a measure
and a picture follow from that. `train.fit` validates on the held-out trials every few iterations. It stops at a goal,
or when five validations in a row bring no lower loss.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from foretrace import train
from foretrace.tasks.task import Generated, Trial, even_mask

BATCH, UNITS = 32, 16


@dataclass(frozen=True, kw_only=True)
class SameSign(Generated):
    """Two pulses, up or down, with a delay between them and another before the answer.

    Attributes:
        delay: Steps of silence after each pulse.
    """

    name = "same-sign"
    n_inputs: int = 1
    n_outputs: int = 2
    delay: int = 4

    @property
    def n_steps(self):
        return 2 * (1 + self.delay) + 1

    def trial(self, key):
        signs = jax.random.rademacher(key, (2,)).astype(jnp.float32)
        steps = jnp.arange(self.n_steps)
        return Trial(
            inputs=jnp.zeros((self.n_steps, 1)).at[jnp.array([0, 1 + self.delay]), 0].set(signs),
            targets=jnp.full(self.n_steps, signs[0] == signs[1]).astype(jnp.int32),
            mask=even_mask(steps == self.n_steps - 1),  # the last step counts
        )


def main():
    task = SameSign(n_test=128)
    net = train.network("GRU", task.n_inputs, task.n_outputs, n_hidden=UNITS)
    result = train.fit(
        net.compile("D_RTRL", BATCH),
        task,
        optax.adam(1e-2),
        params=net.params,
        iterations=400,
        batch_size=BATCH,
        clip=1.0,
        validate_every=20,
        stop=("accuracy", ">", 0.95),
        patience=5,
        progress=False,
    )
    print("iteration  loss    accuracy")
    for record in result.metrics:
        if "validation_loss" in record:
            print(f"{record['iteration']:9d}  {record['validation_loss']:.4f}  {record['validation_accuracy']:.2f}")
    print(f"stopped: {result.stopped_because}")


if __name__ == "__main__":
    main()
