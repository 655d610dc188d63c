"""A run of its own process, to be killed: `python killed.py FOLDER ITERATIONS`. It goes on with whatever is there."""

import sys

import brainstate
import jax

brainstate.environ.set(precision=64)
jax.config.update("jax_enable_x64", True)

from foretrace import train  # noqa: E402
from train.small_task import fit  # noqa: E402

SETTINGS = dict(update_every=5, stream=True, clip=1.0, validate_every=40, checkpoint_every=3)


def main(folder: str, iterations: int) -> None:
    """Trains and leaves the weights."""
    result = fit(iterations=iterations, folder=folder, resume=True, **SETTINGS)
    train.save(f"{folder}/weights.safetensors", result.params)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
