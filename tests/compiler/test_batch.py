"""The batch by analysis, and random feedback that keeps samples apart: a batch is the sum of its samples."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from foretrace.compiler.batch import find_batch, find_samples
from foretrace.errors import NotSupportedError
from zoo import MODELS
from zoo.compiled import compiled
from zoo.records import seeded, spike

IN, UNITS, OUT, STEPS, BATCH = 3, 5, 2, 4, 4
SHAPES = {"w": (IN, UNITS), "rec": (UNITS, UNITS), "out": (UNITS, OUT), "kernel": (3, 1, 2)}


def draw(name: str, *shape: int) -> jax.Array:
    return jnp.asarray(0.5 * seeded(name).normal(size=shape))


PARAMS = {name: draw(name, *shape) for name, shape in SHAPES.items()}


def logits(p: Any, v: Any, x: Any) -> Any:
    v = 0.9 * v + x @ p["w"]
    return v, (jnp.tanh(v) @ p["out"],)


def with_a_rate(p: Any, v: Any, x: Any) -> Any:
    v, (out,) = logits(p, v, x)
    return v, (out, 0.1 * jnp.sum(v))


def with_spikes(p: Any, v: Any, x: Any) -> Any:
    """The spikes themselves are an output beside the readout: units meet in one and not in the other."""
    v = 0.9 * v + x @ p["w"] + spike(v) @ p["rec"]
    return v, (spike(v), spike(v) @ p["out"])


def flattened(p: Any, v: Any, x: Any) -> Any:
    v, (out,) = logits(p, v, x)
    return v, (out.reshape(-1), jnp.moveaxis(out, 0, 1))


def with_a_skip(p: Any, v: Any, x: Any) -> Any:
    """An output that no state reaches."""
    v, (out,) = logits(p, v, x)
    return v, (x @ p["w"], out)


def batch_last(p: Any, v: Any, x: Any) -> Any:
    v = 0.9 * v + p["w"].T @ x.T
    return v, (jnp.tanh(v).T @ p["out"],)


def two_layers(p: Any, state: Any, x: Any) -> Any:
    """The second layer and the output read what the first one was before the step."""
    first, second = state
    new = 0.9 * first + x @ p["w"]
    return (new, 0.8 * second + spike(first) @ p["rec"]), (spike(second) @ p["out"], jnp.mean(second))


def convolved(p: Any, v: Any, x: Any) -> Any:
    driven = jax.lax.conv_general_dilated(x[:, None, :], p["kernel"].T, (1,), "SAME")
    v = 0.9 * v + driven
    read = jnp.tanh(v).reshape(len(x), -1) @ jnp.tile(p["out"][:IN], (2, 1))
    return v, (jnp.tanh(v).sum(axis=(1, 2)), read, jnp.sum(v))


STATES: dict[str, Any] = {
    "batch_last": draw("v", UNITS, BATCH),
    "two_layers": (draw("v", BATCH, UNITS), draw("u", BATCH, UNITS)),
    "convolved": draw("v", BATCH, 2, IN),
}
MODELS_HERE = [logits, with_a_rate, with_spikes, flattened, with_a_skip, batch_last, two_layers, convolved]


def loss(outputs: Any) -> Any:
    """A sum over samples, whichever form an output has."""
    return sum(jnp.sum((out - 0.3) ** 2) for out in outputs if out.ndim)


def gradients(step: Callable[..., Any], size: int) -> dict[str, Any]:
    """The gradient of the whole batch in parts of some size, added up."""
    xs, axis = draw("x", STEPS, BATCH, IN), 1 if step is batch_last else 0
    state = STATES.get(step.__name__, draw("v", BATCH, UNITS))

    def part(first: int) -> tuple[Any, Any]:
        chosen = jnp.arange(first, first + size)
        return jax.tree.map(lambda a: jnp.take(a, chosen, axis=axis), state), xs[:, chosen]

    own, inputs = part(0)
    learner = ft.compile(step, "EProp", inputs[0], params=PARAMS, state=own, feedback="random", random_feedback_key=3)
    run = jax.jit(lambda state, xs: learner.grad(PARAMS, learner.init(state), xs, loss=loss)[0])
    return jax.tree.map(lambda *parts: sum(parts), *(run(*part(first)) for first in range(0, BATCH, size)))


@pytest.mark.parametrize("step", MODELS_HERE, ids=lambda step: step.__name__)
def test_a_batch_is_the_sum_of_its_samples(step: Callable[..., Any]) -> None:
    whole, singles = gradients(step, BATCH), gradients(step, 1)
    for name in PARAMS:
        np.testing.assert_allclose(whole[name], singles[name], rtol=1e-10, atol=1e-12, err_msg=name)


def batch_of(name: str) -> list[tuple[int | None, int]]:
    graph, _ = compiled(next(model for model in MODELS if model.name == name))
    return [(found.axis, found.size) for found in (find_batch(graph, group) for group in graph.hidden_groups)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vanilla RNN", [(0, 2)]),
        ("vanilla RNN, every size 4", [(0, 4)]),
        ("vanilla RNN, unbatched", [(None, 1)]),
        ("recurrent LIF with delayed spikes", [(0, 2)]),
        ("v and i stacked along a leading axis", [(0, 2)]),
        ("v and i side by side along the leading axis", [(1, 2)]),
        ("module: marked RNN cell, unbatched", [(None, 1)]),
    ],
)
def test_the_axis_of_the_batch(name: str, expected: list[tuple[int | None, int]]) -> None:
    assert sorted(batch_of(name), key=str) == sorted(expected, key=str)


def test_channels_of_a_convolution_are_no_batch() -> None:
    """Each has a kernel of its own, though in one sample they never meet and the output has such an axis."""

    def step(p: Any, v: Any, x: Any) -> Any:
        v = 0.9 * v + jax.lax.conv_general_dilated(x[None, None, :], p["kernel"].T, (1,), "SAME")[0]
        return v, jnp.sum(v, axis=-1)

    graph = ft.compile_etrace_graph(step, draw("x", IN), params=PARAMS, state=draw("v", 2, IN))
    (group,) = graph.hidden_groups
    assert (find_batch(graph, group).axis, find_batch(graph, group).size) == (None, 1)


def normalised(outputs: Callable[..., Any]) -> Callable[..., Any]:
    """Samples meet in the statistics of the batch."""

    def step(p: Any, v: Any, x: Any) -> Any:
        current = x @ p["w"] + v @ p["rec"]
        v = 0.9 * v + current - jnp.mean(current, axis=0)
        return v, outputs(jnp.tanh(v) @ p["out"])

    return step


def weights(step: Callable[..., Any]) -> Any:
    xs, state = draw("x", STEPS, BATCH, IN), draw("v", BATCH, UNITS)
    learner = ft.compile(step, "EProp", xs[0], params=PARAMS, state=state, feedback="random")
    return learner.grad(PARAMS, learner.init(state), xs, loss=loss)[0]


def test_where_samples_meet_an_axis_of_all_outputs_is_the_batch() -> None:
    graph = ft.compile_etrace_graph(
        normalised(lambda out: (out, 2 * out)), draw("x", BATCH, IN), params=PARAMS, state=draw("v", BATCH, UNITS)
    )
    (group,) = graph.hidden_groups
    found = find_batch(graph, group)
    assert (found.axis, found.size, found.features) == (0, BATCH, 2 * OUT)


def test_refuses_what_cannot_be_told() -> None:
    with pytest.raises(NotSupportedError, match="is a batch cannot be told"):
        weights(normalised(lambda out: (out, jnp.sum(out))))


def test_refuses_an_output_of_samples_and_of_all() -> None:
    def step(p: Any, v: Any, x: Any) -> Any:
        v, (out,) = logits(p, v, x)
        return v, (jnp.append(out.reshape(-1), jnp.sum(v)),)

    with pytest.raises(NotSupportedError, match="single samples beside elements of"):
        weights(step)


def chosen(p: Any) -> Any:
    """A place that only the run knows."""
    return jnp.argmin(p["out"][:, 0])


LOOKUPS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "rolled by a parameter": lambda p, v, x: jnp.roll(v, chosen(p), axis=1),
    "each sample looks up its own": lambda p, v, x: jnp.take_along_axis(v, jnp.int32(x[:, :1] > 0), axis=1),
    "a window of units": lambda p, v, x: jax.lax.dynamic_slice(v, (0, chosen(p)), (BATCH, 1)),
}


def samples_of(look_up: Callable[[Any, Any, Any], Any]) -> Any:
    def step(p: Any, v: Any, x: Any) -> Any:
        v = jnp.tanh(0.5 * v + x @ p["w"] + look_up(p, v, x))
        return v, v @ p["out"]

    graph = ft.compile_etrace_graph(step, jnp.ones((BATCH, IN)), params=PARAMS, state=jnp.zeros((BATCH, UNITS)))
    found = find_samples(graph)
    return None if found is None else found.states


@pytest.mark.parametrize("name", LOOKUPS)
def test_lookups_keep_samples_apart(name: str) -> None:
    (found,) = samples_of(LOOKUPS[name])
    np.testing.assert_array_equal(found, np.repeat(np.arange(BATCH), UNITS).reshape(BATCH, UNITS))


def test_a_window_of_samples_joins_them() -> None:
    assert samples_of(lambda p, v, x: jax.lax.dynamic_slice(v, (chosen(p) % 2, 0), (1, UNITS))) is None
    assert samples_of(lambda p, v, x: v[chosen(p) % 2]) is None
