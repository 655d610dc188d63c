"""E-prop regression against NEST: the same weights, inputs and targets, the gradients of both.

`FORETRACE_NEST_PYTHON=/path/to/python pytest -m slow tests/external` runs it, with an interpreter in which
`import nest` works (`pip install nest-simulator`; tried with 3.10).

Where NEST's `eprop_iaf_bsshslm_2020` has conventions of its own, the test takes them over or states them:

- its filter of the eligibility trace is `ebar <- kappa ebar + (1 - kappa) e`, also where spikes enter its readout with
  the weight one, so its gradients of input and recurrent weights are `1 - kappa` times ours, and those of the readout
  weights are the same;
- the reset is subtractive and carries no derivative: `stop_gradient` in our step;
- the surrogate is `height * max(0, 1 - |v - threshold| / width)`, not scaled by the threshold; the width is one here;
- spikes of a step reach other neurons in the next and the readout in the same, and neurons have no self-connections.
"""

import json
import os
import pathlib
import subprocess
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lif_networks as nets
from foretrace.engine.plan import make_plan
from foretrace.rules.eprop import EProp
from online import online_gradient

INPUT, HIDDEN, OUT, STEPS = 4, 5, 2, 40
THRESHOLD, HEIGHT = 1.0, 0.3
TAU_M, TAU_OUT = 10.0, 8.0
ALPHA, KAPPA = np.exp(-1.0 / TAU_M), np.exp(-1.0 / TAU_OUT)

INTERPRETER = os.environ.get("FORETRACE_NEST_PYTHON")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not INTERPRETER, reason="FORETRACE_NEST_PYTHON names no interpreter that has NEST"),
]


@jax.custom_jvp
def spike(potential: jax.Array) -> jax.Array:
    return (potential >= 0).astype(potential.dtype)


@spike.defjvp
def _spike_jvp(primals: Any, tangents: Any) -> Any:
    return spike(primals[0]), HEIGHT * jnp.maximum(0.0, 1.0 - jnp.abs(primals[0])) * tangents[0]


def step(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
    """NEST's neurons and readout; the output is the error, whose half square is the loss."""
    events, target = x
    fired = spike(state["v"] - THRESHOLD)
    v = ALPHA * state["v"] + events @ params["w_in"] + fired @ params["w_rec"]
    v = v - THRESHOLD * jax.lax.stop_gradient(fired)
    y = KAPPA * state["y"] + spike(v - THRESHOLD) @ params["w_out"]
    return {"v": v, "y": y}, y - target


def draws() -> tuple[dict[str, Any], tuple[Any, Any]]:
    rng = np.random.default_rng(3)
    params = {
        "w_in": 0.5 + 0.3 * rng.normal(size=(INPUT, HIDDEN)),
        "w_rec": 0.3 * rng.normal(size=(HIDDEN, HIDDEN)) * (1 - np.eye(HIDDEN)),
        "w_out": 0.4 * rng.normal(size=(HIDDEN, OUT)),
    }
    events = (rng.random((STEPS, INPUT)) < 0.3).astype(float)
    events[0] = 0.0  # NEST resets its neurons in the step in which a sequence starts
    return params, (events, np.sin(np.outer(np.arange(STEPS), [0.2, 0.3])))


def network() -> nets.Network:
    params, (events, target) = draws()
    state = {"v": jnp.zeros((1, HIDDEN)), "y": jnp.zeros((1, OUT))}
    xs = [(jnp.asarray(events[t : t + 1]), jnp.asarray(target[t : t + 1])) for t in range(STEPS)]
    return nets.compiled(step, {name: jnp.asarray(value) for name, value in params.items()}, state, xs)


def in_nest(feedback: np.ndarray) -> dict[str, Any]:
    params, (events, target) = draws()
    task = {"x": events, "target": target, "feedback": feedback, **params}
    task = {name: np.asarray(value).tolist() for name, value in task.items()}
    task |= {"tau_m": TAU_M, "tau_out": TAU_OUT, "threshold": THRESHOLD, "height": HEIGHT, "width": 1.0}
    script = pathlib.Path(__file__).with_name("nest_eprop.py")
    ran = subprocess.run([INTERPRETER, str(script)], input=json.dumps(task), capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.rpartition("RESULT ")[2])


def half_square(outputs: list[Any]) -> Any:
    return 0.5 * jnp.sum(outputs[0] ** 2)


@pytest.mark.parametrize("feedback", ["symmetric", "random"])
def test_the_gradients_are_those_of_nest(feedback: str) -> None:
    own = network()
    rule = EProp(feedback=feedback, kappa_filter_decay=float(KAPPA), random_feedback_key=1)
    back = np.asarray(own.params["w_out"]).T
    if feedback == "random":
        back = np.asarray(rule.feedback_weights(make_plan(own.graph))[0])
    theirs = in_nest(back)
    ours = own.named(online_gradient(own.graph, rule, half_square, *own.values, block=8))
    fired = np.array(theirs["potential"]) >= THRESHOLD
    assert fired.any(axis=1).all(), "every neuron has to fire for the comparison to mean something"
    ours["w_rec"] = ours["w_rec"] * (1 - np.eye(HIDDEN))
    # NEST computes in double precision; what differs is the order of its sums.
    for name, factor in {"w_in": 1 - KAPPA, "w_rec": 1 - KAPPA, "w_out": 1.0}.items():
        np.testing.assert_allclose(factor * ours[name], theirs["gradient"][name], rtol=1e-9, atol=1e-12, err_msg=name)


def test_the_readouts_are_those_of_nest() -> None:
    own, (_, (_, target)) = network(), draws()
    params, hidden, other, inputs = own.values
    errors = []
    for x in inputs:
        hidden, other, (error,) = own.graph.program(params, hidden, other, x)
        errors.append(np.asarray(error[0]))
    theirs = in_nest(np.asarray(own.params["w_out"]).T)
    np.testing.assert_allclose(np.array(errors) + target, np.array(theirs["readout"]).T, rtol=1e-12, atol=1e-12)
