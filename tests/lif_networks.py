"""A small spiking network written twice: as a step for the compiler, and as NumPy with hand-made traces."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import foretrace as ft
from foretrace.engine.linearise import Cotangents
from foretrace.engine.plan import make_plan
from foretrace.engine.sequence import States, run_steps
from foretrace.rules.rule import Block
from zoo.records import spike

BATCH, INPUT, HIDDEN, OUT, STEPS = 2, 3, 4, 2, 12
LEAK = 0.9


class Network(NamedTuple):
    """A compiled network and the flat values to run it on."""

    graph: ft.ETraceGraph
    params: dict[str, Any]
    values: tuple[list[Any], list[Any], list[Any], list[list[Any]]]

    def named(self, gradients: list[Any]) -> dict[str, np.ndarray]:
        """Gradients by the parameters' names."""
        return {p.name: np.asarray(gradients[p.index]) for p in self.graph.parameters}


def compiled(step: Callable[..., Any], params: dict[str, Any], state: dict[str, Any], xs: Any) -> Network:
    """Compiles a step function and flattens its values."""
    graph = ft.compile_etrace_graph(step, xs[0], params=params, state=state)
    info = graph.module_info
    hidden, other = info.flatten_state(state)
    inputs = [info.flatten_inputs(x) for x in xs]
    return Network(graph, params, (info.flatten_params(params), hidden, other, inputs))


def draws(seed: int = 0) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """Parameters, a potential around the threshold, and input spikes."""
    rng = np.random.default_rng(seed)
    params = {
        "w_in": 0.45 + rng.normal(size=(INPUT, HIDDEN)) / np.sqrt(INPUT),
        "w_rec": rng.normal(size=(HIDDEN, HIDDEN)) / np.sqrt(HIDDEN),
        "w_out": rng.normal(size=(HIDDEN, OUT)) / np.sqrt(HIDDEN),
    }
    state = {"v": jnp.asarray(rng.uniform(0.2, 1.4, size=(BATCH, HIDDEN)))}
    xs = jnp.asarray((rng.random(size=(STEPS, BATCH, INPUT)) < 0.6).astype(float))
    return {name: jnp.asarray(value) for name, value in params.items()}, state, xs


def lif_step(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
    """A recurrent LIF layer with a soft reset, and a linear readout of its spikes."""
    fired = spike(state["v"] - 1.0)
    v = LEAK * state["v"] - fired + x @ params["w_in"] + fired @ params["w_rec"]
    return {"v": v}, spike(v - 1.0) @ params["w_out"]


def recurrent_lif(seed: int = 0) -> Network:
    """`lif_step`, compiled."""
    return compiled(lif_step, *draws(seed))


def loss(outputs: list[Any]) -> Any:
    """Any loss does that every output enters."""
    weights = [jnp.cos(jnp.arange(out.size)).reshape(out.shape) for out in outputs]
    return sum(jnp.sum(w * out + 0.5 * out**2) for w, out in zip(weights, outputs, strict=True))


def by_output(out: np.ndarray) -> np.ndarray:
    """The derivative of `loss` by its one output."""
    return np.cos(np.arange(out.size)).reshape(out.shape) + out


def surrogate(potential: np.ndarray) -> np.ndarray:
    """The derivative of `spike`."""
    sigmoid = 1 / (1 + np.exp(-2.0 * potential))
    return 2.0 * sigmoid * (1.0 - sigmoid)


def numpy_gradient(
    network: Network, signal: Callable[[int, np.ndarray], Any], kappa: float = 0.0, steps: int = STEPS
) -> dict[str, Any]:
    """E-prop by hand: `sum_t L_t ebar_t` for the recurrent LIF network, and the exact gradient of its readout.

    Args:
        network: What `recurrent_lif` gives.
        signal: The learning signal on the spikes from the number of a step and `dL/dout`, `(batch, hidden)`.
        kappa: The low-pass filter of the traces.
        steps: How many steps.
    """
    w_in, w_rec, w_out = (np.asarray(network.params[name]) for name in ("w_in", "w_rec", "w_out"))
    v = np.asarray(network.values[1][0])
    state = {name: np.zeros((BATCH, size, HIDDEN)) for name, size in (("w_in", INPUT), ("w_rec", HIDDEN))}
    low = {name: np.zeros_like(value) for name, value in state.items()}
    gradient = {name: np.zeros_like(value) for name, value in (("w_in", w_in), ("w_rec", w_rec), ("w_out", w_out))}
    for t, flat in enumerate(network.values[3][:steps]):
        x, fired = np.asarray(flat[0]), (v > 1.0).astype(float)
        decay = LEAK - surrogate(v - 1.0)
        v = LEAK * v - fired + x @ w_in + fired @ w_rec
        spikes = (v > 1.0).astype(float)
        asked = by_output(spikes @ w_out)
        gradient["w_out"] += spikes.T @ asked
        for name, pre in (("w_in", x), ("w_rec", fired)):
            state[name] = decay[:, None, :] * state[name] + pre[:, :, None]
            low[name] = kappa * low[name] + surrogate(v - 1.0)[:, None, :] * state[name]
            gradient[name] += np.einsum("bj,bij->ij", np.broadcast_to(signal(t, asked), (BATCH, HIDDEN)), low[name])
    return gradient


def outer_gradient(
    network: Network, rule: Any, external: Any, block: int, steps: int = STEPS, with_loss: bool = True
) -> dict[str, np.ndarray]:
    """The gradient by a rule that takes something from outside at each step, block by block."""
    plan = make_plan(network.graph)
    params, hidden, other, inputs = network.values
    trace, total = rule.init(plan), [jnp.zeros_like(p) for p in params]

    @jax.jit
    def advance(hidden: Any, other: Any, trace: Any, items: Any, given: Any) -> Any:
        states, ran, outputs = run_steps(plan, params, States(hidden, other), items)
        asked = Cotangents(jax.vmap(jax.grad(loss))(outputs), [jnp.zeros_like(h) for h in ran.hidden])
        found, trace = rule.advance(plan, params, Block(ran, asked if with_loss else None, given), trace)
        return found, states.hidden, states.other, trace

    for start in range(0, steps, block):
        chosen = slice(start, min(start + block, steps))
        items = [jnp.stack(values) for values in zip(*inputs[chosen], strict=True)]
        given = None if external is None else external[chosen]
        found, hidden, other, trace = advance(hidden, other, trace, items, given)
        total = [a + b for a, b in zip(total, found, strict=True)]
    return network.named(total)
