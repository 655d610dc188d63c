"""The running gradient, and the training of DNI's synthesiser through a learner."""

from typing import Any

import brainstate
import brainunit as u
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft

STEPS, UNITS = 30, 3
_random = np.random.default_rng(2)
_turn, _ = np.linalg.qr(_random.normal(size=(UNITS, UNITS)))
U = jnp.asarray(0.8 * _turn)
XS = jnp.asarray(_random.normal(size=(STEPS, UNITS)))
PARAMS = {"w": jnp.eye(UNITS), "u": U}


def test_running_gradient_forgets_by_its_decay() -> None:
    running = ft.GradExpon({"w": jnp.zeros(2), "b": jnp.zeros(())}, 0.5)
    for k in (1.0, 2.0, 3.0):
        running({"w": jnp.asarray([k, -k]), "b": jnp.asarray(1.0)})
    found = running.gradients.value
    np.testing.assert_allclose(found["w"], [4.25, -4.25])
    np.testing.assert_allclose(found["b"], 1.75)
    brainstate.nn.init_all_states(running)
    np.testing.assert_allclose(running.gradients.value["w"], 0.0)


def test_running_gradient_takes_a_time_constant() -> None:
    with brainstate.environ.context(dt=0.5 * u.ms):
        running = ft.GradExpon(jnp.zeros(2), 10.0 * u.ms)
    np.testing.assert_allclose(running.decay, np.exp(-0.05), rtol=1e-6)
    running(jnp.ones(2))
    np.testing.assert_allclose(running(jnp.ones(2)), 1 + np.exp(-0.05), rtol=1e-6)


def test_running_gradient_runs_in_loops() -> None:
    running = ft.GradExpon({"w": (2,)}, 0.9)
    brainstate.transform.for_loop(lambda x: running({"w": x}), jnp.ones((4, 2)))
    np.testing.assert_allclose(running.gradients.value["w"], sum(0.9**k for k in range(4)), rtol=1e-10)


