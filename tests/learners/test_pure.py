"""One contract: the pure learner behind a module gives what its holder gives, and no caller asks which kind it has."""

import re
from pathlib import Path
from typing import Any

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import foretrace as ft
from learners.nets import BATCH, INPUT, XS, YS, make, squared

PACKAGE = Path(ft.__file__).parent


def close(found: Any, expected: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), found, expected)


def test_gradient_is_that_of_the_holder() -> None:
    net, learner = make()
    params, carry = learner.params, learner.carry
    grads, after, losses = learner.pure.grad(params, carry, XS, YS, loss=squared)
    assert net.h.value is carry.state[("h",)]  # nothing moved
    step_fn = lambda x, y: squared(learner(x), y)
    expected = learner.etrace_grad(XS, YS, step_fn=step_fn, reduction="sum", return_value=True)
    close((grads, losses), (dict(expected[0]), expected[1]))
    close((after.state[("h",)], after.trace), (net.h.value, learner.etrace.value))


def test_what_is_put_back_is_held() -> None:
    net, learner = make()
    params = jax.tree.map(lambda p: 2.0 * p, learner.params)
    carry, _ = learner.pure.evolve(params, learner.carry, XS)
    learner.put(params, carry)
    close((learner.params, learner.carry), (params, carry))
    assert net.h.value is carry.state[("h",)]


def test_run_is_the_model_itself() -> None:
    net, learner = make()
    state, outputs = learner.pure.run(learner.params, learner.carry, XS)
    expected = jnp.stack([net(x) for x in XS])
    close((state[("h",)], outputs), (net.h.value, expected))


@pytest.mark.parametrize("kind", ["function", "module"])
def test_bptt_is_a_rule(kind: str) -> None:
    _, learner = make(rule=ft.BPTT())
    pure: ft.Learner = learner.pure
    if kind == "function":
        pure = ft.compile(pure.model.step, "BPTT", XS[0], params=learner.params, state=learner.carry.state)

    def total(params: Any) -> Any:
        _, outputs = jax.lax.scan(lambda s, x: pure.model.step(params, s, x), learner.carry.state, XS)
        return jnp.sum(jax.vmap(squared)(outputs, YS))

    found, _, _ = pure.grad(learner.params, pure.init(learner.carry.state), XS, YS, loss=squared)
    close(found, jax.grad(total)(learner.params))


def test_bptt_in_windows_is_truncated() -> None:
    _, learner = make(rule=ft.BPTT())
    whole = learner.pure.grad(learner.params, learner.carry, XS, YS, loss=squared)[0]
    parts, carry = [], learner.carry
    for start in range(0, len(XS), 2):
        piece = slice(start, start + 2)
        grads, carry, _ = learner.pure.grad(learner.params, carry, XS[piece], YS[piece], loss=squared)
        parts.append(grads)
    total = jax.tree.map(lambda *a: sum(a), *parts)
    step_fn = lambda x, y: squared(learner(x), y)
    close(dict(learner.etrace_grad(XS, YS, step_fn=step_fn, reduction="sum", chunk_size=2)), total)
    assert not np.allclose(total[("u",)], whole[("u",)])


def test_the_holders_own_bptt_goes_through_the_whole_sequence() -> None:
    _, learner = make(rule=ft.BPTT())
    whole = learner.pure.grad(learner.params, learner.carry, XS, YS, loss=squared)[0]
    step_fn = lambda x, y: squared(learner(x), y)
    close(dict(learner.etrace_grad(XS, YS, step_fn=step_fn, reduction="sum")), whole)


def test_a_parameter_that_the_step_does_not_use_has_a_gradient_of_zero() -> None:
    class Idle(brainstate.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = brainstate.ParamState(jnp.ones((INPUT, 2)))
            self.idle = brainstate.ParamState(jnp.ones(3))

        def init_state(self, batch_size: int) -> None:
            self.h = brainstate.HiddenState(jnp.zeros((batch_size, 2)))

        def update(self, x: Any) -> Any:
            self.h.value = 0.5 * self.h.value + x @ self.used.value
            return self.h.value

    learner = ft.compile(Idle(), "D_RTRL", XS[0], batch_size=BATCH)
    grads, _, _ = learner.pure.grad(learner.params, learner.carry, XS, loss=lambda out: jnp.sum(out**2))
    assert not np.any(grads[("idle",)])
    assert np.any(grads[("used",)])


def test_nobody_asks_for_the_kind_of_a_learner() -> None:
    asked = re.compile(r"isinstance\([^()]*\b(Learner|ETraceAlgorithm|ETraceVmap|ETraceVjpAlgorithm)\b")
    found = [
        f"{path.relative_to(PACKAGE)}: {line.strip()}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.parent.name != "frontends"
        for line in path.read_text().splitlines()
        if asked.search(line)
    ]
    assert found == []
