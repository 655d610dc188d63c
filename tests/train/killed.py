"""Runs in processes of their own, to be killed: `python killed.py` takes a job in each line that it is given.

It imports everything once and forks for each job, before JAX has begun to run, so that a job need not import again. It
prints the number of the process, and then how that ended. A job is `[what, folder, argument]`.
"""

import json
import os
import signal
import sys
import traceback
from typing import Any

import brainstate
import jax

brainstate.environ.set(precision=64)
jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402, F401
import safetensors.numpy  # noqa: E402, F401

import foretrace as ft  # noqa: E402
from foretrace import train  # noqa: E402
from foretrace.cli import main as command_line  # noqa: E402
from train.small_stream import items, stream  # noqa: E402
from train.small_task import BATCH, UNITS, fit, make_params, step  # noqa: E402

SETTINGS: dict[str, Any] = dict(update_every=6, stream=True, validate_every=4, checkpoint_every=3)


class Net(brainstate.nn.Module):
    """`step` as a module that also counts its steps and jitters its input, so that something lasts over trials."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = {name: brainstate.ParamState(value) for name, value in make_params().items()}
        self.steps = brainstate.LongTermState(jnp.zeros(()))

    def init_state(self, batch_size: int, **_: Any) -> None:
        self.h = brainstate.HiddenState(jnp.zeros((batch_size, UNITS)))

    def update(self, x: Any) -> Any:
        self.steps.value = self.steps.value + 1.0
        x = x + 0.1 * brainstate.random.rand(*x.shape)
        self.h.value, out = step({name: w.value for name, w in self.weights.items()}, self.h.value, x)
        return out


def learner(what: str) -> Any:
    """What is trained: a function's learner, or that of a module."""
    return None if what == "function" else ft.compile(Net(), "D_RTRL", jnp.ones((BATCH, 2)), batch_size=BATCH)


def work(what: str, folder: str, argument: Any) -> int:
    """Does a job: trains a function or a module for some iterations, learns from a stream, or runs a command."""
    if what == "command":
        sys.stdout = sys.stderr = open(f"{folder}.txt", "w")  # noqa: SIM115
        code = command_line(argument)
        sys.stdout.flush()
        return code
    if what == "stream":
        settings = dict(folder=folder, resume=True, limit=argument, checkpoint_every=0.02, piece=4, every=3)
        train.save(f"{folder}/weights.safetensors", stream(items, **settings).params)
        return 0
    result = fit(learner(what), iterations=argument, folder=folder, resume=True, **SETTINGS)
    train.save(f"{folder}/weights.safetensors", result.params)
    return 0


def main() -> None:
    """Forks for each job, and waits for it."""
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have turned these off
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            try:
                os._exit(work(*json.loads(line)))
            except SystemExit as end:
                os._exit(int(end.code or 0))
            except BaseException:
                traceback.print_exc()
                os._exit(70)
        print(process, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
