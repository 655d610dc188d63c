"""Stop a run and take it up again: it ends with the same weights, bit for bit, as one that was never stopped.

With a folder, `train.fit` writes checkpoints: parameters, optimizer, random key and what else the rest of the run
depends on. A run that ends, on purpose, by Ctrl-C or because the machine goes down, is resumed from the last of them by
the same call with `resume=True`.
"""

import tempfile
from pathlib import Path

import jax
import optax

from foretrace import tasks, train

BATCH = 16
task = tasks.Adding(n_steps=15, n_test=64)
net = train.network("RNN", task.n_inputs, task.n_outputs, n_hidden=12)


def fit(iterations, folder, resume=False):
    """A run up to a number of iterations, with a checkpoint every five of them."""
    return train.fit(
        net.compile("D_RTRL", BATCH),
        task,
        optax.sgd(1e-2, momentum=0.9),
        params=net.params,
        iterations=iterations,
        batch_size=BATCH,
        folder=folder,
        resume=resume,
        checkpoint_every=5,
        progress=False,
    )


def main():
    with tempfile.TemporaryDirectory() as place:
        whole = fit(30, Path(place) / "whole")
        fit(12, Path(place) / "stopped")
        resumed = fit(30, Path(place) / "stopped", resume=True)
        print("checkpoints:", *sorted(path.name for path in (Path(place) / "stopped").glob("*.safetensors")))
    print("records of iterations:", len(resumed.metrics))
    equal = jax.tree.map(lambda one, other: bool((one == other).all()), whole.params, resumed.params)
    print("equal bit for bit:", all(jax.tree.leaves(equal)))


if __name__ == "__main__":
    main()
