"""Learn from a stream of items as they come, see the world change in the loss, and go on after a stop.

Each item is predicted before the network learns from it, so the loss of a stream is a test at every step. Halfway the
rule behind the items changes: the windowed loss shows it, and the network follows.
"""

import itertools
import tempfile
from pathlib import Path

import numpy as np
import optax

from foretrace import train

STEPS = 6000


def sensor():
    """Two noisy channels; the target is a leaky sum of the first, and after half of the steps its negative."""
    rng, total = np.random.default_rng(0), 0.0
    for number in itertools.count():
        x = rng.normal(size=(1, 2)).astype("float32")
        total = 0.8 * total + 0.5 * x[0, 0]
        yield x, np.float32([[total if number < STEPS // 2 else -total]])


def from_step(steps):
    """The stream from a step on, for when it is taken up again."""
    return itertools.islice(sensor(), steps, None)


def main():
    net = train.network("GRU", n_inputs=2, n_outputs=1, n_hidden=16)
    learner, optimizer = net.compile("D_RTRL", batch_size=1), optax.sgd(0.05)
    with tempfile.TemporaryDirectory() as place:
        settings = dict(window=200, piece=50, folder=Path(place) / "run", progress=False)
        result = train.stream(learner, from_step, optimizer, limit=STEPS, **settings)
        more = train.stream(learner, from_step, optimizer, limit=STEPS + 500, resume=True, **settings)
    print(result)
    steps, losses = map(np.array, result.column("loss"))
    half = STEPS // 2
    print(f"before the change: loss {losses[steps == half][0]:.4f}")
    print(f"after it, at worst: loss {losses[steps > half].max():.4f}")
    print(f"at the end: loss {losses[-1]:.4f}")
    print(f"{result.steps} steps, goes on after {result.steps}: {more.steps}")


if __name__ == "__main__":
    main()
