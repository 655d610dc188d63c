"""Loops of unknown length over elementwise code: their gradients are those of forward mode over the whole sequence."""

from collections.abc import Callable
from typing import Any

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from online import online_gradient
from oracle import Oracle, bptt
from zoo.records import spike
from zoo.solved import loss

STEPS, BATCH, INPUTS, UNITS = 7, 2, 3, 4

Step = Callable[[Any, Any, Any], tuple[Any, Any]]


def relaxed(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
    """Euler steps until every neuron is nearly at rest; the count and the largest change stand in the carry."""
    drive = x @ params["w"]

    def body(carry: Any) -> Any:
        v, _, count = carry
        change = 0.3 * (jnp.tanh(drive) - jax.nn.sigmoid(params["decay"]) * v)
        return v + change, jnp.max(jnp.abs(change)), count + 1

    going = lambda carry: (carry[1] > 0.05) & (carry[2] < 30)
    v, _, count = jax.lax.while_loop(going, body, (state["v"], jnp.inf, 0))
    return {"v": v}, v + 0.01 * count


def counted(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
    """A `fori_loop` whose number of rounds, none among them, is known by the input."""
    drive = x @ params["w"]
    rounds = jnp.clip(jnp.sum(x > 0), 0, 5) - 1
    v = jax.lax.fori_loop(0, rounds, lambda i, v: params["decay"] * jnp.sin(v) + drive / (1.0 + i), state["v"])
    return {"v": v}, v + state["v"]


def implicit(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
    """Newton's method for an implicit step of a leaky neuron with a learned time constant."""
    drive, rate = x @ params["w"], jax.nn.softplus(params["decay"])
    off = lambda v: v - state["v"] - 0.5 * rate * (drive - v - v**3)
    newton = lambda v: v - off(v) / (1.0 + 0.5 * rate * (1.0 + 3.0 * v**2))
    v = jax.lax.while_loop(lambda v: jnp.any(jnp.abs(off(v)) > 1e-12), newton, state["v"])
    return {"v": v}, v


def adaptive(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
    """Two states, and a spike with a surrogate derivative, in the carry."""
    drive = x @ params["w"]

    def body(carry: Any) -> Any:
        v, a, count = carry
        a = 0.9 * a + 0.1 * spike(v - 1.0)
        return params["decay"] * v + jnp.where(v > 0.0, drive, 0.5 * drive) - a, a, count + 1

    v, a, _ = jax.lax.while_loop(lambda carry: carry[2] < 2 + (x[0, 0] > 0), body, (state["v"], state["a"], 0))
    return {"v": v, "a": a}, v * a


def mapped(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
    """Each sample of a batch has its own number of rounds."""

    def one(v: Any, x: Any) -> Any:
        drive = x @ params["w"]
        return jax.lax.while_loop(lambda v: jnp.sum(v**2) > 0.5, lambda v: params["decay"] * v + 0.01 * drive, v)

    v = jax.vmap(one)(state["v"], x) + x @ params["w"]
    return {"v": v}, v


def looped(length: int) -> Step:
    """The loop inside a scan."""

    def step(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
        drive = x @ params["w"]

        def halve(v: Any, _: Any) -> Any:
            v = v + drive
            v = jax.lax.while_loop(lambda v: jnp.max(v) > 0.5, lambda v: params["decay"] * jnp.sin(v), v)
            return v, None

        v, _ = jax.lax.scan(halve, state["v"], length=length)
        return {"v": v}, v

    return step


def nested(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
    """Control flow inside the loop: a branch, a fixed number of rounds, and another loop of unknown length."""
    drive, decay = x @ params["w"], jnp.broadcast_to(params["decay"], (BATCH, UNITS))

    def body(carry: Any) -> Any:
        v, count = carry
        v = jax.lax.cond(count > 1, lambda v: jnp.sin(v) * decay, lambda v: 0.8 * v + drive, v)
        v, _ = jax.lax.scan(lambda v, _: (v - 0.1 * v**3, None), v, length=2)
        return jax.lax.while_loop(lambda v: jnp.max(v) > 1.0, lambda v: decay * v, v), count + 1

    v, _ = jax.lax.while_loop(lambda carry: carry[1] < 3 + (x[0, 0] > 0), body, (state["v"], 0))
    return {"v": v}, v


MODELS: dict[str, Step] = {
    "relaxed": relaxed,
    "counted": counted,
    "implicit": implicit,
    "adaptive": adaptive,
    "mapped": mapped,
    "in a short scan": looped(3),
    "in a long scan": looped(20),
    "nested": nested,
}


def values(name: str) -> tuple[Any, Any, Any]:
    generator = np.random.default_rng(list(name.encode()))
    params = {"w": jnp.asarray(generator.normal(size=(INPUTS, UNITS)) / 2), "decay": jnp.full(UNITS, 0.7)}
    params["decay"] += 0.1 * generator.normal(size=UNITS)
    states = ("v", "a") if name == "adaptive" else ("v",)
    state = {key: jnp.asarray(generator.normal(size=(BATCH, UNITS))) for key in states}
    return params, state, jnp.asarray(generator.normal(size=(STEPS, BATCH, INPUTS)))


def squared(out: Any) -> Any:
    return jnp.sum(jnp.cos(jnp.arange(out.size)).reshape(out.shape) * out + 0.5 * out**2)


def exact(step: Step, params: Any, state: Any, xs: Any) -> Any:
    """The gradient of the summed losses by forward mode through the step as it was written."""

    def total(params: Any) -> Any:
        def one(state: Any, x: Any) -> Any:
            state, out = step(params, state, x)
            return state, squared(out)

        return jnp.sum(jax.lax.scan(one, state, xs)[1])

    return jax.jit(jax.jacfwd(total))(params)


def agree(found: Any, expected: Any) -> None:
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10 * float(np.max(np.abs(other), initial=1.0)))


def online(step: Step, rule: Any, params: Any, state: Any, xs: Any, **options: Any) -> Any:
    learner = ft.compile(step, rule, xs[0], params=params, state=state, **options)
    return jax.jit(lambda params: learner.grad(params, learner.init(state), xs, loss=squared)[0])(params)


@pytest.mark.parametrize("name", MODELS)
def test_d_rtrl_is_exact(name: str) -> None:
    params, state, xs = values(name)
    agree(online(MODELS[name], "D_RTRL", params, state, xs, block=3), exact(MODELS[name], params, state, xs))


@pytest.mark.parametrize("name", MODELS)
def test_history_is_kept_and_the_loop_is_reported(name: str) -> None:
    params, state, xs = values(name)
    graph = ft.compile_etrace_graph(MODELS[name], xs[0], params=params, state=state)
    assert {parameter.history.value for parameter in graph.parameters} == {"all"}
    assert [group.num_state for group in graph.hidden_groups] == [len(state)]
    (record,) = [r for r in graph.diagnostics if r.kind is ft.DiagnosticKind.WHILE_FORWARD_MODE]
    assert record.level is ft.DiagnosticLevel.INFO
    assert {path[-1] for path in record.hidden_paths} == set(state)
    assert {path[-1] for path in record.context["weight_paths"]} == {"w", "decay"}


@pytest.mark.parametrize("name", ["relaxed", "adaptive", "mapped"])
def test_equals_the_oracle_and_bptt(name: str) -> None:
    params, state, xs = values(name)
    graph = ft.compile_etrace_graph(MODELS[name], xs[0], params=params, state=state)
    info = graph.module_info
    flat = (info.flatten_params(params), *info.flatten_state(state), [info.flatten_inputs(x) for x in xs])
    found = online_gradient(graph, ft.D_RTRL(), loss, *flat, block=3)
    agree(found, Oracle(graph, loss).gradient(*flat))
    agree(found, bptt(graph, loss, *flat))


def recurrent(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
    drive = x @ params["w"] + jnp.tanh(state["v"]) @ params["w_rec"]
    body = lambda v: v + 0.3 * (drive - params["decay"] * v)
    v = jax.lax.fori_loop(0, 1 + jnp.sum(jnp.abs(drive) > 0.5), lambda _, v: body(v), state["v"])
    return {"v": v}, v


def recurrent_values() -> tuple[Any, Any, Any]:
    params, state, xs = values("recurrent")
    more = {"w_rec": jnp.asarray(np.random.default_rng(1).normal(size=(UNITS, UNITS)) / 4)}
    return params | more, state, xs


def test_mixing_before_the_loop_is_cut_as_anywhere() -> None:
    params, state, xs = recurrent_values()
    graph = ft.compile_etrace_graph(recurrent, xs[0], params=params, state=state)
    assert {p.name: p.history.value for p in graph.parameters} == dict.fromkeys(params, "direct")
    info = graph.module_info
    flat = (info.flatten_params(params), *info.flatten_state(state), [info.flatten_inputs(x) for x in xs])
    agree(online_gradient(graph, ft.D_RTRL(), loss, *flat, block=3), Oracle(graph, loss).gradient(*flat))


@pytest.mark.parametrize(
    ("rule", "options"), [("RTRL", {}), ("BPTT", {}), ("SnAp", {"n": UNITS}), ("D_RTRL", {"window": STEPS})]
)
def test_exact_rules_are_exact(rule: str, options: dict[str, Any]) -> None:
    params, state, xs = recurrent_values()
    agree(online(recurrent, rule, params, state, xs, **options), exact(recurrent, params, state, xs))


DECAY = {"decay_or_rank": 0.9}


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        ("pp_prop", DECAY),
        ("EProp", {}),
        ("OSTLRecurrent", {}),
        ("OTTT", {"leak": 0.9}),
        ("Hybrid", DECAY),
        ("UORO", {}),
    ],
)
def test_other_rules_run(rule: str, options: dict[str, Any]) -> None:
    params, state, xs = recurrent_values()
    found = online(recurrent, rule, params, state, xs, **options)
    assert all(np.all(np.isfinite(leaf)) and np.any(leaf) for leaf in jax.tree.leaves(found))


def test_scalar_states() -> None:
    def step(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
        v = jax.lax.while_loop(lambda v: v**2 > 0.3, lambda v: params["a"] * v, state + params["b"] * x)
        return v, v

    params, xs = {"a": jnp.asarray(0.8), "b": jnp.asarray(0.5)}, jnp.linspace(0.5, 3.0, STEPS)
    agree(online(step, "D_RTRL", params, jnp.asarray(0.7), xs), exact(step, params, jnp.asarray(0.7), xs))


def test_under_vmap_each_sample_has_its_own_gradient() -> None:
    params, state, xs = values("relaxed")
    learner = ft.compile(relaxed, "D_RTRL", xs[0], params=params, state=state)
    gradient = lambda xs: learner.grad(params, learner.init(state), xs, loss=squared)[0]
    several = jnp.stack([xs, 2.0 * xs, -xs])
    found = jax.jit(jax.vmap(gradient))(several)
    for k, one in enumerate(several):
        agree(jax.tree.map(lambda leaf, k=k: leaf[k], found), exact(relaxed, params, state, one))


def test_a_second_derivative_in_forward_mode() -> None:
    params, state, xs = values("relaxed")
    learner = ft.compile(relaxed, "BPTT", xs[0], params=params, state=state)

    def gradient(decay: Any) -> Any:
        found, _, _ = learner.grad({**params, "decay": decay}, learner.init(state), xs[:3], loss=squared)
        return found["decay"]

    found = jax.jit(jax.jacfwd(gradient))(params["decay"])
    exactly = lambda decay: exact(relaxed, {**params, "decay": decay}, state, xs[:3])["decay"]
    agree(found, jax.jacfwd(exactly)(params["decay"]))


class Settling(brainstate.nn.Module):
    """A module whose loop lets a potential follow its input for a time that the input says."""

    def __init__(self) -> None:
        super().__init__()
        self.w = brainstate.ParamState(jnp.linspace(-1.0, 1.0, INPUTS * UNITS).reshape(INPUTS, UNITS))

    def init_state(self, batch_size: int | None = None, **_: Any) -> None:
        self.v = brainstate.HiddenState(jnp.zeros((UNITS,) if batch_size is None else (batch_size, UNITS)))

    def update(self, x: Any) -> Any:
        drive = x @ self.w.value

        def body(carry: Any) -> Any:
            v, time = carry
            return v + 0.3 * (drive - v) * jnp.exp(-time), time + 0.5

        self.v.value, _ = jax.lax.while_loop(lambda c: c[1] < 2.0 + jnp.sum(x > 0), body, (self.v.value, 0.0))
        return self.v.value


def settled(w: Any, xs: Any) -> Any:
    """The summed losses by the module alone."""
    module = Settling()
    module.init_state(*xs.shape[1:-1])
    module.w.value = w
    return sum(squared(module(x)) for x in xs)


def test_a_module_mapped_over_a_batch() -> None:
    xs = values("mapped")[2]
    learner = ft.compile(Settling(), "D_RTRL", xs[0], batch_size=BATCH, vmap=True)
    (found,) = learner.etrace_grad(
        xs, step_fn=lambda x: jnp.sum(jax.vmap(squared)(learner(x))), reduction="sum"
    ).values()
    each = [jax.jacfwd(settled)(Settling().w.value, xs[:, k]) for k in range(BATCH)]
    agree(found, sum(each))


def test_derivatives_by_the_inputs_of_a_module() -> None:
    xs = jnp.asarray(np.random.default_rng(0).normal(size=(BATCH, INPUTS)))
    learner = ft.compile(Settling(), "D_RTRL", xs, batch_size=BATCH)
    found = brainstate.transform.jit(brainstate.transform.grad(lambda x: squared(learner(x)), argnums=0))(xs)
    agree(found, jax.jacfwd(lambda x: settled(Settling().w.value, x[None]))(xs))


@pytest.mark.parametrize("dtype", [jnp.complex128, jnp.float32])
def test_derivatives_keep_their_dtype(dtype: Any) -> None:
    def step(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
        body = lambda _, h: params["a"] * jnp.conj(h) + jnp.sin(h) * x.astype(dtype)
        h = jax.lax.fori_loop(0, 1 + jnp.sum(x > 0.2), body, state + 1.0)
        return h, jnp.abs(h) ** 2

    params = {"a": jnp.asarray([0.5, 0.3], dtype)}
    xs = jnp.asarray(np.random.default_rng(0).uniform(0.1, 0.3, size=(STEPS, 2)))
    state = jnp.asarray([0.4, -0.2], dtype) * (1.0 + 0.5j if dtype == jnp.complex128 else 1.0)
    found = online(step, "BPTT", params, state, xs)["a"]
    assert found.dtype == dtype

    def total(parts: Any) -> Any:
        value = parts[0] + 1j * parts[1] if dtype == jnp.complex128 else parts[0]
        one = lambda state, x: (lambda new: (new[0], squared(new[1])))(step({"a": value.astype(dtype)}, state, x))
        return jnp.sum(jax.lax.scan(one, state, xs)[1])

    by_real, by_imaginary = jax.jacfwd(total)(jnp.stack([params["a"].real, params["a"].imag]))
    expected = by_real - 1j * by_imaginary if dtype == jnp.complex128 else by_real  # JAX's convention
    np.testing.assert_allclose(found, expected, rtol=1e-10 if dtype == jnp.complex128 else 1e-5)


def mixing(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
    body = lambda v: 0.5 * v + 0.1 * jnp.tanh(v) @ params["w_rec"]
    v = jax.lax.while_loop(lambda v: jnp.sum(v**2) > 1.0, body, state["v"] + x @ params["w"])
    return {"v": v}, v


def test_a_body_that_mixes_is_refused_by_name() -> None:
    params, state, xs = recurrent_values()
    with pytest.raises(ft.ControlFlowError, match=r"`w`.*`v`.*mixes positions \(`dot_general`\)"):
        ft.compile(mixing, "D_RTRL", xs[0], params=params, state=state)


@pytest.mark.parametrize("step", [mixing, recurrent])
def test_a_loop_can_be_held_constant(step: Step) -> None:
    params, state, xs = recurrent_values()
    policy = ft.ControlFlowPolicy(while_hidden="hold")
    found = online(step, "D_RTRL", params, state, xs, control_flow=policy)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(found))
