"""Gradients of `rival_models.py` by the rules of one package; run by an interpreter that has it.

    python rival_gradients.py PACKAGE OUT.npz MODEL

writes an array for every mode, rule and leaf of a parameter, or the name of the error where there is none.
"""

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import brainevent
import brainstate
import brainunit as u
import jax
import jax.numpy as jnp
import numpy as np
import rival_models as models

# Classes of rules, with options that leave nothing to chance.
RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "D_RTRL": ("D_RTRL", {}),
    "pp_prop": ("pp_prop", {"decay_or_rank": 0.9}),
    "EProp": ("EProp", {}),
    "EProp-filtered": ("EProp", {"kappa_filter_decay": 0.5}),
    "OSTLRecurrent": ("OSTLRecurrent", {}),
    "OSTLFeedforward": ("OSTLFeedforward", {}),
    "SnAp-1": ("SnAp", {"n": 1}),
    "SnAp-2": ("SnAp", {"n": 2}),
    "ThreeFactor": ("ThreeFactor", {"modulator": 2.0}),
}
MODES = {"windows": "multi-step", "steps": "single-step"}
# Both packages refuse a modulator in windows of exact credit.
CELLS = [(mode, rule) for mode in MODES for rule in RULES if (mode, rule) != ("windows", "ThreeFactor")]


def gradients(package: Any, name: str, mode: str, rule: str) -> dict[str, np.ndarray]:
    """The gradient of half the squared outputs, summed over a sequence, by leaf of each parameter.

    The sequence is fed in windows, each with exact credit inside of it, or step by step.
    """
    class_name, options = RULES[rule]
    net, xs = models.filled(name, package), models.input_sequence(name)
    learner = getattr(package, class_name)(net, vjp_method=MODES[mode], **options)
    learner.compile_graph(xs[0])
    weights = net.states(brainstate.ParamState)

    def loss(x: Any) -> Any:
        out = learner(package.MultiStepData(x)) if mode == "windows" else learner(x)
        return 0.5 * jnp.sum((out - 0.3) ** 2)

    @brainstate.transform.jit
    def run(pieces: Any) -> Any:
        parts = brainstate.transform.for_loop(brainstate.transform.grad(loss, weights), pieces)
        return jax.tree.map(lambda part: u.math.sum(part, axis=0), parts, is_leaf=u.math.is_quantity)

    found = run(xs.reshape(-1, models.WIDTH, *xs.shape[1:]) if mode == "windows" else xs)
    return {
        leaf_name(path, place): np.asarray(u.get_mantissa(leaf))
        for path, value in found.items()
        for place, leaf in jax.tree_util.tree_leaves_with_path(value, is_leaf=u.math.is_quantity)
    }


def leaf_name(path: Sequence[Any], place: Sequence[Any]) -> str:
    return ".".join(str(part) for part in (*path, *(key.key for key in place)))


def all_gradients(package: Any, name: str) -> Iterator[tuple[str, np.ndarray]]:
    """`mode/rule/parameter` with its gradient, or `mode/rule` with the name of an error."""
    for mode, rule in CELLS:
        try:
            found = gradients(package, name, mode, rule)
        except Exception as error:  # what a package refuses is a cell of the table too
            yield f"{mode}/{rule}", np.array(type(error).__name__)
        else:
            yield from ((f"{mode}/{rule}/{leaf}", value) for leaf, value in found.items())


def main(package: str, path: str, name: str) -> None:
    warnings.simplefilter("ignore")
    library = importlib.import_module(package)
    brainstate.environ.set(precision=64, dt=1.0 * u.ms)
    jax.config.update("jax_enable_x64", True)
    if importlib.util.find_spec("numba") is None:  # brainevent's kernels for the CPU need it, and do not install it
        brainevent.config.set_backend("cpu", "jax_raw")
    np.savez(path, **dict(all_gradients(library, name)))


if __name__ == "__main__":
    main(*sys.argv[1:])
