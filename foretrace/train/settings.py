"""What makes a run the run that it is, so that it is never continued with other settings by mistake.

Numbers are compared as they are. Functions have no value to compare: their traced program is taken, with all of its
constants, as a short digest. The program of a whole iteration decides, since everything that can change a weight is in
it; the programs of the task, the network, the optimizer and so on tell which of them is another one.

Another version of JAX or of Foretrace may write the same program otherwise. Then the first iteration decides: it is run
again from the parameters that the run began with, and its numbers must be those that were noted.
"""

import hashlib
import math
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from foretrace._jax import program_digest
from foretrace.train.checkpoint import is_key
from foretrace.train.feeding import is_fed
from foretrace.train.iteration import Training, TrainState

_ADDRESS = re.compile(r"0x[0-9a-f]+")
VERSIONS = ("jax", "foretrace")
PROGRAM, START = "program", "start"
DIGESTS = ("task", "network", "optimizer", "readout", "spikes", "external", PROGRAM)
UNLIKE = 0.02
"""How far numbers of the first iteration may be apart, as a share: rounding alone can let a neuron spike or not."""

Numbers = dict[str, float]
"""Of the first iteration: its loss, the norm of its gradient, and that of the change of the parameters."""


def describe(training: Training, state: TrainState, iterate: Any, further: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run, as plain values.

    Args:
        training: What stays the same in it.
        state: Its first state.
        iterate: The jitted function of one iteration.
        further: Other settings that change the result.
    """
    import foretrace

    task, batch, loss = training.task, training.batch_size, training.loss
    trial = jax.eval_shape(lambda key: task.sample(key, batch), state.key)
    given = (trial,) if is_fed(task) else ()
    step = lambda tree: jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), tree)

    out = step(jax.eval_shape(training.run, state.params, state.persistent, trial.inputs))
    output = jax.eval_shape(loss.readout, out)
    return {
        "jax": jax.__version__,
        "foretrace": foretrace.__version__,
        "precision": str(jnp.result_type(float)),
        "task": f"{task.name} {digest(task.sample, state.key, batch)}"
        + digest(task.loss, output, step(trial.targets), step(trial.mask)),
        "network": digest(training.run, state.params, state.persistent, trial.inputs),
        "rule": clean(training.trainable.rule),
        "optimizer": digest(training.optimizer.update, state.params, state.opt_state, state.params),
        "readout": digest(loss.readout, out),
        "spikes": digest(loss.spikes, out),
        "external": None if training.external is None else digest(training.external, trial),
        PROGRAM: program_digest(iterate.trace(state, *given).jaxpr)[:12],
        START: digest_of_values((state.params, state.persistent, state.carry)),
        "batch_size": batch,
        "update_every": training.update_every,
        "stream": training.stream,
        **further,
    }


def clean(words: str) -> str:
    """Words without addresses, which differ from process to process."""
    return _ADDRESS.sub("", words)


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What differs between the settings of two runs, in words."""
    skipped = {*VERSIONS, START, *(DIGESTS if other_versions(before, now) else (PROGRAM,))}
    found = []
    for name, value in now.items():
        old = before.get(name)
        if name in skipped or old == value:
            continue
        if name in DIGESTS and str(old).split(" ")[0] == str(value).split(" ")[0]:
            found.append(f"another `{name}` of the same name")
        else:
            found.append(f"another `{name}`" if name in DIGESTS[1:] else f"`{name}` = {old!r} (now {value!r})")
    if found or other_versions(before, now) or before.get(PROGRAM) == now[PROGRAM]:
        return found
    return ["another way to the gradient (an option of the rule or of the learner, a surrogate derivative)"]


def other_versions(before: dict[str, Any], now: dict[str, Any]) -> str:
    """The versions that two runs were made with, in words; nothing where they are the same."""
    said = [f"{name} {before.get(name)} (now {now[name]})" for name in VERSIONS if before.get(name) != now[name]]
    return " and ".join(said)


def digest(function: Callable[..., Any], *args: Any) -> str:
    """A short digest of what a function computes: its program and its constants. Numbers among `args` are constants."""
    arrays = [arg for arg in args if not isinstance(arg, int)]
    rest = [arg for arg in args if isinstance(arg, int)]
    return program_digest(jax.make_jaxpr(lambda *given: function(*given, *rest))(*arrays))[:12]


def digest_of_values(values: Any) -> str:
    """A short digest of the arrays of a pytree."""
    found = hashlib.sha256()
    for leaf in jax.tree.leaves(values):
        array = np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)
        found.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return found.hexdigest()[:12]


def first_numbers(record: dict[str, Any], before: Any, after: Any) -> Numbers:
    """What is noted of the first iteration: its record's, and by how much it changed the parameters."""
    pairs = zip(*(jax.tree.leaves(jax.device_get(params)) for params in (before, after)), strict=True)
    with np.errstate(over="ignore"):  # a step can be as large as it likes
        change = math.hypot(*(float(np.linalg.norm(np.subtract(b, a))) for a, b in pairs))
    return {"loss": record["loss"], "gradient_norm": record["gradient_norm"], "change": change}


WORDS = {"loss": "a loss", "gradient_norm": "a gradient of norm", "change": "a change of the parameters of"}


def unlike(before: Numbers, now: Numbers) -> list[str]:
    """What differs between two first iterations, in words; what rounding can do is no difference."""
    return [
        f"{words} {before[name]:.4g} (now {now[name]:.4g})"
        for name, words in WORDS.items()
        if not math.isclose(before[name], now[name], rel_tol=UNLIKE)
    ]
