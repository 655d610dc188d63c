"""Many devices: the results of one, and no more exchange between them than there must be."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

import foretrace as ft

SCRIPT = Path(__file__).parent / "on_devices.py"
ONE = ["all-reduce in main"]


@pytest.fixture(scope="module")
def found():
    flags = "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0"
    environment = {**os.environ, "JAX_ENABLE_X64": "1", "XLA_FLAGS": flags}
    ran = subprocess.run([sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-4000:]
    return json.loads(next(line for line in ran.stdout.splitlines() if line.startswith("found "))[6:])


@pytest.fixture
def learner():
    step = lambda w, h, x: (0.5 * h + x @ w, h)
    return ft.compile(step, "D_RTRL", jnp.ones((4, 3)), params=jnp.ones((3, 2)), state=jnp.zeros((4, 2)))


def test_results_are_those_of_one_device(found):
    assert max(case["apart"] for case in found.values()) < 1e-10


def test_the_carry_stays_where_it_was(found):
    assert all(case["kept"] for case in found.values())


@pytest.mark.parametrize("axes", ["Auto", "Explicit"])
@pytest.mark.parametrize("devices", [1, 2, 4])
def test_a_gradient_over_a_sharded_batch_is_one_all_reduce(found, axes, devices):
    assert found[f"{axes} {devices}"]["collectives"] == (ONE if devices > 1 else [])


def test_every_block_of_steps_has_one_all_reduce(found):
    assert found["blocks"]["collectives"] == ["all-reduce in loop", *ONE]


@pytest.mark.parametrize("case", ["two states", "pp_prop", "EProp", "OTTT", "as many units as samples"])
def test_so_it_is_for_several_states_and_other_rules(found, case):
    assert found[case]["collectives"] == ONE


@pytest.mark.parametrize("axes", ["Auto", "Explicit"])
def test_sharded_units_gather_their_activity_once_in_a_step(found, axes):
    within = [what for what in found[f"units {axes}"]["collectives"] if what.endswith("loop")]
    assert within == ["all-gather in loop"]


def test_batch_and_units_of_one_size_are_told_apart():
    step = lambda w, h, x: (jnp.tanh(x @ w["enter"] + h @ w["recurrent"]), h)
    params, like = {"enter": jnp.ones((4, 4)), "recurrent": jnp.ones((4, 4))}, jnp.ones((4, 4))
    learner = ft.compile(step, "D_RTRL", like, params=params, state=like)
    places = learner.shardings(jax.make_mesh((1, 1), ("data", "units")), batch="data", units="units")
    assert tuple(places.carry.state.spec) == ("data", "units")
    assert {tuple(place.spec) for place in jax.tree.leaves(places.carry.trace)} == {(None, "data", None, "units")}
    assert {tuple(place.spec) for place in jax.tree.leaves(places.params)} == {(None, "units")}


def test_shardings_have_the_form_of_what_they_place(learner):
    places = learner.shardings(jax.make_mesh((1,), ("data",)), batch="data")
    assert jax.tree.structure(places.carry) == jax.tree.structure(learner.init())
    assert jax.tree.structure(places.params) == jax.tree.structure(learner.params)


def test_an_axis_that_the_mesh_has_not_is_refused(learner):
    with pytest.raises(ValueError, match="`units='model'` is no axis of the mesh, which has 'data'"):
        learner.shardings(jax.make_mesh((1,), ("data",)), batch="data", units="model")


@pytest.mark.parametrize(
    ("axes", "said"), [({"batch": "data"}, "A batch of 4 cannot"), ({"units": "data"}, "2 units cannot")]
)
def test_what_cannot_be_divided_is_refused(learner, axes, said):
    three = SimpleNamespace(shape={"data": 3})
    with pytest.raises(ValueError, match=said):
        learner.shardings(three, **axes)
