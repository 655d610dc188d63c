"""JAX, NumPy and SciPy are enough for plain functions; what needs more says in one sentence what to install."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import foretrace

MISSING = (
    "brainstate brainunit saiunit brainevent brainpy brainpy_state numba flax equinox optax matplotlib safetensors "
    "sklearn river"
).split()

# A Python that does not have some packages.
WITHOUT = f"""
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, *rest):
        return None if name.split(".")[0] in {MISSING} else self.finder.find_spec(name, *rest)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
import jax
jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp
import numpy as np
import foretrace as ft
from foretrace.rules import RULES

class Descent:
    def init(self, params):
        return ()

    def update(self, grads, state, params):
        return jax.tree.map(lambda g: -0.1 * g, grads), state
"""

LEARN = """
def step(params, state, x):
    v = 0.8 * state["v"] + jnp.tanh(x @ params["w"] + params["b"] + state["v"] @ params["r"])
    return {"v": v, "count": state["count"] + 1}, v @ params["out"]

def tree(shapes):
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return {n: 0.3 * jax.random.normal(k, s) for k, (n, s) in zip(keys, shapes.items())}

params = tree({"w": (3, 4), "b": (4,), "r": (4, 4), "out": (4, 2)})
state = {"v": jnp.zeros((2, 4)), "count": jnp.zeros((), jnp.int32)}
xs, ys = jax.random.normal(jax.random.key(1), (6, 2, 3)), jnp.ones((6, 2, 2))
loss = lambda out, y: jnp.mean((out - y) ** 2)
"""

SESSIONS = {
    "every rule by name learns": LEARN
    + """
given = {"osttp": {"B_list": [jnp.ones((2, 4))]}, "three_factor": {"modulator": 1.0}}
given |= dict.fromkeys(["pp_prop", "es_d_rtrl", "esd_rtrl", "hybrid"], {"decay_or_rank": 0.9})
given |= dict.fromkeys(["otpe", "ottt"], {"leak": 0.9})
for name in RULES:
    learner = ft.compile(step, name, xs[0], params=params, state=state, **given.get(name, {}))
    external = jnp.ones((6, 2, 2)) if name == "osttp" else None
    grads, carry, losses = learner.grad(params, learner.init(state), xs, ys, loss=loss, external=external)
    assert losses.shape == (6,) and carry.state["count"] == 6
    assert all(jnp.isfinite(g).all() for g in grads.values()) and jnp.any(grads["w"] != 0)
""",
    "the rest of a learner": LEARN
    + """

rtrl = ft.compile(step, "RTRL", xs[0], params=params, state=state)
found = ft.compare_gradients(rtrl, xs, ys, loss=loss, params=params, state=state)
np.testing.assert_allclose([found.overall.cosine, found.overall.norm_ratio], 1, atol=1e-10)
learner = ft.compile(step, "D_RTRL", xs[0], params=params, state=state, window=3)
carry, out = learner.evolve(params, learner.init(state), xs)
new, _, _, losses = learner.train(params, learner.init(state), xs, ys, loss=loss, optimizer=Descent(), update_every=2)
assert out.shape == (6, 2, 2) and jnp.any(new["r"] != params["r"])
assert "out" in str(learner.report) and "tanh" in learner.graph.to_code()
from foretrace.viz import record_traces
assert record_traces(rtrl, xs, params=params, state=state, trial=0)
dni = ft.compile(step, "DNI", xs[0], params=params, state=state, synthesizer=ft.SyntheticGradient())
trained, errors = ft.train_synthetic_gradient(dni, xs, params=params, state=state, epochs=5)
assert len(errors) == 5 and trained.rule.synthesizer is not dni.rule.synthesizer
""",
    "marked operators": """
