"""What makes a stream the one that it is, so that it is never continued with other settings by mistake.

As for `fit`, numbers are compared as they are and functions by the digest of their traced program. What a stream learns
from is not known before its first target: the loss is compared then, before anything is learned.
"""

from typing import Any

import jax
import jax.numpy as jnp

from foretrace.train.settings import PROGRAM, START, clean, digest, digest_of_values
from foretrace.train.streaming.learning import Learning, StreamState


def describe(learning: Learning, state: StreamState, window: int) -> dict[str, Any]:
    """The settings of a stream, as plain values.

    Args:
        learning: What stays the same in it.
        state: Its first state.
        window: Steps in a window.
    """
    import foretrace

    pure, arrays = learning.learner, _inputs(learning)
    rule = f"{pure.rule.name} {pure.rule!r}"
    return {
        "jax": jax.__version__,
        "foretrace": foretrace.__version__,
        "kind": "stream",
        "precision": str(jnp.result_type(float)),
        "network": digest(lambda p, s, x: pure.run(p, s, learning.inputs(x)), state.params, state.carry.state, arrays),
        "rule": clean(rule),
        "optimizer": digest(learning.optimizer.update, state.params, state.opt_state, state.params),
        "every": learning.every,
        "window": window,
        "metrics": learning.names[1:],
        PROGRAM: digest(lambda p, c, x: _gradient(learning, p, c, x), state.params, state.carry, arrays),
        START: digest_of_values((state.params, state.carry)),
    }


def loss_digest(learning: Learning, state: StreamState) -> str:
    """A short digest of the loss and the metrics, for the form of targets that the stream has."""
    form = learning.y
    assert form is not None
    y = jax.tree.unflatten(form.tree, [jnp.zeros(*one) for one in zip(form.shapes, form.dtypes, strict=True)])
    run = lambda p, s, x: learning.learner.run(p, s, learning.inputs(x))[1]
    out = jax.eval_shape(run, state.params, state.carry.state, _inputs(learning))
    first = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), out)
    return digest(lambda out, y, params: learning.measure(out, y, params), first, y, state.params)


def _inputs(learning: Learning) -> list[jax.ShapeDtypeStruct]:
    """The inputs of a sequence of one step."""
    form = learning.x
    return [jax.ShapeDtypeStruct((1, *shape), dtype) for shape, dtype in zip(form.shapes, form.dtypes, strict=True)]


def _gradient(learning: Learning, params: Any, carry: Any, arrays: Any) -> Any:
    """The gradient of one step by a loss that every network has: what differs in it is the way to the gradient."""
    floats = lambda out: [leaf for leaf in jax.tree.leaves(out) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating)]
    loss = lambda out: sum((jnp.sum(leaf) for leaf in floats(out)), jnp.zeros(()))
    return learning.learner.grad(params, carry, learning.inputs(arrays), loss=loss)[0]
