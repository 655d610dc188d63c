"""A first look: a recurrent network of adaptive spiking neurons, compiled and explained.

`python -m foretrace.cli.demo` builds one step of an ALIF network as a plain JAX function, compiles it, prints the step
and the report, and draws the graph. Nothing in the model is marked: the compiler finds every weight by itself.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from foretrace.compiler import ETraceGraph
from foretrace.entry import compile_etrace_graph

BATCH, INPUTS, NEURONS, OUTPUTS = 16, 40, 100, 2
PICTURE = "foretrace_demo.svg"


@jax.custom_jvp
def spike(potential: jax.Array) -> jax.Array:
    """One where the potential is above zero."""
    return (potential > 0).astype(potential.dtype)


@spike.defjvp
def _spike_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    (potential,), (tangent,) = primals, tangents
    surrogate = 0.3 * jnp.maximum(0.0, 1.0 - jnp.abs(potential))
    return spike(potential), surrogate * tangent


def step(params: dict[str, jax.Array], state: dict[str, jax.Array], x: jax.Array) -> tuple[Any, jax.Array]:
    """One millisecond of adaptive leaky integrate-and-fire neurons with a readout."""
    v, a = state["v"], state["a"]
    spikes = spike(v - 1.0 - 1.6 * a)
    current = x @ params["w_in"] + spikes @ params["w_rec"]
    v = jnp.exp(-1.0 / params["tau_v"]) * v + current - spikes
    a = jnp.exp(-1.0 / params["tau_a"]) * a + spikes
    return {"v": v, "a": a}, spike(v - 1.0 - 1.6 * a) @ params["w_out"]


def compile_demo() -> ETraceGraph:
    """Builds the network and compiles it.

    Returns:
        The graph of the network.

    Examples:
        >>> [parameter.name for parameter in compile_demo().parameters]
        ['tau_a', 'tau_v', 'w_in', 'w_out', 'w_rec']
    """
    keys = jax.random.split(jax.random.key(0), 3)
    params = {
        "w_in": jax.random.normal(keys[0], (INPUTS, NEURONS)) / INPUTS**0.5,
        "w_rec": jax.random.normal(keys[1], (NEURONS, NEURONS)) / NEURONS**0.5,
        "w_out": jax.random.normal(keys[2], (NEURONS, OUTPUTS)) / NEURONS**0.5,
        "tau_v": jnp.full(NEURONS, 20.0),
        "tau_a": jnp.full(NEURONS, 200.0),
    }
    state = {name: jnp.zeros((BATCH, NEURONS)) for name in ("v", "a")}
    return compile_etrace_graph(step, jnp.zeros((BATCH, INPUTS)), params=params, state=state)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the demonstration.

    Args:
        arguments: Those of the command line for None.
    """
    parser = argparse.ArgumentParser(
        prog="python -m foretrace.cli.demo",
        description="Compile a recurrent spiking network, say what an online rule can learn in it, and draw it.",
    )
    parser.add_argument("--output", type=Path, default=Path(), metavar="DIR", help="folder of the picture (default: .)")
    folder: Path = parser.parse_args(arguments).output
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        parser.error(f"cannot write into the folder `{folder}`; name one that exists with --output DIR")
    graph = compile_demo()
    print("One step of the model, as the compiler sees it:\n")
    print(graph.to_code())
    print("\nWhat it found:\n")
    print(graph.explain(level=2))
    picture = folder / PICTURE
    try:
        graph.show_graph(picture)
    except ImportError as error:
        print(f"\nNo picture: {error}")
    else:
        print(f"\nThe picture is in {picture}")


if __name__ == "__main__":
    main()