x, w = jnp.ones((2, 3)), jnp.ones((3, 4))
assert ft.matmul(x, w, jnp.ones(4), weight_fn=jnp.abs).shape == (2, 4)
assert ft.matmul([1.0, 2.0, 3.0], w).shape == (4,)
assert ft.grouped_matmul(jnp.ones((2, 3)), jnp.ones((2, 3, 4))).shape == (2, 4)
assert ft.lora_matmul(x, w, jnp.ones((4, 5)), bias=jnp.ones(5)).shape == (2, 5)
assert ft.conv(jnp.ones((1, 5, 2)), jnp.ones((3, 2, 4)), dimension_numbers=("NHC", "HIO", "NHC")).shape[-1] == 4
assert ft.einsum("bi,io->bo", x, w).shape == ft.element_wise(jnp.ones((2, 4))).shape == (2, 4)
assert ft.embedding(jnp.array([1, 2]), w).shape == (2, 4)

def step(params, state, x):
    state = ft.element_wise(params["decay"]) * state + ft.matmul(x, params["w"])
    return state, state

params = {"w": w, "decay": jnp.full(4, 0.5)}
learner = ft.compile(step, "D_RTRL", x, params=params, state=jnp.zeros((2, 4)))
assert {p.name: p.history for p in learner.graph.parameters} == dict.fromkeys(["w", "decay"], ft.HistoryKind.ALL)
""",
    "tasks and training": """
from foretrace import tasks, train
net = train.network("ALIF", n_inputs=40, n_outputs=2, n_hidden=4)
task = tasks.EvidenceAccumulation(n_cues=1, cue=6, gap=2, delay=2, recall=4, n_test=4)
learner = net.compile("pp_prop", 2, decay_or_rank=0.9)
done = train.fit(learner, task, Descent(), iterations=1, batch_size=2, params=net.params, progress=False)
assert done.metrics
""",
    "what needs more says what": """
for name in ("nn", "ETraceAlgorithm", "extract_module_info", "GradExpon", "ETraceVmap"):
    try:
        getattr(ft, name)
    except ImportError as error:
        assert str(error) == f"`foretrace.{name}` needs brainstate: pip install 'foretrace[brainstate]'", error
    else:
        raise AssertionError(name)
try:
    ft.sparse_matmul(jnp.ones(3), jnp.ones(3), sparse_mat=None)
except ImportError as error:
    assert str(error) == "`foretrace.sparse_matmul` needs brainevent: pip install 'foretrace[brainstate]'", error
try:
    import foretrace.train.river
except ImportError as error:
    assert str(error) == "`foretrace.train.river` needs river: pip install 'foretrace[river]'", error
else:
    raise AssertionError("river")
assert {"ETraceAlgorithm", "compile_etrace_graph", "nn"} <= set(dir(ft))
assert ft.ETraceConfig(trace_filter="kappa", kappa=0.5).rule().name == "EProp"
try:
    ft.compile(object(), "D_RTRL", 1.0)
except TypeError as error:
    assert "A model is a" in str(error)
""",
}


def run(program: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(foretrace.__file__).parent.parent)}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program], env=environment, capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize("session", SESSIONS)
def test_plain_functions_need_jax_numpy_and_scipy_alone(session: str) -> None:
    ended = run(WITHOUT + SESSIONS[session])
    assert ended.returncode == 0, ended.stderr


def test_import_loads_no_optional_package_and_little_of_scipy() -> None:
    slow = [*MISSING, "scipy.linalg", "scipy.sparse.csgraph", "scipy.sparse.linalg"]
    listed = f"import sys, foretrace; print([n for n in {slow} if n in sys.modules])"
    assert run(listed).stdout == "[]\n"


@pytest.mark.parametrize("use", ["ft.ETraceAlgorithm", "import foretrace.nn"])
def test_brainstate_imported_through_us_leaves_the_precision(use: str) -> None:
    program = "import jax\njax.config.update('jax_enable_x64', True)\nimport foretrace as ft\n"
    ended = run(f"{program}{use}\nprint(jax.numpy.ones(1).dtype)")
    assert ended.stdout == "float64\n", ended.stderr
