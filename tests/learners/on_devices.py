"""What many devices give, as one process with four of them says it: run by `test_devices.py`.

Prints a line of JSON: for each case the largest difference from one device, and the collectives of the compiled program
as `kind in what`, where what is `loop` for the body of a loop and `main` for everything else.
"""

import json
import re
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType

import foretrace as ft

BATCH, INPUTS, UNITS, OUTPUTS, STEPS = 8, 3, 16, 2, 6
COLLECTIVE = re.compile(r" (all-gather|all-reduce|collective-permute|all-to-all|reduce-scatter)(?:-start)?\(")


def normal(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape)) / np.sqrt(shape[0])


PARAMS = {
    "w": normal(0, INPUTS + UNITS, UNITS),
    "b": normal(1, UNITS) / 4,
    "gate": normal(2, INPUTS + UNITS, UNITS),
    "decay": normal(3, UNITS),
    "readout": normal(4, UNITS, OUTPUTS),
    "enter": normal(7, INPUTS, UNITS),
    "recurrent": normal(8, UNITS, UNITS),
}
GATED = ("w", "b", "gate", "decay", "readout")


def gated(params, state, x):
    joined = jnp.concatenate([x, state["h"]], -1)
    keep = jax.nn.sigmoid(joined @ params["gate"] + params["decay"])
    h = keep * state["h"] + (1 - keep) * jnp.tanh(joined @ params["w"] + params["b"])
    return {"h": h}, h @ params["readout"]


def adaptive(params, state, x):
    """Two states for each unit, and the activity as output."""
    driven = x @ params["enter"] + jnp.tanh(state["v"]) @ params["recurrent"]
    v = jax.nn.sigmoid(params["decay"]) * state["v"] + driven
    return {"v": v - 0.1 * state["a"], "a": 0.9 * state["a"] + 0.1 * v}, jnp.tanh(v)


def learner_of(step, rule, block=None, batch=BATCH, **options):
    names = {"gated": ("h",), "adaptive": ("v", "a")}[step.__name__]
    used = (
        {name: PARAMS[name] for name in GATED}
        if step is gated
        else {name: PARAMS[name] for name in ("enter", "recurrent", "decay")}
    )
    state = {name: jnp.zeros((batch, UNITS)) for name in names}
    return ft.compile(step, rule, jnp.ones((batch, INPUTS)), params=used, state=state, block=block, **options)


def loss(out, y):
    return jnp.mean(jnp.sum((out - y) ** 2, axis=-1))


def collectives(text):
    """The collectives of a compiled program, as `kind in loop` or `kind in main`."""
    found, where = [], "main"
    bodies = set(re.findall(r"body=(%[\w.\-]+)", text))
    for line in text.splitlines():
        if line and not line.startswith(" "):
            where = "loop" if line.split(" ")[0] in bodies else "main"
        if match := COLLECTIVE.search(line):
            found.append(f"{match[1]} in {where}")
    return sorted(found)


def case(learner, mesh, **axes):
    width, batch = OUTPUTS if len(learner.params) == 5 else UNITS, jax.tree.leaves(learner.state)[0].shape[0]
    xs, ys = 4 * normal(5, STEPS, batch, INPUTS), normal(6, STEPS, batch, width)
    grad = jax.jit(lambda *given: learner.grad(*given, loss=loss))
    one = grad(learner.params, learner.init(), xs, ys)
    one = (one, grad(learner.params, one[1], xs, ys)[0])
    places = learner.shardings(mesh, **axes)
    params, carry = jax.device_put((learner.params, learner.init()), (places.params, places.carry))
    xs, ys = jax.device_put((xs, ys), places.sequence)
    many = grad(params, carry, xs, ys)
    many = (many, grad(params, many[1], xs, ys)[0])
    apart = [
        float(np.max(np.abs(np.asarray(a) - np.asarray(b)), initial=0))
        for a, b in zip(*map(jax.tree.leaves, (one, many)), strict=True)
    ]
    kept = all(
        a.sharding.is_equivalent_to(b, a.ndim)
        for a, b in zip(*map(jax.tree.leaves, (many[0][1], places.carry)), strict=True)
    )
    return {
        "apart": max(apart),
        "kept": kept,
        "collectives": collectives(grad.lower(params, carry, xs, ys).compile().as_text()),
    }


def mesh_of(kind, **axes):
    count = int(np.prod(list(axes.values())))
    return jax.make_mesh(
        tuple(axes.values()), tuple(axes), axis_types=(kind,) * len(axes), devices=jax.devices()[:count]
    )


def main():
    warnings.simplefilter("error")
    found = {}
    for kind in (AxisType.Auto, AxisType.Explicit):
        for devices in (1, 2, 4):
            mesh = mesh_of(kind, data=devices)
            found[f"{kind.name} {devices}"] = case(learner_of(gated, "D_RTRL"), mesh, batch="data")
    four = mesh_of(AxisType.Auto, data=4)
    found["blocks"] = case(learner_of(gated, "D_RTRL", block=2), four, batch="data")
    found["two states"] = case(learner_of(adaptive, "D_RTRL"), four, batch="data")
    for rule, options in (("pp_prop", {"decay_or_rank": 0.9}), ("EProp", {}), ("OTTT", {"leak": 0.9}), ("BPTT", {})):
        found[rule] = case(learner_of(gated, rule, **options), four, batch="data")
    for kind in (AxisType.Auto, AxisType.Explicit):
        found[f"units {kind.name}"] = case(learner_of(adaptive, "D_RTRL"), mesh_of(kind, units=4), units="units")
        both = mesh_of(kind, data=2, units=2)
        found[f"both {kind.name}"] = case(learner_of(gated, "D_RTRL"), both, batch="data", units="units")
    found["as many units as samples"] = case(learner_of(gated, "D_RTRL", batch=UNITS), four, batch="data")
    print("found " + json.dumps(found))


if __name__ == "__main__":
    sys.exit(main())
