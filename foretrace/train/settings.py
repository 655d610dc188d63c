"""What makes a run the run that it is, so that it is never continued with other settings by mistake.

Numbers are compared as they are. Functions have no value to compare: of the task, the network and the optimizer, the
traced program is taken, with its constants, as a short digest. Another version of JAX may write the same program
otherwise, so digests are compared within one version only.
"""

import hashlib
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from foretrace.train.checkpoint import is_key
from foretrace.train.contract import Held
from foretrace.train.iteration import Training, TrainState

DIGESTS = ("task", "network", "optimizer")
_ADDRESS = re.compile(r"0x[0-9a-f]+")


def describe(training: Training, state: TrainState, further: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run, as plain values.

    Args:
        training: What stays the same in it.
        state: Its first state.
        further: Other settings that change the result.
    """
    task, batch = training.task, training.batch_size
    trial = jax.eval_shape(lambda key: task.sample(key, batch), state.key)
    step = lambda tree: jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), tree)
    output = training.sizes(state)[0]

    def network(params: Any, lasting: Any, inputs: Any) -> Any:
        return training.trainable.run(params, Held(lasting, training.trainable.begin()), inputs)

    return {
        "jax": jax.__version__,
        "precision": str(jnp.result_type(float)),
        "task": f"{task.name} {digest(task.sample, state.key, batch)}"
        + digest(task.loss, output, step(trial.targets), step(trial.mask)),
        "network": digest(network, state.params, state.lasting, trial.inputs),
        "rule": _ADDRESS.sub("", training.trainable.rule),
        "optimizer": digest(training.optimizer.update, state.params, state.opt_state, state.params),
        "batch_size": batch,
        "update_every": training.update_every,
        "stream": training.stream,
        **further,
    }


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What differs between the settings of two runs, in words."""
    skipped = {"jax", *(DIGESTS if before.get("jax") != now["jax"] else ())}
    found = []
    for name, value in now.items():
        old = before.get(name)
        if name in skipped or old == value:
            continue
        if name in DIGESTS and str(old).split(" ")[0] == str(value).split(" ")[0]:
            found.append(f"another `{name}` of the same name")
        else:
            found.append(f"another `{name}`" if name in DIGESTS[1:] else f"`{name}` = {old!r} (now {value!r})")
    return found


def digest(function: Callable[..., Any], *args: Any) -> str:
    """A short digest of what a function computes: its program and its constants. Numbers among `args` are constants."""
    arrays = [arg for arg in args if not isinstance(arg, int)]
    rest = [arg for arg in args if isinstance(arg, int)]
    closed = jax.make_jaxpr(lambda *given: function(*given, *rest))(*arrays)
    found = hashlib.sha256(_ADDRESS.sub("", str(closed.jaxpr)).encode())
    for constant in closed.consts:
        plain = jax.random.key_data(constant) if is_key(constant) else constant
        found.update(np.asarray(plain).tobytes())
    return found.hexdigest()[:12]