@pytest.mark.parametrize("decay", [0.0, 1.0, -0.5, 10.0])
def test_a_decay_outside_of_its_range_is_refused(decay: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        ft.GradExpon(jnp.zeros(2), decay)


def test_a_time_constant_without_a_time_step_is_refused() -> None:
    with pytest.raises(ValueError, match=r"environ\.set"):
        ft.GradExpon(jnp.zeros(2), 10.0 * u.ms)


def step(params: Any, h: Any, x: Any) -> Any:
    h = x @ params["w"] + h @ params["u"]
    return h, h


class Net(brainstate.nn.Module):
    """A linear recurrent network, whose future gradient is a linear function of its state."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.u = (brainstate.ParamState(PARAMS[name]) for name in "wu")

    def init_state(self, batch_size: int | None = None, **_: Any) -> None:
        self.h = brainstate.HiddenState(jnp.zeros(UNITS if batch_size is None else (batch_size, UNITS)))

    def update(self, x: Any) -> Any:
        self.h.value, out = step({"w": self.w.value, "u": self.u.value}, self.h.value, x)
        return out


def half_square(out: Any) -> Any:
    return 0.5 * jnp.sum(out**2)


def future() -> np.ndarray:
    """What the losses after a step ask of its state when no more input comes, as a matrix on the state."""
    u = np.asarray(U)
    powers = [np.linalg.matrix_power(u, k) for k in range(1, 200)]
    return sum(power @ power.T for power in powers)


@pytest.mark.parametrize("chunk_size", [1, 4])
def test_module_learns_the_future(chunk_size: int) -> None:
    net = Net()
    learner = ft.compile(net, "DNI", XS[:4], batch_size=4, synthesizer=ft.SyntheticGradient())
    net.h.value = 3.0 * XS[:4]
    before = jax.tree.map(np.asarray, [net.w.value, net.u.value, net.h.value])
    # Without input the future is exactly linear in the state, and the fit finds it.
    quiet = jnp.zeros((STEPS, 4, UNITS))
    options = dict(chunk_size=chunk_size, loss_fn=half_square, lr=0.1, epochs=1500, reset=False)
    errors = ft.train_synthetic_gradient(learner, quiet, **options)
    assert len(errors) == 1500
    assert errors[-1] < 1e-6 * errors[0]
    jax.tree.map(np.testing.assert_array_equal, [net.w.value, net.u.value, net.h.value], before)
    trained = learner.etrace.value.synthesizer["group_0"]["weight"]
    np.testing.assert_allclose(trained, future(), atol=1e-2)
    learner.reset_state()
    np.testing.assert_array_equal(learner.etrace.value.synthesizer["group_0"]["weight"], trained)


def exact_learner(**options: Any) -> tuple[Net, Any]:
    exact = {"group_0": {"weight": jnp.asarray(future()), "bias": jnp.zeros(UNITS)}}
    net = Net()
    return net, ft.compile(net, "DNI", XS[0], synthesizer=ft.SyntheticGradient(params=exact), **options)


def test_windows_end_with_the_synthetic_gradient() -> None:
    """With the true future, any window gives the gradient of a sequence that runs on without input."""
    inputs = jnp.concatenate([XS[:4], jnp.zeros((200, UNITS))])
    net, learner = exact_learner()
    exact = ft.compile(Net(), "RTRL", XS[0])
    run = lambda one, xs, **options: one.etrace_grad(
        xs, step_fn=lambda x: half_square(one(x)), reduction="sum", **options
    )
    wanted = run(exact, inputs)
    # Only the first steps have input, so that their window has all of the gradient of `w`.
    last = run(learner, inputs[:4], chunk_size=4)
    np.testing.assert_allclose(last[("w",)], wanted[("w",)], rtol=1e-8)
    brainstate.nn.init_all_states(net)
    windows = run(learner, inputs[:200], chunk_size=50)
    np.testing.assert_allclose(windows[("u",)], wanted[("u",)], rtol=1e-8)
    _, called = exact_learner(vjp_method="multi-step")
    total = lambda: jnp.sum(jax.vmap(half_square)(called(ft.MultiStepData(inputs[:4]))))
    found = brainstate.transform.grad(total, called.param_states)()
    np.testing.assert_allclose(found[("w",)], wanted[("w",)], rtol=1e-8)


def test_function_gives_a_new_learner() -> None:
    state = 3.0 * XS[0]
    learner = ft.compile(step, "dni", XS[0], params=PARAMS, state=state, synthesizer=ft.SyntheticGradient())
    trained, errors = ft.train_synthetic_gradient(
        learner, jnp.zeros_like(XS), loss_fn=half_square, lr=0.05, epochs=200, params=PARAMS, state=state
    )
    assert errors[-1] < 0.1 * errors[0]
    start = trained.init(state).trace.synthesizer["group_0"]["weight"]
    assert float(jnp.max(jnp.abs(start))) > 0.1
    assert float(jnp.max(jnp.abs(learner.init(state).trace.synthesizer["group_0"]["weight"]))) == 0.0


def test_targets_reach_to_the_end_of_their_window() -> None:
    """An untrained synthesiser predicts nothing, so that its error is the size of the targets."""
    length, chunk_size, state = 6, 4, 3.0 * XS[0]
    learner = ft.compile(step, "dni", XS[0], params=PARAMS, state=state, synthesizer=ft.SyntheticGradient())
    _, errors = ft.train_synthetic_gradient(
        learner, XS[:length], chunk_size=chunk_size, loss_fn=half_square, params=PARAMS, state=state
    )

    def losses_of_window(h: Any, start: int) -> Any:
        end = min((start // chunk_size + 1) * chunk_size, length)
        return jnp.sum(
            jax.vmap(half_square)(jax.lax.scan(lambda h, x: step(PARAMS, h, x), h, XS[start:end])[1]),
        )

    wanted, h = 0.0, state
    for k in range(length):
        wanted += 0.5 * np.sum(jax.grad(losses_of_window)(h, k) ** 2) / length
        h, _ = step(PARAMS, h, XS[k])
    np.testing.assert_allclose(errors[0], wanted, rtol=1e-10)


def test_states_are_made_anew_for_their_batch_or_taken_as_they_are() -> None:
    net = Net()
    learner = ft.compile(net, "DNI", XS[:2], batch_size=2, synthesizer=ft.SyntheticGradient())
    learner(XS[:2])
    moved = np.asarray(net.h.value)
    batched = jnp.stack([XS, -XS], axis=1)
    ft.train_synthetic_gradient(learner, batched, reset=False)
    np.testing.assert_array_equal(net.h.value, moved)
    ft.train_synthetic_gradient(learner, batched)
    np.testing.assert_array_equal(net.h.value, np.zeros((2, UNITS)))


def test_only_a_synthesiser_can_be_trained() -> None:
    with pytest.raises(TypeError, match="Only a DNI learner"):
        ft.train_synthetic_gradient(ft.compile(Net(), "D_RTRL", XS[0]), XS)
    with pytest.raises(TypeError, match="no synthesiser"):
        ft.train_synthetic_gradient(ft.compile(Net(), "DNI", XS[0]), XS)
    learner = ft.compile(Net(), "DNI", XS[0], synthesizer=ft.SyntheticGradient())
    with pytest.raises(ValueError, match="`chunk_size` is a number of steps"):
        ft.train_synthetic_gradient(learner, XS, chunk_size=0)
