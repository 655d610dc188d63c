"""The same model gives the same graph in fresh processes, whatever order Python's sets and hashes have there.

Run as a script, this file prints everything that was found about a few models; the test compares what processes with
different hash seeds print.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

TESTS = Path(__file__).parent.parent
HASH_SEEDS = ("0", "12345")
RANDOM_SEEDS = (1, 4, 11)


def fused_lstm(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
    gates = jnp.concatenate([x, state["h"]], axis=-1) @ params["w"] + params["b"]
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    c = jax.nn.sigmoid(f) * state["c"] + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return {"c": c, "h": h}, h @ params["readout"]


@jax.custom_jvp
def spike(v: Any) -> Any:
    return (v > 0.0).astype(v.dtype)


@spike.defjvp
def _spike_jvp(primals: Any, tangents: Any) -> Any:
    return spike(primals[0]), tangents[0] / (1.0 + jnp.abs(primals[0])) ** 2


def two_layer_lif(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
    new = {}
    for layer in ("first", "second"):
        p, s = params[layer], state[layer]
        current = 0.8 * s["current"] + x @ p["w"] + spike(s["v"] - 1.0) @ jnp.abs(p["recurrent"])
        v = jax.nn.sigmoid(p["leak"]) * s["v"] + current - spike(s["v"] - 1.0)
        new[layer] = {"v": v, "current": current}
        x = spike(v - 1.0)
    return new, x @ params["readout"]


def models() -> dict[str, tuple[Any, Any, Any, Any]]:
    """Steps with their params, state and input."""
    from random_programs import generate

    width = 3
    lstm = {"w": np.ones((2 + width, 4 * width)), "b": np.ones(4 * width), "readout": np.ones((width, 1))}
    layer = {"w": np.ones((width, width)), "recurrent": np.ones((width, width)), "leak": np.ones(width)}
    lif = {"first": layer, "second": dict(layer), "readout": np.ones((width, 2))}
    rest = {"v": np.zeros((2, width)), "current": np.zeros((2, width))}
    table: dict[str, tuple[Any, Any, Any, Any]] = {
        "fused_lstm": (fused_lstm, lstm, {"c": np.zeros((2, width)), "h": np.zeros((2, width))}, np.ones((2, 2))),
        "two_layer_lif": (two_layer_lif, lif, {"first": rest, "second": dict(rest)}, np.ones((2, width))),
    }
    for seed in RANDOM_SEEDS:
        program = generate(seed)
        table[f"random_{seed}"] = (program.step, program.params, program.state, program.x)
    return table


def describe(graph: Any) -> str:
    """Groups, relations, parameters and diagnostics in the order of the graph, with all positions."""
    lines = []
    for group in graph.hidden_groups:
        lines.append(f"group {group.index} {group.hidden_paths} {group.varshape} {group.num_state} {group.coupled}")
        lines.append(f"  moves {group.positions.kind} {group.positions.targets.tolist()}")
        lines.append(f"  jaxpr {group.transition_jaxpr}")
    for relation in graph.hidden_param_op_relations:
        reached = [group.index for group in relation.hidden_groups]
        lines.append(f"relation {relation.primitive} {relation.trainable_paths} {reached}")
        lines.append(f"  paths {relation.connected_hidden_paths} {relation.path_classification}")
        lines.extend(f"  targets {reach.targets.tolist()} {reach.colors.tolist()}" for reach in relation.reaches)
        lines.extend(f"  jaxpr {jaxpr}" for jaxpr in relation.y_to_hidden_group_jaxprs)
    lines.extend(f"parameter {p.path} {p.history} {p.reasons}" for p in graph.parameters)
    lines.extend(f"diagnostic {d.kind} {d.level} {d.weight_path} {d.hidden_paths}" for d in graph.diagnostics)
    return "\n".join([*lines, str(graph.explain(3)), graph.to_code()])


def main() -> None:
    """Prints the description of every model."""
    from foretrace.entry import compile_etrace_graph

    jax.config.update("jax_enable_x64", True)
    for name, (step, params, state, x) in models().items():
        print(f"=== {name}\n{describe(compile_etrace_graph(step, x, params=params, state=state))}")


def start(hash_seed: str) -> subprocess.Popen[str]:
    paths = [str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, __file__]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_hash_seeds_do_not_change_the_graph() -> None:
    said = {}
    for hash_seed, process in [(seed, start(seed)) for seed in HASH_SEEDS]:
        said[hash_seed], errors = process.communicate()
        assert process.returncode == 0, errors
    first = said[HASH_SEEDS[0]]
    assert first.count("===") == 2 + len(RANDOM_SEEDS)
    assert "relation" in first
    for hash_seed in HASH_SEEDS[1:]:
        assert said[hash_seed].splitlines() == first.splitlines()


if __name__ == "__main__":
    main()
